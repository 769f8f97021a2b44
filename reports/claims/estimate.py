"""Contrasts of utilities on the same test rows, with 95% bounds over retraining.

**Seeds.** A choice among settings is biased on the runs that it was made by. With ENOUGH seeds or more, the first half
of the seeds that all settings share (rounded down: 1 of 3, 2 of 5) therefore *choose*, on validation, and only the
other seeds *confirm*, on test; bounds then need no correction for the number of settings. If they share fewer than
ENOUGH, all of those choose, but at most half of all seeds; if none, all choose and none confirms. Settings without
other seeds, and all settings if there are fewer seeds, are judged by the choosing seeds; then every choice counts the
settings that it was made among (Bonferroni).

**Scatter.** Settings are paired by seed. The scatter is the residual of an additive model of setting and seed, pooled
over the claim's settings of the algorithms in the contrast (on some data frozen embeddings scatter ten times as much as
DP-SGD). A contrast that scatters more over its own seeds, by an F-test at UNLIKE, keeps its own scatter. With no
common seed, or an algorithm without a setting of ENOUGH seeds, the scatter cannot be estimated: retraining is then
assumed to change a utility with standard deviation TRAINING, or that of these runs if it is larger, in quadrature with
the standard error of the test rows. One seed can thus decide a large difference but never a small one, and nothing for
a metric without TRAINING. The same holds for means and trends.

**Bounds** are one-sided: each of `low` and `high` is wrong in about 5% of cases; in up to 10% of simulated cases with
three seeds and one algorithm of a contrast scattering several times as much as the other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy import stats

from reports.setting import Setting
from reports.wording import signed, significant

HOLDS, FAILS, OPEN = "holds", "does not hold", "not shown"
CROSSES = "the curves cross"
"""One algorithm is ahead at some reductions, and behind at others."""

INCONCLUSIVE = "inconclusive"
"""More seeds would not help: other settings or data would, and the evidence names them."""


class Verdict(str):
    """A verdict with its p-value: the smallest level at which it would be reached."""

    p: float

    def __new__(cls, word: str, p: float = 1.0) -> Verdict:
        self = super().__new__(cls, word)
        self.p = min(1.0, p)
        return self


NEARLY = 0.005
"""A difference of utility below this counts as none; it is among the paper's own thresholds."""

ENOUGH = 3
"""Number of seeds from which some choose and others confirm, and scatter is estimated from the runs."""

TRAINING = {"auc": 0.005}
"""Assumed standard deviation of a utility over retraining, by metric: the largest measured on the flights, whose
settings have 0.001 to 0.005 over three seeds each, so the true one may be larger. For accuracies on real texts there
are too few measurements."""

LEVEL = 0.05
"""Error probability of each bound."""

UNLIKE = 0.25
"""Level of the test of whether a contrast scatters more than others. A preliminary test must be lax, since a scatter
that it misses widens no bound."""

Weights = Sequence[tuple[float, Setting]]
"""A contrast: factors, which add up to zero, of the utilities of settings."""


@dataclass(frozen=True)
class Difference:
    """An estimate with its one-sided 95% bounds, one of `of` simultaneous ones.

    Attributes:
        value: the estimate.
        error: its standard error; infinite if there are too few runs.
        freedom: degrees of freedom of the standard error; infinite if it is known.
        of: number of estimates among which this one was chosen.
    """

    value: float
    error: float
    freedom: float = math.inf
    of: int = 1

    def __str__(self) -> str:
        return signed(self.value) + ("" if math.isinf(self.half) else f" ± {self.half:.4f}")

    @property
    def half(self) -> float:
        """Distance of the bounds; infinite if there are too few runs."""
        return self.error * student(self.freedom, self.of) if self.error else 0.0

    @property
    def gains(self) -> str:
        """The difference as a verb: gains 0.0031 ± 0.0012 or, if it is negative, loses 0.0031 ± 0.0012."""
        return f"{'loses' if self.value < 0 else 'gains'} {str(self)[1:]}"

    @property
    def low(self) -> float:
        return self.value - self.half

    @property
    def high(self) -> float:
        return self.value + self.half

    @property
    def factor(self) -> float:
        """Factor whose logarithm this difference is."""
        return math.exp(self.value)

    @property
    def factors(self) -> str:
        """Interval of that factor, in words."""
        if math.isinf(self.half):
            return "unknown"
        return f"{significant(math.exp(self.low))} to {significant(math.exp(self.high))}"

    def times(self, factor: float) -> Difference:
        """Return the difference, with its interval, scaled by a factor."""
        return replace(self, value=factor * self.value, error=abs(factor) * self.error)

    def plus(self, other: Difference) -> Difference:
        """Return the sum with an independent one."""
        error, freedom = math.hypot(self.error, other.error), min(self.freedom, other.freedom)
        return Difference(self.value + other.value, error, freedom, max(self.of, other.of))

    def minus(self, other: Difference) -> Difference:
        return self.plus(other.times(-1))

    def p_above(self, least: float) -> float:
        """Return the p-value of the statement that the difference is above `least`."""
        if not self.error:
            return float(self.value <= least)
        return min(1.0, self.of * float(stats.t.sf((self.value - least) / self.error, self.freedom)))

    def p_below(self, most: float) -> float:
        """Return the p-value of the statement that the difference is below `most`."""
        return self.times(-1).p_above(-most)

    def above(self, least: float) -> Verdict:
        """Return the verdict on the claim that the difference is above `least`."""
        return decide(self.p_above(least), self.p_below(least))


def decide(holds: float, fails: float) -> Verdict:
    """Return the verdict on a claim by the p-values that show and that refute it."""
    if fails < LEVEL:
        return Verdict(FAILS, fails)
    return Verdict(HOLDS, holds) if holds < LEVEL else Verdict(OPEN)


class Sample:
    """The runs of a claim's settings: their choosing seeds and their scatter.

    Args:
        settings: the settings compared.
        panels: see below.
        controls: further settings in contrasts, whose seeds do not bear on which are the choosing seeds.

    Attributes:
        panels: number of panels (ε, periods) that share the error of all bounds (`claim.in_each`).
        choosing: the choosing seeds; all seeds if there are too few to confirm.
        few: whether there are fewer than ENOUGH seeds.
    """

    def __init__(self, settings: Iterable[Setting], panels: int = 1, controls: Iterable[Setting] = ()) -> None:
        self.settings, self.panels, self._controls = tuple(settings), panels, tuple(controls)
        seeds = sorted({seed for setting in self.settings for seed in setting.by_seed})
        shared = [seed for seed in seeds if all(seed in setting.by_seed for setting in self.settings)]
        self.few = len(seeds) < ENOUGH
        half = len(shared if len(shared) >= ENOUGH else seeds) // 2
        self.choosing = frozenset(seeds if self.few or not shared else shared[:half])
        self._scatters: dict[frozenset[str], tuple[float, int] | None] = {}

    def best(self, settings: Iterable[Setting]) -> Setting | None:
        """Return the setting with the highest validation utility over the choosing seeds; None if there is none."""
        return max(settings, key=self.rank, default=None)

    def rank(self, setting: Setting) -> tuple[float, float, str]:
        """Return what settings are chosen by, best last: validation utility, then reduction."""
        return self._validation(setting), setting.reduction, setting.key

    def seems(self, weights: Weights) -> float:
        """Return a contrast on validation, over the choosing seeds."""
        return math.fsum(factor * self._validation(setting) for factor, setting in weights)

    def contrast(self, weights: Weights, of: int = 1, chosen: bool = True) -> Difference:
        """Return a contrast on test.

        Args:
            weights: the contrast.
            of: number of contrasts among which it was chosen; counts if there are no confirming seeds.
            chosen: whether the choosing seeds influenced the choice of the contrast.
        """
        weights = merged(weights)
        if not weights:
            return Difference(0.0, 0.0)
        of *= self.panels
        shared = set.intersection(*(set(setting.by_seed) for _, setting in weights))
        scatter = self._scatter(frozenset(setting.algorithm for _, setting in weights))
        if scatter is None or not shared:
            errors = (factor * _error(setting) for factor, setting in weights)
            value = math.fsum(factor * setting.test for factor, setting in weights)
            return Difference(value, math.hypot(*errors), of=of)
        fresh = shared - self.choosing
        used, of = (fresh, self.panels) if fresh and chosen else (shared, of)
        by_seed = {seed: _at(weights, seed) for seed in sorted(shared)}
        deviation, freedom = scatter
        deviation *= math.hypot(*(factor for factor, _ in weights))
        own, less = (statistics.stdev(by_seed.values()), len(by_seed) - 1) if len(by_seed) > 1 else (0.0, 1)
        if own > 1e-12 and (not deviation or stats.f.sf((own / deviation) ** 2, less, freedom) < UNLIKE):
            deviation, freedom = own, less
        value = statistics.fmean(by_seed[seed] for seed in used)
        return Difference(value, deviation / math.sqrt(len(used)), freedom, of)

    def _validation(self, setting: Setting) -> float:
        seeds = self.choosing & set(setting.by_seed) or set(setting.by_seed)
        return statistics.fmean(run.validation for seed in seeds for run in setting.by_seed[seed])

    def _scatter(self, algorithms: frozenset[str]) -> tuple[float, int] | None:
        if algorithms not in self._scatters:
            pooled = [s for s in (*self.settings, *self._controls) if s.algorithm in algorithms]
            known = {setting.algorithm for setting in pooled if len(setting.by_seed) >= ENOUGH}
            self._scatters[algorithms] = _residual(pooled) if known == algorithms else None
        return self._scatters[algorithms]


def merged(weights: Weights) -> Weights:
    """Return the same contrast with each setting once, and without those whose factors add up to zero."""
    by_key: dict[str, tuple[float, Setting]] = {}
    for factor, setting in weights:
        by_key[setting.key] = (by_key.get(setting.key, (0.0, setting))[0] + factor, setting)
    return [(factor, setting) for factor, setting in by_key.values() if factor]


def _residual(settings: Sequence[Setting]) -> tuple[float, int] | None:
    """Return the standard deviation of one run, pooled over settings, and its degrees of freedom: the residual of an
    additive model of setting and seed for the test utilities. None if fewer than two degrees are left."""
    cells = [
        (place, seed, statistics.fmean(run.test for run in runs))
        for place, setting in enumerate(settings)
        for seed, runs in setting.by_seed.items()
    ]
    seeds = sorted({seed for _, seed, _ in cells})
    design = np.zeros((len(cells), len(settings) + len(seeds)))
    for line, (place, seed, _) in enumerate(cells):
        design[line, place] = design[line, len(settings) + seeds.index(seed)] = 1
    tests = np.array([test for *_, test in cells]) - 0.5
    fitted, _, rank, _ = np.linalg.lstsq(design, tests, rcond=None)
    left = tests - design @ fitted
    freedom = len(cells) - int(rank)
    if freedom < 2:
        return None
    deviation = math.sqrt(float(left @ left) / freedom)
    return (deviation if deviation > 1e-12 else 0.0), freedom  # below that it is rounding


def _at(weights: Weights, seed: int) -> float:
    """Return a contrast of one seed's runs."""
    return math.fsum(
        factor * statistics.fmean(run.test for run in setting.by_seed[seed]) for factor, setting in weights
    )


def _error(setting: Setting) -> float:
    """Return the assumed standard error of a setting's utility over few runs; infinite if unknown."""
    rows = [math.inf if run.test_error is None else run.test_error for run in setting.runs]
    training = max(TRAINING.get(setting.runs[0].metric, math.inf), setting.spread or 0.0)
    return math.hypot(training / math.sqrt(len(setting.by_seed)), max(rows))


@cache
def student(freedom: float = math.inf, of: int = 1) -> float:
    """Return the distance of a 95% bound in standard errors, for `of` simultaneous bounds; infinitely many degrees of
    freedom are those of a known standard error."""
    return float(stats.t.ppf(1 - LEVEL / of, freedom))
