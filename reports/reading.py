"""Read finished runs from their folders or from run cards; unusable ones are left out, with the reason.

A run is a folder `<runs>/<dataset>/<algorithm>/<hash>/` with `status.json`, `release/config.yaml` and
`release/summary.json`, or a line of a file of cards (`<runs>/*.jsonl`, `*.jsonl.xz`) with the same content. A run with
status `done` and a complete, finite summary becomes a `Run`; any other folder or line becomes a `Skipped`, which
reports list. From a folder's `private/`, if it exists, two things are read: the paths of data and weights, for printed
commands, and the run's times, which only `dpfest report --list` shows.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.runs.agreement import refuse_disagreement
from pipelines.runs.cards import Card, card_files, read_cards, without_nulls
from pipelines.runs.directory import DATA_HASH
from pipelines.runs.published import SUMMARY_SCHEMA
from pipelines.runs.release import PRIVATE, WEIGHTS, run_folders
from pipelines.system.checksum import check_sums
from pipelines.system.memory import uncollected
from pipelines.system.plain import visible
from reports.checked import (
    Unusable,
    count,
    finite,
    json_file,
    optional,
    settings,
    settings_file,
    share,
    size,
)  # fmt: skip
from reports.runs import Losses, Run, TableGradient, Timings

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Skipped:
    """A run that was left out, and the reason."""

    path: str
    reason: str


def load_runs(root: Path, datasets: Collection[str] | None = None) -> tuple[list[Run], list[Skipped]]:
    """Return all usable runs under `root`, a folder or one file of cards, by dataset, algorithm and `id`, and the runs
    left out. Cards of other data than these, by default none, are passed over."""
    runs: dict[str, Run] = {}
    skipped: list[Skipped] = []

    def add(where: str, read: Callable[[], Run]) -> None:
        try:
            run = read()
        except Unusable as reason:
            skipped.append(Skipped(visible(where), visible(str(reason))))
            return
        if run.id in runs:
            skipped.append(Skipped(where, f"it is the same run as {runs[run.id].place}"))
        else:
            runs[run.id] = run

    with uncollected():
        for folder in run_folders(root):
            add(folder.relative_to(root).as_posix(), partial(read_run, folder))
        for file in [root] if root.is_file() else card_files(root):
            try:
                cards, damaged = read_cards(file)
            except OSError as error:
                skipped.append(Skipped(file.name, f"it cannot be read ({error.strerror})"))
                continue
            skipped += [Skipped(f"{file.name}, line {line.line}", f"it {line.reason}") for line in damaged]
            for card in cards:
                if datasets is None or card.summary.get("dataset") in datasets:
                    add(f"{file.name}, line {card.line}", partial(_of_card, file, card))
    return sorted(runs.values(), key=lambda run: (run.dataset, run.algorithm, run.id)), skipped


def of_cards(root: Path) -> bool:
    """Whether runs are read from cards."""
    return root.is_file() or bool(card_files(root))


def measured_in(runs: Path, report: Path) -> Path:
    """Return the folder with the results of `dpfest bench` and `dpfest audit`: the runs' folder if it contains them, as
    docs/reference does, else the report's."""
    return runs if any((runs / name).is_dir() for name in ("bench", "audit")) else report


def read_run(folder: Path) -> Run:
    """Read one run folder; raises `Unusable` with the reason if it is not done, complete and finite."""
    _require_done(folder)
    _refuse_damaged(folder / "release")
    summary = json_file(folder / "release" / "summary.json")
    config, private = settings_file(folder / "release" / "config.yaml"), folder / PRIVATE / "config.yaml"
    asked = settings_file(private) if os.access(private, os.R_OK) else {}  # it is missing, or its owner's alone
    run = _whole(folder, summary, config, asked)
    _of_one_run(config, json_file(folder / "release" / "ledger.json"), summary)
    if run.source is not None and (rows := _rows(folder / PRIVATE / DATA_HASH)):  # a file of one name may have changed
        run = replace(run, material=_digest([run.material, rows])[:8])
    return replace(run, timings=_timings(folder / PRIVATE / "timings.json"))


def _rows(file: Path) -> str | None:
    """Return the hash of what determines a run's rows; None if it is not there, or its owner's alone."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return None


def _refuse_damaged(release: Path) -> None:
    """Refuse files that are not those of the checksums beside them; the weights, which no report reads, apart."""
    try:
        check_sums(release, "Make the run again.", leave_out=[WEIGHTS])
    except (UserError, OSError) as error:
        raise Unusable(str(error)) from error


def _of_card(file: Path, card: Card) -> Run:
    run = _whole(file, card.summary, settings(card.config, "config.yaml"), {}, card)
    _of_one_run(card.config, card.ledger, card.summary)
    return run


def _of_one_run(config: Settings, ledger: Settings, summary: Settings) -> None:
    try:
        refuse_disagreement(config, ledger, summary)
    except UserError as error:
        raise Unusable(f"its parts are not of one run: {error}") from error


def _whole(path: Path, summary: Settings, config: Settings, asked: Settings, card: Card | None = None) -> Run:
    """Return the run if its summary is complete and finite."""
    try:
        return _run(path, summary, config, asked, card)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"has no key {error}" if isinstance(error, KeyError) else f"is malformed ({error})"
        raise Unusable(f"summary.json {what}") from error


def _run(path: Path, summary: Settings, config: Settings, asked: Settings, card: Card | None) -> Run:
    if summary.get("schema", SUMMARY_SCHEMA) != SUMMARY_SCHEMA:
        raise Unusable(f"summary.json has schema {summary['schema']}, and this version reads {SUMMARY_SCHEMA}")
    utility, gradient = summary["utility"], summary["embedding_gradient"]
    privacy = summary.get("privacy") or {}
    # A run without epsilon counts as non-private; one with an infinite epsilon must not.
    epsilon = None if privacy.get("epsilon") is None else finite(privacy["epsilon"], "privacy.epsilon")
    return Run(
        path=path,
        id=_digest([config, summary]),
        dataset=str(summary["dataset"]),
        model=str(summary["model"]),
        algorithm=str(summary["algorithm"]),
        seed=int(summary["seed"]),
        profile=_profile(summary, config),
        examples=count(summary["examples"], "examples"),
        batch_size=count(summary["batch_size"], "batch_size"),
        steps=count(summary["steps"], "steps"),
        metric=str(utility["metric"]),
        test=share(utility["value"], "utility.value"),
        validation=share(utility["validation"], "utility.validation"),
        test_error=optional(utility.get("standard_error")),
        validation_error=optional(utility.get("validation_standard_error")),
        reliability=tuple(
            tuple(finite(value, "utility.reliability") for value in tenth) for tenth in utility.get("reliability") or ()
        ),
        scale=optional((utility.get("calibration") or {}).get("scale")),
        losses=Losses(*(optional(utility.get(name)) for name in ("loss", "calibrated_loss", "constant_loss"))),
        parameters=count(gradient["parameters"], "embedding_gradient.parameters"),
        coordinates=size(gradient["coordinates_mean"], "embedding_gradient.coordinates_mean"),
        tables=tuple(
            TableGradient(
                str(t["name"]), count(t["rows"], "rows"), count(t["dim"], "dim"), size(t["rows_mean"], "rows_mean")
            )
            for t in gradient.get("tables") or ()
        ),
        target_epsilon=None if epsilon is None else _target(config) or epsilon,
        epsilon=epsilon,
        delta=optional(privacy.get("delta")),
        fidelity=str(privacy.get("fidelity") or ""),
        sampling=str(privacy.get("sampling") or ""),
        noise_multiplier=optional(privacy.get("gradient_noise_multiplier")),
        map_noise_multiplier=optional(privacy.get("map_noise_multiplier")),
        noise_by_period=tuple(
            (count(one["steps"], "steps"), finite(one["gradient_noise_multiplier"], "gradient_noise_multiplier"))
            for one in privacy.get("periods") or ([privacy | {"steps": summary["steps"]}] if privacy else ())
            if one.get("gradient_noise_multiplier") is not None
        ),
        search=privacy.get("search"),
        hyperparameters=_hyperparameters(summary, config),
        data=config.get("data") or {},
        source=_place(config, asked, "data"),
        weights=_place(config, asked, "model"),
        material=_material(config, summary.get("weights")),
        unit=_unit(config),
        period=(_hyperparameters(summary, config).get("stream") or {}).get("period"),
        card=card,
    )


def _target(config: Settings) -> float | None:
    """Return the configured ε; None if there is no finite one."""
    try:
        return optional((config.get("privacy") or {}).get("epsilon"))
    except (TypeError, ValueError) as error:
        raise Unusable(f"config.yaml is malformed (privacy.epsilon: {error})") from error


def _place(config: Settings, asked: Settings, section: str) -> str | None:
    """Return the path of data or weights: the full path if the run's private settings exist, else its last name."""
    return next((path for settings in (asked, config) if (path := (settings.get(section) or {}).get("path"))), None)


def _timings(file: Path) -> Timings | None:
    """Return a run's times; None if the file lacks them or is damaged, since no result depends on them."""
    names = ("wall_seconds", "evaluation_seconds", "evaluated_examples")
    try:
        found = json_file(file)
        training, evaluation, evaluated = (optional(found.get(name)) for name in names)
    except (Unusable, TypeError, ValueError):
        return None
    return None if training is None else Timings(training, evaluation, evaluated)


def _hyperparameters(summary: Settings, config: Settings) -> Settings:
    settings = summary.get("hyperparameters")
    if not isinstance(settings, Mapping):
        settings = {key: config[key] for key in ("algorithm", "optimizer", "train") if key in config}
    selection = (settings.get("algorithm") or {}).get("selection") or {}
    for name, section in {**settings, "selection": selection}.items():
        if section is not None and not isinstance(section, Mapping):
            raise Unusable(f"its settings of {name} are {section!r}, not settings by name")
    return settings


def _profile(summary: Settings, config: Settings) -> str:
    profile = summary.get("profile", config.get("profile"))
    return str((profile.get("name") if isinstance(profile, Mapping) else profile) or "")


def _material(config: Settings, weights: str | None) -> str:
    """Return a digest of what comparable runs share: data, with the seeds of their draw and of their split, and model;
    of files and of pretrained weights not where they lie."""
    value: dict[str, Any] = {name: dict(config.get(name) or {}) for name in ("data", "model")} | {"weights": weights}
    for section, name in (("data", "path"), ("data", "on_bad_row"), ("model", "path")):
        value[section].pop(name, None)
    if weights is not None:
        value["data"].pop("tokenizer", None)  # determined by the weights
    value |= {"unit": unit} if (unit := _unit(config)) else {}
    return _digest(without_nulls(value))[:8]


def _unit(config: Settings) -> str | None:
    """Return the unit of privacy of a run that records one."""
    if config.get("unit") is None:
        return None
    return str((config.get("privacy") or {}).get("unit") or "example").removesuffix("_id")


def _digest(value: Any) -> str:
    """Return twelve hexadecimal digits over a value's content, independent of order and format."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _require_done(folder: Path) -> None:
    if not (folder / "release").exists() and any((folder / name).exists() for name in ("config.yaml", "summary.json")):
        raise Unusable(
            "an earlier version of dpfest with another file layout made it: delete it, and give the same command again"
        )
    status = json_file(folder / "status.json")
    state = status.get("status", status.get("state"))
    if state != "done":
        why = status.get("reason") or status.get("error")
        why = f"{why}; its folder may be deleted" if why and state == "failed" else why
        raise Unusable(f"its status is {state}" + (f": {why}" if why else ""))
