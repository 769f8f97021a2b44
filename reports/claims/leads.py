"""Claims that one algorithm is ahead of others: the same loss at a larger reduction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from reports.claims.ahead import LOSSES, Compared, Reach, Tried, ahead, behind, comparable
from reports.claims.claim import Finding, at_every, finding, in_each
from reports.claims.estimate import FAILS, HOLDS, INCONCLUSIVE, OPEN
from reports.claims.logic import Statement, grounds
from reports.comparison import Panel, Population, by_epsilon
from reports.wording import metric, settings_text


def leads_at(leader: str, *rivals: str, epsilons: Sequence[float] = ()) -> Callable[[Population], Finding]:
    """At all these ε (default: every ε of the runs) and at the same loss, the leader has a larger reduction than each
    rival."""
    return lambda population: leads(by_epsilon(population, epsilons or population.epsilons), leader, rivals)


def leads_at_every_epsilon(leader: str, *rivals: str) -> Callable[[Population], Finding]:
    """The same for a claim that the paper makes about every ε."""
    return lambda population: at_every(population, leads_at(leader, *rivals)(population))


def leads(panels: Sequence[Panel], leader: str, rivals: Sequence[str], factor: float = 1.0) -> Finding:
    """In every panel and at the same loss, the leader's reduction exceeds `factor` times that of each rival: at the
    paper's losses, or at a wider one if no algorithm cuts the gradient within those (`comparable`)."""
    return in_each(panels, lambda panel, of: _leads(panel, leader, rivals, factor, of), "leads")


def _leads(panel: Panel, leader: str, rivals: Sequence[str], factor: float, panels: int) -> Finding:
    compared = Compared(panel, leader, *rivals, panels=panels)
    if compared.lacking:
        return finding(OPEN, "lacking", names=compared.lacking, where=panel.where)
    mine, others = compared.tried(leader), [compared.tried(name) for name in rivals]
    losses, of = comparable([mine, *others])
    so, not_so = (test(mine, others, factor, losses) for test in (ahead, behind))
    of *= len(compared.rivals)
    verdict = FAILS if not_so.holds(of, True) else HOLDS if so.holds(of, True) else OPEN
    if verdict == OPEN and (lost := compared.worthless()):
        return finding(INCONCLUSIVE, "nothing_to_lose", where=panel.where, lost=lost, metric=metric(panel.population))
    decisive, shown = (ahead, so) if verdict == HOLDS else (behind, not_so)
    untried = [replace(one, between=True) for one in (mine, *others)]
    inconclusive = verdict == OPEN and max(so.value, not_so.value) < 0 and not compared.unsure(losses)
    reached = [(loss, mine.reach(loss), [other.reach(loss) for other in others]) for loss in losses]
    return finding(
        INCONCLUSIVE if inconclusive else verdict,
        "best_reductions",
        interval=lead(reached, verdict),
        where=panel.where,
        leader=leader,
        rivals=rivals,
        factor=factor,
        reached=reached,
        ends=_ends([mine, *others], reached) if inconclusive else None,
        frozen=compared.frozen_loss(),
        ahead=verdict == HOLDS,
        narrowest=None if verdict == OPEN else _narrowest(shown, of, panel.population),
        untried=verdict != OPEN and not decisive(untried[0], untried[1:], factor, losses).holds(of, True),
    )


def _narrowest(shown: Statement, of: int, population: Population) -> Mapping[str, object]:
    """Return the loss on which a verdict rests with the narrowest margin: whose it is, its bounds, and what it is
    compared with."""
    ground = min(grounds(shown, of, True), key=lambda ground: ground.margin)
    (setting,) = (setting for factor, setting in ground.contrast.weights if factor < 0)
    return {
        "name": setting.variant,
        "reduction": setting.reduction,
        "settings": settings_text(setting, population),
        "lost": ground.bounds,
        "above": ground.above,
        "loss": ground.least,
    }


def lead(reached: Sequence[tuple[float, Reach, Sequence[Reach]]], outcome: str) -> tuple[str, float, float | None]:
    """Return the ratio of the leader's best reduction to the best rival's, with its description, at the loss where its
    lower bound is largest or, if the claim does not hold, where its upper bound is smallest; None for unknown."""
    bounds = []
    for loss, mine, others in reached:
        rival = max(others, key=lambda other: other.at_most)
        least = 0.0 if any(other.ended for other in others) else mine.surely / rival.at_most
        most = None if mine.ended else mine.at_most / max(other.surely for other in others)
        bounds.append((f"times the reduction, within {loss:g}", least, most))
    if outcome == FAILS:
        return min(bounds, key=lambda bound: math.inf if bound[2] is None else bound[2])
    return max(bounds, key=lambda bound: bound[1])


def _ends(tried: Sequence[Tried], reached: Sequence[tuple[float, Reach, Sequence[Reach]]]) -> Mapping[str, object]:
    """Return why more seeds would not decide: the smallest loss that the settings of some algorithm do not reach,
    although sparser ones are possible, and those algorithms with their largest reductions; or else the largest loss, if
    no algorithm cuts the gradient within it; or else no loss, the settings tried being too far apart."""
    for loss in LOSSES:
        ended = [(one.name, one.sparsest.reduction) for one in tried if one.ends(loss)]
        if ended:
            return {"loss": loss, "sparsest": ended}
    cut = any(reach.chosen > 1 for _, mine, others in reached for reach in (mine, *others))
    return {"loss": None if cut else reached[-1][0], "sparsest": []}
