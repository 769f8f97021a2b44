"""A claim is a row: a statement, a question, and the places where it is asked; how the answers become a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reports.claims.estimate import CROSSES, FAILS, HOLDS, INCONCLUSIVE, OPEN, Verdict
from reports.comparison import Population
from reports.entry import Inputs
from reports.wording import capitalized, number

PARTLY = "holds in part"
"""One algorithm is ahead at some ε (or in some periods), and behind or crossing at others."""

DECIDED = (HOLDS, FAILS, CROSSES, PARTLY)
"""The verdicts that decide a claim."""

DIFFERS = "differs by dataset"
"""The claim is decided differently on different datasets."""

NOWHERE = ""
"""The dataset of a claim about none."""

Interval = tuple[str, float, float]
"""A quantity in words and its 95% bounds."""


@dataclass(frozen=True)
class Finding:
    """The answer to a question in one place, or in several together.

    Attributes:
        verdict: one of `claims.estimate`, or PARTLY.
        words: its numbers in sentences.
        interval: interval of the decisive quantity, if there is one.
        as_tried: whether untried settings could change the verdict.
        without_runs: whether there is nothing to compare: there are no runs of one side, or of one setting only.
        crossing: where curves cross: the reduction, the loss, and on which side of it the claim holds.
        places: the findings in places that have a name, by it.
    """

    verdict: Verdict
    words: str
    interval: Interval | None = None
    as_tried: bool = False
    without_runs: bool = False
    crossing: tuple[float, float, str] | None = None
    places: Mapping[str, Finding] = field(default_factory=dict)

    def as_json(self, about: str = "") -> dict[str, Any]:
        """Return the finding as in report.json; `about` are the runs that it is about."""
        bounds = [bound if math.isfinite(bound) else None for bound in (self.interval or ())[1:]]
        said = f"{self.words} Untried settings could change this verdict." if self.as_tried and about else self.words
        return {
            "verdict": str(self.verdict),
            "p": self.verdict.p,
            "interval": {"of": self.interval[0], "low": bounds[0], "high": bounds[1]} if self.interval else None,
            "evidence": f"{about}: {said}" if about else said,
            "alone": self.words,
            "without_runs": self.without_runs,
            "as_tried": self.as_tried,
            "crossing": self.crossing and list(self.crossing),
            "panels": {where: one.as_json() for where, one in self.places.items()},
        }


def undecided(words: str) -> Finding:
    """Return the finding that more seeds would not help, and why."""
    return Finding(Verdict(INCONCLUSIVE), words)


def missing(what: str) -> Finding:
    """Return the finding that there are no runs of something, and so nothing to compare."""
    return Finding(Verdict(OPEN), f"No {what} yet.", without_runs=True)


Question = Callable[[Any, int], Finding]
"""A question asked in one place, of a number of places in any of which the claim can fail."""


@dataclass(frozen=True)
class Asked:
    """Where a claim is asked on one dataset.

    Attributes:
        places: by their names; an only one may have none.
        on: the populations that they are of, of those at hand.
        about: the runs, in words.
        lacking: ε that the claim is about, and at which there are no runs.
        unless: the finding if it cannot be asked.
    """

    places: Mapping[str, Any] = field(default_factory=dict)
    on: Sequence[Population] = ()
    about: str = ""
    lacking: Sequence[float] = ()
    unless: Finding | None = None


Places = Callable[[Inputs], Mapping[str, Asked]]
"""Where a claim is asked, by dataset (NOWHERE for none)."""


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        where: section, figure or table of the paper that makes it.
        statement: the claim, with its numbers.
        artifacts: ids of the artifacts that show it.
        partly: whether it can hold in part; else one place refutes it.
        paper: the supporting numbers of the paper's tables; empty if the statement has them all.
    """

    id: str
    where: str
    statement: str
    artifacts: tuple[str, ...]
    places: Places
    question: Question
    partly: bool = False
    paper: str = ""

    def judged(self, inputs: Inputs) -> dict[str, Any] | None:
        """Return the claim with its verdict on each dataset and overall, as in report.json; None if it does not concern
        the inputs' data."""
        judged = {name: self._known(asked, inputs).as_json(asked.about) for name, asked in self.places(inputs).items()}
        if not judged:
            return None
        return {
            "id": self.id,
            "statement": self.statement,
            "where": self.where,
            "paper": self.paper,
            "verdict": overall([result["verdict"] for result in judged.values()]),
            "evidence": _joined(judged),
            "artifacts": list(self.artifacts),
            "datasets": {name: result for name, result in judged.items() if name != NOWHERE},
            "nowhere": judged.get(NOWHERE),
        }

    def _known(self, asked: Asked, inputs: Inputs) -> Finding:
        key = self.id, *asked.places, *map(id, asked.on)  # inputs hold the populations, so that ids stay theirs
        if key not in inputs.known:
            inputs.known[key] = self._on(asked)
        return inputs.known[key]

    def _on(self, asked: Asked) -> Finding:
        if asked.unless is not None:
            return asked.unless
        result = in_each(asked.places, self.question, self.partly, asked.about)
        if result.verdict != HOLDS or not asked.lacking:
            return result
        lacking = " and ".join(map(number, asked.lacking))
        words = f"{result.words} The claim is about every ε, and none was run at ε = {lacking}."
        return replace(result, verdict=Verdict(OPEN), words=words, as_tried=False)


def in_each(places: Mapping[str, Any], question: Question, partly: bool = False, about: str = "") -> Finding:
    """Judge a claim that must hold in every place (ε, period, data).

    It holds if each place shows it on its own: a false claim is false in one of them, where it is shown in at most 5%
    of cases (intersection-union test). The refutations share these 5%.
    """
    alone = together({where: question(place, 1) for where, place in places.items()}, partly, about)
    if alone.verdict == HOLDS or len(places) == 1:
        return alone
    return together({where: question(place, len(places)) for where, place in places.items()}, partly, about)


def together(findings: Mapping[str, Finding], partly: bool = False, about: str = "") -> Finding:
    """Combine findings by place: one failure or crossing makes the claim fail or cross, one open one keeps it open
    (more seeds may show that it fails there), and one inconclusive one keeps it from holding."""
    if not findings:
        return missing("runs to compare")
    each = list(findings.values())
    verdicts = {one.verdict for one in each}
    word = next((word for word in (FAILS, CROSSES, OPEN, INCONCLUSIVE) if word in verdicts), HOLDS)
    decisive = [one for one in each if one.verdict == word]
    p = (max if word == HOLDS else min)(one.verdict.p for one in decisive)
    as_tried = (all if word == FAILS else any)(one.as_tried for one in decisive)
    if partly and len(decided := verdicts & {*DECIDED}) > 1:
        word, as_tried = PARTLY, False
        p = max(min(one.verdict.p for one in each if one.verdict == verdict) for verdict in decided)
    named = len(each) > 1 or not all(where in about for where in findings)
    return Finding(
        Verdict(word, p),
        " ".join(f"{where}: {one.words}" if where and named else one.words for where, one in findings.items()),
        decisive[0].interval,
        as_tried,
        all(one.without_runs for one in each),
        places={where: one for where, one in findings.items() if where},
    )


def overall(verdicts: Sequence[str]) -> str:
    """Return the verdict on several datasets: that of the datasets that decide the claim, if they agree."""
    decided = {verdict for verdict in verdicts if verdict in DECIDED}
    if len(decided) == 1:
        return decided.pop()
    return DIFFERS if decided else OPEN if OPEN in verdicts else INCONCLUSIVE


def _joined(judged: Mapping[str, Mapping[str, Any]]) -> str:
    """Join the evidence of all datasets; of several datasets, the verdicts come first."""
    evidence = " ".join(result["evidence"] for result in judged.values())
    if len(judged) == 1:
        return evidence
    places: dict[str, list[str]] = {}
    for name, result in judged.items():
        places.setdefault(result["verdict"], []).append(name)
    tally = "; ".join(f"{verdict} on {', '.join(names)}" for verdict, names in places.items())
    return f"{capitalized(tally)}. {evidence}"
