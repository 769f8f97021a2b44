"""Privacy plan: the calibrated noise of a run and every event it may spend, fixed before any access to the data.

An example pays for the steps of its period, each on a sample of the period's examples (of rate q = batch_size / N_p),
and for the row selection that counts it; each period's noise is calibrated to the composition of both. The algorithm
states the cost of a step (``Algorithm.step_event``). An ordinary run has one period, containing all examples.

A stream has several: an example lies in one day, a day in one period. Everything released besides what an example pays
for was computed from other examples, and what follows is post-processing, so epsilon is the maximum over periods
(parallel composition; adaptive, since one period hands its weights to the next):

- A period of N_p examples takes steps at its own rate q = B / N_p. (The paper uses the stream's rate, at which examples
  present in one period only are not sampled: ``dpfest.planning.unproven``.)
- Histograms (``selection.source``): ``streaming`` adds noise to each day's histogram once and sums those of all days up
  to a period's last (the paper's "running sum updated per streaming period"); ``first_day`` does so for the first day
  alone; ``all_days`` for one histogram of all days, before the first step.
- delta is 1 / N of the whole stream.

Under a unit of privacy (:mod:`dpfest.gradients.units`) "examples" are units: N and N_p count those that have an
example, and B is the expected number in a batch. A unit may have examples in every day, so nothing is parallel: it pays
for the steps of all periods and for the histograms of all days that are counted, whose composition one noise
multiplier, the same in all periods, keeps within the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpfest.accounting import calibration
from dpfest.accounting.accountant import Event
from dpfest.algorithms.algorithm import Algorithm
from dpfest.errors import UserError
from dpfest.gradients.units import UnitConfig
from dpfest.noise.key import NoiseKey
from dpfest.planning.fidelity import FIDELITIES, sampler_for, sampling_for, sampling_of
from dpfest.planning.ledger import EXAMPLE, Ledger
from dpfest.planning.other_samplers import BallsInBins, CyclicPoisson
from dpfest.planning.periods import (
    Period,
    distinct_units,
    periods_of,
    periods_of_units,
    positive_number,
    training_steps,
    whole_number,
)
from dpfest.planning.sampling import Batches, Poisson, Sampler
from dpfest.planning.unproven import Shuffled
from dpfest.selection.topk import selection_events


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """What a run may spend: all events derive from these settings, so accounting and training cannot differ.

    Formal guarantee: under fidelity ``rigorous``, a run that spends no more than ``events``, taking each period's steps
    in order on its own ``batches`` of examples (or units) and each row selection once, is (target_epsilon, delta)-DP
    under add-or-remove-one adjacency of examples (or units), or ``ledger`` refuses the plan.

    Attributes:
        algorithm: algorithm whose steps are planned.
        target_epsilon, delta: the target; epsilon is None without privacy.
        fidelity: how epsilon is counted, a name in ``dpfest.planning.fidelity.FIDELITIES``.
        sampler: how batches are drawn, and what a step on them is accounted as (``dpfest.planning.sampling``).
        fixed_noise_seed: whether the noise key derives from a seed.
        batch_size: B, the expected size of a batch, by which sums are divided.
        features: vocabulary sizes of the features that a row selection covers, or their number; None without selection.
        periods: in order; a single one unless the data are a stream.
        unit: the unit of privacy; None for an example.
        units: number of units in a stream, each counted once; None elsewhere.

    Raises:
        UserError: an algorithm without noise, or noise without a private algorithm.
    """

    algorithm: Algorithm
    target_epsilon: float | None
    delta: float
    fidelity: str = "rigorous"
    sampler: Sampler = field(default_factory=Poisson)
    fixed_noise_seed: bool = False
    batch_size: int
    features: int | tuple[int, ...] | None = None
    periods: tuple[Period, ...]
    unit: UnitConfig | None = None
    units: int | None = None

    def __post_init__(self) -> None:
        noised = {self.target_epsilon is not None, *(period.noise_multiplier is not None for period in self.periods)}
        if noised != {self.algorithm.private}:
            raise UserError(f"The plan's noise does not fit {self.algorithm.name}: plan it anew with dpfest.plan(...).")
        sampling_of(self.fidelity, self.sampling)
        bands = self.sampler.bands if isinstance(self.sampler, CyclicPoisson) else None
        if bands != self.algorithm.bands:
            raise UserError(
                f"{self.algorithm.name} has bands={self.algorithm.bands}, and batches are sampled for bands={bands}: "
                "plan it anew with dpfest.plan(...)."
            )

    @property
    def examples(self) -> int:
        """N, summed over periods; of units, how many there are."""
        return self.units if self.units is not None else sum(period.examples for period in self.periods)

    @property
    def steps(self) -> int:
        """T, summed over periods."""
        return sum(period.steps for period in self.periods)

    def step(self, period: int = 0) -> Event | None:
        """Return what one step of a period (from 0) spends, with all noise that it adds; None without privacy."""
        settings = self.periods[period]
        if settings.noise_multiplier is None:
            return None
        rate = self.batch_size / (settings.examples if FIDELITIES[self.fidelity].own_rates else self.examples)
        step = self.algorithm.step_event(settings.noise_multiplier, rate)
        part = () if settings.days is None or self.unit else (f"period {period + 1}",)
        return step and self.sampler.accounted(replace(step, part=part), settings.examples, self.batch_size)

    def batches(self, period: int, key: NoiseKey) -> Batches:
        """Return the batches of a period's steps, from the run's key; without privacy, shuffled ones."""
        sampler = self.sampler if self.algorithm.private else Shuffled()
        return sampler.batches(self.periods[period].examples, self.batch_size, self.key_of(period, key))

    @property
    def selections(self) -> tuple[Event, ...]:
        """What row selections spend, each on the part of the examples that it counts; on all, if units are counted."""
        selection, features = self.algorithm.selection, self.features
        if selection is None or features is None:
            return ()
        sizes = [selection.rows] * features if isinstance(features, int) else features
        days = [(f"period {n}", f"day {day}") for n, one in enumerate(self.periods, 1) for day in one.days or ()]
        sources: dict[str, Sequence[tuple[str, ...]]] = {"streaming": days, "first_day": days[:1], "all_days": [()]}
        parts = sources[selection.source or "streaming"] or [()]
        parts = [()] * len(parts) if self.unit else parts
        return tuple(replace(event, part=part) for event in selection_events(selection, sizes) for part in parts)

    @property
    def events(self) -> list[Event]:
        """Everything the run is to spend."""
        return [*self.selections, *self._steps]

    @property
    def _steps(self) -> list[Event]:
        steps = [(self.step(number), period.steps) for number, period in enumerate(self.periods)]
        return [replace(step, count=count) for step, count in steps if step]

    @property
    def epsilon(self) -> float | None:
        """Cost of the whole plan as the fidelity counts it, at most the target; None without privacy."""
        return FIDELITIES[self.fidelity].cost(self.events, self.delta) if self.algorithm.private else None

    @property
    def sampling(self) -> str:
        """How batches are drawn: a name in ``dpfest.planning.fidelity.SAMPLERS``."""
        return self.sampler.name

    @property
    def noise_multiplier(self) -> float | None:
        """Sigma of a step: that of the combined release (sigma_2 for exponential selection); None if periods differ."""
        return self._shared("noise_multiplier")

    @property
    def map_noise_multiplier(self) -> float | None:
        """sigma_1, of the contribution map; None without a map or if periods differ."""
        return self._shared("map_noise_multiplier")

    @property
    def gradient_noise_multiplier(self) -> float | None:
        """sigma_2; None if periods differ."""
        return self._shared("gradient_noise_multiplier")

    def _shared(self, name: str) -> float | None:
        values = {getattr(self.step(number), name, None) for number in range(len(self.periods))}
        return values.pop() if len(values) == 1 else None

    def ledger(self, finished_periods: int = 0) -> Ledger:
        """Return the run's ledger, with its selections and all steps of its first ``finished_periods`` spent.

        Raises:
            BudgetExceeded: the plan exceeds the target.
        """
        sizes = {"examples": self.examples, "batch_size": self.batch_size, "steps": self.steps}
        ledger = Ledger(
            self.target_epsilon,
            self.delta,
            fidelity=self.fidelity,
            sampling=self.sampling,
            fixed_noise_seed=self.fixed_noise_seed,
            selections=self.selections,
            steps=self._steps,
            run={"algorithm": self.algorithm.name, "settings": self.algorithm.settings(), **sizes},
            unit=self.unit.name if self.unit else EXAMPLE,
        )
        for number, period in enumerate(self.periods[:finished_periods]):
            ledger.spend_step(number, period.steps)
        return ledger

    def key_of(self, period: int, key: NoiseKey) -> NoiseKey:
        """Derive a period's key from the run's: periods restart the step count and must not share random numbers."""
        if self.periods[period].days is None:
            return key
        return key.derive("period", period)


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
        left, composed = FIDELITIES[plan.fidelity].to_compose(plan.target_epsilon or 0.0, selections)

        def events(sigma: float) -> list[Event]:
            step = replace(plan, periods=(replace(period, days=None, noise_multiplier=sigma),)).step()
            return [*composed, replace(step, count=period.steps)] if step else composed

        question = tuple(events(1.0))
        if question not in sigmas:
            sigmas[question] = calibrate(events, left, plan.delta)
        return sigmas[question]

    return [sigma_of(number) for number in range(len(plan.periods))]
