"""Tests of what the paper says of utility against reduction, at one ε or in one streaming period.

Which settings lie within a loss is known only as well as their utilities are. So an algorithm's best reduction within
a loss has two bounds: over the settings that surely lie within it, and over those that may; they hold for all settings
simultaneously. The upper one is a bound only where a sparser setting was tried that lost more; otherwise the grid
ended too early. One algorithm is ahead of another where its lower bound exceeds the other's upper one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.claims.claim import Finding, all_of, finding
from reports.claims.estimate import FAILS, HOLDS, NEARLY, OPEN, UNTOLD, Difference, between
from reports.comparison import Panel, Population, Setting, best_reduction, by_epsilon
from reports.entry import Inputs
from reports.wording import metric, multiple, settings_text

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
    setting surely lost more: sparser settings might do better, unless there can be none (`Setting.is_sparsest`)."""

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
        at_most >= _sparsest(settings).reduction and not _sparsest(settings).is_sparsest,
    )


def _sparsest(settings: Sequence[Setting]) -> Setting:
    return max(settings, key=lambda s: (s.reduction, s.key))


def ahead(mine: Reach, other: Reach, factor: float = 1.0) -> str:
    """The verdict on the claim that `mine` is more than `factor` times `other`."""
    if mine.surely > factor * other.at_most and not other.ended:
        return HOLDS
    # Where neither cuts anything within the loss, nothing is compared.
    return FAILS if mine.at_most <= factor * other.surely > factor and not mine.ended else OPEN


def ahead_of_all(mine: Reach, *others: Reach, factor: float = 1.0) -> str:
    """The verdict on the claim that `mine` is more than `factor` times each of the others."""
    verdicts = [ahead(mine, other, factor) for other in others]
    return FAILS if FAILS in verdicts else OPEN if OPEN in verdicts else HOLDS


def where_told(verdicts: Sequence[str]) -> str:
    """Over several losses: what is so wherever the runs can tell; a claim that is so at one and not at another fails.

    Unlike in :func:`reports.claims.claim.all_of`, where they cannot tell decides nothing.
    """
    return FAILS if FAILS in verdicts else HOLDS if HOLDS in verdicts else OPEN


def leads_at(leader: str, *rivals: str, epsilons: Sequence[float] = ()) -> Callable[[Population], Finding]:
    """At all these ε (by default all there are) and at the same loss, the leader cuts the gradient more than each
    rival."""
    return lambda population: leads(by_epsilon(population, epsilons or population.epsilons), leader, rivals)


def leads(panels: Sequence[Panel], leader: str, rivals: Sequence[str], factor: float = 1.0) -> Finding:
    """In every panel and at the same loss, the leader cuts the gradient more than each rival, `factor` times more."""
    of = sum(len(panel.of(name)) for panel in panels for name in ("dpsgd", leader, *rivals))
    return all_of([_leads(panel, leader, rivals, factor, of) for panel in panels], "leads", of=of)


def _leads(panel: Panel, leader: str, rivals: Sequence[str], factor: float, of: int) -> Finding:
    reference, where = panel.reference, panel.where
    settings = {name: panel.of(name) for name in (leader, *rivals)}
    lacking = [name for name in ("dpsgd", *settings) if not panel.of(name)]
    if reference is None or lacking:
        return finding(OPEN, "lacking", names=lacking, where=where)
    lost = losses([setting for tried in settings.values() for setting in tried], reference, of)

    def reaches_within(loss: float, lost: Losses) -> list[Reach]:
        return [reach(tried, reference, lost, loss) for tried in settings.values()]

    def verdict(lost: Losses) -> str:
        return where_told([ahead_of_all(*reaches_within(loss, lost), factor=factor) for loss in LOSSES])

    frozen = panel.population.best("frozen", panel.epsilon)
    if verdict(lost) == OPEN and frozen is not None and reference.test - frozen.test <= LOSSES[0]:
        gained = between(frozen, reference, of)
        return finding(UNTOLD, "nothing_to_lose", where=where, gained=gained, metric=metric(panel.population))
    untold = verdict(lost) == verdict(settled(lost)) == OPEN
    return finding(
        UNTOLD if untold else verdict(lost),
        "best_reductions",
        where=where,
        leader=leader,
        rivals=rivals,
        reached=[(loss, mine, others) for loss in LOSSES for mine, *others in [reaches_within(loss, lost)]],
        ends=_ends(settings, settled(lost)) if untold else None,
        frozen=frozen_loss(panel),
    )


def _ends(tried: Mapping[str, Sequence[Setting]], lost: Losses) -> Mapping[str, Any]:
    """The smallest loss that some algorithm was never tried so sparse as to have, though it can be sparser, and those
    algorithms with their largest reductions."""
    sparsest = {name: _sparsest(settings) for name, settings in tried.items()}
    for loss in LOSSES:
        ended = [
            (name, setting.reduction)
            for name, setting in sparsest.items()
            if lost[setting.key].low <= loss and not setting.is_sparsest
        ]
        if ended:
            return {"loss": loss, "sparsest": ended}
    return {"loss": TOLERABLE, "sparsest": []}


def some_within(lost: Sequence[Difference], loss: float) -> str:
    """The verdict on the claim that one of these losses is below `loss`."""
    verdicts = {difference.above(loss) for difference in lost}
    return HOLDS if FAILS in verdicts else OPEN if OPEN in verdicts else FAILS


def reaches(leader: str, factor: float) -> Callable[[Population], Finding]:
    """The leader cuts the gradient more than `factor` times at a loss below NEARLY."""

    def test(population: Population) -> Finding:
        panel = main_panel(population)
        reference, settings = (panel.reference, panel.of(leader)) if panel else (None, [])
        if panel is None or reference is None or not settings:
            return finding(OPEN, "not_compared", names=[leader, "dpsgd"])
        far = [setting for setting in settings if setting.reduction > factor]
        if not far:
            most = max(setting.reduction for setting in settings)
            return finding(UNTOLD, "none_sparse", count=len(settings), most=most, name=leader)
        lost, best = _judged(far, reference, len(panel.of("dpsgd")))
        return finding(
            some_within(list(lost.values()), NEARLY),
            "sparse_enough",
            count=len(far),
            reduction=best.reduction,
            settings=settings_text(best, population),
            lost=lost[best.key],
            metric=metric(population),
            frozen=frozen_loss(panel),
        )

    return test


def _judged(settings: Sequence[Setting], reference: Setting, rivals: int) -> tuple[Losses, Setting]:
    """What each setting loses against the reference, the best of `rivals`, and the setting that surely loses least."""
    lost = losses(settings, reference, len(settings) + rivals)
    return lost, min(settings, key=lambda s: (lost[s.key].high, s.key))


def exponential_loses(population: Population) -> Finding:
    """No setting of exponential selection has a tolerable loss."""
    panels = by_epsilon(population, population.epsilons)
    of = sum(len(panel.of(name)) for panel in panels for name in ("exponential", "dpsgd"))
    return all_of([_exponential_loses(panel, of) for panel in panels])


def _exponential_loses(panel: Panel, of: int) -> Finding:
    lacking = [name for name in ("exponential", "dpsgd") if not panel.of(name)]
    if panel.reference is None or lacking:
        return finding(OPEN, "lacking", names=lacking, where=panel.where)
    lost = list(losses(panel.of("exponential"), panel.reference, of).values())
    return finding(
        OPPOSITE[some_within(lost, TOLERABLE)],
        "least_loss",
        where=panel.where,
        count=len(lost),
        least=min(lost, key=lambda difference: difference.value),
        tolerable=TOLERABLE,
        metric=metric(panel.population),
        frozen=frozen_loss(panel),
    )


def beats_dpsgd(population: Population) -> Finding:
    """One of the AdaFEST settings that cut little is above DP-SGD."""
    panel = main_panel(population)
    reference, settings = (panel.reference, panel.of("adafest")) if panel else (None, [])
    if panel is None or reference is None or not settings:
        return finding(OPEN, "not_compared", names=["adafest", "dpsgd"])
    dense = [setting for setting in settings if setting.reduction < LITTLE]
    if not dense:
        least = min(setting.reduction for setting in settings)
        return finding(UNTOLD, "none_dense", count=len(settings), little=LITTLE, least=least)
    lost, best = _judged(dense, reference, len(panel.of("dpsgd")))
    return finding(
        some_within(list(lost.values()), 0),
        "dense_enough",
        count=len(dense),
        little=LITTLE,
        reduction=best.reduction,
        gained=lost[best.key].times(-1),
        metric=metric(population),
    )


def embeddings_help(population: Population) -> Finding:
    """DP-SGD that trains the embeddings is above frozen ones at every ε."""
    panels = by_epsilon(population, population.epsilons)
    of = sum(len(panel.of(name)) for panel in panels for name in ("dpsgd", "frozen"))
    return all_of([_embeddings_help(panel, of) for panel in panels])


def _embeddings_help(panel: Panel, of: int) -> Finding:
    reference, frozen = panel.reference, panel.population.best("frozen", panel.epsilon)
    if reference is None or frozen is None:
        lacking = [name for name in ("dpsgd", "frozen") if not panel.of(name)]
        return finding(OPEN, "lacking", names=lacking, where=panel.where)
    gained = between(reference, frozen, of)
    return finding(gained.above(0), "trained", where=panel.where, gained=gained, metric=metric(panel.population))


def larger_vocabulary_gains(inputs: Inputs) -> Finding:
    """At the same loss, DP-AdaFEST cuts the gradient more where the vocabulary is larger."""
    texts = inputs.of("text", "large_text")
    if texts and texts[0].untestable:
        return finding(UNTOLD, "untestable", population=texts[0])
    trained = [p for p in texts if p.vocabulary and any(s.algorithm == "adafest" for s in p.settings)]
    by_size = {population.vocabulary: population for population in reversed(trained)}
    panels = [panel for size in sorted(by_size) if (panel := main_panel(by_size[size])) and panel.reference]
    if len(panels) < 2:
        return finding(OPEN, "missing", what="runs of DP-AdaFEST and DP-SGD on texts with two vocabularies")
    small, large = panels[0], panels[-1]
    of = sum(len(panel.of(name)) for panel in (small, large) for name in ("dpsgd", "adafest"))
    references = [(panel, panel.reference) for panel in (large, small) if panel.reference]
    lost = [losses(panel.of("adafest"), best, of) for panel, best in references]

    def reaches_within(loss: float, lost: Sequence[Losses]) -> list[Reach]:
        pairs = zip(references, lost, strict=True)
        return [reach(panel.of("adafest"), best, own, loss) for (panel, best), own in pairs]

    def verdict(lost: Sequence[Losses]) -> str:
        return where_told([ahead_of_all(*reaches_within(loss, lost)) for loss in LOSSES])

    untold = verdict(lost) == verdict([settled(own) for own in lost]) == OPEN
    return finding(
        UNTOLD if untold else verdict(lost),
        "vocabularies",
        large=large.population,
        small=small.population,
        reached=[(loss, *reaches_within(loss, lost)) for loss in LOSSES],
        of=of,
        ended=untold,
    )


def main_panel(population: Population) -> Panel | None:
    """The ε at which the paper makes a claim of one ε."""
    epsilon = population.main_epsilon
    return None if epsilon is None else by_epsilon(population, [epsilon])[0]


def frozen_loss(panel: Panel) -> Difference | None:
    """What frozen embeddings lose: a reduction bought with as much is worth nothing."""
    frozen, reference = panel.population.best("frozen", panel.epsilon), panel.reference
    if frozen is None or reference is None:
        return None
    return between(reference, frozen, len(panel.of("frozen")) + len(panel.of("dpsgd")))
