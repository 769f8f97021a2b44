"""An audit of a step or of a whole training: how it is carried out case by case, and its record."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dpfest.algorithms.rules import ALGORITHMS
from dpfest.errors import UserError
from pipelines.audit.flaws import Flaw
from pipelines.audit.guesses import CONFIDENCE
from pipelines.system.files import write_json


@dataclass(frozen=True, kw_only=True)
class Case:
    """The result for one engine or one run of a training, as it is or with a flaw.

    Attributes:
        sabotage: its flaw; None as it is.
        claim: of a training, epsilon that the run is said to have.
        bound: epsilon that is refuted at confidence `CONFIDENCE`; of a training, that of the noisiest mechanism of the
            claimed form that the guesses do not refute.
        at_delta: of a training, epsilon that the guesses refute of any mechanism at delta.
        made, right: of a training, guesses behind ``bound``.
        tightness: bound / claim.
        verdict: ``broken`` if the claim is refuted; otherwise ``sound`` (not refuted) as it is, and ``missed`` for a
            flaw.
        seconds: elapsed time.
    """

    sabotage: str | None
    claim: float | None = None
    bound: float
    at_delta: float | None = None
    made: int | None = None
    right: int | None = None
    tightness: float
    verdict: str
    seconds: float = 0.0

    @classmethod
    def judged(cls, flaw: Flaw | None, bound: float, claim: float, refuted: bool, /, **of_a_training: Any) -> Case:
        """Return the case of a bound on what is claimed, and whether it refutes that."""
        verdict = "broken" if refuted else "sound" if flaw is None else "missed"
        name = None if flaw is None else flaw.name
        return cls(sabotage=name, bound=bound, tightness=bound / claim, verdict=verdict, **of_a_training)


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The audit of a step of an algorithm, or of a whole training.

    Attributes:
        algorithm: its name.
        settings: its settings, the unit of privacy if that is no example, and the key's cipher if that is not AES.
        training: kind of training; None for a step.
        claim: the claimed epsilon at `delta`: of one step on the whole data, or of the whole training.
        draws: of a step, approximate number in each world; half of them choose the test, half carry it out.
        steps, rate, periods, canaries: of a training, steps of a period, q, and numbers of periods and of canaries.
        ideal: of a training, bound that the attack reaches, in the median, on a mechanism that is exactly as claimed.
        cases: as it is, then with each flaw.
    """

    algorithm: str
    settings: dict[str, Any]
    training: str | None = None
    claim: float
    delta: float
    confidence: float = CONFIDENCE
    draws: int | None = None
    steps: int | None = None
    rate: float | None = None
    periods: int | None = None
    canaries: int | None = None
    ideal: float | None = None
    cases: list[Case] = field(default_factory=list)

    @property
    def refuted(self) -> bool:
        """Whether what is audited, as it is, is shown to cost more than claimed."""
        return any(case.verdict == "broken" for case in self.cases if case.sabotage is None)

    def record(self) -> dict[str, Any]:
        """Return what is written: what it has of a step or of a training."""
        cases = [
            {name: value for name, value in asdict(case).items() if name == "sabotage" or value is not None}
            for case in self.cases
        ]
        return {name: value for name, value in (asdict(self) | {"cases": cases}).items() if value is not None}


Report = Callable[[Audit, Case], None]
"""Is called with each finished case."""


def carried_out(about: Audit, flaws: Sequence[Flaw], attack: Callable[[Flaw | None], Case], report: Report) -> Audit:
    """Return an audit with its cases: the ``attack`` on what it is about, as it is and with each flaw."""
    for flaw in (None, *flaws):
        started = time.perf_counter()
        case = attack(flaw)
        about.cases.append(replace(case, seconds=round(time.perf_counter() - started, 2)))
        report(about, about.cases[-1])
    return about


STEPS, TRAININGS = "audits", "trainings"
"""The two lists of the file."""


def write(report: Path, audits: Sequence[Audit]) -> Path:
    """Write ``<report>/audit/audit.json``, where audits of a step or of trainings replace earlier ones of an algorithm.

    Raises:
        UserError: the folder cannot be written to.
    """
    path = report / "audit" / "audit.json"
    value: dict[str, Any] = {"schema": 1}
    for kind in (STEPS, TRAININGS):
        new = [audit.record() for audit in audits if (audit.training is None) == (kind == STEPS)]
        renewed = {one["algorithm"] for one in new}
        value[kind] = [old for old in read(path, kind) if old["algorithm"] not in renewed] + new
    names = {one["algorithm"] for kind in (STEPS, TRAININGS) for one in value[kind]}
    ordered = [*ALGORITHMS, *sorted(names - set(ALGORITHMS))]
    for kind in (STEPS, TRAININGS):
        value[kind].sort(key=lambda one: ordered.index(one["algorithm"]))
    try:
        write_json(path, value)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}): choose another folder with paths.report."
        ) from error
    return path


def read(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return earlier audits of a kind; none if the file is missing, unreadable or older than they are."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get(kind, [])
        return [audit for audit in found if isinstance(audit["algorithm"], str)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
