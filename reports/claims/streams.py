"""Tests of the paper's claims about streams."""

from __future__ import annotations

import math
from collections.abc import Callable

from reports.chosen import but_for_selection
from reports.claims.claim import Finding, at_every, finding, in_each
from reports.claims.estimate import FAILS, HOLDS, NEARLY, OPEN, Sample
from reports.claims.leads import leads
from reports.claims.logic import Above, Contrast, verdict
from reports.claims.tradeoff import fully_tried
from reports.claims.trend import Trend, mean_gain, seeds_needed, trend
from reports.comparison import Population, Setting, by_period
from reports.published import TAB_STREAMING
from reports.templates import sentences
from reports.wording import metric

SOURCES = ("fest_equal/first_day", "fest_equal/streaming", "fest_equal/all_days")
"""The paper's DP-FEST by the days that it counts."""


def streaming_suffices(population: Population) -> Finding:
    """Streaming frequencies are nearly as good as those of all days. A period of all days cannot show it: there both
    know the same days, and differ by the noise alone, of which streaming frequencies sum up one per day."""
    return _against(population, "fest_equal/all_days", -NEARLY, lambda s: s.period != _all_days(s))


def streaming_beats_first_day(population: Population) -> Finding:
    """Streaming frequencies are better than those of the first day."""
    return _against(population, "fest_equal/first_day", 0.0, lambda s: True)


def twice_fest(population: Population) -> Finding:
    """In every period with as many settings of DP-AdaFEST as the shortest, it cuts the gradient more than twice as much
    as DP-FEST at the same loss."""
    panels = by_period(population, population.periods)
    tried = fully_tried(panels, panels[0], "adafest") if panels else []
    return leads(tried, "adafest", SOURCES, factor=2, every=True)


def combined_leads(population: Population) -> Finding:
    """In the shortest period DP-AdaFEST+ is ahead of either alone."""
    return leads(
        by_period(population, population.periods[:1]), "adafest_plus_equal", ("fest_equal/streaming", "adafest")
    )


def rises_with_period(population: Population) -> Finding:
    """DP-SGD gains from longer periods at every ε."""
    return at_every(population, in_each(population.epsilons, lambda epsilon, of: _rises(population, epsilon, of)))


def _rises(population: Population, epsilon: float, panels: int) -> Finding:
    paper = _papers_gain(f"epsilon_{epsilon:g}")
    return _along(population, "dpsgd", epsilon, lambda found: found.verdict, paper, panels)


def unmoved_by_period(population: Population) -> Finding:
    """Training without privacy does not change from any period to the next."""
    return _along(population, "nonprivate", None, lambda found: found.unmoved, None)


def private_moved_more(population: Population) -> Finding:
    """From the shortest period to the longest, DP-SGD gains more than training without privacy does: one contrast."""
    epsilon, ends = population.main_epsilon, [population.periods[0], population.periods[-1]]
    tried = [population.at(days).of(*of) for days in ends for of in (("dpsgd", epsilon), ("nonprivate", None))]
    sample = Sample(setting for settings in tried for setting in settings)
    private, public, later, later_public = map(sample.best, tried)
    if epsilon is None or ends[0] == ends[1] or not (private and public and later and later_public):
        name, at = ("nonprivate", None) if private and later else ("dpsgd", epsilon)
        return finding(OPEN, "few_periods", name=name, epsilon=at)
    of = len(sample.settings) - 3  # with four settings there was no choice
    more = Contrast(sample, [(-1, private), (1, later), (1, public), (-1, later_public)])
    moved = more.at(of, of > 1)
    return finding(
        verdict(Above(more), of > 1, of),
        "moved_more",
        (f"difference of gains of {metric(population)}", moved.low, moved.high),
        epsilon=epsilon,
        private=later.test - private.test,
        public=later_public.test - public.test,
        moved=moved,
        periods=ends,
        metric=metric(population),
    )


def nonprivate_below(population: Population) -> str:
    """Return a sentence on the periods in which training without privacy has less utility than DP-SGD or frozen
    embeddings; empty if there are none."""
    below = _below(population)
    return " " + sentences("nonprivate_below", below=below, metric=metric(population)) if below else ""


def _below(population: Population) -> list[tuple[str, list[int]]]:
    """Return, by name, the periods in which frozen embeddings or DP-SGD exceed training without privacy."""
    below: dict[str, list[int]] = {}
    for days in population.periods:
        alone = population.at(days)
        free = alone.best("nonprivate", None)
        for name, words in (("frozen", "frozen embeddings"), ("dpsgd", "DP-SGD")):
            other = alone.best(name, population.main_epsilon)
            if free and other and free.test < other.test:
                below.setdefault(words, []).append(days)
    return list(below.items())


def _against(population: Population, source: str, least: float, counts: Callable[[Setting], bool]) -> Finding:
    """Return the mean gain of streaming frequencies over another source's, over settings equal in everything else but
    the noise of the selection: each source has the noise that is best for it on validation, because the same noise
    harms the few counts of the first day more than those of all days."""
    names = ("fest_equal/streaming", source)
    ours: dict[str, list[Setting]] = {}
    others: dict[str, list[Setting]] = {}
    for name, of in zip(names, (ours, others), strict=True):
        for setting in (s for epsilon in population.epsilons for s in population.of(name, epsilon) if counts(s)):
            of.setdefault(but_for_selection(setting, "source", "noise_multiplier"), []).append(setting)
    both = [(others[key], ours[key]) for key in ours if key in others]
    if not both:
        return finding(OPEN, "no_pair", ours=names[0], other=source)
    tried = [setting for sides in both for side in sides for setting in side]
    sample = Sample(tried)
    pairs = [(one, two) for a, b in both if (one := sample.best(a)) and (two := sample.best(b))]
    gain, choices = mean_gain(sample, pairs), 1 + len(tried) - 2 * len(pairs)
    gained = gain.at(choices, choices > 1)
    return finding(
        verdict(Above(gain, least), choices > 1, choices),
        "sources",
        (f"difference of {metric(population)}", gained.low, gained.high),
        ours=names[0],
        other=source,
        count=len(pairs),
        mean=math.fsum(one.test for _, one in pairs) / len(pairs),
        other_mean=math.fsum(other.test for other, _ in pairs) / len(pairs),
        gained=gained,
        nearly=-least,
        metric=metric(population),
    )


def _along(
    population: Population,
    name: str,
    epsilon: float | None,
    judge: Callable[[Trend], str],
    paper: float | None,
    panels: int = 1,
) -> Finding:
    """Return the change of utility with the period, each period at its best setting on validation, in one of several
    panels in any of which the claim can fail."""
    tried = population.of(name, epsilon)
    sample = Sample(tried, panels)
    best: dict[float, Setting] = {
        days: s for days in population.periods if (s := sample.best(population.at(days).of(name, epsilon)))
    }
    found = trend(sample, [best], of=1 + len(tried) - len(best))
    if found is None:
        return finding(OPEN, "few_periods", name=name, epsilon=epsilon)
    where = "without privacy" if epsilon is None else f"ε = {epsilon:g}"
    moved, outcome = found.moved, judge(found)
    return finding(
        outcome,
        "by_period",
        (f"change of {metric(population)}", moved.low, moved.high),
        where=where,
        name=name,
        utilities=[(days, setting.test) for days, setting in best.items()],
        moved=moved,
        lowest=found.lowest,
        metric=metric(population),
        below=_below(population) if epsilon is None else [],
        paper=None if paper is None or outcome in (HOLDS, FAILS) else (paper, seeds_needed(paper)),
    )


def _papers_gain(column: str) -> float | None:
    """Return the gain from the shortest to the longest period in the paper's table; None at an ε that it lacks."""
    values = [TAB_STREAMING.value(days, column) for days in (min(TAB_STREAMING.rows), max(TAB_STREAMING.rows))]
    return None if values[0] is None or values[1] is None else values[1] - values[0]


def _all_days(setting: Setting) -> int | None:
    """Return the number of training days."""
    return (setting.runs[0].hyperparameters.get("stream") or {}).get("train_days")
