"""A setting: one configuration at one ε, and its runs, which differ in the seed only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipelines.system.plain import flat
from reports.runs import Losses, Run, essential


@dataclass(frozen=True)
class Setting:
    """One configuration at one ε with all its runs, one per seed."""

    key: str
    runs: tuple[Run, ...]

    @cached_property
    def algorithm(self) -> str:
        return self.runs[0].rule

    @cached_property
    def variant(self) -> str:
        """The algorithm; if it selects rows in a stream, with the days that are counted (`fest/all_days`)."""
        selects = self.period is not None and self.parameter("selection") is not None
        return f"{self.algorithm}/{self.parameter('selection.source') or 'streaming'}" if selects else self.algorithm

    @property
    def period(self) -> int | None:
        """Days of a streaming period; None if the data are no stream."""
        return self.runs[0].period

    @property
    def epsilon(self) -> float | None:
        """Target ε; None without privacy."""
        return self.runs[0].target_epsilon

    @cached_property
    def by_seed(self) -> Mapping[int, Sequence[Run]]:
        """Its runs by their seeds."""
        runs: dict[int, list[Run]] = {}
        for run in self.runs:
            runs.setdefault(run.seed, []).append(run)
        return runs

    def over_seeds(self, value: Callable[[Run], float]) -> list[float]:
        """Return a value of each seed: the mean over its runs."""
        return [statistics.fmean(map(value, runs)) for runs in self.by_seed.values()]

    def _deviation(self, value: Callable[[Run], float]) -> float | None:
        """Return the sample standard deviation of a value over seeds; None with a single seed."""
        return statistics.stdev(self.over_seeds(value)) if len(self.by_seed) > 1 else None

    @cached_property
    def validation(self) -> float:
        return statistics.fmean(self.over_seeds(lambda run: run.validation))

    @property
    def rank(self) -> tuple[float, float, str]:
        """What settings are chosen by, best last: validation utility, then reduction."""
        return self.validation, self.reduction, self.key

    @cached_property
    def test(self) -> float:
        return statistics.fmean(self.over_seeds(lambda run: run.test))

    @cached_property
    def spread(self) -> float | None:
        """Sample standard deviation of the test utility over seeds; None with a single seed."""
        return self._deviation(lambda run: run.test)

    @cached_property
    def validation_spread(self) -> float | None:
        """Sample standard deviation of the validation utility over seeds; None with a single seed."""
        return self._deviation(lambda run: run.validation)

    @cached_property
    def coordinates_spread(self) -> float | None:
        """Sample standard deviation of the gradient size over seeds; None with a single seed."""
        return self._deviation(lambda run: run.coordinates)

    @property
    def reduction_spread(self) -> tuple[float, float] | None:
        """Distances of the reduction below and above its mean for one standard deviation of the coordinates over seeds;
        None with a single seed or without coordinates, infinite above if the deviation exceeds the mean."""
        deviation, parameters = self.coordinates_spread, self.runs[0].parameters
        if deviation is None or self.coordinates <= 0:
            return None
        least = self.coordinates - deviation
        above = parameters / least - self.reduction if least > 0 else math.inf
        return self.reduction - parameters / (self.coordinates + deviation), above

    @property
    def error(self) -> float:
        """Standard error of the test utility: the larger of that of one run over its test rows and that over seeds."""
        over_seeds = (self.spread or 0.0) / math.sqrt(len(self.by_seed))
        return max([over_seeds, *(run.test_error for run in self.runs if run.test_error is not None)])

    @cached_property
    def losses(self) -> Losses:
        """Mean log losses over seeds, None where a run does not tell."""

        def mean(place: int) -> float | None:
            known = [run.losses[place] for run in self.runs]
            return None if None in known else statistics.fmean(self.over_seeds(lambda run: run.losses[place] or 0.0))

        return Losses(*map(mean, range(3)))

    @cached_property
    def coordinates(self) -> float:
        return statistics.fmean(self.over_seeds(lambda run: run.coordinates))

    @property
    def reduction(self) -> float:
        return self.runs[0].parameters / self.coordinates if self.coordinates > 0 else math.inf

    @property
    def is_sparsest(self) -> bool:
        """Whether no setting of its algorithm can have a larger reduction: DP-FEST with one row (of each table where
        int(k/p) = 1, or of all), exponential selection with one row per step, LoRA of rank 1."""
        tables, rows = len(self.runs[0].tables), self.parameter("selection.rows")
        if self.algorithm in ("fest", "fest_equal"):
            least = tables if self.algorithm == "fest_equal" else 1
            return bool(tables and isinstance(rows, int | float) and rows // least <= 1)
        return 1 in (self.parameter("rows_per_step"), self.parameter("rank"))

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """Its hyper-parameters by dotted name, without those that never distinguish two settings."""
        return dict(flat(essential(self.runs[0].hyperparameters)))

    def parameter(self, name: str) -> Any:
        """Return a hyper-parameter of the algorithm by its dotted name (`selection.rows`), or None."""
        value: Any = self.runs[0].hyperparameters.get("algorithm") or {}
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value
