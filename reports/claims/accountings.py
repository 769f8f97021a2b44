"""A test of our own: the cost in utility of correcting the accounting, if runs of both accountings exist."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from reports.chosen import but_for_selection, over_common_seeds
from reports.claims.claim import NOWHERE, Finding, Findings, finding, seeds_of
from reports.claims.estimate import INCONCLUSIVE, NEARLY, OPEN, Sample
from reports.claims.logic import Above, All, Contrast, between, verdict
from reports.comparison import Population, Setting
from reports.entry import Inputs


def as_good(inputs: Inputs) -> Findings:
    """At every ε and for every algorithm, among settings trained under both accountings, the best rigorous one loses
    less than NEARLY against the best one under the paper's; it may be better."""
    usable = [population for population in inputs.of("clicks", "text", "large_text") if not population.untestable]
    pairs = [
        (one, other)
        for one, other in itertools.permutations(usable, 2)
        if (one.fidelity, other.fidelity) == ("rigorous", "paper") and _data(one) == _data(other)
    ]
    found = {one.dataset: found for one, other in reversed(pairs) if (found := _both_ways(one, other))}
    return dict(reversed(found.items())) or {NOWHERE: finding(INCONCLUSIVE, "not_side_by_side")}


def _both_ways(one: Population, other: Population) -> Finding | None:
    """Compare everything that was trained under both accountings; None if nothing was."""
    compared: list[tuple[Finding, Contrast]] = []
    for epsilon in one.epsilons:
        for name in sorted({setting.algorithm for setting in one.settings}):
            tried = _alike(one.of(name, epsilon), other.of(name, epsilon))
            sample = Sample(itertools.chain(*tried))
            ours, theirs = map(sample.best, tried)
            if ours is None or theirs is None:
                continue
            contrast = between(sample, ours, theirs)
            moved = contrast.at(len(sample.settings))
            found = finding(
                OPEN,
                "accountings",
                ("difference of utility", moved.low, moved.high),
                dataset=one.dataset,
                name=name,
                epsilon=epsilon,
                seeds=seeds_of([ours, theirs]),
                ours=over_common_seeds(ours, theirs, lambda run: run.test),
                theirs=over_common_seeds(theirs, ours, lambda run: run.test),
                moved=moved,
            )
            compared.append((found, contrast))
    if not compared:
        return None
    findings, contrasts = zip(*compared, strict=True)
    of = max(len(contrast.sample.settings) for contrast in contrasts)
    outcome = verdict(All([Above(contrast, -NEARLY) for contrast in contrasts]), chosen=True, of=of)
    weakest = min(range(len(contrasts)), key=lambda place: contrasts[place].seems)
    return finding(outcome, "side_by_side", findings[weakest].interval, findings=findings)


def _alike(ours: Sequence[Setting], theirs: Sequence[Setting]) -> tuple[list[Setting], list[Setting]]:
    """Return the settings trained under both accountings: a setting of only one of them would compare grids."""
    cost = ("mechanism", "noise_multiplier", "epsilon")
    # Of settings that differ only in the selection's cost, that with most seeds.
    keys = [
        {but_for_selection(setting, *cost): setting for setting in sorted(settings, key=lambda s: len(s.by_seed))}
        for settings in (ours, theirs)
    ]
    both = keys[0].keys() & keys[1].keys()
    return [keys[0][key] for key in sorted(both)], [keys[1][key] for key in sorted(both)]


def _data(population: Population) -> tuple[str, str, str, str, int]:
    return population.dataset, population.model, population.profile, population.material, population.examples
