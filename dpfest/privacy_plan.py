"""What a run may spend and the noise that this buys, as one object, made before anything touches the data.

An example pays for the steps of its period, each on a Poisson sample of rate q = batch_size / examples of the period,
and for the row selection that counts it; the noise of each period is calibrated to the composition of both. What a step
spends is the algorithm's to say (`Algorithm.step_event`). An ordinary run has one period, all examples.

A stream has several: an example lies in one day, a day in one period. All that is released beside what an example pays
for was made from other examples, and what follows from it is post-processing. So epsilon is the largest over periods
(parallel composition; the weights that one period hands to the next make it adaptive, as in composition):

- a period of N_p examples takes steps at its own rate q = B / N_p. (The paper samples at the stream's, at which
  examples that are there in one period only are not sampled: `dpfest.unproven`.)
- histograms (`selection.source`): `streaming` noises each day's once and adds up those of all days up to a period's
  last (the paper's "running sum updated per streaming period"); `first_day` noises the first day's and no other;
  `all_days` one of all days, before the first step.
- delta is 1 / N of the whole stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from typing import Any

from scipy.special import ndtri

from dpfest import accounting
from dpfest.accounting import Event
from dpfest.algorithms import AdaFEST, Algorithm
from dpfest.errors import UserError
from dpfest.fidelity import FIDELITIES
from dpfest.ledger import Ledger
from dpfest.noise import NoiseKey
from dpfest.topk import selection_events

MOST_STEPS = 10**9
"""Of a period; more would outlast every machine, and the numbers with which they are accounted."""


@dataclass(frozen=True)
class Period:
    """Examples that are trained on together, N_p of them in T_p steps.

    Attributes:
        noise_multiplier: sigma of its steps; None without privacy.
        days: of a stream, from 0; None where the data are none.
    """

    examples: int
    steps: int
    days: range | None = None
    noise_multiplier: float | None = None


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """What a run may spend. All events follow from these settings, so none can be other than what is run.

    Formal guarantee: under fidelity `rigorous`, a run that spends no more than `events`, each period's steps on Poisson
    samples of its own examples under its own `key_of` and each row selection once, is (target_epsilon, delta)-DP for
    one training example more or less, or `ledger` refuses the plan.

    Attributes:
        algorithm: whose steps these are.
        target_epsilon, delta: the target; epsilon None without privacy.
        fidelity: how epsilon is counted, a name of `dpfest.fidelity.FIDELITIES`.
        fixed_noise_seed: whether the noise key follows from a seed.
        batch_size: B, expected under Poisson sampling.
        features: vocabulary sizes of the features that a row selection covers, or their number; None without one.
        periods: in their order; of all but a stream's, one.

    Raises:
        UserError: an algorithm without noise, or noise without a private algorithm.
    """

    algorithm: Algorithm
    target_epsilon: float | None
    delta: float
    fidelity: str = "rigorous"
    fixed_noise_seed: bool = False
    batch_size: int
    features: int | tuple[int, ...] | None = None
    periods: tuple[Period, ...]

    def __post_init__(self) -> None:
        noised = {self.target_epsilon is not None, *(period.noise_multiplier is not None for period in self.periods)}
        if noised != {self.algorithm.private}:
            raise UserError(f"The plan's noise is not {self.algorithm.name}'s: plan it anew with dpfest.plan(...).")

    @property
    def examples(self) -> int:
        """N, of all periods."""
        return sum(period.examples for period in self.periods)

    @property
    def steps(self) -> int:
        """T, of all periods."""
        return sum(period.steps for period in self.periods)

    def step(self, period: int = 0) -> Event | None:
        """What one step of a period (from 0) spends, and all noise that it adds; None without privacy."""
        at, kind = self.periods[period], FIDELITIES[self.fidelity]
        if at.noise_multiplier is None:
            return None
        rate = self.batch_size / (at.examples if kind.own_rates else self.examples)
        step = self.algorithm.step_event(at.noise_multiplier, rate)
        part = () if at.days is None else (f"period {period + 1}",)
        return step and kind.as_sampled(replace(step, part=part), at.examples, self.batch_size)

    @property
    def selections(self) -> tuple[Event, ...]:
        """What row selections spend, each on the part of the examples that it counts."""
        selection, features = self.algorithm.selection, self.features
        if selection is None or features is None:
            return ()
        sizes = [selection.rows] * features if isinstance(features, int) else features
        days = [(f"period {n}", f"day {day}") for n, of in enumerate(self.periods, 1) for day in of.days or ()]
        sources: dict[str, Sequence[tuple[str, ...]]] = {"streaming": days, "first_day": days[:1], "all_days": [()]}
        parts = sources[selection.source or "streaming"] or [()]
        return tuple(replace(event, part=part) for event in selection_events(selection, sizes) for part in parts)

    @property
    def events(self) -> list[Event]:
        """All that the run is to spend."""
        return [*self.selections, *self._steps]

    @property
    def _steps(self) -> list[Event]:
        steps = [(self.step(number), period.steps) for number, period in enumerate(self.periods)]
        return [replace(step, count=count) for step, count in steps if step]

    @property
    def epsilon(self) -> float | None:
        """What the whole plan costs as the fidelity counts it, at most the target; None without privacy."""
        return FIDELITIES[self.fidelity].cost(self.events, self.delta) if self.algorithm.private else None

    @property
    def sampling(self) -> str:
        """How batches are drawn, `poisson` or `shuffled`, by the fidelity."""
        return FIDELITIES[self.fidelity].sampling

    @property
    def noise_multiplier(self) -> float | None:
        """Sigma of a step: of the combined release, sigma_2 for exponential selection; None where periods differ."""
        return self._shared("noise_multiplier")

    @property
    def map_noise_multiplier(self) -> float | None:
        """sigma_1, of the contribution map; None where there is no map or periods differ."""
        return self._shared("map_noise_multiplier")

    @property
    def gradient_noise_multiplier(self) -> float | None:
        """sigma_2; None where periods differ."""
        return self._shared("gradient_noise_multiplier")

    def _shared(self, name: str) -> float | None:
        values = {getattr(self.step(number), name, None) for number in range(len(self.periods))}
        return values.pop() if len(values) == 1 else None

    def ledger(self, finished_periods: int = 0) -> Ledger:
        """The run's ledger, with its selections and all steps of its first periods spent.

        Raises:
            BudgetExceeded: the plan passes the target.
        """
        sizes = {"examples": self.examples, "batch_size": self.batch_size, "steps": self.steps}
        ledger = Ledger(
            self.target_epsilon,
            self.delta,
            fidelity=self.fidelity,
            fixed_noise_seed=self.fixed_noise_seed,
            selections=self.selections,
            steps=self._steps,
            run={"algorithm": self.algorithm.name, "settings": asdict(self.algorithm), **sizes},
        )
        for number, period in enumerate(self.periods[:finished_periods]):
            ledger.spend_step(number, period.steps)
        return ledger

    def key_of(self, period: int, key: NoiseKey) -> NoiseKey:
        """The key of a period, from the run's: a stream's count their steps anew, and no two may share a draw."""
        if self.periods[period].days is None:
            return key
        return key.derive("period", period)


def plan(
    algorithm: Algorithm,
    *misplaced: Any,
    epsilon: float | None = None,
    delta: float | None = None,
    examples: int | Sequence[int],
    batch_size: int,
    steps: int | None = None,
    epochs: float | None = None,
    period: int | None = None,
    features: int | Sequence[int] | None = None,
    fidelity: str = "rigorous",
    fixed_noise_seed: bool = False,
    calibrate: Callable[..., float] = accounting.calibrate,
) -> PrivacyPlan:
    """The noise that makes a run meet its target; each period of a stream on its own.

    Args:
        algorithm: settings of an algorithm of `dpfest.algorithms`.
        *misplaced: refused, with the sentence that the settings go by name.
        epsilon: the target; it has no effect without privacy.
        delta: the target; None for 1 / N.
        examples: N; of a stream, of each day in the order of time.
        batch_size: B, expected under Poisson sampling.
        steps: T; of a stream, of each period. Give this or `epochs` (see `training_steps`).
        epochs: passes over the examples; of a stream, over each period's.
        period: of a stream, days of a period (None: 1); the last one may be shorter.
        features: vocabulary sizes of the features that a row selection covers; their number alone where only that is
            known (one-shot Gumbel is then counted as if no vocabulary capped it).
        fidelity: `rigorous`, or `paper` for what the paper claims (`dpfest.unproven`).
        fixed_noise_seed: whether noise is to follow from a seed, for reproduction on public data.
        calibrate: `accounting.calibrate`, or what remembers its answers: `Ledger` verifies them.

    Raises:
        UserError: arguments that do not go together or make no sense; no noise meets the target.
    """
    if misplaced:
        raise UserError(f"plan takes the algorithm alone by its place: give {misplaced[0]!r} by name, as epsilon=1.0.")
    if not isinstance(algorithm, Algorithm):
        raise UserError(f"algorithm={algorithm!r} must be an algorithm with its settings, as dpfest.AdaFEST().")
    if fidelity not in FIDELITIES:
        raise UserError(f"fidelity={fidelity!r} must be one of {', '.join(FIDELITIES)}.")
    if isinstance(features, Sequence):
        algorithm.refuse_tables(sum(features))
    selection, batch_size = algorithm.selection, _whole("batch_size", batch_size)
    if selection and features is None:
        raise UserError(f"{algorithm.name} selects rows: give features=, the vocabulary sizes of the features.")
    periods = tuple(
        replace(one, steps=training_steps(one.examples, batch_size, epochs=epochs, steps=steps))
        for one in _periods(examples, period, batch_size)
    )
    if selection and selection.mechanism == "gumbel" and selection.source in (None, "streaming") and periods[0].days:
        raise UserError(
            "selection.mechanism=gumbel names rows and releases no counts, so the days of a stream do not add up: take "
            "gaussian or laplace, or selection.source=first_day or all_days."
        )

    def noised(sigmas: Sequence[float | None], periods: Sequence[Period] = periods) -> PrivacyPlan:
        return PrivacyPlan(
            algorithm=algorithm,
            target_epsilon=_number("epsilon", epsilon) if algorithm.private else None,
            delta=1 / sum(period.examples for period in periods) if delta is None else _number("delta", delta),
            fidelity=fidelity,
            fixed_noise_seed=fixed_noise_seed,
            batch_size=batch_size,
            features=tuple(features) if isinstance(features, Sequence) else features,
            periods=tuple(replace(one, noise_multiplier=sigma) for one, sigma in zip(periods, sigmas, strict=True)),
        )

    if not algorithm.private:
        return noised([None] * len(periods))
    found = noised([1.0] * len(periods))
    if FIDELITIES[fidelity].own_rates:
        return noised(_calibrated(found, calibrate))
    whole = [Period(found.examples, found.steps)]
    return noised(_calibrated(noised([1.0], whole), calibrate) * len(periods))


def training_steps(examples: int, batch_size: int, *, epochs: float | None = None, steps: int | None = None) -> int:
    """T: `steps`, or ceil(epochs * examples / batch_size). Raises UserError where both are given, or neither."""
    if (steps is None) == (epochs is None):
        raise UserError(f"Give one of steps={steps} and epochs={epochs}: either says how long training is.")
    total = _whole("steps", steps) if steps is not None else _number("epochs", epochs) * examples / batch_size
    if not total <= MOST_STEPS:
        raise UserError(f"Training would take {total:.3g} steps, and no more than {MOST_STEPS:.0e} are planned.")
    return math.ceil(total)


def threshold_for(plan: PrivacyPlan, *, rows: int, false_rows: float = 1.0) -> float:
    """The threshold of DP-AdaFEST at which so many rows that no example touches survive a step, on average.

    An untouched row survives with probability Psi(tau / (sigma_1 C1)), Psi the standard normal survival function
    (Ghazi et al., 2023, appendix B.2, but for a misprint), whatever the data: tau = sigma_1 C1 Psi^-1(false_rows /
    rows). The threshold costs nothing: `replace(plan, algorithm=replace(plan.algorithm, threshold=tau))`.

    Args:
        plan: of an algorithm with a contribution map; where its periods differ, the largest sigma_1 counts.
        rows: of all tables, or of DP-FEST's set within them.
        false_rows: of them, above 0 and below `rows`.

    Raises:
        UserError: the plan has no contribution map, or false_rows no meaning.
    """
    if not isinstance(plan.algorithm, AdaFEST):
        raise UserError(f"{plan.algorithm.name} has no contribution map, so no threshold: plan for dpfest.AdaFEST().")
    if not 0 < false_rows < rows:
        raise UserError(f"false_rows={false_rows} must lie between 0 and the {rows} rows.")
    steps = [plan.step(number) for number in range(len(plan.periods))]
    sigma = max(step.map_noise_multiplier or 0.0 for step in steps if step)
    return -sigma * plan.algorithm.contribution_clipping_norm * float(ndtri(false_rows / rows))


def _calibrated(plan: PrivacyPlan, calibrate: Callable[..., float]) -> list[float]:
    """For each period, the least noise with which what an example of it pays for meets the target."""
    found: dict[tuple[Event, ...], float] = {}  # equal periods ask one question

    def of(number: int) -> float:
        step = replace(plan._steps[number], part=())
        part = plan._steps[number].part
        selections = [replace(event, part=()) for event in plan.selections if event.part[:1] in ((), part)][:1]
        left, composed = FIDELITIES[plan.fidelity].to_compose(plan.target_epsilon or 0.0, selections)

        def events(sigma: float) -> list[Event]:
            noised = plan.algorithm.step_event(sigma, step.sampling_probability)
            return [*composed, replace(noised, count=step.count)] if noised else composed

        question = tuple(events(1.0))
        if question not in found:
            found[question] = calibrate(events, left, plan.delta)
        return found[question]

    return [of(number) for number in range(len(plan.periods))]


def _periods(examples: int | Sequence[int], length: int | None, batch_size: int) -> list[Period]:
    """The periods of so many examples, their steps yet to be counted."""
    if isinstance(examples, Integral):
        if length is not None:
            raise UserError(f"period={length} is of a stream: give examples= as a list, those of each day.")
        if batch_size > _whole("examples", examples):
            raise UserError(f"batch_size={batch_size} must lie between 1 and the {examples} training examples.")
        return [Period(int(examples), 0)]
    if not isinstance(examples, list | tuple) or not all(isinstance(day, Integral) for day in examples):
        kind = type(examples).__name__
        raise UserError(f"examples= is a number, len(dataset), or for a stream a list of each day's; not a {kind}.")
    length = 1 if length is None else _whole("period", length)
    periods = []
    for first in range(0, len(examples), length):
        days = range(first, min(first + length, len(examples)))
        periods.append(Period(int(sum(examples[day] for day in days)), 0, days))
        if periods[-1].examples < batch_size:
            words = f"day {first}" if len(days) == 1 else f"days {first}-{days[-1]}"
            raise UserError(
                f"Period {len(periods)} ({words}) has {periods[-1].examples:,} examples, fewer than a batch of "
                f"batch_size={batch_size}: lower it, or raise period={length}."
            )
    return periods


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, Integral) or value < 1:
        raise UserError(f"{name}={value!r} must be a whole number, 1 or more.")
    return int(value)


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real) or not float(value) > 0:
        raise UserError(f"{name}={value!r} must be a number above 0.")
    return float(value)
