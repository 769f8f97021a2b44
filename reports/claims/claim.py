"""What a claim is, what it is tested on, and what a test finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.claims.estimate import FAILS, HOLDS, OPEN, UNTOLD
from reports.comparison import Population, Setting
from reports.texts import kind
from reports.wording import number, seeds


@dataclass(frozen=True)
class Finding:
    """A verdict (`holds`, `does not hold`, `not enough runs`, `cannot be told here`) and the sentences it rests on."""

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
        paper: the numbers of the paper's tables that it rests on; empty where the statement has them all.
    """

    id: str
    statement: str
    where: str
    artifacts: tuple[str, ...]
    test: Test
    paper: str = ""

    def judged(self, evidence: Evidence) -> dict[str, Any]:
        """The claim with its verdict, as report.json has it."""
        found = self.test(evidence)
        return {
            "id": self.id,
            "statement": self.statement,
            "where": self.where,
            "paper": self.paper,
            "verdict": found.verdict,
            "evidence": found.evidence,
            "artifacts": list(self.artifacts),
        }


def untestable(population: Population) -> str | None:
    """Why no claim of the paper can be tested on these runs; None where it can."""
    if "synthetic" in population.dataset:
        return "the data are generated, and the claim needs runs on real ones"
    return "the numbers of profile=smoke have no meaning" if population.profile == "smoke" else None


def on(kinds: Sequence[str], test: Callable[[Population], Finding]) -> Test:
    """A test of the first population of these kinds, which says on what it was made."""

    def made(evidence: Evidence) -> Finding:
        found = evidence.of(*kinds)
        if not found:
            return Finding(OPEN, f"There are no runs on {' or '.join(kinds)} yet.")
        if why := untestable(found[0]):
            return Finding(UNTOLD, f"{found[0].dataset}: {why}.")
        finding = test(found[0])
        return Finding(finding.verdict, f"{_about(found[0])}: {finding.evidence}")

    return made


def all_of(findings: Sequence[Finding]) -> Finding:
    """Of a claim that is to hold everywhere: it fails where it fails once, and is open where it is open once."""
    verdicts = {finding.verdict for finding in findings}
    verdict = next((verdict for verdict in (FAILS, UNTOLD, OPEN) if verdict in verdicts), HOLDS if verdicts else OPEN)
    return Finding(verdict, " ".join(finding.evidence for finding in findings) or "No runs to compare yet.")


def seeds_of(settings: Sequence[Setting]) -> str:
    """The seeds, if all settings have the same; else how many a setting has."""
    runs = [run for setting in settings for run in setting.runs]
    counts = [len(setting.runs) for setting in settings]
    if len({tuple(run.seed for run in setting.runs) for setting in settings}) == 1:
        return seeds(runs)
    few, many = min(counts), max(counts)
    return f"{few} to {many} seeds a setting" if few < many else f"{few} seed{'s' * (few > 1)} a setting, not the same"


def _about(population: Population) -> str:
    """Data, ε and seeds."""
    epsilons = ", ".join(number(epsilon) for epsilon in population.epsilons)
    said = [population.dataset, f"ε = {epsilons}" if epsilons else "no private runs"]
    if population.fidelity == "paper":
        said.append("the paper's fidelity")
    return ", ".join([*said, seeds_of(population.settings)])
