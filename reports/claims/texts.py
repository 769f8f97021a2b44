"""The test of what the paper says of vocabularies: it compares two models."""

from __future__ import annotations

from reports.claims.claim import Evidence, Finding, untestable
from reports.claims.estimate import OPEN, UNTOLD
from reports.claims.tradeoff import (
    LOSSES,
    Losses,
    Reach,
    ahead,
    losses,
    main_panel,
    reach,
    settled,
    sparser,
    where_told,
)
from reports.texts import vocabulary
from reports.wording import number


def larger_vocabulary_gains(evidence: Evidence) -> Finding:
    """At the same loss, DP-AdaFEST cuts the gradient more where the vocabulary is larger."""
    found = evidence.of("text", "large_text")
    if found and (why := untestable(found[0])):
        return Finding(UNTOLD, f"{found[0].dataset}: {why}.")
    trained = [p for p in found if vocabulary(p) and any(s.algorithm == "adafest" for s in p.settings)]
    by_size = {vocabulary(population): population for population in reversed(trained)}
    panels = [(size, main_panel(by_size[size])) for size in sorted(by_size)]
    told = [
        (size, panel.population, panel.reference, panel.population.of("adafest", panel.epsilon))
        for size, panel in panels
        if panel is not None and panel.reference is not None
    ]
    if len(told) < 2:
        return Finding(OPEN, "No runs of DP-AdaFEST and DP-SGD on texts with two vocabularies yet.")
    (small, few, first, ours), (large, many, second, theirs) = told[0], told[-1]
    assert first is not None and second is not None
    of = sum(len(p.of(name, p.main_epsilon)) for p in (few, many) for name in ("dpsgd", "adafest"))
    lost = {**losses(ours, first, of), **losses(theirs, second, of)}

    def reaches_within(loss: float, lost: Losses) -> tuple[Reach, Reach]:
        return reach(theirs, second, lost, loss), reach(ours, first, lost, loss)

    def verdict(lost: Losses) -> str:
        return where_told([ahead(*reaches_within(loss, lost)) for loss in LOSSES])

    untold = verdict(lost) == verdict(settled(lost)) == OPEN
    pairs = [(loss, *reaches_within(loss, lost)) for loss in LOSSES]
    values = "; ".join(f"within {number(loss)} {a} against {b}" for loss, a, b in pairs)
    why = f" The settings end before the rule loses utility: sweep {sparser('adafest')}." if untold else ""
    return Finding(
        UNTOLD if untold else verdict(lost),
        f"{many.dataset} with {large:,} tokens against {few.dataset} with {small:,}, best reduction by loss (in "
        f"brackets bounds at 95% for all {of} settings at once): {values}.{why}",
    )
