"""How does utility change along one setting, all else fixed? Step by step, since a straight line would hide a fall.

A utility *rises* if the last value is shown to exceed the first, and every step is shown to fall by less than half of
that gain and by less than NEARLY. It does not rise if the step (or the whole change) that seems smallest on the
choosing seeds is shown to fall.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from reports.ablation import Grid, largest_grid
from reports.algorithms import label
from reports.claims.claim import Finding, missing
from reports.claims.estimate import FAILS, HOLDS, INCONCLUSIVE, NEARLY, Difference, Sample, Verdict
from reports.claims.logic import Above, All, Any, Contrast, between, equivalent, mean_gain, verdict
from reports.claims.reaches import TOLERABLE
from reports.comparison import Panel
from reports.setting import Setting
from reports.wording import metric, number, plural

Line = Mapping[float, Setting]
"""Settings by the value that changes; everything else is the same."""


@dataclass(frozen=True)
class Trend:
    """The changes along parallel lines, each a mean over them.

    Attributes:
        lines: lines of two values or more.
        of: number of settings among which the choosing seeds chose those of the lines; 1 without a choice.
    """

    sample: Sample
    lines: Sequence[Line]
    of: int = 1

    @cached_property
    def steps(self) -> Mapping[tuple[float, float], Contrast]:
        """Changes between neighbouring values."""
        pairs: dict[tuple[float, float], list[tuple[Setting, Setting]]] = {}
        for line in self.lines:
            for low, high in pairwise(sorted(line)):
                pairs.setdefault((low, high), []).append((line[low], line[high]))
        return {step: mean_gain(self.sample, both) for step, both in sorted(pairs.items())}

    @cached_property
    def whole(self) -> Contrast:
        """Change from the first value to the last."""
        return mean_gain(self.sample, [(line[min(line)], line[max(line)]) for line in self.lines])

    @cached_property
    def changes(self) -> list[Contrast]:
        """The whole change and the steps, which are the same if there is one step."""
        return [self.whole, *(self.steps.values() if len(self.steps) > 1 else ())]

    @property
    def rises(self) -> Verdict:
        small = [
            part for step in self.steps.values() for part in (Above(step, -NEARLY), Above(step.plus(self.whole, 0.5)))
        ]
        falls = -All([Above(change) for change in self.changes])
        return verdict(All([Above(self.whole), *small]), self.of, self.of > 1, falls)

    @property
    def level(self) -> Verdict:
        """Whether all values are equally good."""
        return verdict(All([equivalent(change) for change in self.changes]), self.of, self.of > 1)

    def finding(self, outcome: Verdict, panel: Panel, along: str, over: str = "") -> Finding:
        """Return the finding with the whole change, and the step that rises least or falls most over all seeds."""
        values = [value for line in self.lines for value in line]
        (low, high), least = min(self.steps.items(), key=lambda item: (item[1].value, item[0]))
        whole, step = (change.at(self.of, self.of > 1) for change in (self.whole, least))
        said = f"{whole}; the least step, {number(low)} to {number(high)}, by {step}"
        ends = min(values), max(values)
        return _changed(outcome, panel, _span(along, *ends) + over, said, "change", whole)


RATIOS, THRESHOLDS, DAYS = "σ₁/σ₂ = {} to {}", "τ = {} to {}", "a period of {} to {} days"
"""From one value of a setting to another, in words."""


def _span(along: str, low: float, high: float) -> str:
    return along.format(number(low), number(high))


def _changed(outcome: Verdict, panel: Panel, along: str, by: str, what: str, decisive: Difference) -> Finding:
    """Return the finding of what a change along a setting changes utility by, decided by a difference of it."""
    name = metric(panel.population)
    words = f"From {along}, {name} changes by {by}."
    return Finding(outcome, words, (f"{what} of {name}", decisive.low, decisive.high))


def _ratio(value: float) -> str:
    return f"σ₁/σ₂ = {number(value)}"


@dataclass(frozen=True)
class Periods:
    """The utility of an algorithm rises (or is level) with the streaming period, each at its best setting."""

    name: str
    level: bool = False

    def __call__(self, panel: Panel, panels: int) -> Finding:
        tried, population = panel.of(self.name), panel.population
        sample = Sample(tried, panels)
        at = {float(days): replace(panel, population=population.at(days)) for days in population.periods}
        best = {days: setting for days, one in at.items() if (setting := sample.best(one.of(self.name)))}
        if len(best) < 2:
            return missing(f"{label(self.name)} runs in two periods")
        trend = Trend(sample, [best], 1 + len(tried) - len(best))
        return trend.finding(trend.level if self.level else trend.rises, panel, DAYS)


def private_moved_more(panel: Panel, panels: int) -> Finding:
    """From the shortest period to the longest, DP-SGD gains more than training without privacy does: one contrast."""
    population, ends = panel.population, (panel.population.periods[0], panel.population.periods[-1])
    tried = {
        name: [population.at(days).of(name, epsilon) for days in ends]
        for name, epsilon in (("dpsgd", panel.epsilon), ("nonprivate", None))
    }
    sample = Sample((setting for both in tried.values() for settings in both for setting in settings), panels)
    best = {name: [one for settings in both if (one := sample.best(settings))] for name, both in tried.items()}
    if lacking := [name for name, both in best.items() if len(both) < 2 or ends[0] == ends[1]]:
        return missing(f"{label(lacking[0])} runs in two periods")
    private, public = (between(sample, later, first) for first, later in best.values())
    of, more = len(sample.settings) - 3, private.plus(public, -1.0)  # with four settings there was no choice
    gains, moved = [gain.at(of, of > 1) for gain in (private, public)], more.at(of, of > 1)
    said = f"{gains[0]} with DP-SGD and by {gains[1]} without privacy, a difference of {moved}"
    outcome = verdict(Above(more), of, of > 1)
    return _changed(outcome, panel, _span(DAYS, *ends), said, "difference of gains", moved)


def larger_ratio_better(panel: Panel, panels: int) -> Finding:
    """At the same τ, utility rises with σ₁/σ₂."""
    grid = largest_grid(panel.population, panel.epsilon).positive
    if not (lines := grid.along_ratios):
        return missing("two noise ratios at the same τ")
    trend = Trend(Sample(grid.cells.values(), panels), [*lines.values()])
    return trend.finding(trend.rises, panel, RATIOS, f" (mean over {len(lines)} τ)")


def small_threshold_harmless(panel: Panel, panels: int) -> Finding:
    """Among small τ, none changes utility from that of the smallest by NEARLY. τ is small up to the standard deviation
    of the map's noise, C₁σ₁: there a row without contributions still survives in one step of six."""
    grid = largest_grid(panel.population, panel.epsilon).positive
    small = Grid({of: setting for of, setting in grid.cells.items() if of[1] <= _map_noise(setting)})
    sample = Sample(grid.cells.values(), panels)
    moves = {
        (ratio, min(line), tau): between(sample, setting, line[min(line)])
        for ratio, line in small.along_thresholds.items()
        for tau, setting in line.items()
        if tau > min(line)
    }
    if not moves:
        return missing("two τ within the map's noise at the same σ₁/σ₂")
    (ratio, *ends), most = max(moves.items(), key=lambda item: (abs(item[1].seems), item[0]))
    moved, outcome = most.at(len(moves)), verdict(All([equivalent(contrast) for contrast in moves.values()]))
    along = f"{_span(THRESHOLDS, *ends)} at {_ratio(ratio)}"
    return _changed(outcome, panel, along, f"{moved}, the most of {plural(len(moves), 'change')}", "change", moved)


def _map_noise(setting: Setting) -> float:
    """Return the standard deviation of the noise in the contribution map; 0 if unknown."""
    norm = setting.parameter("contribution_clipping_norm")
    return (setting.runs[0].map_noise_multiplier or 0.0) * (1.0 if norm is None else float(norm))


def large_threshold_cliff(panel: Panel, panels: int) -> Finding:
    """Utility drops sharply from the best smaller τ to the largest, for at least one σ₁/σ₂. The absence of a drop is
    decisive only if τ reached half of the largest sum of a row's contributions (500 of 1,024 examples in the paper)."""
    grid = largest_grid(panel.population, panel.epsilon).positive
    if not (lines := grid.along_thresholds):
        return missing("two τ at the same σ₁/σ₂")
    sample, drops, ends = Sample(grid.cells.values(), panels), {}, {}
    for ratio, line in lines.items():
        *smaller, last = sorted(line)
        ends[ratio] = max(smaller, key=lambda tau: sample.rank(line[tau])), last
        drops[ratio] = between(sample, line[ends[ratio][0]], line[last])
    outcome = verdict(Any([Above(drop, TOLERABLE) for drop in drops.values()]), len(grid.thresholds), True)
    steepest = max(drops, key=lambda ratio: drops[ratio].seems)
    drop, along = drops[steepest].at(len(grid.cells)), f"{_span(THRESHOLDS, *ends[steepest])} at {_ratio(steepest)}"
    said = f"{drop.times(-1)}, the most of {len(drops)} σ₁/σ₂"
    reached, most = max(max(line) for line in lines.values()), largest_contribution(grid.best)
    if reached < most / 2 and (outcome == FAILS or max(drop.value for drop in drops.values()) <= TOLERABLE):
        outcome = Verdict(INCONCLUSIVE)
        said += f". A row's contributions sum to {most:,.0f} at most: sweep larger algorithm.threshold"
    return _changed(outcome, panel, along, said, "loss", drop)


def largest_contribution(setting: Setting) -> float:
    """Return the largest possible sum of a row's contributions in a batch: an example that touches one row in each of F
    tables adds min(1, C₁/√F) to its row. Texts have one table and maps of varying norm: there the smallest norm
    counts."""
    run = setting.runs[0]
    norm = setting.parameter("contribution_clipping_norm")
    clipped = 1.0 if norm is None else float(norm) / math.sqrt(max(1, len(run.tables)))
    return run.batch_size * min(1.0, clipped)


def cliff_worse_at_small_ratio(panel: Panel, panels: int) -> Finding:
    """From the smallest to the largest τ common to both, utility drops more at the smallest σ₁/σ₂ than at the
    largest. It cannot be told where neither drops sharply, nor where utility has dropped before the smaller τ."""
    grid = largest_grid(panel.population, panel.epsilon).positive
    lines = grid.along_thresholds
    few, many = (lines[min(lines)], lines[max(lines)]) if len(lines) > 1 else ({}, {})
    shared = sorted(few.keys() & many.keys())
    sample = Sample(grid.cells.values(), panels)
    best = sample.best(grid.cells.values())
    if len(shared) < 2 or best is None:
        return missing("two τ at each of two σ₁/σ₂")
    low, high = shared[0], shared[-1]
    drops = [between(sample, line[low], line[high]) for line in (few, many)]
    worse = drops[0].plus(drops[1], -1.0)
    outcome, moved = verdict(Above(worse)), worse.at(1, False)
    ratios, changes = (min(lines), max(lines)), [drop.at(1, False).times(-1) for drop in drops]
    each = [f"{change} at {_ratio(ratio)}" for change, ratio in zip(changes, ratios, strict=True)]
    said = f"{' and '.join(each)}, a difference of {moved}"
    why = ""
    if all(drop.value <= TOLERABLE for drop in drops):
        why = ". Neither is a sharp drop: sweep larger algorithm.threshold"
    elif best.test - few[low].test > TOLERABLE:
        why = f". Utility drops before τ = {number(low)}: sweep smaller algorithm.threshold"
    if why and outcome != HOLDS:
        outcome, said = Verdict(INCONCLUSIVE), said + why
    return _changed(outcome, panel, _span(THRESHOLDS, low, high), said, "difference of losses", moved)
