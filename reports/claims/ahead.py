"""Is one algorithm ahead of others, or do their curves cross? Each cuts the gradient at a loss of utility."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from reports.ablation import largest_grid
from reports.algorithms import algorithm, label
from reports.claims.claim import Finding, missing, undecided
from reports.claims.compared import Compared
from reports.claims.curves import Comparison, Curve, Point, up_to
from reports.claims.estimate import CROSSES, FAILS, HOLDS, NEARLY, Difference, Sample
from reports.comparison import Panel
from reports.wording import metric, multiple, number, signed

WORTHLESS = ": every algorithm can cut the gradient without loss, and on such data none can be ahead."


@dataclass(frozen=True)
class Ahead:
    """The leader's reduction exceeds `factor` times that of each rival at the same utility. The place is a panel or, of
    other data for the rivals, two."""

    leader: str
    rivals: tuple[str, ...]
    factor: float = 1.0

    def __call__(self, place: Panel | tuple[Panel, Panel], panels: int) -> Finding:
        if isinstance(place, Panel):
            ours = theirs = Compared(place, self.leader, *self.rivals, panels=panels)
        else:
            ours, theirs = (
                Compared(place[0], self.leader, panels=panels),
                Compared(place[1], *self.rivals, panels=panels),
            )
        apart = ours is not theirs
        for side in (ours, theirs):
            if side.lacking:
                return missing(f"{' or '.join(map(label, side.lacking))} runs")
            if side.worthless:
                on = f" on {side.panel.population.dataset}" if apart else ""
                return undecided(f"The loss of frozen embeddings{on} is {side.frozen_loss}{WORTHLESS}")

        def words(name: str, side: Compared) -> str:
            return f"{label(name)} on {side.panel.population.dataset}" if apart else ""

        mine = ours.curve(self.leader, words=words(self.leader, ours))
        rivals = [theirs.curve(name, self.factor, words(name, theirs)) for name in self.rivals]
        return _compared(mine, rivals, "utility" if apart else metric(ours.panel.population), factor=self.factor)


def optimum_inside(panel: Panel, panels: int) -> Finding:
    """Of the settings within NEARLY of the best, the sparsest has a σ₁/σ₂ above the median of those tried, and a τ that
    is neither the smallest nor the largest."""
    grid = largest_grid(panel.population, panel.epsilon).positive
    middle, inner = statistics.median(grid.ratios or [0]), grid.thresholds[1:-1]
    inside = [s for (ratio, tau), s in grid.cells.items() if ratio > middle and tau in inner]
    outside = [s for s in grid.cells.values() if s not in inside]
    sample = Sample(grid.cells.values(), panels)
    best = sample.best(grid.cells.values())
    if not inside or len(grid.ratios) < 2 or best is None:
        return missing("two noise ratios with three τ")
    region = f"the region σ₁/σ₂ > {number(middle)}, τ from {number(inner[0])} to {number(inner[-1])}"
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
    if empty := [one.label for one in curves if not one.settings]:
        return undecided(f"No setting of {' or '.join(empty)} has a gradient that is not empty.")
    comparison = Comparison(mine, rivals, up_to(curves) if most is None else most)
    points = [(point, comparison.bounds(point)) for point in comparison.points]
    if not points:
        runs = [f"{one.label} runs from {multiple(one.densest)} to {multiple(one.sparsest)}" for one in curves]
        common = f"These curves have no reduction in common at a loss of at most {number(comparison.most)}"
        return undecided(f"{common}: {', '.join(runs)}.")
    crossing, (_, lead) = comparison.crossing, points[0]
    return Finding(
        comparison.verdict,
        _words(comparison, points, utility, factor),
        (f"lead in {utility}", lead.low, lead.high) if len(points) == 1 else None,
        as_tried=comparison.verdict in (HOLDS, FAILS) and bool(comparison.ended),
        crossing=(crossing.reduction, crossing.losses[0], crossing.ahead) if crossing else None,
    )


def _words(comparison: Comparison, points: Sequence[tuple[Point, Difference]], utility: str, factor: float) -> str:
    """Return who is ahead where, and by how much."""
    leader, names = comparison.mine.label, " and ".join(rival.label for rival in comparison.rivals)
    times, crossing = number(factor), comparison.crossing
    behind = f"not ahead by a factor of {times} of" if factor > 1 else "behind"
    said = {
        HOLDS: f"{leader} is ahead of {names}{f' by more than a factor of {times}' if factor > 1 else ''}",
        FAILS: f"{leader} is {behind} {points[0][0].rival.label}",
        CROSSES: f"{leader} and {names} cross"
        + (f" at {multiple(crossing.reduction)}, a loss of {crossing.losses[0]:.4f};" if crossing else ":"),
    }.get(comparison.verdict, f"{leader} and {points[0][0].rival.label} seem furthest apart")
    each = []
    for point, lead in points:
        ours, theirs = (signed(loss).removeprefix("+") for loss in point.losses)
        there = f" at {multiple(point.reduction / factor)}" if factor > 1 else ""
        each.append(f"at {multiple(point.reduction)}: {utility} lost {ours} against {theirs}{there} (lead {lead})")
    ended = ", ".join(one.label for one in comparison.ended)
    knobs = " and ".join(dict.fromkeys(algorithm(one.name).knob for one in comparison.ended))
    return f"{said} {'; '.join(each)}." + (f" {ended} was not tried sparser: sweep {knobs}." if ended else "")
