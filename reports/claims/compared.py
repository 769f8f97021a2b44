"""The settings of some algorithms in one panel, with what they are compared with: DP-SGD and frozen embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from reports.claims.estimate import Difference, Sample, Verdict
from reports.claims.logic import Above, Contrast, Statement, below, between, verdict
from reports.comparison import Panel, Setting

LOSSES = (0.001, 0.005, 0.01)
"""The losses at which the paper's tables give reductions."""


class Compared:
    """Settings of several algorithms in one of several panels, with the DP-SGD that they are compared with: the best
    one on the choosing seeds.

    Attributes:
        frozen: frozen embeddings, the best ones on the choosing seeds; None without such runs.
        control: contrast of their loss.
        lacking: names without a setting.
    """

    def __init__(self, panel: Panel, *names: str, panels: int = 1) -> None:
        self.panel = panel
        self.rivals = panel.of("dpsgd")
        tried = chain(self.rivals, *(panel.of(name) for name in names if name != "dpsgd"))
        self.controls = panel.of("frozen")
        self.sample = Sample(tried, panels, [] if "frozen" in names else self.controls)
        self.reference, self.frozen = self.sample.best(self.rivals), self.sample.best(self.controls)
        self.control = between(self.sample, self.reference, self.frozen) if self.reference and self.frozen else None
        self.lacking = [name for name in ("dpsgd", *names) if not panel.of(name)]

    def tried(self, name: str) -> Tried:
        assert self.reference is not None
        return Tried(self.panel.of(name), self.reference, self.sample)

    def frozen_loss(self) -> Difference | None:
        """Return the loss of frozen embeddings, a reduction with the same loss being worth nothing; None without such
        runs."""
        return self.control.at(len(self.rivals) * len(self.controls)) if self.control else None

    def worthless(self) -> Difference | None:
        """Return the loss of frozen embeddings if it is shown to be below all losses compared at."""
        lost = self.frozen_loss()
        return lost if lost and lost.high < LOSSES[0] else None

    def worth(self, loss: float) -> list[Statement]:
        """Return the statement that frozen embeddings lose more than this; none without runs of them."""
        return [Above(self.control, loss)] if self.control else []

    def verdict(self, statement: Statement, of: int = 1) -> Verdict:
        """Return the verdict on a statement about the chosen DP-SGD, and a setting chosen among `of`."""
        return verdict(statement, chosen=True, of=of * len(self.rivals))


@dataclass(frozen=True)
class Tried:
    """The settings tried of an algorithm, and their losses against a reference."""

    settings: Sequence[Setting]
    reference: Setting
    sample: Sample

    @cached_property
    def lost(self) -> Mapping[str, Contrast]:
        """Contrast of the loss of each setting, by the setting's key."""
        return {setting.key: between(self.sample, self.reference, setting) for setting in self.settings}

    @property
    def sparsest(self) -> Setting:
        return max(self.settings, key=lambda s: (s.reduction, s.key))

    def within(self, setting: Setting, loss: float) -> Statement:
        return below(self.lost[setting.key], loss)

    def beyond(self, setting: Setting, loss: float) -> Statement:
        return Above(self.lost[setting.key], loss)
