"""The run hash, over exactly the settings that can change the result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from dpfest.planning.fidelity import FIDELITIES
from dpfest.planning.ledger import EXAMPLE
from dpfest.planning.other_samplers import CyclicPoisson
from dpfest.selection.topk import EQUAL, SelectionConfig
from pipelines.config.settings import TOKENIZER_PRIOR, Config
from pipelines.data.identity import data_hash
from pipelines.system.code import without_folder
from pipelines.system.hub import pinned

# Settings of `train` that change no result: they only determine when something is written, or how a logical batch is
# cut to fit in memory (which changes sums by rounding only).
WITHOUT_EFFECT = ("micro_batch_size", "evaluate_every", "checkpoint_every", "log_every", "save_model")


def run_hash(config: Config, number: int | None = None, data: str | None = None) -> str:
    """Twelve hexadecimal digits that name a run by everything that can change its result.

    Excluded are paths, hub, device, log, profile, experiment, budget, audit, check, bench, sweep and preprocess;
    `search` without one, `ranks` for training in one process, and `unit` where it is as by default and without effect;
    of `train`, the settings that only determine when something is written, and micro_batch_size, which affects rounding
    only (under lazy noise evaluate_every is included: an evaluation draws the pending noise); and `stream` for other
    data. Data are represented by `pipelines.data.identity.data_hash` and a model by its `identity`, so source files and
    weights may be moved. Code of the user's own is represented by its checksum.

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
    for name in ("schedule", "average"):
        if getattr(config.optimizer, name) is None:
            del settings["optimizer"][name]  # as before there was one
    if config.privacy.unit == EXAMPLE:
        del settings["privacy"]["unit"]  # as before there were others
    if config.unit_matters:
        settings["unit"] = dataclasses.asdict(config.unit)
    if "target" in settings["algorithm"]:
        settings["algorithm"]["target"] = without_folder(settings["algorithm"]["target"])
    if config.algorithm.selection is not None:
        settings["selection"] = selection_settings(config.algorithm.selection)
        settings["algorithm"].pop("selection")
    if config.search.asked:  # within a search, the same setting drawn again is another run, with noise of its own
        settings["search"] = dataclasses.asdict(config.search) | {"run": number}
    if config.over_ranks:  # other draws, and sums in another order; not how many ranks
        settings["ranks"] = dataclasses.asdict(config.ranks)
    if config.data.is_stream:
        settings["stream"] = dataclasses.asdict(config.stream)
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def with_effect(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's settings without those of `train`, `privacy` and the selection that cannot change its result, or
    that are as by default: a run of an earlier version lacks these, and keeps its name.

    Under lazy noise train.evaluate_every is kept: an evaluation draws the pending noise.
    """
    algorithm, privacy, train = (dict(settings.get(name) or {}) for name in ("algorithm", "privacy", "train"))
    for name in WITHOUT_EFFECT:
        if not (algorithm.get("noise") == "lazy" and name == "evaluate_every"):
            train.pop(name, None)
    fidelity = FIDELITIES.get(privacy.get("fidelity", ""))  # none in the card of another version, perhaps
    defaults = {"sampling": fidelity and fidelity.samplings[0], "max_batch_size": None, "cipher": None}
    for name, default in defaults.items():
        if privacy.get(name) in (None, default):
            privacy.pop(name, None)
    if train.get("calibrate") == "platt":
        train.pop("calibrate")
    if algorithm.get("bands") is None:
        algorithm.pop("bands", None)  # as before there were any
    elif privacy.get("sampling") == CyclicPoisson.name:
        privacy.pop("sampling")
    if algorithm.get("selection") is not None:
        algorithm["selection"] = _selection_with_effect(algorithm["selection"])
    return {**settings, "algorithm": algorithm, "privacy": privacy, "train": train}


def _selection_with_effect(selection: Mapping[str, Any]) -> dict[str, Any]:
    """Return a selection without its source, if that is unset, the default of a stream, or without effect because of a
    public prior; and without its split, if that is equal, as it always was in earlier versions."""
    has_effect = selection.get("source") not in (None, "streaming") and selection.get("prior") is None
    without = [*(["source"] if not has_effect else []), *(["split"] if selection.get("split") in (None, EQUAL) else [])]
    return {name: value for name, value in selection.items() if name not in without}


def selection_settings(selection: SelectionConfig) -> dict[str, Any]:
    """Return what determines a selection: its settings, and the content of a public prior, wherever it is.

    Raises:
        UserError: the prior cannot be read.
    """
    settings = _selection_with_effect(dataclasses.asdict(selection))
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
