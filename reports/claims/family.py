"""Which verdicts stand if all of them are one family: Holm's step-down procedure (1979) on their p-values.

The hypotheses are both directions of every verdict: one for each claim and dataset, and for each ε or period at which
the claim is judged there. All verdicts that stand are right together with a probability of 95%.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.claims.claim import DECIDED, PARTLY
from reports.claims.estimate import HOLDS, LEVEL


def mark(claims: Sequence[dict[str, Any]]) -> None:
    """Mark in each result of claims, as in `report.json`, and in its panels whether the verdict `stands`."""
    tested = [one for claim in claims for one in results(claim).values()]
    verdicts = [panel for one in tested if not one["without_runs"] for panel in panels(one)]
    decided = sorted((panel for panel in verdicts if panel["verdict"] in DECIDED), key=lambda panel: panel["p"])
    for one in tested:
        for panel in (one, *panels(one)):
            panel["stands"] = False
    for place, panel in enumerate(decided):
        if panel["p"] > LEVEL / (2 * len(verdicts) - place):
            break
        panel["stands"] = True
    for one in tested:
        one["stands"] = _together(one)


def _together(one: Mapping[str, Any]) -> bool:
    """Whether the panels whose verdicts stand give the verdict of all together."""
    standing = [panel["verdict"] for panel in panels(one) if panel["stands"]]
    if one["verdict"] == HOLDS:
        return len(standing) == len(panels(one))
    return len(set(standing)) > 1 if one["verdict"] == PARTLY else one["verdict"] in standing


def panels(one: Mapping[str, Any]) -> Sequence[Any]:
    """Return the parts of a result that are verdicts of their own: itself, if it is judged in one panel."""
    return list(one["panels"].values()) or [one]


def results(claim: Mapping[str, Any]) -> Mapping[str, dict[str, Any]]:
    """Return a claim's results by dataset; under an empty name that of a claim about none."""
    return claim["datasets"] or {"": claim["nowhere"]}
