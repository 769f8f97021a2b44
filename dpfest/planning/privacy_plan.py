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

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dpfest.accounting.accountant import Event
from dpfest.algorithms.algorithm import Algorithm
from dpfest.errors import UserError
from dpfest.gradients.units import UnitConfig
from dpfest.noise.key import NoiseKey
from dpfest.planning.fidelity import FIDELITIES, sampling_of
from dpfest.planning.ledger import EXAMPLE, Ledger
from dpfest.planning.other_samplers import CyclicPoisson
from dpfest.planning.periods import Period
from dpfest.planning.sampling import Batches, Poisson, Sampler
from dpfest.planning.unproven import Shuffled
from dpfest.selection.topk import selection_events
from dpfest.selection.vocabulary import OpenVocabulary


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
        vocabulary: the release of the values that have rows, which the examples pay for too; None for public tables.

    Raises:
        UserError: an algorithm without noise, or noise without a private algorithm; a vocabulary that is released of
            units, of a stream, under the paper's accounting, before a selection by gumbel, or with all of delta.
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
    vocabulary: OpenVocabulary | None = field(default=None, repr=False)  # see `identity`

    def __post_init__(self) -> None:
        noised = {self.target_epsilon is not None, *(period.noise_multiplier is not None for period in self.periods)}
        if noised != {self.algorithm.private}:
            raise UserError(f"The plan's noise does not fit {self.algorithm.name}: plan it anew with dpfest.plan(...).")
        sampling_of(self.fidelity, self.sampling)
        selection, vocabulary = self.algorithm.selection, self.vocabulary if self.algorithm.private else None
        if vocabulary and vocabulary.delta >= self.delta:
            raise UserError(
                f"vocabulary.delta={vocabulary.delta:.3g}, with which a value of a single example is released, "
                f"leaves nothing of delta={self.delta:.3g}: release the vocabulary with a smaller one."
            )
        if vocabulary and selection is not None and selection.law == "gumbel":
            raise UserError(
                "selection.mechanism=gumbel costs a draw for each row, of which the vocabulary decides how many there "
                "are: take gaussian or laplace."
            )
        if vocabulary and (self.unit or self.periods[0].days or self.fidelity != "rigorous"):
            raise UserError(
                "A vocabulary of noised counts is accounted for examples that are all there from the start, under "
                "fidelity=rigorous: with units of privacy, in a stream, or under fidelity=paper take tables of public "
                "sizes."
            )
        bands = self.sampler.bands if isinstance(self.sampler, CyclicPoisson) else None
        if bands != self.algorithm.bands:
            raise UserError(
                f"{self.algorithm.name} has bands={self.algorithm.bands}, and batches are sampled for bands={bands}: "
                "plan it anew with dpfest.plan(...)."
            )

    @property
    def identity(self) -> str:
        """A text in which any two plans differ, as a plan of an earlier version had it."""
        return f"{self!r}{self.vocabulary or ''}"

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
    def of_vocabulary(self) -> list[Event]:
        """What the release of the vocabulary spent, on all examples."""
        return self.vocabulary.events if self.vocabulary and self.algorithm.private else []

    @property
    def events(self) -> list[Event]:
        """Everything the run is to spend."""
        return [*self.of_vocabulary, *self.selections, *self._steps]

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
            selections=[*self.of_vocabulary, *self.selections],
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
