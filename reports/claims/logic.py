"""Claims as statements about contrasts ("above", "all", "any"), and when runs show them.

*All* is shown if every part is. No correction is needed: a false claim has a false part, which is shown in at most 5%
of cases (intersection-union test). *Any* is shown if the part that seems strongest on the choosing seeds is shown by
the confirming ones (:mod:`reports.claims.estimate`). A statement is refuted if its negation is shown: *all* if the part
that seems weakest is refuted, *any* if every part is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, reduce
from typing import ClassVar, TypeAlias

from reports.claims.estimate import NEARLY, Difference, Sample, Verdict, Weights, decide, merged
from reports.setting import Setting


class Contrast:
    """A contrast of utilities in a sample, or the sum of contrasts in several of other data, with cached estimates.

    Args:
        parts: samples with weights; those of one sample are taken together.
    """

    def __init__(self, *parts: tuple[Sample, Weights]) -> None:
        of: dict[int, tuple[Sample, list[tuple[float, Setting]]]] = {}
        for sample, weights in parts:
            of.setdefault(id(sample), (sample, []))[1].extend(weights)
        self._parts = [(sample, merged(weights)) for sample, weights in of.values()]
        self.at = cache(self._at)

    def _at(self, of: int = 1, chosen: bool = True) -> Difference:
        """Return its estimate, as one chosen among `of` (`Sample.contrast`)."""
        return reduce(Difference.plus, (sample.contrast(weights, of, chosen) for sample, weights in self._parts))

    @cached_property
    def seems(self) -> float:
        """Value on validation, over the choosing seeds."""
        return sum(sample.seems(weights) for sample, weights in self._parts)

    @cached_property
    def value(self) -> float:
        """Value on test, over all seeds."""
        return sum(math.fsum(factor * one.test for factor, one in weights) for _, weights in self._parts)

    def plus(self, other: Contrast, share: float = 1.0) -> Contrast:
        """Return the sum of this contrast and a share of another one."""
        shared = ((sample, [(share * factor, one) for factor, one in weights]) for sample, weights in other._parts)
        return Contrast(*self._parts, *shared)

    def minus(self, other: Contrast) -> Contrast:
        return self.plus(other, -1.0)


def between(sample: Sample, one: Setting, other: Setting) -> Contrast:
    """Return the contrast of one setting's utility minus another's."""
    return Contrast((sample, [(1.0, one), (-1.0, other)]))


def mean_gain(sample: Sample, pairs: Sequence[tuple[Setting, Setting]]) -> Contrast:
    """Return the mean gain of the second of each pair over the first."""
    share = 1 / len(pairs)
    return Contrast((sample, [weight for one, other in pairs for weight in ((-share, one), (share, other))]))


@dataclass(frozen=True)
class Above:
    """The statement that a contrast is above `least`; of sign -1, that it is below."""

    contrast: Contrast
    least: float = 0.0
    sign: int = 1

    @property
    def seems(self) -> float:
        """Margin by which it is true on the choosing seeds, in units of utility; negative if it seems false."""
        return self.sign * (self.contrast.seems - self.least)

    @property
    def value(self) -> float:
        """The same on the test utilities over all seeds."""
        return self.sign * (self.contrast.value - self.least)

    def __neg__(self) -> Above:
        return replace(self, sign=-self.sign)

    def p(self, of: int = 1, chosen: bool = False) -> float:
        """Return the p-value at which it is shown; `chosen` means that it was chosen among `of` statements by its
        margin `seems`."""
        estimate = self.contrast.at(of, chosen)
        return estimate.p_above(self.least) if self.sign > 0 else estimate.p_below(self.least)


def below(contrast: Contrast, most: float) -> Above:
    """Return the statement that a contrast is below `most`."""
    return -Above(contrast, most)


class All:
    """The statement that all parts are true; its members are those of :class:`Above`."""

    decisive: ClassVar[Callable[..., float]] = min
    """The margin that decides, of those of the parts."""
    without: ClassVar[float] = math.inf

    def __init__(self, parts: Sequence[Statement]) -> None:
        self.parts = parts

    @cached_property
    def seems(self) -> float:
        return type(self).decisive((part.seems for part in self.parts), default=self.without)

    @cached_property
    def value(self) -> float:
        return type(self).decisive((part.value for part in self.parts), default=self.without)

    def __neg__(self) -> All:
        return Any([-part for part in self.parts])

    def p(self, of: int = 1, chosen: bool = False) -> float:
        return max((part.p(of, chosen) for part in self.parts), default=0.0)


class Any(All):
    """The statement that one of the parts is true."""

    decisive: ClassVar[Callable[..., float]] = max
    without: ClassVar[float] = -math.inf

    @property
    def best(self) -> int:
        """Place of the part that seems strongest."""
        return max(range(len(self.parts)), key=lambda place: self.parts[place].seems)

    def __neg__(self) -> All:
        return All([-part for part in self.parts])

    def p(self, of: int = 1, chosen: bool = False) -> float:
        if len(self.parts) < 2:
            return min((part.p(of, chosen) for part in self.parts), default=1.0)
        return self.parts[self.best].p(of * len(self.parts), True)


Statement: TypeAlias = Above | All


def equivalent(contrast: Contrast, margin: float = NEARLY) -> Statement:
    """Return the statement that a contrast is within the margin: two one-sided tests."""
    return All([Above(contrast, -margin), below(contrast, margin)])


def verdict(so: Statement, of: int = 1, chosen: bool = False, refuted: Statement | None = None) -> Verdict:
    """Return the verdict on a statement, which is refuted if another one (its negation by default) is shown; `chosen`
    means that its settings were chosen among `of`."""
    return decide(so.p(of, chosen), (-so if refuted is None else refuted).p(of, chosen))
