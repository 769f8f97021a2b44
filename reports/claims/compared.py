"""The settings of some algorithms in one panel, with what they are compared with: DP-SGD and frozen embeddings."""

from __future__ import annotations

from functools import cached_property
from itertools import chain

from reports.claims.curves import LOSSES, Curve
from reports.claims.estimate import Difference, Sample
from reports.claims.logic import Above, Statement, between
from reports.comparison import Panel


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

    @cached_property
    def frozen_loss(self) -> Difference | None:
        """The loss of frozen embeddings, a reduction with the same loss being worth nothing; None without such runs."""
        return self.control.at(len(self.rivals) * len(self.controls)) if self.control else None

    @property
    def worthless(self) -> bool:
        """Whether the loss of frozen embeddings is shown to be below all losses compared at."""
        return self.frozen_loss is not None and self.frozen_loss.high < LOSSES[0]

    def worth(self, loss: float) -> list[Statement]:
        """Return the statement that frozen embeddings lose more than this; none without runs of them."""
        return [Above(self.control, loss)] if self.control else []

    def curve(self, name: str, factor: float = 1.0, words: str = "") -> Curve:
        """Return an algorithm's curve in a panel that has settings of it and of DP-SGD."""
        assert self.reference is not None
        return Curve(name, self.panel.of(name), self.sample, self.reference, self.frozen, factor, words)
