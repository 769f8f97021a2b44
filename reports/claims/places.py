"""Where claims are asked: at which ε or periods of which data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from reports.claims.claim import NOWHERE, Asked, Finding, Places, missing, undecided
from reports.comparison import Panel, Population, by_epsilon, by_period
from reports.entry import Inputs
from reports.setting import Setting
from reports.wording import number, plural, seeds

EPSILONS = (1.0, 3.0, 8.0)
"""The paper's ε: a claim about every ε is not shown at one of them."""

_APART = (
    "No algorithm has been trained with privacy=rigorous and with privacy=paper on the same data: "
    "`dpfest sweep experiment=comparison privacy=paper` trains the missing runs."
)

At = Callable[[Population], Sequence[Panel]]
"""The panels of a population in which a claim is asked."""


def each_epsilon(population: Population) -> Sequence[Panel]:
    return by_epsilon(population, population.epsilons)


def main_epsilon(population: Population) -> Sequence[Panel]:
    return [] if population.main_epsilon is None else by_epsilon(population, [population.main_epsilon])


def epsilon_of_one(population: Population) -> Sequence[Panel]:
    return by_epsilon(population, [1.0])


def without_privacy(population: Population) -> Sequence[Panel]:
    return [Panel(math.inf, "without privacy", population, math.inf)]


def all_epsilons(population: Population) -> Sequence[Panel]:
    """All ε pooled."""
    return [Panel(math.inf, "", population, math.inf)]


def shortest_period(population: Population) -> Sequence[Panel]:
    return by_period(population, population.periods[:1])


def as_often_tried(name: str) -> At:
    """The ε at which an algorithm has as many settings as at the main one: a coarser grid may lack the better ones."""

    def panels(population: Population) -> Sequence[Panel]:
        return [
            panel
            for main in main_epsilon(population)
            for panel in each_epsilon(population)
            if len(panel.of(name)) >= len(main.of(name))
        ]

    return panels


def as_often_tried_periods(name: str) -> At:
    """The periods in which an algorithm has as many settings as in the shortest."""

    def panels(population: Population) -> Sequence[Panel]:
        periods = by_period(population, population.periods)
        return [panel for panel in periods if len(panel.of(name)) >= len(periods[0].of(name))]

    return panels


def on(*kinds: str, at: At = each_epsilon, every: bool = False) -> Places:
    """Return the panels of the first population of these kinds on each dataset, or of only the one that an artifact is
    drawn from; a claim about every ε needs all of the paper's."""

    def places(inputs: Inputs) -> Mapping[str, Asked]:
        populations = [
            one for one in (inputs.of(*kinds) if inputs.drawn is None else [inputs.drawn]) if one.kind in kinds
        ]
        if not populations and inputs.drawn is None:
            return _no_runs(inputs, kinds)
        firsts = {population.dataset: population for population in reversed(populations)}
        return {name: ask(population) for name, population in reversed(firsts.items())}

    def ask(population: Population) -> Asked:
        if population.untestable:
            return Asked(on=[population], unless=_untestable(population))
        panels = at(population)
        epsilons = sorted({panel.epsilon for panel in panels if math.isfinite(panel.epsilon)})
        about = _about(population, population.epsilons if at is all_epsilons else epsilons)
        lacking = [epsilon for epsilon in EPSILONS if every and epsilon not in population.epsilons]
        return Asked({panel.where: panel for panel in panels}, [population], about, lacking)

    return places


def texts_against_clicks(name: str) -> Places:
    """Pairs of click data and a text, at the text's main ε, with runs of an algorithm and of DP-SGD."""

    def places(inputs: Inputs) -> Mapping[str, Asked]:
        texts = _trained(inputs, name, "text")
        return {own.population.dataset: ask(inputs, own) for own in texts} or _no_runs(inputs, ("text",))

    def ask(inputs: Inputs, own: Panel) -> Asked:
        clicks = _trained(inputs, name, "clicks", epsilon=own.epsilon)
        pairs = {f"{own.where}, {panel.population.dataset}": (panel, own) for panel in clicks}
        lacking = missing(f"runs of DP-AdaFEST and DP-SGD on click data at {own.where}")
        on = [panel.population for panel in (own, *clicks)]
        return Asked(pairs, on, _about(own.population, [own.epsilon]), unless=None if pairs else lacking)

    return places


def largest_vocabulary_against_smallest(name: str) -> Places:
    """The texts of the largest and of the smallest vocabulary, at the main ε of the first text."""

    def places(inputs: Inputs) -> Mapping[str, Asked]:
        kinds = "text", "large_text"
        if not (texts := _trained(inputs, name, *kinds)):
            return _no_runs(inputs, kinds)
        texts = _trained(inputs, name, *kinds, epsilon=texts[0].epsilon)
        by_size = {panel.population.vocabulary: panel for panel in reversed(texts)}
        if len(by_size) < 2:
            lacking = missing("runs of DP-AdaFEST and DP-SGD on texts with two vocabularies")
            return {texts[0].population.dataset: Asked(on=[texts[0].population], unless=lacking)}
        few, many = min(by_size), max(by_size)
        large, where = by_size[many], f"{by_size[many].where}, {many:,} rows against {few:,}"
        places, on = {where: (large, by_size[few])}, [large.population, by_size[few].population]
        return {large.population.dataset: Asked(places, on, _about(large.population, [large.epsilon]))}

    return places


def both_accountings(inputs: Inputs) -> Mapping[str, Asked]:
    """Pairs of a population under rigorous accounting and one on the same data and model under the paper's."""
    usable = [population for population in inputs.of("clicks", "text", "large_text") if not population.untestable]
    pairs = {
        one.dataset: Asked({"": (one, other)}, [one, other], _about(one, sorted({*one.epsilons} & {*other.epsilons})))
        for one, other in reversed(list(itertools.permutations(usable, 2)))
        if (one.fidelity, other.fidelity) == ("rigorous", "paper") and _data(one) == _data(other)
    }
    return dict(reversed(pairs.items())) or {NOWHERE: Asked(unless=undecided(_APART))}


def bench(inputs: Inputs) -> Mapping[str, Asked]:
    """The folder with the results of `dpfest bench`."""
    return {NOWHERE: Asked({"": inputs.report})}


def _trained(inputs: Inputs, name: str, *kinds: str, epsilon: float | None = None) -> list[Panel]:
    """Return a panel of the first population on each dataset on which an algorithm and DP-SGD were trained at this ε
    (default: its main one) and claims can be tested."""
    found: dict[tuple[str, int], Panel] = {}
    for population in inputs.of(*kinds):
        for panel in main_epsilon(population) if epsilon is None else by_epsilon(population, [epsilon]):
            if panel.reference and panel.of(name) and population.vocabulary and not population.untestable:
                found.setdefault((population.dataset, population.vocabulary), panel)
    return list(found.values())


def _no_runs(inputs: Inputs, kinds: Sequence[str]) -> Mapping[str, Asked]:
    """Return the findings if no claim can be tested on any data of these kinds."""
    there = [population for population in inputs.of(*kinds) if population.untestable]
    apart = {one.dataset: Asked(on=[one], unless=_untestable(one)) for one in there}
    return apart or {NOWHERE: Asked(unless=missing(f"runs on {' or '.join(kinds)}"))}


def _untestable(population: Population) -> Finding:
    return undecided(f"{population.dataset}: {population.untestable}.")


def _about(population: Population, epsilons: Sequence[float]) -> str:
    """Name the runs at these ε and those without privacy."""
    at = f"ε = {', '.join(map(number, epsilons))}" if epsilons else "without privacy"
    paper = "the paper's accounting" if population.fidelity == "paper" else ""
    used = seeds_of(population.at_epsilons(epsilons).settings)
    return ", ".join(filter(None, (population.dataset, at, paper, used)))


def seeds_of(settings: Sequence[Setting]) -> str:
    """Return the seeds if all settings have the same, else the number of seeds of a setting; empty without settings."""
    if not settings:
        return ""
    counts = [len(setting.by_seed) for setting in settings]
    if len({tuple(sorted(setting.by_seed)) for setting in settings}) == 1:
        return seeds(run for setting in settings for run in setting.runs)
    few, many = min(counts), max(counts)
    return f"{few} to {many} seeds per setting" if few < many else f"{plural(few, 'seed')} per setting, not the same"


def _data(population: Population) -> tuple[str, str, str, str, int]:
    return population.dataset, population.model, population.profile, population.material, population.examples
