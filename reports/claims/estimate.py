"""Differences with their 95% intervals, and the verdict that an interval implies.

Two settings with ENOUGH runs each are compared over these (Student's t, pooled variance): the question is whether
retraining would give the same result on the same test rows. Fewer runs do not tell. Then retraining is assumed to
change a utility with standard deviation TRAINING, or that of these runs where it is larger, in quadrature with the
standard error of the test rows. So one run can decide a large difference but never a small one, and nothing at all of
a metric that TRAINING does not have.

A claim that rests on several settings, or on one that was chosen among several, counts them: its intervals hold
simultaneously with 95% confidence (Bonferroni). Choosing on validation is no way around that, since retraining moves
validation and test utility together.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from scipy import stats

from reports.comparison import Setting
from reports.wording import signed, significant

HOLDS, FAILS, OPEN = "holds", "does not hold", "not enough runs"
UNTOLD = "inconclusive"
"""More seeds would not help: other settings or data would, and the evidence says which."""

NEARLY = 0.005
"""A difference of utility below this counts as none: the paper's own thresholds begin there."""

ENOUGH = 3
"""Runs of a setting from which on their own spread estimates the effect of retraining."""

TRAINING = {"auc": 0.005}
"""Assumed standard deviation of a utility over retrainings, by metric: the largest measured on the flights, whose
settings have 0.001 to 0.005 over three seeds each, so the true one may be larger. For accuracies on real texts there
are too few measurements."""


@dataclass(frozen=True)
class Difference:
    """An estimate and half of its 95% interval, infinite where too few runs leave it open."""

    value: float
    half: float

    def __str__(self) -> str:
        return signed(self.value) + ("" if math.isinf(self.half) else f" ± {self.half:.4f}")

    @property
    def low(self) -> float:
        return self.value - self.half

    @property
    def high(self) -> float:
        return self.value + self.half

    @property
    def factor(self) -> float:
        """The factor whose logarithm this is."""
        return math.exp(self.value)

    @property
    def factors(self) -> str:
        """The interval of the factor whose logarithm this is, in words."""
        if math.isinf(self.half):
            return "unknown"
        return f"{significant(math.exp(self.low))} to {significant(math.exp(self.high))}"

    def times(self, factor: float) -> Difference:
        """Scaled, its interval with it."""
        return Difference(factor * self.value, abs(factor) * self.half)

    def above(self, least: float) -> str:
        """The verdict on the claim that the difference is above `least`."""
        return HOLDS if self.low > least else FAILS if self.high < least else OPEN

    def none(self) -> str:
        """The verdict on the claim that there is no relevant difference."""
        if max(self.high, -self.low) < NEARLY:
            return HOLDS
        return FAILS if max(self.low, -self.high) > NEARLY else OPEN


def between(one: Setting, other: Setting, of: int = 1) -> Difference:
    """Test utility of `one` minus that of `other`, which represent, or were chosen among, `of` settings."""
    if min(len(one.runs), len(other.runs)) < ENOUGH:
        return Difference(one.test - other.test, normal(of) * math.hypot(_error(one), _error(other)))
    tests = ([run.test for run in setting.runs] for setting in (one, other))
    return Difference(one.test - other.test, _half(stats.ttest_ind, *tests, of=of))


def _error(setting: Setting) -> float:
    """The assumed standard error of a setting's utility over few runs; infinite where nothing is known."""
    rows = [math.inf if run.test_error is None else run.test_error for run in setting.runs]
    training = max(TRAINING.get(setting.runs[0].metric, math.inf), setting.spread or 0.0)
    return math.hypot(training / math.sqrt(len(rows)), max(rows))


@cache
def normal(of: int = 1) -> float:
    """Half of a 95% interval in known standard errors, where `of` intervals are to hold simultaneously."""
    return float(stats.norm.ppf(1 - 0.025 / of))


@cache
def student(freedom: int, of: int = 1) -> float:
    """The same for an estimated standard error."""
    return float(stats.t.ppf(1 - 0.025 / of, freedom))


def mean(values: Sequence[float]) -> Difference:
    """Of differences that are independent."""
    half = _half(partial(stats.ttest_1samp, popmean=0), values) if len(values) > 1 else math.inf
    return Difference(statistics.fmean(values), half)


def _half(test: Callable[..., Any], *samples: Sequence[float], of: int = 1) -> float:
    """Half of the interval of one of `of` t-tests; zero where nothing scatters, of which scipy warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        low, high = test(*samples).confidence_interval(1 - 0.05 / of)
    return float(high - low) / 2


def slope(lines: Iterable[Sequence[tuple[float, float]]], of: int = 1) -> Difference | None:
    """The common slope of parallel lines, each through points (x, y) and with an intercept of its own; one of `of`
    slopes.

    None where no line has two different x; the half is infinite where no degree of freedom is left.
    """
    centred, count = [], 0
    for points in lines:
        xs, ys = zip(*points, strict=True)
        middle, height = statistics.fmean(xs), statistics.fmean(ys)
        count += 1
        centred += [(x - middle, y - height) for x, y in points]
    width = math.fsum(x * x for x, _ in centred)
    if width < 1e-12:
        return None
    steepness = math.fsum(x * y for x, y in centred) / width
    freedom = len(centred) - count - 1
    if freedom < 1:
        return Difference(steepness, math.inf)
    left = math.fsum((y - steepness * x) ** 2 for x, y in centred)
    return Difference(steepness, student(freedom, of) * math.sqrt(left / freedom / width))
