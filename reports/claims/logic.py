"""Claims as statements of contrasts: "above", "all" and "any", and when runs show or refute them.

*All* holds where every part is shown by itself: no correction is needed, since a false claim has a part that is false,
and that one is shown in at most 5% of cases (intersection-union test). It fails where that part is refuted which seems
the weakest on the seeds that choose; only others confirm that (:mod:`reports.claims.estimate`). *Any* is the mirror
image: it holds where the part that seems the strongest is shown, and fails where every part is refuted.
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
    """A contrast of utilities in a sample, however often it is asked for."""

    def __init__(self, sample: Sample, weights: Weights) -> None:
        self.sample, self.weights = sample, weights
        self.at = cache(self._at)

    def _at(self, of: int = 1, chosen: bool = True) -> Difference:
        return self.sample.contrast(self.weights, of, chosen)

    @cached_property
    def seems(self) -> float:
        """On validation, over the seeds that choose."""
        return self.sample.seems(self.weights)

    @cached_property
    def value(self) -> float:
        """On test, over all seeds."""
        return math.fsum(factor * setting.test for factor, setting in self.weights)


def between(sample: Sample, one: Setting, other: Setting) -> Contrast:
    """The utility of one setting minus that of another."""
    return Contrast(sample, [(1.0, one), (-1.0, other)])


class Statement(Protocol):
    """What is true or false of utilities.

    Attributes:
        seems: by how much it is true on the seeds that choose, in units of utility; negative where it seems false.
        value: the same on the test utilities over all seeds.
    """

    @property
    def seems(self) -> float: ...
    @property
    def value(self) -> float: ...
    def holds(self, of: int = 1, chosen: bool = False) -> bool:
        """Whether it is shown. `chosen` says that it was chosen, among `of`, by what it seems to be."""

    def fails(self, of: int = 1, chosen: bool = False) -> bool:
        """Whether it is refuted."""


@dataclass(frozen=True)
class Above:
    """That a contrast is above `least`."""

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
    """That a statement is false."""

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
    """That all of these are true."""

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
    """That one of these is true."""

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


def below(contrast: Contrast, most: float) -> Statement:
    """That a contrast is below `most`."""
    return Not(Above(contrast, most))


def equivalent(contrast: Contrast, margin: float = NEARLY) -> Statement:
    """That a contrast is nothing that counts: two one-sided tests."""
    return All([Above(contrast, -margin), below(contrast, margin)])


def verdict(statement: Statement, chosen: bool = False, of: int = 1) -> str:
    """What the runs say of a statement; `chosen` of one with settings that were chosen, among `of`."""
    return FAILS if statement.fails(of, chosen) else HOLDS if statement.holds(of, chosen) else OPEN
