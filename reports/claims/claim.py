"""What a claim is, and what its test finds on each dataset: a verdict, an interval, and numbers that a template puts in
words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.claims.estimate import FAILS, HOLDS, OPEN, UNTOLD
from reports.comparison import Population, Setting
from reports.entry import Inputs
from reports.templates import sentences
from reports.wording import number, plural, seeds

DIFFERS = "differs by dataset"
"""It holds on one dataset and does not on another: see each."""

EPSILONS = (1.0, 3.0, 8.0)
"""Those of the paper: what it says of every ε is not shown at one."""

Interval = tuple[str, float, float | None]
"""What it is of, and the 95% bounds of it; None where there is no upper one."""


@dataclass(frozen=True)
class Finding:
    """A verdict (`claims.estimate`), the numbers that it rests on, the macro of `evidence.md.jinja` that words them,
    and, where one number says how far the runs tell, its interval."""

    verdict: str
    template: str
    numbers: Mapping[str, Any]
    interval: Interval | None = None

    @property
    def evidence(self) -> str:
        """The finding in sentences."""
        return sentences(self.template, **self.numbers)

    def as_json(self) -> dict[str, Any]:
        interval = None
        if self.interval is not None:
            of, *bounds = self.interval
            low, high = (bound if bound is not None and math.isfinite(bound) else None for bound in bounds)
            interval = {"of": of, "low": low, "high": high}
        return {"verdict": self.verdict, "interval": interval, "evidence": self.evidence}


def finding(verdict: str, template: str, interval: Interval | None = None, **numbers: Any) -> Finding:
    return Finding(verdict, template, numbers, interval)


Findings = Mapping[str, Finding]
"""By dataset; under NOWHERE what is of none."""

NOWHERE = ""

Test = Callable[[Inputs], Findings]


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Attributes:
        statement: what the paper says, with its numbers.
        where: the section, figure or table in which it says so.
        artifacts: ids of the artifacts that show it.
        paper: the numbers of the paper's tables that it rests on; empty where the statement has them all.
    """

    id: str
    statement: str
    where: str
    artifacts: tuple[str, ...]
    test: Test
    paper: str = ""

    def judged(self, inputs: Inputs) -> dict[str, Any] | None:
        """The claim with its verdict on each dataset and on all, as report.json has it; None where it says nothing of
        the data that the inputs are drawn from."""
        findings = self.test(inputs)
        if not findings:
            return None
        said = {name: found.as_json() for name, found in findings.items()}
        verdict = overall([found["verdict"] for found in said.values()])
        return {
            "id": self.id,
            "statement": self.statement,
            "where": self.where,
            "paper": self.paper,
            "verdict": verdict,
            "evidence": _together(said),
            "artifacts": list(self.artifacts),
            "datasets": {name: found for name, found in said.items() if name != NOWHERE},
        }


def overall(verdicts: Sequence[str]) -> str:
    """The verdict on several datasets: that of those which decide, where they agree."""
    decided = {verdict for verdict in verdicts if verdict in (HOLDS, FAILS)}
    if len(decided) == 1:
        return decided.pop()
    return DIFFERS if decided else OPEN if OPEN in verdicts else UNTOLD


def _together(said: Mapping[str, Mapping[str, Any]]) -> str:
    """The evidence of all datasets; of several, their verdicts first."""
    evidence = " ".join(found["evidence"] for found in said.values())
    if len(said) == 1:
        return evidence
    places: dict[str, list[str]] = {}
    for name, found in said.items():
        places.setdefault(found["verdict"], []).append(name)
    tally = "; ".join(f"{verdict} on {', '.join(names)}" for verdict, names in places.items())
    return f"{tally[0].upper()}{tally[1:]}. {evidence}"


def by_dataset(inputs: Inputs, *kinds: str) -> dict[str, Population]:
    """The first population of these kinds on each dataset, or that alone which the inputs are drawn from."""
    if inputs.drawn is not None:
        return {inputs.drawn.dataset: inputs.drawn} if inputs.drawn.kind in kinds else {}
    return {population.dataset: population for population in reversed(inputs.of(*kinds))}


def on(kinds: Sequence[str], test: Callable[[Population], Finding]) -> Test:
    """A test of each dataset of these kinds, which says of what runs."""

    def test_each(inputs: Inputs) -> Findings:
        populations = by_dataset(inputs, *kinds)
        if not populations and inputs.drawn is None:
            return {NOWHERE: finding(OPEN, "no_runs", kinds=kinds)}
        return {name: _of_one(population, test) for name, population in reversed(populations.items())}

    return test_each


def _of_one(population: Population, test: Callable[[Population], Finding]) -> Finding:
    if population.untestable:
        return finding(UNTOLD, "untestable", population=population)
    found = test(population)
    numbers = {"population": population, "seeds": seeds_of(population.settings), "finding": found}
    return Finding(found.verdict, "on", numbers, found.interval)


def nowhere(test: Callable[[Inputs], Finding]) -> Test:
    """A test that is of no dataset."""
    return lambda inputs: {NOWHERE: test(inputs)}


def all_of(findings: Sequence[Finding], template: str = "all_of", **numbers: Any) -> Finding:
    """Of a claim that is to hold everywhere: it fails where it fails once, and is open where it is open once."""
    verdicts = {finding.verdict for finding in findings}
    verdict = next((verdict for verdict in (FAILS, UNTOLD, OPEN) if verdict in verdicts), HOLDS if verdicts else OPEN)
    interval = next((found.interval for found in findings if found.verdict == verdict), None)
    return finding(verdict, template, interval, findings=findings, **numbers)


def at_every(population: Population, found: Finding) -> Finding:
    """The same of a claim that is of every ε, which holds only where each of the paper's was run."""
    lacking = [number(epsilon) for epsilon in EPSILONS if epsilon not in population.epsilons]
    if found.verdict != HOLDS or not lacking:
        return found
    return finding(OPEN, "not_at_every_epsilon", found.interval, finding=found, lacking=lacking)


def seeds_of(settings: Sequence[Setting]) -> str:
    """The seeds, if all settings have the same; else how many a setting has."""
    counts = [len(setting.runs) for setting in settings]
    if len({tuple(run.seed for run in setting.runs) for setting in settings}) == 1:
        return seeds(run for setting in settings for run in setting.runs)
    few, many = min(counts), max(counts)
    return f"{few} to {many} seeds a setting" if few < many else f"{plural(few, 'seed')} a setting, not the same"
