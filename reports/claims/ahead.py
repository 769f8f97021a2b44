"""Tests of which algorithm is ahead of another in the trade-off of utility and reduction.

An algorithm is ahead within a loss if one of its settings loses less than that, and all settings of the other algorithm
with at least the same reduction lose more. The other algorithm must have such a setting, or its sparsest possible one
(`Setting.is_sparsest`); otherwise its grid ends too early to decide. Verdicts are about the settings tried, unless they
hold `between` them, too: then the nearest denser setting of the other algorithm loses more as well, so that there is no
untried one that is as sparse and loses less, if sparser settings lose more.

A lead within a loss counts only if frozen embeddings, whose gradient is empty, lose more than that: where they do not,
reductions are worth nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from reports.claims.estimate import Difference, Sample
from reports.claims.logic import Above, All, Any, Contrast, Statement, below, between, verdict
from reports.comparison import Panel, Setting, best_reduction
from reports.wording import multiple

LOSSES = (0.001, 0.005, 0.01)
"""The losses at which the paper's tables give reductions."""

WIDER = (0.02, 0.04, 0.08)
"""Larger losses, at which algorithms are compared if none cuts the gradient within the paper's."""


@dataclass(frozen=True)
class Reach:
    """Best reduction within a loss: chosen on validation, with 95% bounds; 1 is DP-SGD's own.

    Attributes:
        ended: whether no setting was shown to lose more, so that untried sparser settings (`Setting.is_sparsest`) might
            have a larger reduction.
    """

    chosen: float
    surely: float
    at_most: float
    ended: bool

    def __str__(self) -> str:
        chosen, surely, at_most = multiple(self.chosen), multiple(self.surely), multiple(self.at_most)
        if not self.ended and surely == chosen == at_most:
            return chosen
        least = f"{surely} to " if at_most != surely else ""
        return f"{chosen} ({least}{'≥ ' * self.ended}{at_most})"


class Compared:
    """Settings of several algorithms in one of several panels, with the DP-SGD that they are compared with: the best
    one on the choosing seeds.

    Attributes:
        control: contrast of the loss of frozen embeddings, the best ones on the choosing seeds; None without such runs.
    """

    def __init__(self, panel: Panel, *names: str, panels: int = 1) -> None:
        self.panel = panel
        self.rivals = panel.of("dpsgd")
        tried = chain(self.rivals, *(panel.of(name) for name in names if name != "dpsgd"))
        self._frozen = panel.of("frozen")
        self.sample = Sample(tried, panels, [] if "frozen" in names else self._frozen)
        self.reference, best = self.sample.best(self.rivals), self.sample.best(self._frozen)
        self.control = between(self.sample, self.reference, best) if best and self.reference else None
        self.lacking = [name for name in ("dpsgd", *names) if not panel.of(name)]

    def tried(self, name: str) -> Tried:
        assert self.reference is not None
        return Tried(name, self.panel.of(name), self.reference, self.sample, self.control, references=len(self.rivals))

    def frozen_loss(self) -> Difference | None:
        """Return the loss of frozen embeddings, a reduction with the same loss being worth nothing; None without such
        runs."""
        return self.control.at(len(self.rivals) * len(self._frozen)) if self.control else None

    def worthless(self) -> Difference | None:
        """Return the loss of frozen embeddings if it is shown to be below all losses compared at."""
        lost = self.frozen_loss()
        return lost if lost and lost.high < LOSSES[0] else None

    def unsure(self, losses: Sequence[float]) -> bool:
        """Whether frozen embeddings seem to lose less than one of these, so that more seeds may show leads to count."""
        return self.control is not None and self.control.value < max(losses)

    def verdict(self, statement: Statement, of: int = 1) -> str:
        """Return the verdict on a statement about the chosen DP-SGD, and a setting chosen among `of`."""
        return verdict(statement, chosen=True, of=of * len(self.rivals))


@dataclass(frozen=True)
class Tried:
    """The settings tried of an algorithm, and their losses against a reference.

    Attributes:
        control: contrast of the loss of frozen embeddings, if a reduction is worth something only at smaller losses.
        every: whether the claim is about these settings only, so that sparser ones do not matter.
        between: whether untried settings between two tried ones matter.
        references: number of settings among which the reference was chosen.
    """

    name: str
    settings: Sequence[Setting]
    reference: Setting
    sample: Sample
    control: Contrast | None = None
    every: bool = False
    between: bool = False
    references: int = 1

    @cached_property
    def lost(self) -> Mapping[str, Contrast]:
        """Contrast of the loss of each setting, by the setting's key."""
        return {setting.key: between(self.sample, self.reference, setting) for setting in self.settings}

    @cached_property
    def sparsest(self) -> Setting:
        return max(self.settings, key=lambda s: (s.reduction, s.key))

    def within(self, setting: Setting, loss: float) -> Statement:
        return below(self.lost[setting.key], loss)

    def beyond(self, setting: Setting, loss: float) -> Statement:
        return Above(self.lost[setting.key], loss)

    def worth(self, loss: float) -> list[Statement]:
        """Return the statement that frozen embeddings lose more than this; none without runs of them."""
        return [Above(self.control, loss)] if self.control else []

    def none_reaches(self, reduction: float, loss: float) -> list[Statement]:
        """Return the statements that no setting with at least this reduction has so small a loss, untried sparser
        settings included."""
        there = [setting for setting in self.settings if setting.reduction >= reduction]
        if not there and not self._closed:
            there = [self.sparsest]
        beyond: list[Statement] = [self.beyond(setting, loss) for setting in there]
        return [*beyond, self._denser_is_beyond(reduction, loss)] if self.between else beyond

    def _denser_is_beyond(self, reduction: float, loss: float) -> Statement:
        """Return the statement that the nearest setting with at most this reduction loses more; false without one. A
        setting that seems worse than a sparser one (of other hyperparameters) is no neighbour."""
        least, nearest = math.inf, None
        for setting in sorted(self.settings, key=lambda s: (s.reduction, s.key), reverse=True):
            if setting.reduction <= reduction and self.lost[setting.key].seems < least:
                nearest = setting
                break
            least = min(least, self.lost[setting.key].seems)
        return self.beyond(nearest, loss) if nearest else Any([])

    def reach(self, loss: float) -> Reach:
        """Return the best reduction of these settings within a loss. The lower bound is the reduction of the sparsest
        setting that seems within the loss on the choosing seeds, if the confirming seeds confirm it."""
        by_size = sorted(self.settings, key=lambda s: (s.reduction, s.key), reverse=True)
        lost, of = self.lost, len(self.settings) * self.references
        promising = (s for s in by_size if lost[s.key].seems + lost[s.key].at(of).half <= loss)
        first = next(promising, None)
        surely = first.reduction if first and lost[first.key].at(of).high <= loss else 1.0
        at_most = next((s.reduction for s in by_size if lost[s.key].at(self.references).low <= loss), 1.0)
        chosen = best_reduction(self.settings, self.reference, loss)
        ended = at_most >= self.sparsest.reduction and not self._closed
        return Reach(1.0 if chosen is None else chosen.reduction, max(1.0, surely), max(1.0, at_most), ended)

    def ends(self, loss: float) -> bool:
        """Whether even the sparsest setting tried loses no more than this, although sparser ones are possible."""
        return self.lost[self.sparsest.key].value <= loss and not self._closed

    @property
    def _closed(self) -> bool:
        return self.every or self.sparsest.is_sparsest


def comparable(tried: Sequence[Tried]) -> tuple[Sequence[float], int]:
    """Return the losses at which to compare, and the number of sets of losses examined to find them.

    These are the paper's losses or, if no setting seems to cut the gradient within them, the first wider one within
    which a setting does, up to half of the loss of frozen embeddings.
    """
    frozen = max((one.control.seems for one in tried if one.control), default=0.0)
    most = [loss for loss in WIDER if loss <= frozen / 2]
    for place, losses in enumerate((LOSSES, *([loss] for loss in most))):
        if any(one.lost[s.key].seems <= max(losses) for one in tried for s in one.settings if s.reduction > 1):
            return losses, 1 + place
    return LOSSES, 1


def ahead(mine: Tried, rivals: Sequence[Tried], factor: float = 1.0, losses: Sequence[float] = LOSSES) -> Statement:
    """Return the statement that within one of the losses the reduction of `mine` exceeds `factor` times that of each
    rival."""
    return Any(
        [
            All(
                [
                    mine.within(setting, loss),
                    *(part for rival in rivals for part in rival.none_reaches(setting.reduction / factor, loss)),
                    *(part for one in (mine, *rivals) for part in one.worth(loss)),
                ]
            )
            for loss in losses
            for setting in mine.settings
            if setting.reduction > factor
        ]
    )


def behind(mine: Tried, rivals: Sequence[Tried], factor: float = 1.0, losses: Sequence[float] = LOSSES) -> Statement:
    """Return the statement that within one of the losses the reduction of `mine` does not exceed `factor` times that of
    some rival, at a reduction at which `mine` was tried: settings denser than its densest might lose less."""
    densest = min(setting.reduction for setting in mine.settings)

    def refuted(rival: Tried, setting: Setting, loss: float) -> Statement:
        beyond = mine.none_reaches(_more(factor * setting.reduction), loss)
        return All([rival.within(setting, loss), *beyond, *mine.worth(loss), *rival.worth(loss)])

    return Any(
        [
            refuted(rival, setting, loss)
            for loss in losses
            for rival in rivals
            for setting in rival.settings
            if setting.reduction > 1 and factor * setting.reduction >= densest
        ]
    )


def _more(reduction: float) -> float:
    """Return a slightly larger reduction, to exclude equality up to rounding."""
    return reduction * (1 + 1e-12)
