"""Flaws that an audit must detect: each changes what is run and not what is claimed.

dpfest/ is unaware of them: they change the arguments of an engine, its release, or a training's loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfest.accounting.accountant import Event
from dpfest.accounting.bands import BITS, Strategy
from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import Frozen
from dpfest.gradients.batch import LogicalBatch
from dpfest.gradients.contributions import Contributions
from dpfest.gradients.parts import NoisedGradient, Rows, Shard
from dpfest.noise.key import NoiseKey
from dpfest.selection.topk import SelectionConfig
from dpfest.step.correlated import Correlated
from dpfest.step.engine import PrivateEngine
from dpfest.training.loop import PrivateTraining
from pipelines.audit.canaries import ORDINARY, Observed, Run
from pipelines.audit.correlated import CorrelatedLaw, law_of
from pipelines.audit.pair import Pair
from pipelines.audit.training import Attempt, Training, attempt

_NEXT_TO_NOTHING = 1e-9  # an engine may refuse noise of exactly zero
_COPIES = 4  # examples of a unit whose size is ignored
_REPEATS = 4  # how often an example looks its row up, where a map counts each time
_FRUGAL = 0.25  # noise multiplier of a selection that nobody pays for


@dataclass(frozen=True)
class Flaw:
    """One flaw.

    Attributes:
        name: name in results.
        applies: whether a step (:class:`pipelines.audit.step.Step`) or a :class:`Training` can have it.
        attempt: makes what is attacked, in the place of :class:`Pair` or of :func:`attempt`.
    """

    name: str
    applies: Callable[[Any], bool]
    attempt: Callable[..., Any]


# Of a step.


def _scaled(event: Event, gradient: float, choice: float) -> Event:
    """Scale the noise of the gradient and of the choice of rows."""
    scaled: dict[str, Any] = {}
    for name, factor in (
        ("gradient_noise_multiplier", gradient),
        ("map_noise_multiplier", choice),
        ("epsilon_per_draw", 1 / choice),  # the noise of a draw is inverse to its cost
    ):
        if (value := getattr(event, name)) is not None:
            scaled[name] = value * factor
    return replace(event, **scaled)


def _silence_untouched(gradient: NoisedGradient, touched: Tensor) -> None:
    """Noise only rows that the batch touched, the typical mistake of a sparse optimiser."""
    (table,) = gradient.tables
    rows = torch.arange(len(table.values), device=touched.device) if table.rows is None else table.rows
    table.values[~torch.isin(rows, touched)] = 0


class _Unnormalised(Strategy):
    """A strategy whose columns are longer than is accounted for."""

    norm = 1.0


def _lengthen_columns(engine: PrivateEngine) -> None:
    noise = engine.noise
    assert isinstance(noise, Correlated)
    coefficients = noise.strategy.coefficients
    engine.noise = Correlated(noise.deviation, _Unnormalised(coefficients), len(coefficients))


def _with_noise(gradient: float, choice: float) -> Callable[..., Pair]:
    return partial(Pair, noise=partial(_scaled, gradient=gradient, choice=choice))


OF_A_STEP = (
    Flaw("unit ignored", lambda step: step.unit is not None, partial(Pair, ignored=True)),
    Flaw(
        "columns of the strategy too long",
        lambda step: bool(step.algorithm.bands),
        partial(Pair, spoil=_lengthen_columns),
    ),
    Flaw("groups ignored", lambda step: bool(step.algorithm.bands), partial(Pair, every_step=True)),
    Flaw("gradient noise halved", lambda step: True, _with_noise(0.5, 1)),
    Flaw(
        "no noise on the choice of rows",
        lambda step: type(step.algorithm).measure is not Algorithm.measure,  # a batch decides on rows
        _with_noise(1, _NEXT_TO_NOTHING),
    ),
    Flaw(
        "no noise on untouched rows",
        lambda step: not isinstance(step.algorithm, Frozen),
        partial(Pair, after=_silence_untouched),
    ),
    Flaw("no noise", lambda step: True, _with_noise(_NEXT_TO_NOTHING, _NEXT_TO_NOTHING)),
)
"""After the unit's, from the subtle to the gross."""


# Of a training.


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


class _SharedKey(PrivateTraining):
    """Every period draws the same noise."""

    def __init__(self, *arguments: Any, key: NoiseKey, **named: Any) -> None:
        super().__init__(*arguments, key=key, **named)
        self.engine.key = key


class _Resumed(Run):
    """A checkpoint at a quarter, a kill at a half; what follows draws the noise again, on other batches."""

    def observed(self) -> Observed:
        killed, quarter = self.training(), self.plan.steps // 4
        self.take(killed, quarter)
        state = killed.state_dict()
        self.take(killed, quarter)
        self.kind = _OtherBatches
        resumed = self.training()
        resumed.load_state_dict(state)
        self.forget()
        self.take(resumed, resumed.steps_left)
        return self.gathered()


def _unpaid_selection(training: Training) -> Attempt:
    frugal = replace(training.algorithm.selection, noise_multiplier=_FRUGAL)  # type: ignore[type-var]
    assert isinstance(frugal, SelectionConfig)
    public = SelectionConfig(mechanism="public", prior="none", rows=frugal.rows)
    made = training.plan(replace(training.algorithm, selection=public))  # type: ignore[call-arg]
    return attempt(training, made, law=law_of(made, training.canaries, frugal), selection=frugal)


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

    return attempt(training, made, spoil=spoil)


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


def _count_repetitions(running: PrivateTraining) -> None:
    running.engine.algorithm = _CountsRepetitions(**asdict(running.algorithm))


def _rate_of_the_stream(training: Training) -> Attempt:
    made, periods = training.plan(), len(training.canaries)
    whole = replace(
        training,
        canaries=(sum(training.canaries) + (periods - 1) * ORDINARY,),
        stream=False,
        rate=training.rate / periods,
        steps=training.steps * periods,
    ).plan()
    thrifty = whole.noise_multiplier
    assert thrifty is not None
    drawn = tuple(replace(period, noise_multiplier=thrifty) for period in made.periods)

    def spoil(running: PrivateTraining) -> None:
        running.engine.noise.deviation *= thrifty / (running.period.noise_multiplier or math.inf)

    law = law_of(replace(made, periods=drawn), training.canaries)
    return attempt(training, made, claimed=whole.events, law=law, spoil=spoil)


def _not_normalised(training: Training) -> Attempt:
    """Columns as long as they can be (2.7 with 8 bands) are accounted for as columns of length 1."""
    made, bands = training.plan(), training.algorithm.bands
    assert bands is not None
    real = _Unnormalised((1 << BITS, *[(1 << BITS) - 1] * (bands - 1)))

    def spoil(running: PrivateTraining) -> None:
        noise = running.engine.noise
        assert isinstance(noise, Correlated)
        running.engine.noise = Correlated(noise.deviation, real, noise.steps)

    return attempt(training, made, law=CorrelatedLaw(made, training.canaries, real=real), spoil=spoil)


def _never_flush(running: PrivateTraining) -> None:
    assert running.engine.lazy is not None
    running.engine.lazy.flush = lambda: None


def _sampled(training: Training, stream: bool = False) -> bool:
    own = training.algorithm.name == "dpsgd" and not training.algorithm.lazy
    return own and training.rate < 1 and training.stream == stream


def _of(name: str) -> Callable[[Training], bool]:
    return lambda training: training.algorithm.name == name


OF_A_TRAINING = (
    Flaw("one batch in all steps", _sampled, partial(attempt, kind=_OneBatch)),
    Flaw("every example in every step", _sampled, partial(attempt, kind=_WholeData)),
    Flaw("noise drawn again on resume", _sampled, partial(attempt, run=_Resumed)),
    Flaw("units of 4 examples", _sampled, partial(attempt, copies=_COPIES)),
    Flaw("columns not normalised", lambda training: bool(training.algorithm.bands), _not_normalised),
    Flaw("lazy noise never drawn", lambda training: training.algorithm.lazy, partial(attempt, spoil=_never_flush)),
    Flaw("map not paid for", _of("adafest"), _unpaid_map),
    Flaw(
        "map counts repeated rows",
        _of("adafest"),
        lambda training: attempt(_with_costly_map(training), spoil=_count_repetitions),
    ),
    Flaw("selection not paid for", _of("fest"), _unpaid_selection),
    Flaw("periods share their noise", partial(_sampled, stream=True), partial(attempt, kind=_SharedKey)),
    Flaw("the stream's rate in a period", partial(_sampled, stream=True), _rate_of_the_stream),
)
