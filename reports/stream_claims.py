"""What the paper says of streams, held against the runs at hand: each claim a sentence with its numbers.

Runs differ by their noise and batches as well as by what is compared, and by far more than the test rows tell. So a
difference is a mean over pairs that are alike in all else, or a slope over runs, with the 95% interval (Student's t)
of what is left; a claim that its interval leaves open cannot be told, and more seeds narrow it.
"""

from __future__ import annotations

import copy
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from reports.comparison import Population, Setting, best_reduction
from reports.reduction_curve import THRESHOLDS, Panel
from reports.wording import metric, multiple, number, rule

SOURCES = ("fest/first_day", "fest/streaming", "fest/all_days")
NEARLY = 0.005
"""A difference of utility that the paper would call none: its own thresholds begin there."""
_OPEN = "cannot be told from so few runs"


@dataclass(frozen=True)
class Difference:
    """An estimate and half of its 95% interval, infinite where too few runs leave it open."""

    value: float
    half: float

    def __str__(self) -> str:
        return f"{self.value:+.4f}" + ("" if math.isinf(self.half) else f" ± {self.half:.4f}")

    def above(self, least: float) -> str:
        """The verdict on the claim that the difference is above `least`."""
        if self.value - self.half > least:
            return "holds"
        return "does not hold" if self.value + self.half < least else _OPEN

    def none(self) -> str:
        """The verdict on the claim that there is no difference to speak of."""
        if abs(self.value) + self.half < NEARLY:
            return "holds"
        return "does not hold" if abs(self.value) - self.half > NEARLY else _OPEN


def mean(values: Sequence[float]) -> Difference:
    """Of differences that are independent."""
    count = len(values)
    if count < 2:
        return Difference(statistics.fmean(values), math.inf)
    half = stats.t.ppf(0.975, count - 1) * statistics.stdev(values) / math.sqrt(count)
    return Difference(statistics.fmean(values), float(half))


def gain(points: Sequence[tuple[int, float]]) -> Difference:
    """Of utility along a straight line, from the shortest period to the longest; points are (days, utility)."""
    days, values = zip(*points, strict=True)
    span = max(days) - min(days)
    if len(points) < 3:
        return Difference(points[-1][1] - points[0][1], math.inf)
    line = stats.linregress(days, values)
    return Difference(float(line.slope) * span, float(stats.t.ppf(0.975, len(points) - 2) * line.stderr) * span)


def frequencies(panels: Sequence[Panel]) -> list[str]:
    """Streaming frequencies are nearly as good as all days', and better than the first day's."""
    alike: dict[str, dict[tuple[object, ...], float]] = {source: {} for source in SOURCES}
    for panel in panels:
        for source in SOURCES:
            for setting in panel.population.of(source, panel.epsilon):
                alike[source][panel.value, _but_for_the_source(setting)] = setting.test
    first, streaming, everything = (alike[source] for source in SOURCES)
    shared = [key for key in streaming if key in first and key in everything]
    if not shared:
        return []
    listed = ", ".join(
        f"{rule(source)} {statistics.fmean(alike[source][key] for key in shared):.4f}" for source in SOURCES
    )
    lost = mean([streaming[key] - everything[key] for key in shared])
    won = mean([streaming[key] - first[key] for key in shared])
    return [
        f"Mean test {metric(panels[0].population)} over the {len(shared)} "
        f"setting{'s' * (len(shared) != 1)} (period and k) that all three have: "
        f"{listed}. Streaming frequencies nearly as good as all days (within {NEARLY:g}): {lost.above(-NEARLY)} "
        f"({lost}). Better than the first day: {won.above(0)} ({won}).{_error(panels[0].population)}"
    ]


def reductions(panel: Panel, leader: str, rivals: Sequence[str], factor: float) -> list[str]:
    """At the same loss, the leader reduces the gradient more than each rival, `factor` times in the paper."""
    if panel.reference is None:
        return []
    compared, ahead = [], []
    for threshold in THRESHOLDS:
        mine = _reduction(panel, leader, threshold)
        found = [value for rival in rivals if (value := _reduction(panel, rival, threshold)) is not None]
        if mine is None and not found:
            continue
        other = max(found, default=None)
        compared.append(f"{_or_none(mine)} against {_or_none(other)} within {number(threshold)}")
        ahead.append(mine is not None and (other is None or mine > factor * other))
    if not compared:
        return []
    verdict = (
        "holds" if all(ahead) else f"holds at {sum(ahead)} of {len(ahead)} losses" if any(ahead) else "does not hold"
    )
    more = f"more than {number(factor)} times " if factor > 1 else ""
    return [
        f"{panel.where[:1].upper()}{panel.where[1:]}, reduction at losses of validation {metric(panel.population)}: "
        f"{'; '.join(compared)}. {rule(leader)} {more}ahead of {' and '.join(map(rule, rivals))}: {verdict}"
        f"{_worthless(panel)}."
    ]


def longer_periods(population: Population) -> list[str]:
    """DP-SGD gains from longer periods, training without privacy does not."""
    said = []
    for name, epsilon in [("dpsgd", epsilon) for epsilon in population.epsilons] + [("nonprivate", None)]:
        best = [(days, s) for days in population.periods if (s := population.at(days).best(name, epsilon))]
        if len(best) < 2:
            continue
        moved = gain([(days, run.test) for days, setting in best for run in setting.runs])
        values = ", ".join(f"{setting.test:.4f} ({days} day{'s' * (days > 1)})" for days, setting in best)
        where = rule(name) + ("" if epsilon is None else f" at ε = {number(epsilon)}")
        claim, verdict = ("Rises with the period", moved.above(0))
        if epsilon is None:
            claim, verdict = (f"Unmoved by the period (within {NEARLY:g})", moved.none())
        said.append(
            f"{where}, test {metric(population)} by period: {values}. {claim}: {verdict} ({moved} from {best[0][0]} to "
            f"{best[-1][0]} days).{_error(population)}"
        )
    return said


def _but_for_the_source(setting: Setting) -> str:
    """What settings that differ in their source alone have in common."""
    told = copy.deepcopy(dict(setting.runs[0].hyperparameters))
    told["algorithm"]["selection"].pop("source", None)
    return json.dumps(told, sort_keys=True)


def _error(population: Population) -> str:
    """What the test rows alone add, in a sentence; nothing where runs do not tell."""
    errors = [run.test_error for run in population.runs if run.test_error is not None]
    return f" One {metric(population)} has a standard error of {max(errors):.4f} over its test rows." if errors else ""


def _worthless(panel: Panel) -> str:
    """A reminder where training no embedding is as good as the reference."""
    frozen = panel.population.best("frozen", panel.epsilon)
    reference = panel.reference
    if frozen is None or reference is None or frozen.validation < reference.validation:
        return ""
    return " (frozen embeddings lose nothing either, so no reduction counts for much here)"


def _reduction(panel: Panel, name: str, threshold: float) -> float | None:
    assert panel.reference is not None
    chosen = best_reduction(panel.population.of(name, panel.epsilon), panel.reference, threshold)
    return None if chosen is None else chosen.reduction


def _or_none(reduction: float | None) -> str:
    return "none" if reduction is None else multiple(reduction)
