"""Is one of two ways as good as the other, over settings that are equal in everything else?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from reports.algorithms import label
from reports.chosen import but_for_selection, over_common_seeds
from reports.claims.claim import Finding, missing
from reports.claims.estimate import Sample
from reports.claims.logic import Above, All, mean_gain, verdict
from reports.comparison import Panel, Population
from reports.runs import Run
from reports.setting import Setting
from reports.wording import METRIC, number, plural, utility

Pair = tuple[Sequence[Setting], Sequence[Setting]]
"""Settings of both ways that are compared: the best of the ones with the best of the others."""

Groups = Callable[[Any], Mapping[str, Sequence[Pair]]]
"""The pairs in a place, by groups in which a claim must hold."""


@dataclass(frozen=True)
class Matched:
    """In each group of pairs, the first way has more utility than the second plus `least`, in the mean over pairs."""

    ways: tuple[str, str]
    groups: Groups
    least: float = 0.0

    def __call__(self, place: Any, panels: int) -> Finding:
        groups = {name: pairs for name, pairs in self.groups(place).items() if pairs}
        if not groups:
            return missing(f"setting with both {' and '.join(map(label, self.ways))}")
        samples = [Sample([s for pair in pairs for side in pair for s in side], panels) for pairs in groups.values()]
        best = [
            [(one, other) for ours, theirs in pairs if (one := sample.best(ours)) and (other := sample.best(theirs))]
            for sample, pairs in zip(samples, groups.values(), strict=True)
        ]
        gains = [
            mean_gain(sample, [(other, one) for one, other in pairs])
            for sample, pairs in zip(samples, best, strict=True)
        ]
        # Choices were made where a side has several settings, and of the weakest group.
        of = max(
            len(samples) + len(sample.settings) - 2 * len(pairs) for sample, pairs in zip(samples, best, strict=True)
        )
        moved = [gain.at(of, of > 1) for gain in gains]
        means = [
            (
                fmean(over_common_seeds(one, other, _test) for one, other in pairs),
                fmean(over_common_seeds(other, one, _test) for one, other in pairs),
            )
            for pairs in best
        ]
        weakest = moved[min(range(len(gains)), key=lambda place: gains[place].seems)]
        name = METRIC[samples[0].settings[0].runs[0].metric]
        each = "; ".join(
            f"{group}{utility(ours)} against {utility(theirs)} ({gained}; {plural(len(pairs), 'pair')})"
            for group, pairs, (ours, theirs), gained in zip(groups, best, means, moved, strict=True)
        )
        words = f"Mean {name} of {' against '.join(map(label, self.ways))}: {each}."
        outcome = verdict(All([Above(gain, self.least) for gain in gains]), of, of > 1)
        return Finding(outcome, words, (f"difference of {name}", weakest.low, weakest.high))


def _test(run: Run) -> float:
    return run.test


def by_source(ours: str, theirs: str, short_periods: bool = False) -> Groups:
    """Settings of two sources of frequencies that are equal in everything but the noise of the selection, at all ε and
    in all periods. Each source has the noise that is best for it on validation, because the same noise harms the few
    counts of the first day more than those of all days. With a period of all days, streaming frequencies know the same
    days as those of all days, and differ by the noise alone, of which they sum up one per day."""

    def groups(panel: Panel) -> Mapping[str, Sequence[Pair]]:
        sides: list[dict[str, list[Setting]]] = [{}, {}]
        for name, of in zip((ours, theirs), sides, strict=True):
            for setting in (s for epsilon in panel.population.epsilons for s in panel.population.of(name, epsilon)):
                if not short_periods or setting.period != _all_days(setting):
                    of.setdefault(but_for_selection(setting, "source", "noise_multiplier"), []).append(setting)
        return {"": [(sides[0][key], sides[1][key]) for key in sides[0] if key in sides[1]]}

    return groups


def by_accounting(place: tuple[Population, Population]) -> Mapping[str, Sequence[Pair]]:
    """Settings that were trained under both accountings, by algorithm and ε: one of only one of them would compare
    grids."""
    ours, theirs = place
    groups = {}
    for epsilon in ours.epsilons:
        for name in sorted({setting.algorithm for setting in ours.settings}):
            both = _alike(ours.of(name, epsilon), theirs.of(name, epsilon))
            groups[f"{label(name)} at ε = {number(epsilon)}, "] = [both] if both[0] else []
    return groups


def _alike(ours: Sequence[Setting], theirs: Sequence[Setting]) -> Pair:
    """Return the settings that both have; of those that differ only in the selection's cost, that with most seeds."""
    cost = ("mechanism", "noise_multiplier", "epsilon")
    one, other = (
        {but_for_selection(setting, *cost): setting for setting in sorted(settings, key=lambda s: len(s.by_seed))}
        for settings in (ours, theirs)
    )
    both = sorted(one.keys() & other.keys())
    return [one[key] for key in both], [other[key] for key in both]


def _all_days(setting: Setting) -> int | None:
    """Return the number of training days."""
    return (setting.runs[0].hyperparameters.get("stream") or {}).get("train_days")
