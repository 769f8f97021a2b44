"""Utility as a curve over the reduction of the gradient, and which of two curves is ahead, and where.

A **curve** runs through the settings of an algorithm that no other one of it equals or beats in both utility and
reduction, on validation over the choosing seeds (:mod:`reports.claims.estimate`). Between two of them utility is taken
to be linear in the logarithm of the reduction. At a smaller reduction than its first setting's it is that setting's,
which reaches this reduction and more. Beyond its last one it is unknown, but assumed to be no more than that one's; if
no sparser setting is possible (`Setting.is_sparsest`), it goes on with frozen embeddings, whose gradient is empty.

One curve is **ahead** of another if it is shown to be better at some reduction: than the other curve, than each setting
of the other algorithm that cuts the gradient as much, and than frozen embeddings. It must run there, and lose at most a
given utility against DP-SGD; the other one must have been tried as dense as that, since denser settings might lose
less. The difference is linear between the knots of both, so it suffices to look at these. If each is ahead somewhere,
*the curves cross*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from reports.algorithms import label
from reports.chosen import pareto
from reports.claims.estimate import (
    CROSSES,
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    LEVEL,
    OPEN,
    Difference,
    Sample,
    Verdict,
    Weights,
)
from reports.claims.logic import Above, All, Any, Contrast, Statement, between
from reports.setting import Setting
from reports.wording import multiple

LOSSES = (0.001, 0.005, 0.01)
"""The losses at which the paper's tables give reductions."""

WIDER = (0.02, 0.04, 0.08)
"""Larger losses, up to which algorithms are compared if none cuts the gradient within the paper's."""


@dataclass(frozen=True)
class Reach:
    """The largest reduction along a curve up to which the loss against DP-SGD is at most a given one; 1 is DP-SGD's
    own.

    Attributes:
        estimate: where the loss on test, over all seeds, reaches it.
        shown: where its upper 95% bound does, at most the estimate. The settings are tested from the densest on, each
            at 95%, up to the first that fails, so no correction for their number is needed (a fixed sequence of
            tests). Between two settings the bound is interpolated: it is a convex function, so this is on the safe
            side.
        ended: whether the curve ends before.
    """

    estimate: float
    shown: float
    ended: bool

    def __str__(self) -> str:
        if self.estimate == 1 and not self.ended:
            return "1×"
        return f"{'≥ ' * self.ended}{multiple(self.estimate)} ({multiple(self.shown)} shown)"


class Curve:
    """The curve of an algorithm's settings.

    Args:
        name: the algorithm.
        settings: its settings, at least one with a gradient that is not empty.
        sample: the sample in which they are compared.
        reference: the DP-SGD that utility is lost against.
        frozen: frozen embeddings, if there are any.
        factor: factor that reductions are multiplied by.
        words: what the settings are called; empty for the algorithm's name.
    """

    def __init__(
        self,
        name: str,
        settings: Sequence[Setting],
        sample: Sample,
        reference: Setting,
        frozen: Setting | None = None,
        factor: float = 1.0,
        words: str = "",
    ) -> None:
        self.label = words or label(name)
        self.name, self.sample, self.reference, self.frozen = name, sample, reference, frozen
        self.settings = [setting for setting in settings if math.isfinite(setting.reduction)]
        self._shift = math.log(factor)

    @cached_property
    def knots(self) -> Sequence[tuple[float, Setting]]:
        """Logarithms of the reduction, ascending, and settings."""
        front = pareto(self.settings, lambda setting: self.sample.seems([(1.0, setting)]))
        return [(math.log(setting.reduction) + self._shift, setting) for setting in front]

    @property
    def densest(self) -> float:
        """Smallest reduction that was tried."""
        return min(setting.reduction for setting in self.settings)

    @property
    def sparsest(self) -> float:
        """Largest reduction at which utility is not below that of a sparser setting."""
        return self.knots[-1][1].reduction

    @property
    def start(self) -> float:
        return math.log(self.densest) + self._shift

    @property
    def closed(self) -> bool:
        """Whether no sparser setting is possible."""
        return self.knots[-1][1].is_sparsest

    @property
    def end(self) -> float:
        return math.inf if self.closed and self.frozen else self.knots[-1][0]

    @cached_property
    def gains(self) -> Sequence[tuple[float, Contrast]]:
        """Logarithm of the reduction of each setting, on the curve or not, and its gain against DP-SGD."""
        return [(math.log(one.reduction) + self._shift, self.gain_of(one)) for one in self.settings]

    def gain_of(self, setting: Setting) -> Contrast:
        return between(self.sample, setting, self.reference)

    def gain(self, place: float) -> Contrast:
        """Return the contrast of the utility at a reduction, given by its logarithm, against DP-SGD's."""
        return Contrast((self.sample, [*self._at(place), (-1.0, self.reference)]))

    def _at(self, place: float) -> Weights:
        last, sparsest = self.knots[-1]
        if place > last:
            return [(1.0, self.frozen if self.closed and self.frozen else sparsest)]
        for (left, dense), (right, sparse) in pairwise(self.knots):
            if left < place <= right:
                share = (place - left) / (right - left)
                return [(1.0 - share, dense), (share, sparse)]
        return [(1.0, self.knots[0][1])]

    def reach(self, loss: float, references: int = 1) -> Reach:
        """Return the largest reduction within a loss against DP-SGD, chosen among a number of `references`."""
        of = len(self.settings) * references
        losses = [(place, between(self.sample, self.reference, setting)) for place, setting in self.knots]
        estimate = _up_to([(place, lost.value) for place, lost in losses], loss)
        shown = _up_to([(place, lost.at(of).high) for place, lost in losses], loss)
        ended = losses[-1][1].value <= loss and estimate == self.knots[-1][0] and not self.closed
        return Reach(math.exp(estimate), math.exp(min(shown, estimate)), ended)


def _up_to(losses: Sequence[tuple[float, float]], most: float) -> float:
    """Return the place up to which losses that are linear between places are at most `most`; 0 if the first is not."""
    if losses[0][1] > most:
        return 0.0
    for (left, less), (right, more) in pairwise(losses):
        if more > most:
            return left if math.isinf(more) else left + (right - left) * (most - less) / (more - less)
    return losses[-1][0]


def up_to(curves: Sequence[Curve]) -> float:
    """Return the loss up to which to compare: the largest of the paper's or, if no setting seems to cut the gradient
    within it, the first wider one within which a setting does, up to half of the loss of frozen embeddings."""
    losses = [-one.gain(place).seems for one in curves for place, _ in one.knots if place > 0]
    frozen = max((between(one.sample, one.reference, one.frozen).seems for one in curves if one.frozen), default=0.0)
    wider = [loss for loss in WIDER if loss <= frozen / 2]
    return next((loss for loss in (LOSSES[-1], *wider) if any(lost <= loss for lost in losses)), LOSSES[-1])


@dataclass(frozen=True)
class Point:
    """A reduction at which one side is shown to be ahead, or seems to be by most.

    Attributes:
        place: logarithm of the reduction.
        lead: contrast of the leader's utility minus the rival's.
        losses: test utility that the leader and the rival lose against DP-SGD, over all seeds.
        ahead: where curves cross, on which side the leader is ahead: *beyond* or *below* this reduction.
    """

    place: float
    rival: Curve
    lead: Contrast
    losses: tuple[float, float]
    ahead: str = ""

    @property
    def reduction(self) -> float:
        return math.exp(self.place)


class Comparison:
    """One curve against others, up to a loss.

    Args:
        mine: the curve that is claimed to be ahead of each of the others.
        rivals: the others.
        most: the loss up to which they are compared.

    Attributes:
        of: number of contrasts from which a choice could be made at each place.
    """

    def __init__(self, mine: Curve, rivals: Sequence[Curve], most: float) -> None:
        self.mine, self.rivals, self.most = mine, rivals, most
        self.of = len(mine.settings) * max(len(rival.settings) for rival in rivals)

    def _places(self, one: Curve, others: Sequence[Curve]) -> list[float]:
        """Return the places at which `one` may be ahead of others."""
        knots = {place for curve in (one, *others) for place, _ in curve.knots}
        first, last = max(0.0, *(other.start for other in others)), one.end
        inside = sorted(place for place in {*knots, first} if first <= place <= last)
        return [place for place in inside if one.gain(place).seems >= -self.most]

    @cached_property
    def ahead(self) -> Any:
        """The statement that `mine` is ahead of each rival at some place."""
        return Any([All([self._better(self.mine, rival, at) for rival in self.rivals]) for at in self._ahead_at])

    @cached_property
    def behind(self) -> Any:
        """The statement that some rival is ahead of `mine` at some place."""
        return Any([self._better(rival, self.mine, at) for rival, at in self._behind_at])

    @cached_property
    def _ahead_at(self) -> Sequence[float]:
        return self._places(self.mine, self.rivals)

    @cached_property
    def _behind_at(self) -> Sequence[tuple[Curve, float]]:
        return [(rival, place) for rival in self.rivals for place in self._places(rival, [self.mine])]

    @cached_property
    def verdict(self) -> Verdict:
        """Whether `mine` is ahead, behind, or both at different reductions; inconclusive if no curve even seems to be
        ahead of another, so that only other settings could tell."""
        so, not_so = self.ahead.p(self.of, True), self.behind.p(self.of, True)
        if so < LEVEL and not_so < LEVEL:
            return Verdict(CROSSES, max(so, not_so))
        if min(so, not_so) < LEVEL:
            return Verdict(HOLDS, so) if so < LEVEL else Verdict(FAILS, not_so)
        return Verdict(INCONCLUSIVE if max(self.ahead.value, self.behind.value) <= 0 else OPEN)

    @cached_property
    def points(self) -> list[Point]:
        """The points on which the verdict rests; without a verdict, that at which a curve seems to be ahead by most;
        none if no curve runs where another was tried."""
        if self.verdict == CROSSES:
            return [self._leads, self._trails]
        if not (self._ahead_at or self._behind_at):
            return []
        ahead = self.verdict == HOLDS or (self.verdict != FAILS and self.ahead.seems >= self.behind.seems)
        return [self._leads if ahead else self._trails]

    @property
    def _leads(self) -> Point:
        place = self._ahead_at[self.ahead.best]
        return self._point(min(self.rivals, key=lambda rival: _lead(self.mine, rival, place).seems), place)

    @property
    def _trails(self) -> Point:
        return self._point(*self._behind_at[self.behind.best])

    def bounds(self, point: Point) -> Difference:
        """Return the lead at a point with its bounds, as one of all that were compared."""
        return point.lead.at(self.of * (len(self._ahead_at) + len(self._behind_at)), True)

    @cached_property
    def crossing(self) -> Point | None:
        """The reduction between the two points from which the other one is ahead; None if the curves do not cross, or
        test utilities over all seeds do not show where."""
        if self.verdict != CROSSES:
            return None
        rival = self._trails.rival
        first, last = sorted((self._leads.place, self._trails.place))
        knots = {place for one in (self.mine, rival) for place, _ in one.knots if first < place < last}
        leads = [(at, _lead(self.mine, rival, at).value) for at in sorted({first, *knots, last})]
        for (left, one), (right, other) in pairwise(leads):
            if one * other < 0:
                side = "beyond" if self._leads.place > self._trails.place else "below"
                return replace(self._point(rival, left + (right - left) * one / (one - other)), ahead=side)
        return None

    @property
    def ended(self) -> list[Curve]:
        """The curves that are not shown to be ahead and end where they seem to lose less than `most`: sparser settings
        might be ahead at larger reductions."""
        losing = {HOLDS: self.rivals, FAILS: [self.mine], CROSSES: []}.get(self.verdict, [self.mine, *self.rivals])
        return [one for one in losing if not one.closed and one.gain(one.knots[-1][0]).seems > -self.most]

    def _point(self, rival: Curve, place: float) -> Point:
        losses = -self.mine.gain(place).value, -rival.gain(place).value
        return Point(place, rival, _lead(self.mine, rival, place), losses)

    @staticmethod
    def _better(one: Curve, other: Curve, place: float) -> Statement:
        """Return the statement that `one` is better at a place than the other curve, than each setting of the other
        algorithm that reaches the place (the choosing seeds may have kept the best of them off the curve), and than
        frozen embeddings."""
        utility = one.gain(place)
        rivals = [other.gain(place), *(gain for at, gain in other.gains if at >= place)]
        if one.frozen is not None:
            rivals.append(one.gain_of(one.frozen))
        return All([Above(utility.minus(rival)) for rival in rivals])


def _lead(one: Curve, other: Curve, place: float) -> Contrast:
    return one.gain(place).minus(other.gain(place))
