"""The audit of whole trainings: which ones, one run of each, the attack on it, and the bounds that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import DPSGD, Frozen
from dpfest.noise.key import NoiseKey
from pipelines.audit.attack import ideal_attack
from pipelines.audit.canaries import ORDINARY, ORDINARY_ROWS
from pipelines.audit.family import Family
from pipelines.audit.flaws import OF_A_TRAINING, Flaw
from pipelines.audit.results import Audit, Case, Report, carried_out
from pipelines.audit.training import Training, attempt
from pipelines.config.settings import Config

RATE, PERIODS = 0.125, 4
"""q of sampled trainings, and periods of a stream."""
_BANDS = 8  # of the training whose noise is correlated


def trainings(config: Config) -> list[tuple[Training, tuple[Flaw, ...]]]:
    """Return the trainings of an algorithm that are audited, and with which flaws; none of one that is `uncovered`."""
    algorithm, size = _with_rows(config.algorithm, config.audit.canaries), config.audit
    if size.canaries == 0 or uncovered(algorithm):
        return []
    own = Training(
        name="sampled",
        algorithm=algorithm,
        epsilon=config.privacy.epsilon,
        delta=1 / (size.canaries + ORDINARY) if config.privacy.delta is None else config.privacy.delta,
        steps=size.steps,
        rate=_rate(algorithm),
        canaries=(size.canaries,),
    )
    found, flawed = [own], {own}
    if isinstance(algorithm, DPSGD) and not algorithm.lazy:
        epsilons = dict.fromkeys([own.epsilon, *size.epsilons])
        found = [replace(own, epsilon=epsilon) for epsilon in epsilons]
        if algorithm.bands is None:
            found += [replace(own, name="unsampled", rate=1.0, epsilon=epsilon) for epsilon in epsilons]
            bands = min(_BANDS, size.steps)
            variants = {
                "lazy noise": replace(algorithm, noise="lazy"),
                f"{bands} bands": replace(algorithm, bands=bands),
            }
            for name, variant in variants.items():
                found.append(replace(own, name=f"sampled, {name}", algorithm=variant, rate=_rate(variant)))
                flawed.add(found[-1])
    if algorithm.name in ("dpsgd", "adafest_plus") and not algorithm.lazy:
        days = (size.canaries // PERIODS,) * PERIODS
        found.append(replace(own, name="stream", canaries=days, steps=max(2, size.steps // 2), stream=True))
        flawed.add(found[-1])
    return [(one, tuple(flaw for flaw in OF_A_TRAINING if one in flawed and flaw.applies(one))) for one in found]


def _rate(algorithm: Algorithm) -> float:
    """Return q, such that an example enters its group's batches with a probability of at most a half."""
    return RATE if algorithm.bands is None else min(RATE, 0.5 / algorithm.bands)


def uncovered(algorithm: Algorithm) -> str | None:
    """Return why no whole training of an algorithm is audited; None for one that is, as is every one by default."""
    if isinstance(algorithm, Frozen):
        return "it trains no rows, in which the canaries are"
    if algorithm.selection is not None and algorithm.selection.law != "gaussian":
        return f"its rows are selected by {algorithm.selection.law} noise, and the attack knows that of a Gaussian"
    event = algorithm.step_event(1.0, RATE)
    if event is None or event.kind != "gaussian":
        return "its steps are no Gaussian releases, which the hypotheses of the bound are"
    return None


def _with_rows(algorithm: Algorithm, canaries: int) -> Algorithm:
    """Select as many rows as make half of the canaries', so that a canary decides on its own."""
    if algorithm.selection is None:
        return algorithm
    selection = replace(algorithm.selection, rows=ORDINARY_ROWS + max(1, canaries // 2))
    return replace(algorithm, selection=selection)  # type: ignore[call-arg]


def audit_training(training: Training, config: Config, flaws: Sequence[Flaw], report: Report) -> Audit:
    """Audit one training, and it with every one of these flaws.

    Args:
        training: what is claimed.
        config: ``privacy.noise_seed`` fixes the outcome.
        flaws: those that are audited as well.
        report: called with each finished case.
    """

    def key(flaw: Flaw | None) -> NoiseKey:
        purpose = f"audit of {training.algorithm} {training.name} {training.epsilon} {flaw.name if flaw else None}"
        return config.privacy.key(purpose, torch.device("cpu"))

    canaries, sound = sum(training.canaries), attempt(training)
    family = Family(sound.claimed, training.delta)
    attacks, ideal = ideal_attack(sound.law, family, canaries)

    def attack(flaw: Flaw | None) -> Case:
        nonlocal family, attacks
        made = sound if flaw is None else flaw.attempt(training)
        if tuple(made.claimed) != family.events:
            family = Family(made.claimed, training.delta)
            attacks, _ = ideal_attack(made.law, family, canaries)
        observed, present = made.observe(key(flaw))
        bounds, claim = attacks.bounds(made.law.scores(observed), present, family), family.claim
        return Case.judged(
            flaw, bounds.family, claim, bounds.family >= claim,
            claim=claim, at_delta=bounds.at_delta, made=bounds.guesses.made, right=bounds.guesses.right,
        )  # fmt: skip

    about = Audit(
        algorithm=training.algorithm.name,
        settings=training.algorithm.settings() | key(None).named,
        training=training.name,
        claim=family.claim,
        delta=training.delta,
        steps=training.steps,
        rate=training.rate,
        periods=len(training.canaries),
        canaries=canaries,
        ideal=ideal,
    )
    return carried_out(about, flaws, attack, report)
