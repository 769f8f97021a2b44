"""Which algorithm is ahead of another, in utility against reduction.

One is ahead within a loss where one of its settings loses less than that, and all of the other's that cut as much lose
more. There must be such a setting of the other one, or one beyond which it has none (`Setting.is_sparsest`); otherwise
its grid ended too early to tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from reports.claims.estimate import Sample
from reports.claims.logic import Above, All, Any, Contrast, Statement, below, between, verdict
from reports.comparison import Panel, Setting, best_reduction
from reports.wording import multiple

LOSSES = (0.001, 0.005, 0.01)
"""The losses at which the paper's tables give reductions."""

WIDER = (0.02, 0.04, 0.08)
"""The losses at which algorithms are compared that cut nothing within the paper's."""


@dataclass(frozen=True)
class Reach:
    """Best reduction within a loss: chosen on validation, and 95% bounds; 1 is DP-SGD's own. `ended` says that no
    setting surely lost more: sparser settings might do better, unless there can be none (`Setting.is_sparsest`)."""

    chosen: float
    surely: float
    at_most: float
    ended: bool

    def __str__(self) -> str:
        further = " or more" if self.ended else ""
        bounds = multiple(self.surely) + (f" to {multiple(self.at_most)}" if self.at_most > self.surely else "")
        return f"{multiple(self.chosen)} ({bounds}{further})"


class Compared:
    """Settings of several algorithms and the DP-SGD that they are compared with, the best on the seeds that choose, in
    one of so many panels."""

    def __init__(self, panel: Panel, *names: str, panels: int = 1) -> None:
        self.panel = panel
        self.rivals = panel.of("dpsgd")
        tried = chain(self.rivals, *(panel.of(name) for name in names if name != "dpsgd"))
        self.sample = Sample(tried, panels)
        self.reference = self.sample.best(self.rivals)
        self.lacking = [name for name in ("dpsgd", *names) if not panel.of(name)]

    def tried(self, name: str) -> Tried:
        assert self.reference is not None
        return Tried(name, self.panel.of(name), self.reference, self.sample)

    def verdict(self, statement: Statement) -> str:
        """What the runs say of a statement of the chosen DP-SGD."""
        return verdict(statement, chosen=True, of=len(self.rivals))


@dataclass(frozen=True)
class Tried:
    """What was tried of an algorithm, and what each setting loses against a reference. `every` says that nothing but
    these settings is spoken of, so that it does not matter where they end."""

    name: str
    settings: Sequence[Setting]
    reference: Setting
    sample: Sample
    every: bool = False

    @cached_property
    def lost(self) -> Mapping[str, Contrast]:
        """By the settings' keys."""
        return {setting.key: between(self.sample, self.reference, setting) for setting in self.settings}

    @cached_property
    def sparsest(self) -> Setting:
        return max(self.settings, key=lambda s: (s.reduction, s.key))

    def within(self, setting: Setting, loss: float) -> Statement:
        return below(self.lost[setting.key], loss)

    def beyond(self, setting: Setting, loss: float) -> Statement:
        return Above(self.lost[setting.key], loss)

    def none_reaches(self, reduction: float, loss: float) -> list[Statement]:
        """That no setting that cuts so much, or more, loses as little: of those that were tried, and of any sparser
        one."""
        there = [setting for setting in self.settings if setting.reduction >= reduction]
        if not there and not self._closed:
            there = [self.sparsest]
        return [self.beyond(setting, loss) for setting in there]

    def reach(self, loss: float) -> Reach:
        """How far these settings cut the gradient within a loss. The lower bound is the sparsest setting that the
        seeds that choose would show to lose no more, if the others show it too."""
        by_size = sorted(self.settings, key=lambda s: (s.reduction, s.key), reverse=True)
        lost, of = self.lost, len(self.settings)
        promising = (s for s in by_size if lost[s.key].seems + lost[s.key].at(of).half <= loss)
        first = next(promising, None)
        surely = first.reduction if first and lost[first.key].at(of).high <= loss else 1.0
        at_most = next((s.reduction for s in by_size if lost[s.key].at().low <= loss), 1.0)
        chosen = best_reduction(self.settings, self.reference, loss)
        ended = at_most >= self.sparsest.reduction and not self._closed
        return Reach(1.0 if chosen is None else chosen.reduction, max(1.0, surely), max(1.0, at_most), ended)

    def ends(self, loss: float) -> bool:
        """Whether no setting was so sparse as to lose so much, though it can be sparser."""
        return self.lost[self.sparsest.key].value <= loss and not self._closed

    @property
    def _closed(self) -> bool:
        return self.every or self.sparsest.is_sparsest


def comparable(tried: Sequence[Tried], frozen: float) -> tuple[Sequence[float], int]:
    """The losses at which to compare, and how many sets of losses that is one of: the paper's or, where nothing seems
    to cut the gradient within them, the first wider one within which something does, up to half of what frozen
    embeddings lose."""
    most = [loss for loss in WIDER if loss <= frozen / 2]
    for place, losses in enumerate((LOSSES, *([loss] for loss in most))):
        if any(one.lost[s.key].seems <= max(losses) for one in tried for s in one.settings if s.reduction > 1):
            return losses, 1 + place
    return LOSSES, 1


def ahead(mine: Tried, rivals: Sequence[Tried], factor: float = 1.0, losses: Sequence[float] = LOSSES) -> Statement:
    """That within one of the losses `mine` cuts the gradient more than `factor` times as much as each rival."""
    return Any(
        [
            All(
                [
                    mine.within(setting, loss),
                    *(part for rival in rivals for part in rival.none_reaches(setting.reduction / factor, loss)),
                ]
            )
            for loss in losses
            for setting in mine.settings
            if setting.reduction > factor
        ]
    )


def behind(mine: Tried, rivals: Sequence[Tried], factor: float = 1.0, losses: Sequence[float] = LOSSES) -> Statement:
    """That within one of the losses `mine` does not cut it more than `factor` times as much as some rival, at a
    reduction at which `mine` was tried: denser settings than the densest might lose less."""
    densest = min(setting.reduction for setting in mine.settings)

    def refuted(rival: Tried, setting: Setting, loss: float) -> Statement:
        return All([rival.within(setting, loss), *mine.none_reaches(_more(factor * setting.reduction), loss)])

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
    """What is more than a reduction, and no more so by rounding."""
    return reduction * (1 + 1e-12)
