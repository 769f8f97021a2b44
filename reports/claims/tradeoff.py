"""Tests of what the paper says of utility against reduction, at one ε or in one streaming period.

Which settings lie within a loss is known only as well as their utilities are. So a rule's best reduction within a loss
has two bounds: over the settings that surely lie within it, and over those that may; they are right for all settings
at once. And the upper one is a bound only where a sparser setting was tried that lost more; otherwise the grid ended
before the rule did. One rule is ahead of another where its lower bound passes the other's upper one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from reports.claims.claim import Finding, all_of
from reports.claims.estimate import FAILS, HOLDS, NEARLY, OPEN, UNTOLD, Difference, between
from reports.comparison import Population, Setting, best_reduction
from reports.reduction_curve import Panel, by_epsilon
from reports.wording import metric, multiple, number, rule, settings_text

LOSSES = (0.001, 0.005, 0.01)
"""The losses at which the paper's tables give reductions."""

TOLERABLE = LOSSES[-1]
"""A loss beyond these is none that the paper tolerates."""

LITTLE = 100
"""A reduction below this is what the paper may mean by minimal: it names no number."""

OPPOSITE = {HOLDS: FAILS, FAILS: HOLDS, OPEN: OPEN}


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


Losses = Mapping[str, Difference]
"""What settings lose, by their keys."""


def losses(settings: Sequence[Setting], reference: Setting, of: int) -> Losses:
    """What each of these settings, of `of` that are judged together, loses against the reference."""
    return {setting.key: between(reference, setting, of) for setting in settings}


def settled(lost: Losses) -> Losses:
    """The same, if each lost just what it seems to."""
    return {key: Difference(difference.value, 0.0) for key, difference in lost.items()}


def reach(settings: Sequence[Setting], reference: Setting, lost: Losses, loss: float) -> Reach:
    """How far these settings cut the gradient within `loss` of the reference."""
    chosen = best_reduction(settings, reference, loss)
    at_most = max([1.0, *(setting.reduction for setting in settings if lost[setting.key].low <= loss)])
    return Reach(
        1.0 if chosen is None else chosen.reduction,
        max([1.0, *(setting.reduction for setting in settings if lost[setting.key].high <= loss)]),
        at_most,
        at_most >= max(setting.reduction for setting in settings),
    )


def ahead(mine: Reach, other: Reach, factor: float = 1.0) -> str:
    """The verdict on the claim that `mine` is more than `factor` times `other`."""
    if mine.surely > factor * other.at_most and not other.ended:
        return HOLDS
    # Where neither cuts anything within the loss, nothing is compared.
    return FAILS if mine.at_most <= factor * other.surely > factor and not mine.ended else OPEN


def ahead_of_all(mine: Reach, *others: Reach, factor: float = 1.0) -> str:
    """The verdict on the claim that `mine` is more than `factor` times each of the others."""
    return all_of([Finding(ahead(mine, other, factor), "") for other in others]).verdict


def where_told(verdicts: Sequence[str]) -> str:
    """Over several losses: what is so wherever the runs can tell; a claim that is so at one and not at another fails.

    Unlike in :func:`reports.claims.claim.all_of`, where they cannot tell decides nothing.
    """
    return FAILS if FAILS in verdicts else HOLDS if HOLDS in verdicts else OPEN


def leads(panels: Sequence[Panel], leader: str, rivals: Sequence[str], factor: float = 1.0) -> Finding:
    """In every panel and at the same loss, the leader cuts the gradient more than each rival, `factor` times more."""
    of = sum(len(panel.population.of(name, panel.epsilon)) for panel in panels for name in ("dpsgd", leader, *rivals))
    found = all_of([_leads(panel, leader, rivals, factor, of) for panel in panels])
    if "×" not in found.evidence:
        return found
    return replace(
        found,
        evidence=f"{found.evidence} In brackets, bounds of the best reduction within a loss of utility, at 95% for all "
        f"{of} settings at once; 'or more' where nothing sparser was tried that surely lost more.",
    )


def _leads(panel: Panel, leader: str, rivals: Sequence[str], factor: float, of: int) -> Finding:
    reference = panel.reference
    settings = {name: panel.population.of(name, panel.epsilon) for name in (leader, *rivals)}
    lacking = [rule(name) for name in ("dpsgd", *settings) if not panel.population.of(name, panel.epsilon)]
    if reference is None or lacking:
        return Finding(OPEN, f"No {' and no '.join(lacking)} runs at {panel.where}.")

    lost = losses([setting for found in settings.values() for setting in found], reference, of)

    def reaches_within(loss: float, lost: Losses) -> list[Reach]:
        return [reach(found, reference, lost, loss) for found in settings.values()]

    def verdict(lost: Losses) -> str:
        return where_told([ahead_of_all(*reaches_within(loss, lost), factor=factor) for loss in LOSSES])

    frozen = panel.population.best("frozen", panel.epsilon)
    if verdict(lost) == OPEN and frozen is not None and reference.test - frozen.test <= LOSSES[0]:
        return Finding(
            UNTOLD,
            f"At {panel.where}, embeddings that are never trained have {between(frozen, reference, of)} test "
            f"{metric(panel.population)} over DP-SGD: by these runs no rule needs to lose anything, however much it "
            "cuts, and on such data none can be ahead.",
        )
    found = UNTOLD if verdict(lost) == verdict(settled(lost)) == OPEN else verdict(lost)
    told = []
    for loss in LOSSES:
        mine, *others = map(str, reaches_within(loss, lost))
        against = f"{others[0]} each" if len(others) > len(set(others)) == 1 else " and ".join(others)
        told.append(f"within {number(loss)} {mine} against {against}")
    why = _ends(panel, settings, settled(lost)) if found == UNTOLD else ""
    rivals_named = " and ".join(map(rule, rivals))
    return Finding(
        found,
        f"{why}At {panel.where}, {rule(leader)} against {rivals_named}: {'; '.join(told)}.{control(panel)}",
    )


def _ends(panel: Panel, rules: Mapping[str, Sequence[Setting]], lost: Losses) -> str:
    """Which rules were not tried so sparse that they lose, and what to sweep."""
    sparsest = {name: max(settings, key=lambda s: (s.reduction, s.key)) for name, settings in rules.items()}
    for loss in LOSSES:
        ended = [
            f"{rule(name)} (at most {multiple(setting.reduction)}; sweep {sparser(name)})"
            for name, setting in sparsest.items()
            if lost[setting.key].low <= loss
        ]
        if ended:
            return f"At {panel.where}, settings end before the rule loses {number(loss)}: {', '.join(ended)}. "
    return f"At {panel.where}, none of these rules cuts anything within a loss of {number(TOLERABLE)}. "


def sparser(name: str) -> str:
    """What to sweep for a rule's settings to cut more."""
    algorithm = name.partition("/")[0]
    knobs = {
        "fest": "smaller algorithm.selection.rows",
        "adafest_plus": "larger algorithm.threshold or smaller algorithm.selection.rows",
        "lora_embedding": "smaller algorithm.rank",
    }
    return knobs.get(algorithm, "larger algorithm.threshold")


def some_within(lost: Sequence[Difference], loss: float) -> str:
    """The verdict on the claim that one of these losses is below `loss`."""
    verdicts = {difference.above(loss) for difference in lost}
    return HOLDS if FAILS in verdicts else OPEN if OPEN in verdicts else FAILS


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
            said = f"None of {len(settings)} settings cuts so much; the sparsest cuts {multiple(most)}"
            return Finding(UNTOLD, f"{said} (sweep {sparser(leader)}).")
        lost, best = _judged(far, reference, len(population.of("dpsgd", panel.epsilon)))
        return Finding(
            some_within(list(lost.values()), NEARLY),
            f"Of {_settings(far)} beyond that, the best cuts {multiple(best.reduction)} "
            f"({settings_text(best, population)}) and loses {lost[best.key]} test {metric(population)}."
            f"{control(panel)}",
        )

    return test


def _judged(settings: Sequence[Setting], reference: Setting, rivals: int) -> tuple[Losses, Setting]:
    """What each setting loses against the reference, the best of `rivals`, and the setting that surely loses least."""
    lost = losses(settings, reference, len(settings) + rivals)
    return lost, min(settings, key=lambda s: (lost[s.key].high, s.key))


def _settings(settings: Sequence[Setting]) -> str:
    return f"{len(settings)} setting{'s' * (len(settings) > 1)}"


def exponential_loses(population: Population) -> Finding:
    """No setting of exponential selection has a tolerable loss."""
    panels = by_epsilon(population, population.epsilons)
    of = sum(len(population.of(name, panel.epsilon)) for panel in panels for name in ("exponential", "dpsgd"))
    findings = []
    for panel in panels:
        reference, settings = panel.reference, population.of("exponential", panel.epsilon)
        if reference is None or not settings:
            findings.append(Finding(OPEN, f"No exponential selection and DP-SGD runs at {panel.where}."))
            continue
        lost = list(losses(settings, reference, of).values())
        findings.append(
            Finding(
                OPPOSITE[some_within(lost, TOLERABLE)],
                f"At {panel.where}, the least of {len(settings)} settings' losses of test {metric(population)} is "
                f"{min(lost, key=lambda difference: difference.value)}; beyond {number(TOLERABLE)}, the largest loss "
                f"in the paper's tables, none is tolerable.{control(panel)}",
            )
        )
    return all_of(findings)


def beats_dpsgd(population: Population) -> Finding:
    """One of the AdaFEST settings that cut little is above DP-SGD."""
    panel = main_panel(population)
    reference = panel.reference if panel else None
    settings = population.of("adafest", panel.epsilon) if panel else []
    if panel is None or reference is None or not settings:
        return Finding(OPEN, "No DP-AdaFEST and DP-SGD runs to compare yet.")
    little = [setting for setting in settings if setting.reduction < LITTLE]
    if not little:
        least = multiple(min(setting.reduction for setting in settings))
        said = f"None of {len(settings)} settings cuts less than {LITTLE} times; one cuts {least}"
        return Finding(UNTOLD, f"{said} (sweep smaller algorithm.threshold).")
    lost, best = _judged(little, reference, len(population.of("dpsgd", panel.epsilon)))
    return Finding(
        some_within(list(lost.values()), 0),
        f"Of {_settings(little)} below {LITTLE} times, the best cuts {multiple(best.reduction)} and gains "
        f"{lost[best.key].times(-1)} test {metric(population)} over the best DP-SGD.",
    )


def embeddings_help(population: Population) -> Finding:
    """DP-SGD that trains the embeddings is above frozen ones at every ε."""
    panels = by_epsilon(population, population.epsilons)
    of = sum(len(population.of(name, panel.epsilon)) for panel in panels for name in ("dpsgd", "frozen"))
    findings = []
    for panel in panels:
        reference, frozen = panel.reference, population.best("frozen", panel.epsilon)
        if reference is None or frozen is None:
            findings.append(Finding(OPEN, f"No DP-SGD with and without frozen embeddings at {panel.where}."))
            continue
        gained = between(reference, frozen, of)
        said = f"At {panel.where}, training them gains {gained} test {metric(population)}."
        findings.append(Finding(gained.above(0), said))
    return all_of(findings)


def main_panel(population: Population) -> Panel | None:
    """The ε at which the paper makes a claim of one ε."""
    epsilon = population.main_epsilon
    return None if epsilon is None else by_epsilon(population, [epsilon])[0]


def control(panel: Panel) -> str:
    """What frozen embeddings lose, in a sentence: a reduction bought with as much is worth nothing."""
    population, reference = panel.population, panel.reference
    frozen = population.best("frozen", panel.epsilon)
    if frozen is None or reference is None:
        return ""
    of = len(population.of("frozen", panel.epsilon)) + len(population.of("dpsgd", panel.epsilon))
    lost = between(reference, frozen, of)
    if lost.low > 0:
        return f" Frozen embeddings lose {lost}."
    return f" Embeddings that are never trained lose {lost}: whether any reduction here is worth its loss is open."
