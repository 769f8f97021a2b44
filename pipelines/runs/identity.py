"""The run hash, over exactly the settings that can change the result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from dpfest.planning.fidelity import FIDELITIES
from dpfest.planning.ledger import EXAMPLE
from dpfest.planning.other_samplers import CyclicPoisson
from dpfest.selection.topk import EQUAL, SelectionConfig
from pipelines.config.settings import TOKENIZER_PRIOR, Config
from pipelines.data.clicks.vocabulary import OF_NOISED_COUNTS
from pipelines.data.identity import data_hash
from pipelines.system.code import without_folder
from pipelines.system.hub import pinned

Settings = Mapping[str, Any]

WRITING = ("micro_batch_size", "evaluate_every", "checkpoint_every", "log_every", "save_model")
"""Settings of `train` that only determine when something is written, or how a logical batch is cut to fit in memory
(which changes sums by rounding only)."""


def _always(value: Any, run: Settings) -> bool:
    return True


def _unset(value: Any, run: Settings) -> bool:
    return value is None


def _usual_sampling(value: Any, run: Settings) -> bool:
    """The sampling that the fidelity, or correlated noise, has where none is named."""
    fidelity = FIDELITIES.get(run["privacy"].get("fidelity", ""))  # none in the card of another version, perhaps
    banded = run["algorithm"].get("bands") is not None
    return value in (None, fidelity and fidelity.samplings[0], CyclicPoisson.name if banded else None)


def _public_values(value: Any, run: Settings) -> bool:
    return run["data"]["vocabulary"]["policy"] != "private"


# The settings that a run's identity leaves out, and when: where they change no result, or are as they always were
# before they could be set, so that a run of an earlier version keeps its name.
LEFT_OUT: dict[str, Callable[[Any, Settings], bool]] = {
    **{f"train.{name}": _always for name in WRITING},
    # An evaluation draws the pending noise of lazy rows.
    "train.evaluate_every": lambda value, run: run["algorithm"].get("noise") != "lazy",
    "train.calibrate": lambda value, run: value == "platt",
    "privacy.sampling": _usual_sampling,
    "privacy.max_batch_size": _unset,
    "privacy.cipher": _unset,
    "privacy.unit": lambda value, run: value == EXAMPLE,
    "optimizer.schedule": _unset,
    "optimizer.average": _unset,
    "algorithm.bands": _unset,
    # The default of a stream; a public prior counts nothing.
    "algorithm.selection.source": lambda value, run: (
        value in (None, "streaming") or run["algorithm"]["selection"].get("prior") is not None
    ),
    **{f"data.vocabulary.{name}": _public_values for name in OF_NOISED_COUNTS},
    "algorithm.selection.split": lambda value, run: value in (None, EQUAL),
}


def run_hash(config: Config, number: int | None = None, data: str | None = None) -> str:
    """Twelve hexadecimal digits that name a run by everything that can change its result.

    Excluded are paths, hub, device, log, profile, experiment, budget, audit, check, bench, sweep and preprocess; the
    settings of :data:`LEFT_OUT`; and `unit`, `search`, `ranks` and `stream` of runs without them. Data are represented
    by `pipelines.data.identity.data_hash` and a model by its `identity`, so source files and weights may be moved. Code
    of the user's own is represented by its checksum.

    Args:
        config: the settings.
        number: of the run within a private search; None for any other run.
        data: hash of the data where it is known; None to compute it.
    """
    sections = ("algorithm", "privacy", "optimizer", "train")
    settings = with_effect({name: dataclasses.asdict(getattr(config, name)) for name in sections}) | {
        "data": data or data_hash(config.data),
        "seed": config.seed,
        "model": config.model.identity(),
    }
    if "target" in settings["algorithm"]:
        settings["algorithm"]["target"] = without_folder(settings["algorithm"]["target"])
    if config.algorithm.selection is not None:
        settings["selection"] = selection_settings(config.algorithm.selection)
        settings["algorithm"].pop("selection")
    # Sections that matter to some runs alone. Within a search, the same setting drawn again is another run, with noise
    # of its own; over ranks there are other draws, and sums in another order, not how many ranks.
    for name, matters in (
        ("unit", config.unit_matters),
        ("search", config.search.asked),
        ("ranks", config.over_ranks),
        ("stream", config.data.is_stream),
    ):
        if matters:
            settings[name] = dataclasses.asdict(getattr(config, name))
    if config.search.asked:
        settings["search"]["run"] = number
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def with_effect(settings: Settings) -> dict[str, Any]:
    """Return a run's settings without those of :data:`LEFT_OUT`."""
    kept = _copied(settings) | {name: _copied(settings.get(name) or {}) for name in ("algorithm", "privacy", "train")}
    for name, silent in LEFT_OUT.items():
        *sections, key = name.split(".")
        place = kept
        for section in sections:
            inner = place.get(section)
            place = inner if isinstance(inner, dict) else {}  # another in a malformed card
        if key in place and silent(place[key], kept):
            del place[key]
    return kept


def _copied(settings: Settings) -> dict[str, Any]:
    return {name: _copied(value) if isinstance(value, Mapping) else value for name, value in settings.items()}


def selection_settings(selection: SelectionConfig) -> dict[str, Any]:
    """Return what determines a selection: its settings, and the content of a public prior, wherever it is.

    Raises:
        UserError: the prior cannot be read.
    """
    settings = with_effect({"algorithm": {"selection": dataclasses.asdict(selection)}})["algorithm"]["selection"]
    if selection.prior is not None and selection.prior != TOKENIZER_PRIOR:
        try:
            settings["prior"] = hashlib.sha256(Path(selection.prior).read_bytes()).hexdigest()
        except OSError as error:
            raise UserError(
                f"algorithm.selection.prior={selection.prior} cannot be read ({error.strerror})."
            ) from error
    return settings


def weights_digest(model: Mapping[str, Any]) -> str | None:
    """Return eight hexadecimal digits over the pretrained weights in a model's `identity`; None for random ones."""
    files = model.get("path")
    return None if files is None else hashlib.sha256(json.dumps(files).encode()).hexdigest()[:8]


def settings_of(config: Config) -> dict[str, Any]:
    """Return all settings as plain values, with repositories of the hub pinned to their commit."""
    data, model = dataclasses.asdict(config.data), dataclasses.asdict(config.model)
    return config.to_dict() | {"data": pinned(data, "dataset"), "model": pinned(model, "model")}


def run_folder(config: Config, number: int | None = None, data: str | None = None) -> Path:
    """Return the folder of a run, `<paths.runs>/<dataset>/<algorithm>/<hash>`; see :func:`run_hash`."""
    return Path(config.paths.runs) / config.data.name / config.algorithm.name / run_hash(config, number, data)
