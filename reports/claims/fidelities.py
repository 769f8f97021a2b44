"""The test of ours: what the corrections cost in utility, where both fidelities were trained."""

from __future__ import annotations

from reports.claims.claim import Evidence, Finding, all_of, seeds_of, untestable
from reports.claims.estimate import UNTOLD, between
from reports.comparison import Population
from reports.wording import number, rule, utility


def as_good(evidence: Evidence) -> Finding:
    """At every ε and of every rule, the best rigorous setting is as good as the best one of the paper's fidelity."""
    usable = [
        population for population in evidence.of("clicks", "text", "large_text") if untestable(population) is None
    ]
    pairs = [
        (one, other)
        for one in usable
        for other in usable
        if (one.fidelity, other.fidelity) == ("rigorous", "paper") and _data(one) == _data(other)
    ]
    compared = [
        (one, other, algorithm, epsilon)
        for one, other in pairs
        for epsilon in one.epsilons
        for algorithm in sorted({setting.algorithm for setting in one.settings})
        if one.of(algorithm, epsilon) and other.of(algorithm, epsilon)
    ]
    if not compared:
        return Finding(
            UNTOLD,
            "No rule has been trained with privacy=rigorous and with privacy=paper on the same data: "
            "`dpfest sweep experiment=comparison privacy=paper` trains what is lacking.",
        )
    of = sum(len(p.of(algorithm, epsilon)) for one, other, algorithm, epsilon in compared for p in (one, other))
    found = all_of([_compared(*pair, of) for pair in compared])
    return Finding(found.verdict, f"Test utility, rigorous against paper. {found.evidence}")


def _compared(one: Population, other: Population, algorithm: str, epsilon: float, of: int) -> Finding:
    ours, theirs = one.best(algorithm, epsilon), other.best(algorithm, epsilon)
    assert ours is not None and theirs is not None
    moved = between(ours, theirs, of)
    return Finding(
        moved.none(),
        f"{one.dataset}, {rule(algorithm)} at ε = {number(epsilon)}, {seeds_of([ours, theirs])}: "
        f"{utility(ours.test)} against {utility(theirs.test)} ({moved}).",
    )


def _data(population: Population) -> tuple[str, str, str, str, int]:
    return population.dataset, population.model, population.profile, population.material, population.examples
