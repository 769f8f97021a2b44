"""What a claim is, and what its test finds: a verdict and numbers, which a template puts in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.claims.estimate import FAILS, HOLDS, OPEN, UNTOLD
from reports.comparison import Population, Setting
from reports.entry import Inputs
from reports.templates import sentences
from reports.wording import plural, seeds


@dataclass(frozen=True)
class Finding:
    """A verdict (`claims.estimate`), the numbers that it rests on, and the macro of `evidence.md.jinja` that words
    them."""

    verdict: str
    template: str
    numbers: Mapping[str, Any]

    @property
    def evidence(self) -> str:
        """The finding in sentences."""
        return sentences(self.template, **self.numbers)


def finding(verdict: str, template: str, **numbers: Any) -> Finding:
    return Finding(verdict, template, numbers)


Test = Callable[[Inputs], Finding]


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

    def judged(self, inputs: Inputs) -> dict[str, Any]:
        """The claim with its verdict, as report.json has it."""
        result = self.test(inputs)
        return {
            "id": self.id,
            "statement": self.statement,
            "where": self.where,
            "paper": self.paper,
            "verdict": result.verdict,
            "evidence": result.evidence,
            "artifacts": list(self.artifacts),
        }


def on(kinds: Sequence[str], test: Callable[[Population], Finding]) -> Test:
    """A test of the first population of these kinds, which says which one that is."""

    def test_first(inputs: Inputs) -> Finding:
        populations = inputs.of(*kinds)
        if not populations:
            return finding(OPEN, "no_runs", kinds=kinds)
        first = populations[0]
        if first.untestable:
            return finding(UNTOLD, "untestable", population=first)
        result = test(first)
        return finding(result.verdict, "on", population=first, seeds=seeds_of(first.settings), finding=result)

    return test_first


def all_of(findings: Sequence[Finding], template: str = "all_of", **numbers: Any) -> Finding:
    """Of a claim that is to hold everywhere: it fails where it fails once, and is open where it is open once."""
    verdicts = {finding.verdict for finding in findings}
    verdict = next((verdict for verdict in (FAILS, UNTOLD, OPEN) if verdict in verdicts), HOLDS if verdicts else OPEN)
    return finding(verdict, template, findings=findings, **numbers)


def seeds_of(settings: Sequence[Setting]) -> str:
    """The seeds, if all settings have the same; else how many a setting has."""
    counts = [len(setting.runs) for setting in settings]
    if len({tuple(run.seed for run in setting.runs) for setting in settings}) == 1:
        return seeds(run for setting in settings for run in setting.runs)
    few, many = min(counts), max(counts)
    return f"{few} to {many} seeds a setting" if few < many else f"{plural(few, 'seed')} a setting, not the same"
