"""The audit of whole trainings: one run of each, the attack on it, and the bounds that follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import DPSGD, FEST, Threshold
from dpfest.noise.key import NoiseKey
from pipelines.audit.attack import ideal_attack
from pipelines.audit.canaries import ORDINARY, ORDINARY_ROWS
from pipelines.audit.family import Family
from pipelines.audit.guesses import CONFIDENCE
from pipelines.audit.trainings import FLAWS, PERIODS, RATE, Flaw, Training, sound
from pipelines.config.settings import Config


@dataclass(frozen=True)
class WholeCase:
    """The result for one run, sound or flawed.

    Attributes:
        sabotage: its flaw; None for the training as it is.
        claim: epsilon that the run is said to have.
        bound: epsilon of the noisiest mechanism of the claimed form that the guesses do not refute, at 95% confidence.
        at_delta: epsilon that they refute of any mechanism at delta.
        made, right: guesses behind ``bound``.
        tightness: bound / claim.
        verdict: ``broken`` if the guesses refute the claim; otherwise ``sound`` (not refuted) for the training as it
            is, and ``missed`` for a flaw.
        seconds: elapsed time.
    """

    sabotage: str | None
    claim: float
    bound: float
    at_delta: float
    made: int
    right: int
    tightness: float
    verdict: str
    seconds: float


@dataclass(frozen=True)
class WholeAudit:
    """The audit of one training.

    Attributes:
        algorithm, settings: the algorithm, and the key's cipher if that is not AES.
        training: kind of training.
        claim: claimed epsilon of the whole training at `delta`.
        steps: steps of a period.
        rate: q.
        periods: number of periods.
        canaries: number of them.
        ideal: bound that the attack reaches, in the median, on a mechanism that is exactly as claimed.
        cases: the training as it is, then each flaw.
    """

    algorithm: str
    settings: dict[str, Any]
    training: str
    claim: float
    delta: float
    confidence: float
    steps: int
    rate: float
    periods: int
    canaries: int
    ideal: float
    cases: list[WholeCase]

    @property
    def refuted(self) -> bool:
        """Whether the training as it is is shown to cost more than claimed."""
        return any(case.verdict == "broken" for case in self.cases if case.sabotage is None)


def trainings(config: Config) -> list[tuple[Training, tuple[str, ...]]]:
    """Return the trainings of an algorithm that are audited, and with which flaws.

    None for ``frozen``, which trains no rows, for ``exponential``, whose few draws hide thousands of canaries from each
    other, for selections by other noise than a Gaussian, and for noise that is correlated over steps, as whose law the
    attack takes that of independent noise.
    """
    algorithm, size = _with_rows(config.algorithm, config.audit.canaries), config.audit
    if size.canaries == 0 or algorithm.bands is not None or not _covered(algorithm):
        return []
    own = Training(
        name="sampled",
        algorithm=algorithm,
        epsilon=config.privacy.epsilon,
        delta=1 / (size.canaries + ORDINARY) if config.privacy.delta is None else config.privacy.delta,
        steps=size.steps,
        rate=RATE,
        canaries=(size.canaries,),
    )
    found = [own]
    flawed = {own}
    if isinstance(algorithm, DPSGD) and not algorithm.lazy:
        epsilons = dict.fromkeys([own.epsilon, *size.epsilons])
        found = [replace(own, epsilon=epsilon) for epsilon in epsilons]
        found += [replace(own, name="unsampled", rate=1.0, epsilon=epsilon) for epsilon in epsilons]
        found.append(replace(own, name="sampled, lazy noise", algorithm=replace(algorithm, noise="lazy")))
        flawed.add(found[-1])
    if algorithm.name in ("dpsgd", "adafest_plus") and not algorithm.lazy:
        days = (size.canaries // PERIODS,) * PERIODS
        found.append(replace(own, name="stream", canaries=days, steps=max(2, size.steps // 2), stream=True))
        flawed.add(found[-1])
    return [(one, tuple(f.name for f in FLAWS if f.applies(one)) if one in flawed else ()) for one in found]


def _covered(algorithm: Algorithm) -> bool:
    selects_otherwise = algorithm.selection is not None and algorithm.selection.law != "gaussian"
    return isinstance(algorithm, DPSGD | Threshold | FEST | AdaFEST) and not selects_otherwise


def _with_rows(algorithm: Algorithm, canaries: int) -> Algorithm:
    """Select as many rows as make half of the canaries', so that a canary decides on its own."""
    if algorithm.selection is None:
        return algorithm
    selection = replace(algorithm.selection, rows=ORDINARY_ROWS + max(1, canaries // 2))
    return replace(algorithm, selection=selection)  # type: ignore[call-arg]


def audit_training(
    training: Training, config: Config, flaws: Sequence[str], report: Callable[[WholeAudit, WholeCase], None]
) -> WholeAudit:
    """Audit one training, and every flaw that it can have.

    Args:
        training: what is claimed.
        config: ``privacy.noise_seed`` fixes the outcome.
        flaws: names of the flaws that are audited as well.
        report: called with each finished case.
    """
    canaries, attempt = sum(training.canaries), sound(training)
    family = Family(attempt.claimed, training.delta)
    attacks, ideal = ideal_attack(attempt.law, family, canaries)
    done = WholeAudit(
        algorithm=training.algorithm.name,
        settings=training.algorithm.settings() | _key(config, training, None).named,
        training=training.name,
        claim=family.claim,
        delta=training.delta,
        confidence=CONFIDENCE,
        steps=training.steps,
        rate=training.rate,
        periods=len(training.canaries),
        canaries=canaries,
        ideal=ideal,
        cases=[],
    )
    for flaw in (None, *(flaw for flaw in FLAWS if flaw.name in flaws)):
        started = time.perf_counter()
        if flaw is not None:
            attempt = flaw.attempt(training)
            if tuple(attempt.claimed) != family.events:
                family = Family(attempt.claimed, training.delta)
                attacks, _ = ideal_attack(attempt.law, family, canaries)
        observed, present = attempt.observe(_key(config, training, flaw))
        bounds = attacks.bounds(attempt.law.scores(observed), present, family)
        case = WholeCase(
            sabotage=flaw.name if flaw else None,
            claim=family.claim,
            bound=bounds.family,
            at_delta=bounds.at_delta,
            made=bounds.guesses.made,
            right=bounds.guesses.right,
            tightness=bounds.family / family.claim,
            verdict="broken" if bounds.family >= family.claim else "sound" if flaw is None else "missed",
            seconds=round(time.perf_counter() - started, 2),
        )
        done.cases.append(case)
        report(done, case)
    return done


def _key(config: Config, training: Training, flaw: Flaw | None) -> NoiseKey:
    purpose = f"audit of {training.algorithm} {training.name} {training.epsilon} {flaw.name if flaw else None}"
    return config.privacy.key(purpose, torch.device("cpu"))
