"""The test of ours: what the corrections cost in utility, where both ways of accounting were trained."""

from __future__ import annotations

import itertools

from reports.claims.claim import Finding, all_of, finding, seeds_of
from reports.claims.estimate import UNTOLD, between
from reports.comparison import Population
from reports.entry import Inputs


def as_good(inputs: Inputs) -> Finding:
    """At every ε and of every algorithm, the best rigorous setting is as good as the best one of the paper's way."""
    usable = [population for population in inputs.of("clicks", "text", "large_text") if not population.untestable]
    compared = [
        (one, other, name, epsilon)
        for one, other in itertools.permutations(usable, 2)
        if (one.fidelity, other.fidelity) == ("rigorous", "paper") and _data(one) == _data(other)
        for epsilon in one.epsilons
        for name in sorted({setting.algorithm for setting in one.settings})
        if one.of(name, epsilon) and other.of(name, epsilon)
    ]
    if not compared:
        return finding(UNTOLD, "not_side_by_side")
    of = sum(len(p.of(name, epsilon)) for one, other, name, epsilon in compared for p in (one, other))
    return all_of([_compared(*pair, of) for pair in compared], "side_by_side")


def _compared(one: Population, other: Population, name: str, epsilon: float, of: int) -> Finding:
    ours, theirs = one.best(name, epsilon), other.best(name, epsilon)
    assert ours is not None and theirs is not None
    moved = between(ours, theirs, of)
    return finding(
        moved.none(),
        "accountings",
        dataset=one.dataset,
        name=name,
        epsilon=epsilon,
        seeds=seeds_of([ours, theirs]),
        ours=ours.test,
        theirs=theirs.test,
        moved=moved,
    )


def _data(population: Population) -> tuple[str, str, str, str, int]:
    return population.dataset, population.model, population.profile, population.material, population.examples
