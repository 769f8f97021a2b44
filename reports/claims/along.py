"""How does utility change along one setting, all else fixed? Step by step, since a straight line would hide a fall.

A utility *rises* if the last value is shown to exceed the first, and every step is shown to fall by less than half of
that gain and by less than NEARLY. It does not rise if the step (or the whole change) that seems smallest on the
choosing seeds is shown to fall.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from reports.ablation import Grid, fullest_grid
from reports.claims.claim import Finding, found, missing
from reports.claims.estimate import FAILS, HOLDS, INCONCLUSIVE, NEARLY, Difference, Sample, Verdict
from reports.claims.logic import Above, All, Any, Contrast, between, equivalent, mean_gain, verdict
from reports.claims.reaches import TOLERABLE
from reports.comparison import Panel, Setting
from reports.wording import metric, number, plural

Line = Mapping[float, Setting]
"""Settings by the value that changes; everything else is the same."""

SPARSER = "sweep larger algorithm.threshold."


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

    def finding(
        self, outcome: Verdict, panel: Panel, setting: str, over: str = "", word: Callable[[float], str] = number
    ) -> Finding:
        """Return the finding with the whole change, and the step that rises least or falls most over all seeds."""
        steps = {ends: step.at(self.of, self.of > 1) for ends, step in self.steps.items()}
        (low, high) = min(steps, key=lambda ends: (self.steps[ends].value, ends))
        whole, values = self.whole.at(self.of, self.of > 1), [value for line in self.lines for value in line]
        said = f"; the least step, from {word(low)} to {word(high)}, changes it by {steps[low, high]}"
        return _changed(outcome, panel, setting, (word(min(values)), word(max(values))), whole, over, said)


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
            return missing("few_periods", name=self.name)
        trend = Trend(sample, [best], 1 + len(tried) - len(best))
        return trend.finding(trend.level if self.level else trend.rises, panel, "a period of ", word=_days)


def _days(period: float) -> str:
    return plural(int(period), "day")


def private_moved_more(panel: Panel, panels: int) -> Finding:
    """From the shortest period to the longest, DP-SGD gains more than training without privacy does: one contrast."""
    population, ends = panel.population, (panel.population.periods[0], panel.population.periods[-1])
    named = {"DP-SGD": ("dpsgd", panel.epsilon), "training without privacy": ("nonprivate", None)}
    tried = {words: [population.at(days).of(*of) for days in ends] for words, of in named.items()}
    sample = Sample((setting for both in tried.values() for settings in both for setting in settings), panels)
    best = {words: [one for settings in both if (one := sample.best(settings))] for words, both in tried.items()}
    for words, both in best.items():
        if len(both) < 2 or ends[0] == ends[1]:
            return missing("few_periods", name=named[words][0])
    changes = {words: between(sample, later, first) for words, (first, later) in best.items()}
    of = len(sample.settings) - 3  # with four settings there was no choice
    private, public = changes.values()
    more = private.plus(public, -1.0)
    outcome = verdict(Above(more), of, of > 1)
    why = (
        "In longer periods DP-SGD also needs less noise per step, so shifts of the distribution need not be the reason."
    )
    return _more(outcome, panel, "gains", more.at(of, of > 1), "a period of ", map(_days, ends), changes, why)


def larger_ratio_better(panel: Panel, panels: int) -> Finding:
    """At the same τ, utility rises with σ₁/σ₂."""
    grid = fullest_grid(panel.population, panel.epsilon).positive
    if not (lines := grid.along_ratios):
        return missing("missing", what="two noise ratios at the same τ")
    trend = Trend(Sample(grid.cells.values(), panels), [*lines.values()])
    return trend.finding(trend.rises, panel, "σ₁/σ₂ = ", f" (mean over {len(lines)} τ)")


def small_threshold_harmless(panel: Panel, panels: int) -> Finding:
    """Among small τ, none changes utility from that of the smallest by NEARLY. τ is small up to the standard deviation
    of the map's noise, C₁σ₁: there a row without contributions still survives in one step of six."""
    grid = fullest_grid(panel.population, panel.epsilon).positive
    small = Grid({of: setting for of, setting in grid.cells.items() if of[1] <= _map_noise(setting)})
    sample = Sample(grid.cells.values(), panels)
    moves = {
        (ratio, min(line), tau): between(sample, setting, line[min(line)])
        for ratio, line in small.along_thresholds.items()
        for tau, setting in line.items()
        if tau > min(line)
    }
    if not moves:
        return missing("missing", what="two τ within the map's noise at the same σ₁/σ₂")
    (ratio, *ends), most = max(moves.items(), key=lambda item: (abs(item[1].seems), item[0]))
    over = f" at σ₁/σ₂ = {number(ratio)} (the most of {plural(len(moves), 'change')} up to the map's noise, C₁σ₁)"
    said = f"; below {number(NEARLY)} counts as none"
    outcome = verdict(All([equivalent(contrast) for contrast in moves.values()]))
    return _changed(outcome, panel, "τ = ", map(number, ends), most.at(len(moves)), over, said)


def _map_noise(setting: Setting) -> float:
    """Return the standard deviation of the noise in the contribution map; 0 if unknown."""
    norm = setting.parameter("contribution_clipping_norm")
    return (setting.runs[0].map_noise_multiplier or 0.0) * (1.0 if norm is None else float(norm))


def large_threshold_cliff(panel: Panel, panels: int) -> Finding:
    """Utility drops sharply from the best smaller τ to the largest, for at least one σ₁/σ₂. The absence of a drop is
    decisive only if τ reached half of the largest sum of a row's contributions (500 of 1,024 examples in the paper)."""
    grid = fullest_grid(panel.population, panel.epsilon).positive
    if not (lines := grid.along_thresholds):
        return missing("missing", what="two τ at the same σ₁/σ₂")
    sample, drops, best = Sample(grid.cells.values(), panels), {}, {}
    for ratio, line in lines.items():
        *smaller, last = sorted(line)
        best[ratio] = max(smaller, key=lambda tau: sample.rank(line[tau]))
        drops[ratio] = between(sample, line[best[ratio]], line[last])
    outcome = verdict(Any([Above(drop, TOLERABLE) for drop in drops.values()]), len(grid.thresholds), True)
    reached, most = max(max(line) for line in lines.values()), largest_contribution(grid.best)
    far = reached >= most / 2 or (outcome != FAILS and max(drop.value for drop in drops.values()) > TOLERABLE)
    ratio = max(drops, key=lambda ratio: drops[ratio].seems)
    over = f" at σ₁/σ₂ = {number(ratio)} (the most of {len(drops)} σ₁/σ₂)"
    said = f"; a drop above {number(TOLERABLE)} counts as sharp"
    if not far:
        said += f". The settings end before a drop (a row's contributions sum to at most {most:,.0f}): {SPARSER}"
    change, ends = drops[ratio].at(len(grid.cells)).times(-1), (best[ratio], max(lines[ratio]))
    return _changed(
        outcome if far else Verdict(INCONCLUSIVE), panel, "τ = ", map(number, ends), change, over, said, True
    )


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
    largest."""
    grid = fullest_grid(panel.population, panel.epsilon).positive
    lines = grid.along_thresholds
    few, many = (lines[min(lines)], lines[max(lines)]) if len(lines) > 1 else ({}, {})
    shared = sorted(few.keys() & many.keys())
    if len(shared) < 2:
        return missing("missing", what="two τ at each of two σ₁/σ₂")
    low, high = shared[0], shared[-1]
    sample = Sample(grid.cells.values(), panels)
    ratios = {f"σ₁/σ₂ = {number(ratio)}": lines[ratio] for ratio in (min(lines), max(lines))}
    changes = {words: between(sample, line[high], line[low]) for words, line in ratios.items()}
    small, large = changes.values()
    worse = large.plus(small, -1.0)
    outcome, why = verdict(Above(worse)), ""
    best = sample.best(grid.cells.values())
    assert best is not None
    if outcome != HOLDS and all(-change.value <= TOLERABLE for change in changes.values()):
        why = f"Neither is a sharp drop, so there is no cliff: {SPARSER}"
    elif outcome != HOLDS and best.test - few[low].test > TOLERABLE:
        why = f"With σ₁/σ₂ = {number(min(lines))} utility drops before τ = {number(low)}: sweep smaller ones."
    outcome = Verdict(INCONCLUSIVE) if why else outcome
    return _more(outcome, panel, "losses", worse.at(1, False), "τ = ", (number(low), number(high)), changes, why)


def _changed(
    outcome: Verdict,
    panel: Panel,
    setting: str,
    ends: Iterable[str],
    change: Difference,
    over: str = "",
    said: str = "",
    drop: bool = False,
) -> Finding:
    """Return the finding with the change of utility between two values of a setting."""
    name, shown = metric(panel.population), change.times(-1) if drop else change
    interval, ends = (f"{'loss' if drop else 'change'} of {name}", shown.low, shown.high), list(ends)
    return found(
        outcome, "along", interval, setting=setting, ends=ends, change=change, over=over, said=said, metric=name
    )


def _more(
    outcome: Verdict,
    panel: Panel,
    what: str,
    more: Difference,
    setting: str,
    ends: Iterable[str],
    changes: Mapping[str, Contrast],
    why: str,
) -> Finding:
    """Return the finding with a difference of two changes (gains or losses)."""
    name = metric(panel.population)
    each = {words: change.at(1, False) for words, change in changes.items()}
    interval, ends = (f"difference of {what} of {name}", more.low, more.high), list(ends)
    return found(
        outcome, "more", interval, setting=setting, ends=ends, changes=each, more=more, what=what, why=why, metric=name
    )
