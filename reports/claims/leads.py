"""Claims that one algorithm has a better trade-off of utility and reduction than others: curves against curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from reports.claims.claim import DECIDED, PARTLY, Finding, at_every, finding, in_each
from reports.claims.compared import Compared
from reports.claims.curves import Comparison, curve, up_to
from reports.claims.estimate import FAILS, HOLDS, INCONCLUSIVE, OPEN, Verdict
from reports.comparison import Panel, Population, by_epsilon
from reports.wording import metric


def leads_at(leader: str, *rivals: str, epsilons: Sequence[float] = ()) -> Callable[[Population], Finding]:
    """At all these ε (default: every ε of the runs), the leader is ahead of each rival."""
    return lambda population: leads(by_epsilon(population, epsilons or population.epsilons), leader, rivals)


def leads_at_every_epsilon(leader: str, *rivals: str) -> Callable[[Population], Finding]:
    """The same for a claim that the paper makes about every ε, which one ε refutes."""
    return lambda population: at_every(
        population, leads(by_epsilon(population, population.epsilons), leader, rivals, every=True)
    )


def leads(
    panels: Sequence[Panel], leader: str, rivals: Sequence[str], factor: float = 1.0, every: bool = False
) -> Finding:
    """In every panel, the leader's reduction exceeds `factor` times that of each rival at the same utility. Unless the
    claim is about `every` panel, it holds in part if panels decide it differently."""
    result = in_each(panels, lambda panel, of: _leads(panel, leader, rivals, factor, of), "leads")
    by_verdict: dict[str, float] = {}
    for part in result.numbers["findings"]:
        if part.verdict in DECIDED:
            by_verdict[part.verdict] = min(part.p, by_verdict.get(part.verdict, 1.0))
    if every or len(by_verdict) < 2:
        return result
    return replace(result, verdict=Verdict(PARTLY, max(by_verdict.values())))


def _leads(panel: Panel, leader: str, rivals: Sequence[str], factor: float, panels: int) -> Finding:
    compared = Compared(panel, leader, *rivals, panels=panels)
    if compared.lacking:
        return finding(OPEN, "lacking", names=compared.lacking, where=panel.where)
    if lost := compared.worthless():
        return finding(INCONCLUSIVE, "nothing_to_lose", where=panel.where, lost=lost, metric=metric(panel.population))
    mine, others = curve(compared, leader), [curve(compared, name, factor) for name in rivals]
    if empty := [one.name for one in (mine, *others) if not one.settings]:
        return finding(INCONCLUSIVE, "all_empty", names=empty, where=panel.where)
    comparison = Comparison(mine, others, up_to([mine, *others]))
    return compared_at(comparison, panel.where, metric(panel.population), factor)


def compared_at(comparison: Comparison, where: str, utility: str, factor: float = 1.0) -> Finding:
    """Return the finding of a comparison of curves."""
    verdict = comparison.verdict
    points = [(point, comparison.bounds(point)) for point in comparison.points]
    if not points:
        curves = (comparison.mine, *comparison.rivals)
        return finding(INCONCLUSIVE, "apart", where=where, curves=curves, most=comparison.most)
    return finding(
        verdict,
        "curves",
        interval=(f"lead in {utility}", points[0][1].low, points[0][1].high) if len(points) == 1 else None,
        untried=verdict in (HOLDS, FAILS) and bool(comparison.ended),
        where=where,
        comparison=comparison,
        factor=factor,
        points=points,
        metric=utility,
    )
