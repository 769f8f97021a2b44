"""Tests of what the paper says of utility against reduction, at one ε or in one streaming period.

Which settings lie within a loss is known only as well as their utilities are. So a rule's best reduction within a loss
has two bounds: over the settings that surely lie within it, and over those that may. And it is a bound only where a
sparser setting was tried that lost more; otherwise the grid ended before the rule did. One rule is ahead of another
where its lower bound passes the other's upper one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reports.claims.claim import Finding, all_of
from reports.claims.estimate import FAILS, HOLDS, NEARLY, OPEN, Difference, between
from reports.comparison import Population, Setting, best_reduction
from reports.reduction_curve import Panel, by_epsilon
from reports.wording import metric, multiple, number, rule, settings_text

LOSSES = (0.001, 0.005, 0.01)
"""The losses at which the paper's tables give reductions."""

TOLERABLE = LOSSES[-1]
"""A loss beyond these is none that the paper tolerates."""


@dataclass(frozen=True)
class Reach:
    """Best reduction within a loss: chosen on validation, and its 95% bounds; 1 is DP-SGD's own. `ended` says that no
    setting surely lost more: the rule might go further than it was tried."""

    chosen: float
    surely: float
    at_most: float
    ended: bool

    def __str__(self) -> str:
        further = " or more" if self.ended else ""
        bounds = multiple(self.surely) + (f" to {multiple(self.at_most)}" if self.at_most > self.surely else "")
        return f"{multiple(self.chosen)} ({bounds}{further})"


def reach(settings: Sequence[Setting], reference: Setting, loss: float) -> Reach:
    """How far these settings cut the gradient within `loss` of the reference."""
    lost = [(between(reference, setting), setting.reduction) for setting in settings]
    chosen = best_reduction(settings, reference, loss)
    at_most = max([1.0, *(reduction for difference, reduction in lost if difference.low <= loss)])
    return Reach(
        1.0 if chosen is None else chosen.reduction,
        max([1.0, *(reduction for difference, reduction in lost if difference.high <= loss)]),
        at_most,
        at_most >= max(reduction for _, reduction in lost),
    )


def ahead(mine: Reach, other: Reach, factor: float = 1.0) -> str:
    """The verdict on the claim that `mine` is more than `factor` times `other`."""
    if mine.surely > factor * other.at_most and not other.ended:
        return HOLDS
    # Where neither cuts anything within the loss, nothing is compared.
    return FAILS if mine.at_most <= factor * other.surely > factor and not mine.ended else OPEN


def where_told(verdicts: Sequence[str]) -> str:
    """Over several losses: what is so wherever the runs can tell; a claim that is so at one and not at another fails.

    Unlike in :func:`reports.claims.claim.all_of`, where they cannot tell decides nothing.
    """
    return FAILS if FAILS in verdicts else HOLDS if HOLDS in verdicts else OPEN


def leads(panels: Sequence[Panel], leader: str, rivals: Sequence[str], factor: float = 1.0) -> Finding:
    """In every panel and at the same loss, the leader cuts the gradient more than each rival, `factor` times more."""
    found = all_of([_leads(panel, leader, rivals, factor) for panel in panels])
    return Finding(
        found.verdict,
        f"{found.evidence} These are best reductions within a loss of utility, with 95% bounds; 'or more' where "
        "nothing sparser was tried that lost more.",
    )


def _leads(panel: Panel, leader: str, rivals: Sequence[str], factor: float) -> Finding:
    reference = panel.reference
    settings = {name: panel.population.of(name, panel.epsilon) for name in (leader, *rivals)}
    lacking = [rule(name) for name in ("dpsgd", *settings) if not panel.population.of(name, panel.epsilon)]
    if reference is None or lacking:
        return Finding(OPEN, f"No {' and no '.join(lacking)} runs at {panel.where}.")
    told, verdicts = [], []
    for loss in LOSSES:
        mine, *others = (reach(found, reference, loss) for found in settings.values())
        each = list(map(str, others))
        against = f"{each[0]} each" if len(each) > len(set(each)) == 1 else " and ".join(each)
        told.append(f"within {number(loss)} {mine} against {against}")
        verdicts.append(all_of([Finding(ahead(mine, other, factor), "") for other in others]).verdict)
    rivals_named = " and ".join(map(rule, rivals))
    return Finding(
        where_told(verdicts),
        f"At {panel.where}, {rule(leader)} against {rivals_named}: {'; '.join(told)}.{control(panel)}",
    )


def reaches(leader: str, factor: float) -> Callable[[Population], Finding]:
    """The leader cuts the gradient more than `factor` times at a loss below NEARLY."""

    def test(population: Population) -> Finding:
        panel = main_panel(population)
        settings = population.of(leader, panel.epsilon) if panel else []
        reference = panel.reference if panel else None
        if panel is None or reference is None or not settings:
            return Finding(OPEN, f"No {rule(leader)} and DP-SGD runs to compare yet.")
        far = [setting for setting in settings if setting.reduction > factor]
        if not far:
            most = max(setting.reduction for setting in settings)
            return Finding(OPEN, f"None of {len(settings)} settings cuts so much; the sparsest cuts {multiple(most)}.")
        best = max(far, key=lambda s: (s.validation, s.key))
        lost = between(reference, best)
        verdict = {HOLDS: FAILS, FAILS: HOLDS}.get(lost.above(NEARLY), OPEN)
        return Finding(
            verdict,
            f"Of {len(far)} settings that cut more, the one best on validation cuts {multiple(best.reduction)} "
            f"({settings_text(best, population)}) and loses {lost} test {metric(population)}.{control(panel)}",
        )

    return test


def exponential_loses(population: Population) -> Finding:
    """No setting of exponential selection has a tolerable loss."""
    findings = []
    for panel in by_epsilon(population, population.epsilons):
        reference, settings = panel.reference, population.of("exponential", panel.epsilon)
        if reference is None or not settings:
            findings.append(Finding(OPEN, f"No exponential selection and DP-SGD runs at {panel.where}."))
            continue
        lost = [between(reference, setting) for setting in settings]
        verdicts = {difference.above(TOLERABLE) for difference in lost}
        verdict = FAILS if FAILS in verdicts else OPEN if OPEN in verdicts else HOLDS
        least = min(lost, key=lambda difference: difference.value)
        findings.append(
            Finding(
                verdict,
                f"At {panel.where}, the least of {len(settings)} settings' losses of test {metric(population)} is "
                f"{least}; beyond {number(TOLERABLE)} none is tolerable.{control(panel)}",
            )
        )
    return all_of(findings)


def beats_dpsgd(population: Population) -> Finding:
    """Of the AdaFEST settings that cut least (half of them), the best on validation is above DP-SGD on test."""
    panel = main_panel(population)
    reference = panel.reference if panel else None
    settings = sorted(population.of("adafest", panel.epsilon), key=lambda s: (s.reduction, s.key)) if panel else []
    if reference is None or not settings:
        return Finding(OPEN, "No DP-AdaFEST and DP-SGD runs to compare yet.")
    best = max(settings[: -(-len(settings) // 2)], key=lambda s: (s.validation, s.key))
    gained = between(best, reference)
    return Finding(
        gained.above(0),
        f"Of the half of {len(settings)} settings that cuts least, the one best on validation cuts "
        f"{multiple(best.reduction)} and gains {gained} test {metric(population)} over the best DP-SGD.",
    )


def embeddings_help(population: Population) -> Finding:
    """DP-SGD that trains the embeddings is above frozen ones at every ε."""
    findings = []
    for panel in by_epsilon(population, population.epsilons):
        reference, frozen = panel.reference, population.best("frozen", panel.epsilon)
        if reference is None or frozen is None:
            findings.append(Finding(OPEN, f"No DP-SGD with and without frozen embeddings at {panel.where}."))
            continue
        gained = between(reference, frozen)
        said = f"At {panel.where}, training them gains {gained} test {metric(population)}."
        findings.append(Finding(gained.above(0), said))
    return all_of(findings)


def main_panel(population: Population) -> Panel | None:
    """The ε at which the paper makes a claim of one ε."""
    epsilon = population.main_epsilon
    return None if epsilon is None else by_epsilon(population, [epsilon])[0]


def control(panel: Panel) -> str:
    """What frozen embeddings lose, in a sentence: a reduction bought with as much is worth nothing."""
    frozen, reference = panel.population.best("frozen", panel.epsilon), panel.reference
    if frozen is None or reference is None:
        return ""
    lost: Difference = between(reference, frozen)
    return f" Frozen embeddings lose {lost}" + (": no reduction counts for much." if lost.low <= 0 else ".")
