"""Differences with their 95% intervals, and what an interval says of a claim.

Two settings with several seeds each are compared over their seeds (Student's t, pooled variance): what is asked is
whether training again would show the same on the same test rows. A single seed tells nothing of that. Then training
again is taken to move a utility as much as other test rows would, by its standard error (on the embedded flights it
moves it by 0.001 to 0.005), and rows and runs of both settings are taken as independent. Every interval is at 95% by
itself, not all of them together.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy import stats

from reports.comparison import Setting
from reports.wording import signed, significant

HOLDS, FAILS, OPEN = "holds", "does not hold", "not enough runs"

NEARLY = 0.005
"""A difference of utility that the paper would call none: its own thresholds begin there."""

NORMAL = 1.96


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


def between(one: Setting, other: Setting) -> Difference:
    """Test utility of `one` less that of `other`."""
    value = one.test - other.test
    counts = len(one.runs), len(other.runs)
    if min(counts) > 1:
        freedom = sum(counts) - 2
        squares = sum((count - 1) * (s.spread or 0.0) ** 2 for count, s in zip(counts, (one, other), strict=True))
        error = math.sqrt(squares / freedom * sum(1 / count for count in counts))
        return Difference(value, float(stats.t.ppf(0.975, freedom)) * error)
    errors = [setting.runs[0].test_error for setting in (one, other)]
    if any(error is None for error in errors):
        return Difference(value, math.inf)
    return Difference(value, NORMAL * math.sqrt(2) * math.hypot(*(error or 0.0 for error in errors)))


def mean(values: Sequence[float]) -> Difference:
    """Of differences that are independent."""
    count = len(values)
    if count < 2:
        return Difference(statistics.fmean(values), math.inf)
    half = stats.t.ppf(0.975, count - 1) * statistics.stdev(values) / math.sqrt(count)
    return Difference(statistics.fmean(values), float(half))


def slope(lines: Iterable[Sequence[tuple[float, float]]]) -> Difference | None:
    """The slope that parallel lines have in common, each through points (x, y) and with a height of its own.

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
    return Difference(found, float(stats.t.ppf(0.975, freedom)) * math.sqrt(left / freedom / width))
