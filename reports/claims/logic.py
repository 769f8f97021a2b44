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

from reports.claims.estimate import LEVEL, NEARLY, Difference, Sample, Verdict, Weights, decide, merged
from reports.comparison import Setting


class Estimated(Protocol):
    """A difference of utilities that runs estimate.

    Attributes:
        seems: value on validation, over the choosing seeds.
        value: value on test, over all seeds.
    """

    @property
    def seems(self) -> float: ...
    @property
    def value(self) -> float: ...
    def at(self, of: int = 1, chosen: bool = True) -> Difference:
        """Return its estimate, as one chosen among `of` (`Sample.contrast`)."""


class Contrast:
    """A contrast of utilities in a sample, with cached estimates."""

    def __init__(self, sample: Sample, weights: Weights) -> None:
        self.sample, self.weights = sample, merged(weights)
        self.at = cache(self._at)

    def _at(self, of: int = 1, chosen: bool = True) -> Difference:
        return self.sample.contrast(self.weights, of, chosen)

    @cached_property
    def seems(self) -> float:
        return self.sample.seems(self.weights)

    @cached_property
    def value(self) -> float:
        return math.fsum(factor * setting.test for factor, setting in self.weights)


@dataclass(frozen=True)
class Gap:
    """One contrast minus another of other data."""

    one: Estimated
    other: Estimated

    @property
    def seems(self) -> float:
        return self.one.seems - self.other.seems

    @property
    def value(self) -> float:
        return self.one.value - self.other.value

    def at(self, of: int = 1, chosen: bool = True) -> Difference:
        return self.one.at(of, chosen).minus(self.other.at(of, chosen))


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
    def p(self, of: int = 1, chosen: bool = False) -> float:
        """Return the p-value at which it is shown; `chosen` means that it was chosen among `of` statements by its
        margin `seems`."""

    def p_not(self, of: int = 1, chosen: bool = False) -> float:
        """Return the p-value at which it is refuted."""


@dataclass(frozen=True)
class Above:
    """The statement that a contrast is above `least`."""

    contrast: Estimated
    least: float = 0.0

    @property
    def seems(self) -> float:
        return self.contrast.seems - self.least

    @property
    def value(self) -> float:
        return self.contrast.value - self.least

    def p(self, of: int = 1, chosen: bool = False) -> float:
        return self.contrast.at(of, chosen).p_above(self.least)

    def p_not(self, of: int = 1, chosen: bool = False) -> float:
        return self.contrast.at(of, chosen).p_below(self.least)


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

    def p(self, of: int = 1, chosen: bool = False) -> float:
        return self.part.p_not(of, chosen)

    def p_not(self, of: int = 1, chosen: bool = False) -> float:
        return self.part.p(of, chosen)


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

    def p(self, of: int = 1, chosen: bool = False) -> float:
        return max((part.p(of, chosen) for part in self.parts), default=0.0)

    def p_not(self, of: int = 1, chosen: bool = False) -> float:
        if len(self.parts) < 2:
            return min((part.p_not(of, chosen) for part in self.parts), default=1.0)
        return min(self.parts, key=lambda part: part.seems).p_not(of * len(self.parts), True)


class Any(All):
    """The statement that one of the parts is true."""

    @cached_property
    def seems(self) -> float:
        return max((part.seems for part in self.parts), default=-math.inf)

    @cached_property
    def value(self) -> float:
        return max((part.value for part in self.parts), default=-math.inf)

    def p(self, of: int = 1, chosen: bool = False) -> float:
        if len(self.parts) < 2:
            return min((part.p(of, chosen) for part in self.parts), default=1.0)
        return self.best.p(of * len(self.parts), True)

    def p_not(self, of: int = 1, chosen: bool = False) -> float:
        return max((part.p_not(of, chosen) for part in self.parts), default=0.0)

    @property
    def best(self) -> Statement:
        """The part that seems strongest."""
        return max(self.parts, key=lambda part: part.seems)


def below(contrast: Estimated, most: float) -> Statement:
    """Return the statement that a contrast is below `most`."""
    return Not(Above(contrast, most))


def equivalent(contrast: Estimated, margin: float = NEARLY) -> Statement:
    """Return the statement that a contrast is within the margin: two one-sided tests."""
    return All([Above(contrast, -margin), below(contrast, margin)])


def holds(statement: Statement, of: int = 1, chosen: bool = False) -> bool:
    """Whether a statement is shown."""
    return statement.p(of, chosen) < LEVEL


def verdict(statement: Statement, chosen: bool = False, of: int = 1) -> Verdict:
    """Return the verdict on a statement; `chosen` means that its settings were chosen among `of`."""
    return decide(statement.p(of, chosen), statement.p_not(of, chosen))
