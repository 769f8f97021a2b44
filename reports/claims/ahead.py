"""Is one algorithm ahead of others, or do their curves cross? Each cuts the gradient at a loss of utility."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from reports.ablation import fullest_grid
from reports.algorithms import label
from reports.claims.claim import Finding, Interval, found, missing, undecided
from reports.claims.compared import Compared
from reports.claims.curves import Comparison, Curve, up_to
from reports.claims.estimate import FAILS, HOLDS, NEARLY, Sample
from reports.comparison import Panel
from reports.wording import metric, number


@dataclass(frozen=True)
class Ahead:
    """In a panel, the leader's reduction exceeds `factor` times that of each rival at the same utility."""

    leader: str
    rivals: tuple[str, ...]
    factor: float = 1.0

    def __call__(self, panel: Panel, panels: int) -> Finding:
        compared = Compared(panel, self.leader, *self.rivals, panels=panels)
        if compared.lacking:
            return missing("lacking", names=compared.lacking)
        if compared.worthless:
            return undecided("nothing_to_lose", lost=compared.frozen_loss, where="")
        rivals = [compared.curve(name, self.factor) for name in self.rivals]
        return _compared(compared.curve(self.leader), rivals, metric(panel.population), factor=self.factor)


@dataclass(frozen=True)
class AheadOnOther:
    """At the same loss, an algorithm has a larger reduction in one panel than in another on other data."""

    name: str

    def __call__(self, place: tuple[Panel, Panel], panels: int) -> Finding:
        pair = [Compared(panel, self.name, panels=panels) for panel in place]
        for compared in pair:
            if compared.worthless:
                where = f" on {compared.panel.population.dataset}"
                return undecided("nothing_to_lose", lost=compared.frozen_loss, where=where)
        words = [f"{label(self.name)} on {panel.population.dataset}" for panel in place]
        mine, theirs = (one.curve(self.name, words=said) for one, said in zip(pair, words, strict=True))
        return _compared(mine, [theirs], "utility")


def optimum_inside(panel: Panel, panels: int) -> Finding:
    """Of the settings within NEARLY of the best, the sparsest has a σ₁/σ₂ above the median of those tried, and a τ that
    is neither the smallest nor the largest."""
    grid = fullest_grid(panel.population, panel.epsilon).positive
    middle, inner = statistics.median(grid.ratios or [0]), grid.thresholds[1:-1]
    inside = [s for (ratio, tau), s in grid.cells.items() if ratio > middle and tau in inner]
    outside = [s for s in grid.cells.values() if s not in inside]
    sample = Sample(grid.cells.values(), panels)
    best = sample.best(grid.cells.values())
    if not inside or len(grid.ratios) < 2 or best is None:
        return missing("missing", what="two noise ratios with three τ")
    region = f"σ₁/σ₂ > {number(middle)} and τ from {number(inner[0])} to {number(inner[-1])}"
    mine, others = (
        Curve("adafest", settings, sample, best, words=words)
        for words, settings in ((region, inside), ("the rest", outside))
    )
    return _compared(mine, [others], metric(panel.population), NEARLY)


def _compared(
    mine: Curve, rivals: list[Curve], utility: str, most: float | None = None, factor: float = 1.0
) -> Finding:
    """Return the finding of a comparison of curves up to a loss; by default of one at which gradients are cut."""
    curves = [mine, *rivals]
    if empty := [one.name for one in curves if not one.settings]:
        return undecided("all_empty", names=empty)
    comparison = Comparison(mine, rivals, up_to(curves) if most is None else most)
    points = [(point, comparison.bounds(point)) for point in comparison.points]
    if not points:
        return undecided("apart", curves=curves, most=comparison.most)
    verdict, (_, lead), crossing = comparison.verdict, points[0], comparison.crossing
    interval: Interval | None = (f"lead in {utility}", lead.low, lead.high) if len(points) == 1 else None
    as_tried = verdict in (HOLDS, FAILS) and bool(comparison.ended)
    finding = found(
        verdict, "ahead", interval, as_tried, comparison=comparison, points=points, factor=factor, metric=utility
    )
    at = (crossing.reduction, crossing.losses[0], crossing.ahead) if crossing else None
    return replace(finding, crossing=at)
