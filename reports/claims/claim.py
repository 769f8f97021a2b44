"""What a claim is, what it is tested on, and what a test finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.claims.estimate import FAILS, HOLDS, OPEN
from reports.comparison import Population
from reports.texts import kind
from reports.wording import number


@dataclass(frozen=True)
class Finding:
    """A verdict (`holds`, `does not hold`, `not enough runs`) and the sentences that it rests on."""

    verdict: str
    evidence: str


@dataclass(frozen=True)
class Evidence:
    """What is at hand: populations of runs, those that are to be asked first standing first; the report's folder,
    where benchmarks leave their times; and the population that an artifact is `drawn` from, which goes before all."""

    populations: Sequence[Population]
    report: Path
    drawn: Population | None = None

    def of(self, *kinds: str) -> list[Population]:
        """The populations of these kinds (:func:`reports.texts.kind`), those that no claim can be tested on last."""
        found = [population for population in self.populations if kind(population) in kinds]
        return sorted(found, key=lambda population: (population is not self.drawn, untestable(population) is not None))


Test = Callable[[Evidence], Finding]


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Attributes:
        statement: what the paper says, with its numbers.
        where: the section, figure or table in which it says so.
        artifacts: ids of the artifacts that show it.
    """

    id: str
    statement: str
    where: str
    artifacts: tuple[str, ...]
    test: Test

    def judged(self, evidence: Evidence) -> dict[str, Any]:
        """The claim with its verdict, as report.json has it."""
        found = self.test(evidence)
        return {
            "id": self.id,
            "statement": self.statement,
            "where": self.where,
            "verdict": found.verdict,
            "evidence": found.evidence,
            "artifacts": list(self.artifacts),
        }


def untestable(population: Population) -> str | None:
    """Why no claim of the paper can be tested on these runs; None where it can."""
    if "synthetic" in population.dataset:
        return f"untestable on synthetic {'text' if 'text' in kind(population) else 'data'}"
    return "untestable under profile=smoke, whose numbers have no meaning" if population.profile == "smoke" else None


def on(kinds: Sequence[str], test: Callable[[Population], Finding]) -> Test:
    """A test of the first population of these kinds, which says on what it was made."""

    def made(evidence: Evidence) -> Finding:
        found = evidence.of(*kinds)
        if not found:
            return Finding(OPEN, f"There are no runs on {' or '.join(kinds)} yet.")
        if why := untestable(found[0]):
            return Finding(OPEN, f"{found[0].dataset}: {why}.")
        finding = test(found[0])
        return Finding(finding.verdict, f"{_about(found[0])}: {finding.evidence}")

    return made


def all_of(findings: Sequence[Finding]) -> Finding:
    """Of a claim that is to hold everywhere: it fails where it fails once, and is open where it is open once."""
    verdicts = {finding.verdict for finding in findings}
    verdict = FAILS if FAILS in verdicts else OPEN if OPEN in verdicts or not verdicts else HOLDS
    return Finding(verdict, " ".join(finding.evidence for finding in findings) or "No runs to compare yet.")


def _about(population: Population) -> str:
    """Data, ε and seeds."""
    epsilons = ", ".join(number(epsilon) for epsilon in population.epsilons)
    seeds = sorted({run.seed for run in population.runs})
    said = [population.dataset, f"ε = {epsilons}" if epsilons else "no private runs"]
    if population.fidelity == "paper":
        said.append("the paper's fidelity")
    said.append(f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]} alone")
    return ", ".join(said)
