"""The audit of one step: what is claimed of it, and a lower bound from draws of the engine, intact and sabotaged."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import ALGORITHMS
from dpfest.errors import UserError
from dpfest.gradients.units import UnitConfig
from dpfest.noise.key import NoiseKey
from dpfest.planning.plan import plan
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.selection.topk import SelectionConfig
from pipelines.audit.bound import lower_bound
from pipelines.audit.flaws import OF_A_STEP, Flaw
from pipelines.audit.guesses import CONFIDENCE
from pipelines.audit.pair import ROWS, Pair
from pipelines.audit.results import Audit, Case, Report, carried_out
from pipelines.config.schema import in_keys
from pipelines.config.settings import Config
from pipelines.tasks.task import device_of

DELTA = 0.01
"""delta where privacy.delta is null: an epsilon is claimed at every delta, and at a large one few draws refute much."""


@dataclass(frozen=True)
class Step:
    """A claim about one step on the whole data; with noise that is correlated over b steps, about one round of these,
    in which an example's group has its turn once.

    Attributes:
        unit: the unit of privacy; None for an example.
    """

    algorithm: Algorithm
    epsilon: float = 1.0
    delta: float = DELTA
    unit: UnitConfig | None = None

    def plan(self) -> PrivacyPlan:
        """Return noise and cost, without the cost of row selection."""
        algorithm = self.algorithm
        if algorithm.selection is not None:
            public = SelectionConfig(mechanism="public", prior="audit")
            algorithm = replace(algorithm, selection=public)  # type: ignore[call-arg]
        steps = algorithm.bands or 1
        return plan(
            algorithm, epsilon=self.epsilon, delta=self.delta, examples=steps, batch_size=1, steps=steps,
            features=[ROWS],
        )  # fmt: skip


def audit_step(config: Config, report: Report = lambda audit, case: None) -> Audit:
    """Audit the engine under ``config.algorithm`` at ``config.privacy``, and every sabotage of it.

    Args:
        config: ``privacy.epsilon`` is the target of a single step without sampling.
        report: called with each finished case.

    Raises:
        UserError: the algorithm has no guarantee, or settings that an audit does not support.
    """
    refuse_without_guarantee(config)
    algorithm, privacy, unit = config.algorithm, config.privacy, config.unit_of_privacy
    device = device_of(config.device)
    step = Step(algorithm, privacy.epsilon, DELTA if privacy.delta is None else privacy.delta, unit)
    with in_keys():
        plan = step.plan()
    claim, cost = plan.epsilon, plan.step()
    assert claim is not None and cost is not None

    def key(flaw: Flaw | None) -> NoiseKey:
        return privacy.key(f"audit {algorithm.name} {flaw and flaw.name}", device)

    def attack(flaw: Flaw | None) -> Case:
        make = Pair if flaw is None else flaw.attempt
        draws = make(algorithm, cost, key(flaw), device=device, unit=unit).draws(config.audit.draws)
        bound = lower_bound(draws, plan.delta, CONFIDENCE)
        return Case.judged(flaw, bound, claim, bound > claim)

    about = Audit(
        algorithm=algorithm.name,
        settings=algorithm.settings() | ({"unit": asdict(unit)} if unit else {}) | key(None).named,
        claim=claim,
        delta=plan.delta,
        draws=config.audit.draws,
    )
    return carried_out(about, [flaw for flaw in OF_A_STEP if flaw.applies(step)], attack, report)


def refuse_without_guarantee(config: Config) -> None:
    """Refuse an algorithm without a guarantee.

    Raises:
        UserError: it is not private.
    """
    if not config.algorithm.private:
        raise UserError(
            f"algorithm={config.algorithm.name} has no guarantee to audit: choose one of {', '.join(ALGORITHMS)}."
        )
