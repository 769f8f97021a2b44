"""A claim, and the finding of its test on each dataset: a verdict, an interval, and numbers that a template words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from reports.claims.estimate import CROSSES, FAILS, HOLDS, INCONCLUSIVE, OPEN, Verdict
from reports.comparison import Population, Setting
from reports.entry import Inputs
from reports.templates import sentences
from reports.wording import capitalized, number, plural, seeds

PARTLY = "holds in part"
"""One algorithm is ahead at some ε (or in some periods), and behind or crossing at others."""

DECIDED = (HOLDS, FAILS, CROSSES, PARTLY)
"""The verdicts that decide a claim."""

DIFFERS = "differs by dataset"
"""The claim is decided differently on different datasets."""

EPSILONS = (1.0, 3.0, 8.0)
"""The paper's ε: a claim about every ε is not shown at one of them."""

_WITHOUT_RUNS = (
    "no_runs",
    "lacking",
    "not_compared",
    "missing",
    "no_pair",
    "few_periods",
    "all_empty",
)  # macros that say which runs are missing

Interval = tuple[str, float, float | None]
"""A quantity in words and its 95% bounds; None if there is no upper bound."""


@dataclass(frozen=True)
class Finding:
    """A verdict (`claims.estimate`) and its numbers.

    Attributes:
        template: macro of `evidence.md.jinja` that words the numbers.
        interval: interval of the decisive quantity, if there is one.
        untried: whether untried settings could change the verdict; for one of parts, they say it.
    """

    verdict: str
    template: str
    numbers: Mapping[str, Any]
    interval: Interval | None = None
    untried: bool = False

    @property
    def evidence(self) -> str:
        """The finding in sentences."""
        return sentences(self.template, **self.numbers)

    @property
    def p(self) -> float:
        """The p-value of the verdict; 1 without one."""
        return self.verdict.p if isinstance(self.verdict, Verdict) else 1.0

    @property
    def without_runs(self) -> bool:
        """Whether there is nothing to compare: there are no runs of one side, or of one setting only."""
        parts = self._parts
        return self.template in _WITHOUT_RUNS or (bool(parts) and all(part.without_runs for part in parts))

    @property
    def as_tried(self) -> bool:
        """Whether untried settings could change the verdict."""
        if not self._parts:
            return self.untried
        decisive = [part.as_tried for part in self._parts if part.verdict == self.verdict]
        return bool(decisive) and (all(decisive) if self.verdict == FAILS else any(decisive))

    @property
    def panels(self) -> dict[str, dict[str, Any]]:
        """Its verdicts by panel (ε, period), of a claim that is judged in several, with the reduction and the loss at
        which curves cross, and on which side of it the claim holds."""
        if "where" in self.numbers:
            point = getattr(self.numbers.get("comparison"), "crossing", None) if self.verdict == CROSSES else None
            crossing = None if point is None else [point.reduction, point.losses[0], point.ahead]
            return {
                self.numbers["where"]: {
                    "verdict": str(self.verdict), "p": self.p, "as_tried": self.as_tried, "crossing": crossing,
                    "evidence": self.evidence.removeprefix(f"{self.numbers['where']}: "),
                }
            }  # fmt: skip
        return {where: said for part in self._parts for where, said in part.panels.items()}

    @property
    def _parts(self) -> Sequence[Finding]:
        return [self.numbers["finding"]] if "finding" in self.numbers else self.numbers.get("findings", [])

    def as_json(self) -> dict[str, Any]:
        interval = None
        if self.interval is not None:
            of, *bounds = self.interval
            low, high = (bound if bound is not None and math.isfinite(bound) else None for bound in bounds)
            interval = {"of": of, "low": low, "high": high}
        alone = self.numbers["finding"].evidence if self.template == "on" else self.evidence
        said = {"verdict": str(self.verdict), "p": self.p, "interval": interval}
        said |= {"evidence": self.evidence, "alone": alone}
        return said | {"without_runs": self.without_runs, "as_tried": self.as_tried, "panels": self.panels}


def finding(
    verdict: str, template: str, interval: Interval | None = None, untried: bool = False, **numbers: Any
) -> Finding:
    return Finding(verdict, template, numbers, interval, untried)


Findings = Mapping[str, Finding]
"""Findings by dataset; under NOWHERE that of a claim about no dataset."""

NOWHERE = ""

Test = Callable[[Inputs], Findings]

One = TypeVar("One")


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Attributes:
        statement: the claim, with its numbers.
        where: section, figure or table of the paper that makes it.
        artifacts: ids of the artifacts that show it.
        paper: the supporting numbers of the paper's tables; empty if the statement has them all.
    """

    id: str
    statement: str
    where: str
    artifacts: tuple[str, ...]
    test: Test
    paper: str = ""

    def judged(self, inputs: Inputs) -> dict[str, Any] | None:
        """Return the claim with its verdict on each dataset and overall, as in report.json; None if it does not concern
        the inputs' data."""
        findings = self.test(inputs)
        if not findings:
            return None
        judged = {name: result.as_json() for name, result in findings.items()}
        verdict = overall([result["verdict"] for result in judged.values()])
        return {
            "id": self.id,
            "statement": self.statement,
            "where": self.where,
            "paper": self.paper,
            "verdict": verdict,
            "evidence": _together(judged),
            "artifacts": list(self.artifacts),
            "datasets": {name: result for name, result in judged.items() if name != NOWHERE},
            "nowhere": judged.get(NOWHERE),
        }


def overall(verdicts: Sequence[str]) -> str:
    """Return the verdict on several datasets: that of the datasets that decide the claim, if they agree."""
    decided = {verdict for verdict in verdicts if verdict in DECIDED}
    if len(decided) == 1:
        return decided.pop()
    return DIFFERS if decided else OPEN if OPEN in verdicts else INCONCLUSIVE


def _together(judged: Mapping[str, Mapping[str, Any]]) -> str:
    """Join the evidence of all datasets; of several datasets, the verdicts come first."""
    evidence = " ".join(result["evidence"] for result in judged.values())
    if len(judged) == 1:
        return evidence
    places: dict[str, list[str]] = {}
    for name, result in judged.items():
        places.setdefault(result["verdict"], []).append(name)
    tally = "; ".join(f"{verdict} on {', '.join(names)}" for verdict, names in places.items())
    return f"{capitalized(tally)}. {evidence}"


def by_dataset(inputs: Inputs, *kinds: str) -> dict[str, Population]:
    """Return the first population of these kinds on each dataset, or only the one that the artifact is drawn from."""
    if inputs.drawn is not None:
        return {inputs.drawn.dataset: inputs.drawn} if inputs.drawn.kind in kinds else {}
    return {population.dataset: population for population in reversed(inputs.of(*kinds))}


Epsilons = Callable[[Population], Sequence[float]]
"""The ε at which a claim is tested on a population."""


def every_epsilon(population: Population) -> Sequence[float]:
    return population.epsilons


def main_epsilon(population: Population) -> Sequence[float]:
    return [] if population.main_epsilon is None else [population.main_epsilon]


def on(kinds: Sequence[str], test: Callable[[Population], Finding], epsilons: Epsilons = every_epsilon) -> Test:
    """Return a test of each dataset of these kinds, whose findings name the runs tested: those at these ε and those
    without privacy."""

    def test_each(inputs: Inputs) -> Findings:
        populations = by_dataset(inputs, *kinds)
        if not populations and inputs.drawn is None:
            return {NOWHERE: finding(OPEN, "no_runs", kinds=kinds)}
        return {name: _of_one(population, test, epsilons) for name, population in reversed(populations.items())}

    return test_each


def _of_one(population: Population, test: Callable[[Population], Finding], epsilons: Epsilons) -> Finding:
    if population.untestable:
        return finding(INCONCLUSIVE, "untestable", population=population)
    result = test(population)
    tested = epsilons(population)
    used = seeds_of(population.at_epsilons(tested).settings)
    numbers = {"population": population, "epsilons": tested, "seeds": used, "finding": result}
    return Finding(result.verdict, "on", numbers, result.interval)


def nowhere(test: Callable[[Inputs], Finding]) -> Test:
    """Return a test that concerns no dataset."""
    return lambda inputs: {NOWHERE: test(inputs)}


def all_of(findings: Sequence[Finding], template: str = "all_of", **numbers: Any) -> Finding:
    """Combine findings of a claim that must hold everywhere: one failure or crossing makes it fail or cross, one open
    one keeps it open (more seeds may show that it fails there), and one inconclusive one keeps it from holding."""
    verdicts = {finding.verdict for finding in findings}
    word = next(
        (verdict for verdict in (FAILS, CROSSES, OPEN, INCONCLUSIVE) if verdict in verdicts),
        HOLDS if verdicts else OPEN,
    )
    decisive = [result for result in findings if result.verdict == word]
    p = (max if word == HOLDS else min)((result.p for result in decisive), default=1.0)
    interval = decisive[0].interval if decisive else None
    return finding(Verdict(word, p), template, interval, findings=findings, **numbers)


def in_each(panels: Sequence[One], test: Callable[[One, int], Finding], template: str = "all_of") -> Finding:
    """Judge a claim that must hold in every panel (ε, period, data), by a test of one of a number of panels in any of
    which the claim can fail.

    It holds if each panel shows it on its own: a false claim is false in one of them, where it is shown in at most 5%
    of cases (intersection-union test). The refutations share these 5%.
    """
    alone = all_of([test(panel, 1) for panel in panels], template)
    if alone.verdict == HOLDS or len(panels) == 1:
        return alone
    return all_of([test(panel, len(panels)) for panel in panels], template)


def at_every(population: Population, result: Finding) -> Finding:
    """Restrict a finding on a claim about every ε: it holds only if all of the paper's ε were run."""
    lacking = [number(epsilon) for epsilon in EPSILONS if epsilon not in population.epsilons]
    if result.verdict != HOLDS or not lacking:
        return result
    return finding(OPEN, "not_at_every_epsilon", result.interval, finding=result, lacking=lacking)


def seeds_of(settings: Sequence[Setting]) -> str:
    """Return the seeds if all settings have the same, else the number of seeds of a setting; empty without settings."""
    if not settings:
        return ""
    counts = [len(setting.by_seed) for setting in settings]
    if len({tuple(sorted(setting.by_seed)) for setting in settings}) == 1:
        return seeds(run for setting in settings for run in setting.runs)
    few, many = min(counts), max(counts)
    return f"{few} to {many} seeds per setting" if few < many else f"{plural(few, 'seed')} per setting, not the same"
