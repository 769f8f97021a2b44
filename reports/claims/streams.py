"""Tests of what the paper says of streams.

Runs differ by their noise and batches as well as by what is compared, and by far more than the test rows tell. So a
difference is a mean over pairs that are alike in all else, or a slope over runs, with the interval of what is left.
"""

from __future__ import annotations

import copy
import json
import statistics

from reports.claims.claim import Finding, all_of, finding
from reports.claims.estimate import NEARLY, OPEN, mean, slope
from reports.claims.tradeoff import leads
from reports.comparison import Population, Setting, by_period
from reports.templates import sentences
from reports.wording import metric

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
    """In the shortest period DP-AdaFEST+ is ahead of either alone."""
    return leads(by_period(population, population.periods[:1]), "adafest_plus", ("fest/streaming", "adafest"))


def rises_with_period(population: Population) -> Finding:
    """DP-SGD gains from longer periods at every ε."""
    of = len(population.epsilons)
    return all_of([_along(population, "dpsgd", epsilon, of) for epsilon in population.epsilons])


def unmoved_by_period(population: Population) -> Finding:
    """Training without privacy does not."""
    return _along(population, "nonprivate", None)


def nonprivate_below(population: Population) -> str:
    """A sentence on the periods in which training without privacy has less utility than what ought to be less; empty
    where there are none."""
    below = _below(population)
    return " " + sentences("nonprivate_below", below=below, metric=metric(population)) if below else ""


def _below(population: Population) -> list[tuple[str, list[int]]]:
    """By name, the periods in which frozen embeddings or DP-SGD are above training without privacy."""
    below: dict[str, list[int]] = {}
    for days in population.periods:
        alone = population.at(days)
        free = alone.best("nonprivate", None)
        for name, words in (("frozen", "frozen embeddings"), ("dpsgd", "DP-SGD")):
            other = alone.best(name, population.main_epsilon)
            if free and other and free.test < other.test:
                below.setdefault(words, []).append(days)
    return list(below.items())


def _against(population: Population, source: str, least: float) -> Finding:
    """The mean gain of streaming frequencies over another source's, over settings that are alike in all else."""
    names = ("fest/streaming", source)
    ours, others = (
        {
            _but_for_the_source(setting): setting.test
            for epsilon in population.epsilons
            for setting in population.of(name, epsilon)
        }
        for name in names
    )
    shared = [key for key in ours if key in others]
    if not shared:
        return finding(OPEN, "no_pair", ours=names[0], other=source)
    gained = mean([ours[key] - others[key] for key in shared])
    return finding(
        gained.above(least),
        "sources",
        ours=names[0],
        other=source,
        count=len(shared),
        mean=statistics.fmean(ours[key] for key in shared),
        other_mean=statistics.fmean(others[key] for key in shared),
        gained=gained,
        nearly=-least,
        metric=metric(population),
    )


def _along(population: Population, name: str, epsilon: float | None, of: int = 1) -> Finding:
    """The gain from the shortest period to the longest, along a straight line through all runs at their best."""
    best = [(days, s) for days in population.periods if (s := population.at(days).best(name, epsilon))]
    line = slope([[(days, run.test) for days, setting in best for run in setting.runs]], of) if best else None
    if line is None:
        return finding(OPEN, "few_periods", name=name, epsilon=epsilon)
    moved = line.times(best[-1][0] - best[0][0])
    return finding(
        moved.none() if epsilon is None else moved.above(0),
        "by_period",
        name=name,
        epsilon=epsilon,
        utilities=[(days, setting.test) for days, setting in best],
        moved=moved,
        metric=metric(population),
        below=_below(population) if epsilon is None else [],
    )


def _but_for_the_source(setting: Setting) -> str:
    """What settings that differ in their source alone have in common."""
    settings = copy.deepcopy(dict(setting.runs[0].hyperparameters))
    settings["algorithm"]["selection"].pop("source", None)
    return json.dumps([settings, setting.epsilon], sort_keys=True, default=str)
