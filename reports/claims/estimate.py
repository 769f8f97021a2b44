"""Differences with their 95% intervals, and what an interval says of a claim.

Two settings with ENOUGH runs each are compared over these (Student's t, pooled variance): what is asked is whether
training again would show the same on the same test rows. Fewer runs tell too little of that. Then training again is
taken to move a utility by TRAINING, or by what these runs show where that is more, in quadrature with the standard
error of the test rows. One run can so decide a large difference and never a small one, and nothing at all of a metric
that TRAINING does not know.

A claim that rests on several settings, or on one that was chosen among several, counts them: its intervals are so wide
that all of them are right at once in 95% of cases (Bonferroni). A choice on validation is no way around that, since
what training did to the validation rows it did to the test rows, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from scipy import stats

from reports.comparison import Setting
from reports.wording import signed, significant

HOLDS, FAILS, OPEN = "holds", "does not hold", "not enough runs"
UNTOLD = "cannot be told here"
"""By what is seen, more seeds would not decide it: these settings or data leave it open, and the evidence says why."""

NEARLY = 0.005
"""A difference of utility that the paper would call none: its own thresholds begin there."""

ENOUGH = 3
"""Runs of a setting from which on their own scatter says what training again does."""

TRAINING = {"auc": 0.005}
"""The standard deviation of a utility over trainings, by metric: the largest that was seen on the flights, whose
settings have 0.001 to 0.005 over three seeds each, so that it may be more. Of accuracies on real texts too few were
seen to name one."""

EXPLAINED = (
    "A claim holds, or does not, where 95% intervals leave no doubt. All settings that it rests on are counted: their "
    f"intervals are right at once (Bonferroni). From {ENOUGH} seeds a setting on they come from the scatter over seeds "
    f"(Student's t); with fewer, training again is taken to move an AUC by {TRAINING['auc']} (standard deviation, the "
    "largest seen on the flights), besides the error of the test rows, so that one seed decides large differences "
    "only, and none of accuracies; slopes and means of pairs have theirs from how the runs scatter about them. "
    "**not enough runs**: more seeds can decide it. **cannot be told here**: by what is "
    "seen they would not; these data or settings leave it open, and the text says what it would take."
)
"""How verdicts are reached, for the page."""


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
        """The verdict on the claim that there is no difference to speak of."""
        if max(self.high, -self.low) < NEARLY:
            return HOLDS
        return FAILS if max(self.low, -self.high) > NEARLY else OPEN


def between(one: Setting, other: Setting, of: int = 1) -> Difference:
    """Test utility of `one` less that of `other`, which stand for, or were chosen among, `of` settings."""
    value = one.test - other.test
    counts = len(one.runs), len(other.runs)
    if min(counts) < ENOUGH:
        error = math.hypot(_taken(one), _taken(other))
        return Difference(value, normal(of) * error)
    freedom = sum(counts) - 2
    squares = sum((count - 1) * (s.spread or 0.0) ** 2 for count, s in zip(counts, (one, other), strict=True))
    error = math.sqrt(squares / freedom * sum(1 / count for count in counts))
    return Difference(value, student(freedom, of) * error)


def _taken(setting: Setting) -> float:
    """What the error of a setting's utility is taken to be that has few runs; infinite where nothing is known."""
    rows = [math.inf if run.test_error is None else run.test_error for run in setting.runs]
    training = max(TRAINING.get(setting.runs[0].metric, math.inf), setting.spread or 0.0)
    return math.hypot(training / math.sqrt(len(rows)), max(rows))


@cache
def normal(of: int = 1) -> float:
    """Half of a 95% interval by its known standard error, where `of` intervals are to be right at once."""
    return float(stats.norm.ppf(1 - 0.025 / of))


@cache
def student(freedom: int, of: int = 1) -> float:
    """The same where the standard error is estimated."""
    return float(stats.t.ppf(1 - 0.025 / of, freedom))


def mean(values: Sequence[float]) -> Difference:
    """Of differences that are independent."""
    count = len(values)
    if count < 2:
        return Difference(statistics.fmean(values), math.inf)
    return Difference(statistics.fmean(values), student(count - 1) * statistics.stdev(values) / math.sqrt(count))


def slope(lines: Iterable[Sequence[tuple[float, float]]], of: int = 1) -> Difference | None:
    """The slope that parallel lines have in common, each through points (x, y) and with a height of its own;
    one of `of` slopes.

    None where no line has two different x; the half is infinite where nothing is left to judge the scatter by.
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
    found = math.fsum(x * y for x, y in centred) / width
    freedom = len(centred) - count - 1
    if freedom < 1:
        return Difference(found, math.inf)
    left = math.fsum((y - found * x) ** 2 for x, y in centred)
    return Difference(found, student(freedom, of) * math.sqrt(left / freedom / width))
