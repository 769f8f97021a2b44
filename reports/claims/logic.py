"""Claims as statements about contrasts ("above", "all", "any"), and when runs show or refute them.

*All* holds if every part is shown. No correction is needed: a false claim has a false part, which is shown in at most
5% of cases (intersection-union test). *All* fails if the part that seems weakest on the choosing seeds is refuted by
the confirming ones (:mod:`reports.claims.estimate`). *Any* mirrors this: it holds if the part that seems strongest is
shown, and fails if every part is refuted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Protocol

from reports.claims.estimate import FAILS, HOLDS, NEARLY, OPEN, Difference, Sample, Weights
from reports.comparison import Setting


class Contrast:
    """A contrast of utilities in a sample, with cached estimates."""

    def __init__(self, sample: Sample, weights: Weights) -> None:
        self.sample, self.weights = sample, weights
        self.at = cache(self._at)

    def _at(self, of: int = 1, chosen: bool = True) -> Difference:
        return self.sample.contrast(self.weights, of, chosen)

    @cached_property
    def seems(self) -> float:
        """Value on validation, over the choosing seeds."""
        return self.sample.seems(self.weights)

    @cached_property
    def value(self) -> float:
        """Value on test, over all seeds."""
        return math.fsum(factor * setting.test for factor, setting in self.weights)


def between(sample: Sample, one: Setting, other: Setting) -> Contrast:
    """Return the contrast of one setting's utility minus another's."""
    return Contrast(sample, [(1.0, one), (-1.0, other)])


class Statement(Protocol):
    """A statement about utilities.

    Attributes:
        seems: margin by which it is true on the choosing seeds, in units of utility; negative if it seems false.
        value: the same on the test utilities over all seeds.
    """

    @property
    def seems(self) -> float: ...
    @property
    def value(self) -> float: ...
    def holds(self, of: int = 1, chosen: bool = False) -> bool:
        """Whether it is shown; `chosen` means that it was chosen among `of` statements by its margin `seems`."""

    def fails(self, of: int = 1, chosen: bool = False) -> bool:
        """Whether it is refuted."""


@dataclass(frozen=True)
class Above:
    """The statement that a contrast is above `least`."""

    contrast: Contrast
    least: float = 0.0

    @property
    def seems(self) -> float:
        return self.contrast.seems - self.least

    @property
    def value(self) -> float:
        return self.contrast.value - self.least

    def holds(self, of: int = 1, chosen: bool = False) -> bool:
        return self.contrast.at(of, chosen).low > self.least

    def fails(self, of: int = 1, chosen: bool = False) -> bool:
        return self.contrast.at(of, chosen).high < self.least


@dataclass(frozen=True)
class Not:
    """The statement that another one is false."""

    part: Statement

    @property
    def seems(self) -> float:
        return -self.part.seems

    @property
    def value(self) -> float:
        return -self.part.value

    def holds(self, of: int = 1, chosen: bool = False) -> bool:
        return self.part.fails(of, chosen)

    def fails(self, of: int = 1, chosen: bool = False) -> bool:
        return self.part.holds(of, chosen)


class All:
    """The statement that all parts are true."""

    def __init__(self, parts: Sequence[Statement]) -> None:
        self.parts = parts

    @cached_property
    def seems(self) -> float:
        return min((part.seems for part in self.parts), default=math.inf)

    @cached_property
    def value(self) -> float:
        return min((part.value for part in self.parts), default=math.inf)

    def holds(self, of: int = 1, chosen: bool = False) -> bool:
        return all(part.holds(of, chosen) for part in self.parts)

    def fails(self, of: int = 1, chosen: bool = False) -> bool:
        if len(self.parts) < 2:
            return any(part.fails(of, chosen) for part in self.parts)
        return min(self.parts, key=lambda part: part.seems).fails(of * len(self.parts), True)


class Any(All):
    """The statement that one of the parts is true."""

    @cached_property
    def seems(self) -> float:
        return max((part.seems for part in self.parts), default=-math.inf)

    @cached_property
    def value(self) -> float:
        return max((part.value for part in self.parts), default=-math.inf)

    def holds(self, of: int = 1, chosen: bool = False) -> bool:
        if len(self.parts) < 2:
            return any(part.holds(of, chosen) for part in self.parts)
        return max(self.parts, key=lambda part: part.seems).holds(of * len(self.parts), True)

    def fails(self, of: int = 1, chosen: bool = False) -> bool:
        return all(part.fails(of, chosen) for part in self.parts)


@dataclass(frozen=True)
class Ground:
    """A contrast on which a verdict rests.

    Attributes:
        contrast: the contrast.
        least: what it is shown to be above, or below.
        bounds: its estimate, at the level of the verdict.
    """

    contrast: Contrast
    least: float
    bounds: Difference

    @property
    def above(self) -> bool:
        return self.bounds.value > self.least

    @property
    def margin(self) -> float:
        """Distance of the estimate from `least`, in distances of its bounds; more than 1."""
        distance = abs(self.bounds.value - self.least)
        return distance / self.bounds.half if self.bounds.half else math.inf


def grounds(statement: Statement, of: int = 1, chosen: bool = False) -> list[Ground]:
    """Return the contrasts that show a statement which holds; of negations, only those of a single contrast."""
    if isinstance(statement, Not):
        statement = statement.part
        assert isinstance(statement, Above)  # whose bounds are on both sides
    if isinstance(statement, Above):
        return [Ground(statement.contrast, statement.least, statement.contrast.at(of, chosen))]
    assert isinstance(statement, All)
    parts = statement.parts
    if isinstance(statement, Any) and len(parts) > 1:
        return grounds(max(parts, key=lambda part: part.seems), of * len(parts), True)
    return [ground for part in parts for ground in grounds(part, of, chosen)]


def below(contrast: Contrast, most: float) -> Statement:
    """Return the statement that a contrast is below `most`."""
    return Not(Above(contrast, most))


def equivalent(contrast: Contrast, margin: float = NEARLY) -> Statement:
    """Return the statement that a contrast is within the margin: two one-sided tests."""
    return All([Above(contrast, -margin), below(contrast, margin)])


def verdict(statement: Statement, chosen: bool = False, of: int = 1) -> str:
    """Return the verdict on a statement; `chosen` means that its settings were chosen among `of`."""
    return FAILS if statement.fails(of, chosen) else HOLDS if statement.holds(of, chosen) else OPEN
