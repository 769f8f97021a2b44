"""The trainings that a one-run audit attacks, as they are and with flaws that it must detect.

Each is a claim about a whole run: every example in every step, Poisson batches, lazy noise, a stream whose days are
periods, rows selected before.  A flaw changes what is run and not what is claimed; dpfest/ is unaware of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpfest.accounting.accountant import Event
from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.algorithm import Algorithm
from dpfest.gradients.batch import LogicalBatch
from dpfest.gradients.contributions import Contributions
from dpfest.gradients.parts import Rows, Shard
from dpfest.noise.key import NoiseKey
from dpfest.planning.privacy_plan import PrivacyPlan, plan
from dpfest.selection.topk import SelectionConfig
from dpfest.training.loop import PrivateTraining
from pipelines.audit.attack import Law
from pipelines.audit.canaries import ORDINARY, ORDINARY_ROWS, Examples, Observed, Run

RATE = 0.125
"""q of sampled trainings."""
PERIODS = 4
_COPIES = 4  # examples of a unit whose size is ignored
_REPEATS = 4  # how often an example looks its row up, where a map counts each time
_FRUGAL = 0.25  # noise multiplier of a selection that nobody pays for


@dataclass(frozen=True)
class Training:
    """A claim about a whole training.

    Attributes:
        name: name in results.
        rate: q, of each period.
        canaries: number in each period.
        stream: whether periods are days of a stream.
    """

    name: str
    algorithm: Algorithm
    epsilon: float
    delta: float
    steps: int
    rate: float
    canaries: tuple[int, ...]
    stream: bool = False

    def plan(self, algorithm: Algorithm | None = None, copies: int = 1) -> PrivacyPlan:
        """Return the plan of the training, or of another algorithm, or of several examples for each canary."""
        algorithm = algorithm or self.algorithm
        sizes = [copies * canaries + ORDINARY for canaries in self.canaries]
        return plan(
            algorithm,
            epsilon=self.epsilon,
            delta=self.delta,
            examples=sizes if self.stream else sizes[0],
            batch_size=round(self.rate * sizes[0]),
            steps=self.steps,
            period=1 if self.stream else None,
            features=[self.rows] if algorithm.selection else None,
            fixed_noise_seed=True,
        )

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return 1 + sum(self.canaries) + ORDINARY_ROWS


@dataclass(frozen=True)
class Attempt:
    """One run to attack.

    Attributes:
        claimed: what the run is said to spend.
        law: what the attacker takes the mechanism for.
        observe: runs it, and returns what left, and which canaries were included.
    """

    claimed: Sequence[Event]
    law: Law
    observe: Callable[[NoiseKey], tuple[Observed, NDArray[np.bool_]]]


@dataclass(frozen=True)
class Flaw:
    """One flaw: its name in results, the trainings that can have it, and the flawed run."""

    name: str
    applies: Callable[[Training], bool]
    attempt: Callable[[Training], Attempt]


def sound(training: Training) -> Attempt:
    """Return the training as it is."""
    made = training.plan()
    return Attempt(made.events, Law(made, training.canaries), _observing(training, made))


def _observing(
    training: Training, made: PrivacyPlan, copies: int = 1, **how: Any
) -> Callable[[NoiseKey], tuple[Observed, NDArray[np.bool_]]]:
    def observe(key: NoiseKey) -> tuple[Observed, NDArray[np.bool_]]:
        examples = Examples(training.canaries, key.derive("audit examples"), copies)
        return Run(made, examples, key, **how).observed(), examples.present

    return observe


class _OneBatch(PrivateTraining):
    """The sampler draws once, and every step takes that batch."""

    def indices(self, step: int) -> NDArray[np.int64]:
        return super().indices(0)


class _WholeData(PrivateTraining):
    """Every step takes every example."""

    def indices(self, step: int) -> NDArray[np.int64]:
        return np.arange(self.period.examples)


class _OtherBatches(PrivateTraining):
    """The sampler does not go on where it was."""

    def indices(self, step: int) -> NDArray[np.int64]:
        return super().indices(step + self.period.steps)


def _resumed(training: Training) -> Attempt:
    """A checkpoint at a quarter, a kill at a half; what follows draws the noise again, on other batches."""
    made = training.plan()

    def observe(key: NoiseKey) -> tuple[Observed, NDArray[np.bool_]]:
        examples = Examples(training.canaries, key.derive("audit examples"))
        run = Run(made, examples, key)
        killed = run.training()
        run.take(killed, training.steps // 4)
        state = killed.state_dict()
        run.take(killed, training.steps // 4)
        run.kind = _OtherBatches
        resumed = run.training()
        resumed.load_state_dict(state)
        run.forget()
        run.take(resumed, resumed.steps_left)
        return run.gathered(), examples.present

    return Attempt(made.events, Law(made, training.canaries), observe)


def _with_copies(training: Training) -> Attempt:
    made = training.plan(copies=_COPIES)
    return Attempt(made.events, Law(made, training.canaries), _observing(training, made, _COPIES))


def _unpaid_selection(training: Training) -> Attempt:
    frugal = replace(training.algorithm.selection, noise_multiplier=_FRUGAL)  # type: ignore[type-var]
    assert isinstance(frugal, SelectionConfig)
    public = SelectionConfig(mechanism="public", prior="none", rows=frugal.rows)
    made = training.plan(replace(training.algorithm, selection=public))  # type: ignore[call-arg]
    law = Law(made, training.canaries, frugal)
    return Attempt(made.events, law, _observing(training, made, selection=frugal))


def _with_costly_map(training: Training) -> Training:
    """Return the training with most of its budget in the map: an attacker sees of it one bit a step."""
    return replace(training, algorithm=replace(training.algorithm, noise_ratio=0.25))  # type: ignore[call-arg]


def _unpaid_map(training: Training) -> Attempt:
    training = _with_costly_map(training)
    made = training.plan()
    step = made.step()
    assert step is not None and step.gradient_noise_multiplier and step.noise_multiplier
    share = step.noise_multiplier / step.gradient_noise_multiplier

    def spoil(running: PrivateTraining) -> None:
        running.engine.noise.deviation *= share
        running.engine.cost = replace(step, map_noise_multiplier=share * (step.map_noise_multiplier or 0.0))

    return Attempt(made.events, Law(made, training.canaries), _observing(training, made, spoil=spoil))


class _Repeated:
    """A batch each of whose examples looks every row up several times, and counts each time."""

    def __init__(self, batch: LogicalBatch) -> None:
        self._batch = batch

    def contributions(self) -> Contributions:
        return Contributions.joined([self._batch.contributions()] * _REPEATS, self._batch.recorder.device)


class _CountsRepetitions(AdaFEST):
    """DP-AdaFEST whose map counts a row as often as an example looks it up, instead of once."""

    def measure(
        self, batch: LogicalBatch, rows: Rows, shards: Sequence[Shard], cost: Event | None
    ) -> Sequence[Tensor | None]:
        return super().measure(_Repeated(batch), rows, shards, cost)  # type: ignore[arg-type]

    step_event = AdaFEST.step_event  # which does not cover it


def _counting_repetitions(training: Training) -> Attempt:
    training = _with_costly_map(training)
    made = training.plan()

    def spoil(running: PrivateTraining) -> None:
        running.engine.algorithm = _CountsRepetitions(**asdict(running.algorithm))

    return Attempt(made.events, Law(made, training.canaries), _observing(training, made, spoil=spoil))


def _shared_key(training: Training) -> Attempt:
    made = training.plan()

    def observe(key: NoiseKey) -> tuple[Observed, NDArray[np.bool_]]:
        def spoil(running: PrivateTraining) -> None:
            running.engine.key = key

        return _observing(training, made, spoil=spoil)(key)

    return Attempt(made.events, Law(made, training.canaries), observe)


def _rate_of_the_stream(training: Training) -> Attempt:
    made = training.plan()
    whole = replace(training, canaries=(sum(training.canaries) + (len(training.canaries) - 1) * ORDINARY,))
    at_its_rate = replace(
        whole, stream=False, rate=training.rate / PERIODS, steps=training.steps * len(training.canaries)
    ).plan()
    thrifty = at_its_rate.noise_multiplier
    assert thrifty is not None
    periods = tuple(replace(period, noise_multiplier=thrifty) for period in made.periods)

    def spoil(running: PrivateTraining) -> None:
        running.engine.noise.deviation *= thrifty / (running.period.noise_multiplier or math.inf)

    law = Law(replace(made, periods=periods), training.canaries)
    return Attempt(at_its_rate.events, law, _observing(training, made, spoil=spoil))


def _never_flush(running: PrivateTraining) -> None:
    assert running.engine.lazy is not None
    running.engine.lazy.flush = lambda: None


def _sampled(training: Training) -> bool:
    return training.algorithm.name == "dpsgd" and not training.algorithm.lazy and training.rate < 1


FLAWS = (
    Flaw("one batch in all steps", lambda t: _sampled(t) and not t.stream, lambda t: _loop(t, _OneBatch)),
    Flaw("every example in every step", lambda t: _sampled(t) and not t.stream, lambda t: _loop(t, _WholeData)),
    Flaw("noise drawn again on resume", lambda t: _sampled(t) and not t.stream, _resumed),
    Flaw("units of 4 examples", lambda t: _sampled(t) and not t.stream, _with_copies),
    Flaw("lazy noise never drawn", lambda t: t.algorithm.lazy, lambda t: _loop(t, PrivateTraining, spoil=_never_flush)),
    Flaw("map not paid for", lambda t: t.algorithm.name == "adafest", _unpaid_map),
    Flaw("map counts repeated rows", lambda t: t.algorithm.name == "adafest", _counting_repetitions),
    Flaw("selection not paid for", lambda t: t.algorithm.name == "fest", _unpaid_selection),
    Flaw("periods share their noise", lambda t: _sampled(t) and t.stream, _shared_key),
    Flaw("the stream's rate in a period", lambda t: _sampled(t) and t.stream, _rate_of_the_stream),
)


def _loop(training: Training, kind: type[PrivateTraining], **how: Any) -> Attempt:
    made = training.plan()
    return Attempt(made.events, Law(made, training.canaries), _observing(training, made, kind=kind, **how))
