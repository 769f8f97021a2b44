"""Tests of what the paper says of streams.

Runs differ by their noise and batches as well as by what is compared, and by far more than the test rows tell. So a
difference is a mean over pairs that are alike in all else, or a slope over runs, with the interval of what is left.
"""

from __future__ import annotations

import copy
import json
import statistics
from dataclasses import replace

from reports.claims.claim import Finding, all_of
from reports.claims.estimate import NEARLY, OPEN, mean, slope
from reports.claims.tradeoff import leads
from reports.comparison import Population, Setting
from reports.reduction_curve import by_period
from reports.wording import metric, number, rule

SOURCES = ("fest/first_day", "fest/streaming", "fest/all_days")


def streaming_suffices(population: Population) -> Finding:
    """Streaming frequencies are nearly as good as those of all days."""
    return _against(population, "fest/all_days", -NEARLY)


def streaming_beats_first_day(population: Population) -> Finding:
    """Streaming frequencies are better than those of the first day."""
    return _against(population, "fest/first_day", 0.0)


def twice_fest(population: Population) -> Finding:
    """In every period DP-AdaFEST cuts the gradient more than twice as much as DP-FEST at the same loss."""
    return leads(by_period(population, population.periods), "adafest", SOURCES, factor=2)


def combined_leads(population: Population) -> Finding:
    """In the shortest period both rules combined are ahead of either alone."""
    return leads(by_period(population, population.periods[:1]), "adafest_plus", ("fest/streaming", "adafest"))


def rises_with_period(population: Population) -> Finding:
    """DP-SGD gains from longer periods at every ε."""
    of = len(population.epsilons)
    return all_of([_along(population, "dpsgd", epsilon, of) for epsilon in population.epsilons])


def unmoved_by_period(population: Population) -> Finding:
    """Training without privacy does not."""
    found = _along(population, "nonprivate", None)
    return replace(found, evidence=found.evidence + nonprivate_below(population))


def nonprivate_below(population: Population) -> str:
    """A sentence on the periods in which training without privacy has less utility than what ought to be less."""
    below: dict[str, list[int]] = {}
    for days in population.periods:
        alone = population.at(days)
        free = alone.best("nonprivate", None)
        for name in ("frozen", "dpsgd"):
            other = alone.best(name, population.main_epsilon)
            if free and other and free.test < other.test:
                below.setdefault(name, []).append(days)
    if not below:
        return ""
    names = {"frozen": "frozen embeddings", "dpsgd": "DP-SGD"}
    said = [f"{names[name]} with a period of {_listed(days)}" for name, days in below.items()]
    return (
        f" Non-private training has a lower test {metric(population)} than {' and than '.join(said)}: on these "
        "held-out days it is not privacy alone that costs utility."
    )


def _listed(days: list[int]) -> str:
    words = " and ".join([", ".join(map(str, days[:-1])), str(days[-1])] if days[1:] else map(str, days))
    return words + (" day" if days == [1] else " days")


def _against(population: Population, source: str, least: float) -> Finding:
    """The mean gain of streaming frequencies over another source's, over settings that are alike in all else."""
    alike: dict[str, dict[str, float]] = {"fest/streaming": {}, source: {}}
    for name, found in alike.items():
        for epsilon in population.epsilons:
            found |= {_but_for_the_source(setting): setting.test for setting in population.of(name, epsilon)}
    ours, others = alike.values()
    shared = [key for key in ours if key in others]
    if not shared:
        return Finding(OPEN, f"No setting has both {rule('fest/streaming')} and {rule(source)} yet.")
    gained = mean([ours[key] - others[key] for key in shared])
    means = " against ".join(f"{statistics.fmean(found[key] for key in shared):.4f}" for found in (ours, others))
    return Finding(
        gained.above(least),
        f"Over {len(shared)} setting{'s' * (len(shared) != 1)} (ε, period and k) that both have, "
        f"{rule('fest/streaming')} against {rule(source)}: mean test {metric(population)} {means}, a difference of "
        f"{gained}" + (f"; {number(-least)} less would be nearly as good." if least else "."),
    )


def _along(population: Population, name: str, epsilon: float | None, of: int = 1) -> Finding:
    """The gain from the shortest period to the longest, along a straight line through all runs at their best."""
    best = [(days, s) for days in population.periods if (s := population.at(days).best(name, epsilon))]
    where = rule(name) + ("" if epsilon is None else f" at ε = {number(epsilon)}")
    line = slope([[(days, run.test) for days, setting in best for run in setting.runs]], of) if best else None
    if line is None:
        return Finding(OPEN, f"{where} has no runs in two periods yet.")
    moved = line.times(best[-1][0] - best[0][0])
    values = ", ".join(f"{setting.test:.4f} ({days} day{'s' * (days > 1)})" for days, setting in best)
    said = f"{where}, test {metric(population)} by period: {values}; {moved} from the shortest to the longest."
    return Finding(moved.none() if epsilon is None else moved.above(0), said)


def _but_for_the_source(setting: Setting) -> str:
    """What settings that differ in their source alone have in common."""
    told = copy.deepcopy(dict(setting.runs[0].hyperparameters))
    told["algorithm"]["selection"].pop("source", None)
    return json.dumps([told, setting.epsilon], sort_keys=True, default=str)
