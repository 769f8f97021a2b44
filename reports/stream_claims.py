"""What the paper says of streams, held against the runs at hand: each claim a sentence with its numbers.

A difference of two AUCs is told from none where it exceeds two standard errors of one: both are taken on the same test
rows, so that most of what these rows add to either falls out of the difference.
"""

from __future__ import annotations

from collections.abc import Sequence

from reports.comparison import Population, Setting, best_reduction
from reports.reduction_curve import THRESHOLDS, Panel
from reports.wording import metric, multiple, number, rule

SOURCES = ("fest/first_day", "fest/streaming", "fest/all_days")


def told(difference: float, error: float) -> str:
    """Whether one utility is above the other."""
    if abs(difference) <= 2 * error:
        return "cannot be told at these errors"
    return "holds" if difference > 0 else "does not hold"


def frequencies(panel: Panel) -> list[str]:
    """Streaming frequencies are nearly as good as all days', and better than the first day's."""
    best = [panel.population.best(source, panel.epsilon) for source in SOURCES]
    first, streaming, everything = best
    if first is None or streaming is None or everything is None:
        return []
    error = max(setting.error for setting in (first, streaming, everything))
    listed = ", ".join(f"{rule(setting.rule)} {setting.test:.4f}" for setting in (first, streaming, everything))
    lost, won = everything.test - streaming.test, streaming.test - first.test
    nearly = "holds" if lost <= 2 * error else "does not hold"
    return [
        f"{_capital(panel.where)}, test {metric(panel.population)} of the setting that is best on validation: {listed} "
        f"(standard error {error:.4f}). Streaming frequencies nearly as good as all days: {nearly} ({-lost:+.4f}). "
        f"Better than the first day: {told(won, error)} ({won:+.4f})."
    ]


def reductions(panel: Panel, leader: str, rivals: Sequence[str], factor: float) -> list[str]:
    """At the same loss, the leader reduces the gradient more than each rival, `factor` times in the paper."""
    if panel.reference is None:
        return []
    compared, ahead = [], []
    for threshold in THRESHOLDS:
        mine = _reduction(panel, leader, panel.reference, threshold)
        others = [_reduction(panel, rival, panel.reference, threshold) for rival in rivals]
        if mine is None and not any(others):
            continue
        other = max((value for value in others if value is not None), default=None)
        compared.append(f"{_or_none(mine)} against {_or_none(other)} within {number(threshold)}")
        ahead.append(mine is not None and (other is None or mine > factor * other))
    if not compared:
        return []
    verdict = "holds" if all(ahead) else f"holds at {sum(ahead)} of {len(ahead)}" if any(ahead) else "does not hold"
    names = " and ".join(rule(rival) for rival in rivals)
    more = f"more than {number(factor)} times " if factor > 1 else ""
    return [
        f"{_capital(panel.where)}, reduction at losses of validation {metric(panel.population)} that either reaches: "
        f"{'; '.join(compared)}. {rule(leader)} {more}ahead of {names}: {verdict}."
    ]


def longer_periods(population: Population) -> list[str]:
    """DP-SGD gains from longer periods, training without privacy does not."""
    found = []
    for name, epsilon in [("dpsgd", epsilon) for epsilon in population.epsilons] + [("nonprivate", None)]:
        best = [(days, s) for days in population.periods if (s := population.at(days).best(name, epsilon))]
        if len(best) < 2:
            continue
        (short, first), (long, last) = best[0], best[-1]
        error, gain = max(first.error, last.error), last.test - first.test
        values = ", ".join(f"{setting.test:.4f}" for _, setting in best)
        days = ", ".join(str(days) for days, _ in best)
        where = rule(name) + ("" if epsilon is None else f" at ε = {number(epsilon)}")
        claim, verdict = "Utility rises with the period", told(gain, error)
        if epsilon is None:
            claim, verdict = "Unmoved by the period", "holds" if abs(gain) <= 2 * error else "does not hold"
        found.append(
            f"{where}, test {metric(population)} at periods of {days} days: {values} (standard error {error:.4f}). "
            f"{claim}: {verdict} ({gain:+.4f} from {short} to {long})."
        )
    return found


def _reduction(panel: Panel, name: str, reference: Setting, threshold: float) -> float | None:
    chosen = best_reduction(panel.population.of(name, panel.epsilon), reference, threshold)
    return None if chosen is None else chosen.reduction


def _or_none(reduction: float | None) -> str:
    return "none" if reduction is None else multiple(reduction)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
