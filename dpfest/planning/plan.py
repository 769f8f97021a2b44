"""How a run's privacy plan is made: arguments checked, periods laid out, the least noise found that meets the target.

Nothing here is part of the guarantee: whichever noise a plan has, the plan says what it costs and its ledger counts it
anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dpfest.accounting import calibration
from dpfest.accounting.accountant import Event
from dpfest.algorithms.algorithm import Algorithm
from dpfest.errors import UserError, positive_number, whole_number
from dpfest.gradients.units import UnitConfig
from dpfest.planning.fidelity import FIDELITIES, sampler_for, sampling_for
from dpfest.planning.other_samplers import BallsInBins, CyclicPoisson
from dpfest.planning.periods import Period, distinct_units, periods_of, periods_of_units
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.selection.vocabulary import OpenVocabulary

MOST_STEPS = 10**9
"""Of a period; more would outlast every machine, and the numbers with which they are accounted."""


def plan(
    algorithm: Algorithm,
    *misplaced: Any,
    epsilon: float | None = None,
    delta: float | None = None,
    examples: int | Sequence[int] | Sequence[Any],
    batch_size: int,
    steps: int | None = None,
    epochs: float | None = None,
    period: int | None = None,
    unit: UnitConfig | None = None,
    features: int | Sequence[int] | None = None,
    fidelity: str = "rigorous",
    sampling: str | None = None,
    max_batch_size: int | None = None,
    fixed_noise_seed: bool = False,
    vocabulary: OpenVocabulary | None = None,
    calibrate: Callable[..., float] = calibration.calibrate,
) -> PrivacyPlan:
    """Calibrate the noise with which a run meets its target; in a stream, for each period separately.

    Args:
        algorithm: an algorithm of ``dpfest.algorithms.rules`` with its settings.
        *misplaced: refused, with the advice to pass settings by name.
        epsilon: target epsilon; ignored without privacy.
        delta: target delta; None for 1 / N.
        examples: N; for a stream, a list with the number of each day, in order. Of units their number; for a stream, a
            list with the identifiers of each day's (repeated or not), since a unit may be in several days.
        batch_size: B, the expected size of a batch: examples, or units (under ``balls_in_bins`` N / ceil(N / B)).
        steps: T; for a stream, of each period. Give this or ``epochs`` (see ``training_steps``).
        epochs: passes over the examples; for a stream, over each period's.
        period: days per period of a stream (None: 1); the last period may be shorter.
        unit: the unit of privacy, ``dpfest.Units(...).config``; None for an example.
        features: vocabulary sizes of the features that a row selection covers; their number alone if only that is known
            (one-shot Gumbel is then counted as if no vocabulary capped it).
        fidelity: ``rigorous``, or ``paper`` for what the paper claims (``dpfest.planning.unproven``).
        sampling: ``poisson`` (the default), ``truncated_poisson`` or ``balls_in_bins`` (``dpfest.planning.sampling``);
            None for the fidelity's own. An algorithm with ``bands`` has ``cyclic_poisson``, and no other has.
        max_batch_size: largest batch under ``truncated_poisson``, at least ``batch_size``; None for a size that no
            batch of the run exceeds with probability ``1 - delta / 100``.
        fixed_noise_seed: whether noise derives from a seed, for reproduction on public data.
        vocabulary: how the values that have rows were released, if by noised counts of these examples.
        calibrate: ``calibration.calibrate``, or a cache of its results: ``Ledger`` verifies them.

    Raises:
        UserError: inconsistent or invalid arguments; or no noise meets the target.
    """
    if misplaced:
        raise UserError(f"plan takes only the algorithm by position: give {misplaced[0]!r} by name, as epsilon=1.0.")
    if not isinstance(algorithm, Algorithm):
        raise UserError(f"algorithm={algorithm!r} must be an algorithm with its settings, as dpfest.AdaFEST().")
    if fidelity not in FIDELITIES:
        raise UserError(f"fidelity={fidelity!r} must be one of {', '.join(FIDELITIES)}.")
    if isinstance(features, Sequence):
        algorithm.refuse_tables(sum(features))
    selection, batch_size = algorithm.selection, whole_number("batch_size", batch_size)
    if selection and features is None:
        raise UserError(f"{algorithm.name} selects rows: give features=, the vocabulary sizes of the features.")
    if vocabulary is not None and not isinstance(vocabulary, OpenVocabulary):
        raise UserError(f"vocabulary={vocabulary!r} must be a dpfest.OpenVocabulary, which released the values.")
    if unit is not None and fidelity != "rigorous":
        raise UserError(f"fidelity={fidelity} counts examples alone: a {unit.name} as unit needs fidelity=rigorous.")
    sampling = sampling_for(algorithm.bands, fidelity, sampling)
    units, drafts = None, None
    if unit is not None and isinstance(examples, list | tuple):
        units, drafts = distinct_units(examples), periods_of_units(examples, period, batch_size)
        if sampling == CyclicPoisson.name:
            raise UserError(
                f"bands={algorithm.bands} is accounted for steps that follow one another, and a {unit.name} may take "
                "part in several periods: leave bands out."
            )
        if sampling == BallsInBins.name:  # equal periods are counted as one, whose epochs would be consecutive
            raise UserError(
                f"sampling={sampling} is accounted for epochs that follow one another, and a {unit.name} may take part "
                "in several periods: choose sampling=poisson."
            )
    periods = tuple(
        replace(one, steps=training_steps(one.examples, batch_size, epochs=epochs, steps=steps))
        for one in drafts or periods_of(examples, period, batch_size)
    )
    if selection:
        selection = selection.named(FIDELITIES[fidelity], bool(periods[0].days))
        algorithm = replace(algorithm, selection=selection)  # type: ignore[call-arg]
    if selection and selection.mechanism == "gumbel" and selection.source in (None, "streaming") and periods[0].days:
        raise UserError(
            "selection.mechanism=gumbel releases rows without counts, so a stream's days cannot be summed: take "
            "gaussian or laplace, or selection.source=first_day or all_days."
        )

    delta = 1 / (units or sum(one.examples for one in periods)) if delta is None else positive_number("delta", delta)
    sampler = sampler_for(algorithm.bands, sampling, max_batch_size, periods, batch_size, delta)

    def planned(sigmas: Sequence[float | None], periods: Sequence[Period] = periods) -> PrivacyPlan:
        return PrivacyPlan(
            algorithm=algorithm,
            target_epsilon=positive_number("epsilon", epsilon) if algorithm.private else None,
            delta=delta,
            fidelity=fidelity,
            sampler=sampler,
            fixed_noise_seed=fixed_noise_seed,
            batch_size=batch_size,
            features=tuple(features) if isinstance(features, Sequence) else features,
            periods=tuple(replace(one, noise_multiplier=sigma) for one, sigma in zip(periods, sigmas, strict=True)),
            unit=unit,
            units=units,
            vocabulary=vocabulary,
        )

    if not algorithm.private:
        return planned([None] * len(periods))
    draft = planned([1.0] * len(periods))
    if FIDELITIES[fidelity].own_rates:
        return planned(_calibrated(draft, calibrate))
    whole = [Period(draft.examples, draft.steps)]
    return planned(_calibrated(planned([1.0], whole), calibrate) * len(periods))


def _calibrated(plan: PrivacyPlan, calibrate: Callable[..., float]) -> list[float]:
    """Return, for each period, the least noise multiplier at which what its examples pay for meets the target."""
    if plan.unit is not None:

        def all_events(sigma: float) -> list[Event]:
            periods = tuple(replace(period, noise_multiplier=sigma) for period in plan.periods)
            return list(replace(plan, periods=periods).events)

        return [calibrate(all_events, plan.target_epsilon or 0.0, plan.delta)] * len(plan.periods)
    sigmas: dict[tuple[Event, ...], float] = {}  # equal periods are calibrated once
    steps, all_selections = plan._steps, plan.selections

    def sigma_of(number: int) -> float:
        period, part = plan.periods[number], steps[number].part
        selections = [replace(event, part=()) for event in all_selections if event.part[:1] in ((), part)][:1]
        left, composed = FIDELITIES[plan.fidelity].to_compose(
            plan.target_epsilon or 0.0, [*plan.of_vocabulary, *selections]
        )

        def events(sigma: float) -> list[Event]:
            step = replace(plan, periods=(replace(period, days=None, noise_multiplier=sigma),)).step()
            return [*composed, replace(step, count=period.steps)] if step else composed

        question = tuple(events(1.0))
        if question not in sigmas:
            sigmas[question] = calibrate(events, left, plan.delta)
        return sigmas[question]

    return [sigma_of(number) for number in range(len(plan.periods))]


def training_steps(examples: int, batch_size: int, *, epochs: float | None = None, steps: int | None = None) -> int:
    """Return T: ``steps``, or ceil(epochs * examples / batch_size). Raises UserError unless exactly one is given."""
    if (steps is None) == (epochs is None):
        raise UserError(f"Give exactly one of steps={steps} and epochs={epochs}: the length of training.")
    total = (
        whole_number("steps", steps) if steps is not None else positive_number("epochs", epochs) * examples / batch_size
    )
    if not total <= MOST_STEPS:
        raise UserError(f"Training would take {total:.3g} steps, and no more than {MOST_STEPS:.0e} are planned.")
    return math.ceil(total)
