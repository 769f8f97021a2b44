"""A finished run, and what distinguishes its setting from others."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dpfest.selection.topk import EQUAL
from pipelines.runs.cards import Card, without_nulls
from pipelines.runs.identity import WRITING
from pipelines.runs.release import CONFIG, LEDGER
from pipelines.system.plain import visible
from reports.checked import (
    json_file,
    settings_file,
)  # fmt: skip

INCIDENTAL = frozenset({"noise", "split", "calibrate", *WRITING})
"""Hyper-parameters that distinguish no settings: they do not affect the law of what a run computes (`noise`: dense or
lazy; `calibrate`), or `Run.rule` states them (`split`)."""


class Losses(NamedTuple):
    """Mean log losses on the test split, None where a run does not tell: of the model's own probabilities, of those
    after Platt scaling on the validation split, and of the best constant."""

    own: float | None = None
    calibrated: float | None = None
    constant: float | None = None


@dataclass(frozen=True)
class TableGradient:
    """One embedding table: rows, dimension, and mean number of rows per step with a non-zero noised gradient."""

    name: str
    rows: int
    dimension: int
    rows_mean: float


@dataclass(frozen=True)
class Timings:
    """Seconds in training steps and in evaluations, and number of examples evaluated; the last two are None for runs of
    earlier versions."""

    training: float
    evaluation: float | None = None
    evaluated: float | None = None


@dataclass(frozen=True)
class Run:
    """One finished run, read from its folder or its card (then `path` is the file of cards).

    `id` is a digest of the released settings and summary, equal for a run and its card. `coordinates` is the mean
    number of non-zero coordinates of the noised embedding gradient per step, out of `parameters`. `target_epsilon` is
    the configured ε (runs are compared at equal target), `epsilon` the ε spent; both are None without privacy.
    """

    path: Path
    id: str
    dataset: str
    model: str
    algorithm: str
    seed: int
    profile: str
    examples: int
    batch_size: int
    steps: int
    metric: str
    test: float
    validation: float
    test_error: float | None
    validation_error: float | None
    losses: Losses
    reliability: tuple[tuple[float, ...], ...]  # by tenths of the scores: rows, share of labels 1, mean probabilities
    scale: float | None  # of the scores, fitted by Platt scaling
    parameters: int
    coordinates: float
    tables: tuple[TableGradient, ...]
    target_epsilon: float | None
    epsilon: float | None
    delta: float | None
    fidelity: str
    sampling: str
    noise_multiplier: float | None
    map_noise_multiplier: float | None
    noise_by_period: tuple[tuple[int, float], ...]  # steps, and noise multiplier of the gradient
    hyperparameters: Mapping[str, Any] = field(compare=False, hash=False)
    # Fingerprint of the data and model sections: runs on different data or models are never pooled.
    material: str = ""
    data: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False)  # its section of the settings
    source: str | None = None  # data.path, where the data have one
    weights: str | None = None  # model.path, where the model has one
    period: int | None = None  # days of a streaming period; None if the data are no stream
    unit: str | None = None  # unit of privacy, in runs that compare units; None in all others, whose unit is an example
    timings: Timings | None = field(default=None, compare=False)  # private
    search: Mapping[str, Any] | None = field(default=None, compare=False, hash=False)  # the private search it won
    card: Card | None = field(default=None, compare=False, repr=False)

    @property
    def reduction(self) -> float:
        """Embedding parameters over mean non-zero coordinates; infinite if no coordinate is updated."""
        return self.parameters / self.coordinates if self.coordinates > 0 else math.inf

    @property
    def rule(self) -> str:
        """The algorithm; `fest_equal` or `adafest_plus_equal` where rows are selected as in the paper, as many of every
        table, which of a single table is the same as the k most frequent of all; `..._banded` of correlated noise."""
        settings = self.hyperparameters.get("algorithm") or {}
        selection = settings.get("selection")
        equal = selection is not None and (selection.get("split") in (None, EQUAL) or len(self.tables) == 1)
        return self.algorithm + "_equal" * equal + "_banded" * (settings.get("bands") is not None)

    @property
    def anchor(self) -> str:
        """The run's id in the page."""
        return f"run-{self.id}"

    @property
    def place(self) -> str:
        """The run's location, in words."""
        name = "/".join(self.path.parts[-3:]) if self.card is None else f"{self.path.name}, line {self.card.line}"
        return visible(name)

    @property
    def made(self) -> str:
        """The run's origin, according to its card; empty for a folder."""
        if self.card is None:
            return ""
        maker = self.card.maker
        return visible(f"{maker.command} (dpfest {maker.dpfest}{f', commit {maker.commit}' if maker.commit else ''})")

    def released(self, name: str) -> Mapping[str, Any] | None:
        """Return the content of `config.yaml` or `ledger.json` of the release; None if it is missing."""
        if self.card is not None:
            return {CONFIG: self.card.config, LEDGER: self.card.ledger}[name]
        path = self.path / "release" / name
        if not path.exists():
            return None
        return settings_file(path) if name == CONFIG else json_file(path)


def setting_key(run: Run) -> str:
    """Return the key of a run's setting: everything but the seed."""
    rest = [run.rule, run.sampling, run.target_epsilon, run.delta, run.batch_size, run.steps]
    return json.dumps([distinctive(run), rest], sort_keys=True, default=str)


def distinctive(run: Run) -> dict[str, Any]:
    """Return a copy of the hyper-parameters that distinguish settings; a run without any is distinguished by its id."""
    return without_nulls(essential(run.hyperparameters)) or {"run": run.id}


def essential(value: Any) -> Any:
    """Return hyper-parameters without those that never distinguish two settings."""
    if isinstance(value, Mapping):
        return {key: essential(item) for key, item in value.items() if key not in INCIDENTAL}
    return value
