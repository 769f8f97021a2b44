"""The audit of an algorithm: the claimed epsilon, and lower bounds from draws of the intact and sabotaged engines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import ALGORITHMS
from dpfest.errors import UserError
from dpfest.noise.key import NoiseKey
from dpfest.planning.privacy_plan import PrivacyPlan, plan
from dpfest.selection.topk import SelectionConfig
from pipelines.audit.bound import lower_bound
from pipelines.audit.guesses import CONFIDENCE
from pipelines.audit.pair import ROWS, Pair
from pipelines.audit.sabotage import SABOTAGES, UNIT_IGNORED, Sabotage
from pipelines.audit.whole import WholeAudit
from pipelines.config.schema import in_keys
from pipelines.config.settings import Config
from pipelines.system.files import write_json
from pipelines.tasks.task import device_of

DELTA = 0.01
"""delta where privacy.delta is null: an epsilon is claimed at every delta, and at a large one few draws refute much."""

PRIVATE_ALGORITHMS = tuple(ALGORITHMS)


@dataclass(frozen=True)
class Case:
    """The result for one engine, intact or sabotaged.

    Attributes:
        sabotage: its flaw; None for the intact engine.
        bound: epsilon that the draws refute at confidence `CONFIDENCE`.
        tightness: bound / claim.
        verdict: ``broken`` if the bound exceeds the claim; otherwise ``sound`` (not refuted) for the intact engine and
            ``missed`` for a sabotage.
        seconds: elapsed time.
    """

    sabotage: str | None
    bound: float
    tightness: float
    verdict: str
    seconds: float


@dataclass(frozen=True)
class Audit:
    """The audit of one algorithm.

    Attributes:
        algorithm: its name.
        settings: its settings, the unit of privacy if that is no example, and the key's cipher if that is not AES.
        claim: the claimed epsilon of one step on the whole data at `delta`.
        draws: approximate number in each world; half of them choose the test, half carry it out.
        cases: the intact engine, then each sabotage.
    """

    algorithm: str
    settings: dict[str, Any]
    claim: float
    delta: float
    confidence: float
    draws: int
    cases: list[Case]

    @property
    def refuted(self) -> bool:
        """Whether the intact engine is shown to cost more than claimed."""
        return any(case.verdict == "broken" for case in self.cases if case.sabotage is None)


def audit(config: Config, report: Callable[[Audit, Case], None] = lambda audit, case: None) -> Audit:
    """Audit the engine under ``config.algorithm`` at ``config.privacy``, and every sabotage of it.

    Args:
        config: ``privacy.epsilon`` is the target of a single step without sampling.
        report: called with each finished case.

    Raises:
        UserError: the algorithm has no guarantee, or settings that an audit does not support.
    """
    refuse_without_guarantee(config)
    algorithm, plan = config.algorithm, _claim(config)
    claim = plan.epsilon
    assert claim is not None
    done = Audit(
        algorithm=algorithm.name,
        settings=algorithm.settings()
        | ({"unit": asdict(unit)} if (unit := config.unit_of_privacy) else {})
        | _key(config, None).named,
        claim=claim,
        delta=plan.delta,
        confidence=CONFIDENCE,
        draws=config.audit.draws,
        cases=[],
    )
    for case in _cases(config, plan, claim):
        done.cases.append(case)
        report(done, case)
    return done


def refuse_without_guarantee(config: Config) -> None:
    """Refuse an algorithm without a guarantee.

    Raises:
        UserError: it is not private.
    """
    if not config.algorithm.private:
        raise UserError(
            f"algorithm={config.algorithm.name} has no guarantee to audit: choose one of "
            f"{', '.join(PRIVATE_ALGORITHMS)}."
        )


def _claim(config: Config) -> PrivacyPlan:
    """Return noise and cost of one step on all data, without the cost of row selection.

    With noise that is correlated over b steps, of one round: an example's group has its turn once.
    """
    algorithm: Algorithm = config.algorithm
    if algorithm.selection is not None:
        algorithm = replace(algorithm, selection=SelectionConfig(mechanism="public", prior="audit"))  # type: ignore[call-arg]
    delta = DELTA if config.privacy.delta is None else config.privacy.delta
    with in_keys():
        return plan(
            algorithm, epsilon=config.privacy.epsilon, delta=delta, examples=(round_ := algorithm.bands or 1),
            batch_size=1, steps=round_, features=[ROWS],
        )  # fmt: skip


def _cases(config: Config, plan: PrivacyPlan, claim: float) -> Iterator[Case]:
    device = device_of(config.device)
    cost = plan.step()
    assert cost is not None
    flaws: list[Sabotage | None] = [None, *(s for s in SABOTAGES if s.applies(config.algorithm))]
    unit = config.unit_of_privacy
    if unit is not None:
        flaws.insert(1, UNIT_IGNORED)
    for flaw in flaws:
        started = time.perf_counter()
        change = flaw or Sabotage("none", lambda algorithm: True)
        pair = Pair(
            config.algorithm, change.noise(cost), _key(config, flaw), change.after, device, unit, change.ignores_unit,
            change.spoil, change.every_step,
        )  # fmt: skip
        bound = lower_bound(pair.draws(config.audit.draws), plan.delta, CONFIDENCE)
        yield Case(
            sabotage=None if flaw is None else flaw.name,
            bound=bound,
            tightness=bound / claim,
            verdict="broken" if bound > claim else "sound" if flaw is None else "missed",
            seconds=round(time.perf_counter() - started, 2),
        )


def _key(config: Config, flaw: Sabotage | None) -> NoiseKey:
    return config.privacy.key(f"audit {config.algorithm.name} {flaw and flaw.name}", device_of(config.device))


def write(report: Path, audits: Sequence[Audit], whole: Sequence[WholeAudit] = ()) -> Path:
    """Write ``<report>/audit/audit.json``, keeping earlier results of other algorithms.

    Args:
        report: folder of the reports.
        audits: audits of one step.
        whole: audits of whole trainings; they replace all earlier ones of the same algorithms.

    Raises:
        UserError: the folder cannot be written to.
    """
    path = report / "audit" / "audit.json"
    by_algorithm = read(path) | {audit.algorithm: asdict(audit) for audit in audits}
    renewed = {audit.algorithm for audit in whole}
    trainings = [old for old in read_whole(path) if old["algorithm"] not in renewed] + [asdict(new) for new in whole]
    own = {*by_algorithm, *(one["algorithm"] for one in trainings)} - set(PRIVATE_ALGORITHMS)
    ordered = [*PRIVATE_ALGORITHMS, *sorted(own)]
    value = {
        "schema": 1,
        "audits": [by_algorithm[name] for name in ordered if name in by_algorithm],
        "trainings": sorted(trainings, key=lambda one: ordered.index(one["algorithm"])),
    }
    try:
        write_json(path, value)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}): choose another folder with paths.report."
        ) from error
    return path


def read_whole(path: Path) -> list[dict[str, Any]]:
    """Return earlier audits of whole trainings; none if the file is missing, unreadable or older than they are."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("trainings", [])
        return [audit for audit in found if isinstance(audit["algorithm"], str)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return earlier audits by algorithm; empty if the file is missing or unreadable."""
    try:
        return {audit["algorithm"]: audit for audit in json.loads(path.read_text(encoding="utf-8"))["audits"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
