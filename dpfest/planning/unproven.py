"""Everything without a guarantee, kept apart: non-private training, and the paper's own accounting.

The paper shuffles batches of fixed size and accounts for them as Poisson samples, adds its claim for one-shot Gumbel
selection, and samples the periods of a stream at the whole stream's rate. An epsilon computed that way is a claim; what
is proven of the same run stands beside it (``Ledger.sound_epsilon``, ``epsilon_at_own_rates``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor

from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event
from dpfest.accounting.calibration import LEAST_EPSILON
from dpfest.algorithms.algorithm import Algorithm
from dpfest.errors import UserError
from dpfest.gradients.parts import Shard
from dpfest.noise.key import NoiseKey
from dpfest.planning.sampling import refuse_batch_size

if TYPE_CHECKING:
    from dpfest.planning.privacy_plan import PrivacyPlan


@dataclass(frozen=True)
class Nonprivate(Algorithm):
    """No clipping, no noise: the rows that the batch touched."""

    name: str = "nonprivate"

    def survivors(self, shard: Shard, measured: Tensor | None, cost: Event | None, step: int) -> Tensor | None:
        """Return the touched rows."""
        return shard.touched()


class ShuffledBatches:
    """Batches of exactly ``batch_size`` from a fresh permutation each epoch; an epoch's remainder is left out.

    The permutation is a Feistel network of eight rounds on the bits of an index, repeated while the result is not an
    example (cycle walking: Black and Rogaway, 2002): a batch costs O(b), whatever the number of examples.
    """

    def __init__(self, examples: int, batch_size: int, key: NoiseKey) -> None:
        refuse_batch_size(examples, batch_size)
        self.examples, self.batch_size, self.key = examples, int(batch_size), key
        self._half_bits = np.uint64(max((examples - 1).bit_length() + 1, 2) // 2)

    def indices(self, step: int) -> np.ndarray:
        """See :meth:`dpfest.planning.sampling.PoissonBatches.indices`."""
        epoch, position = divmod(step, self.examples // self.batch_size)
        keys = self.key.stream("epoch order", epoch).words(8)
        indices = np.arange(position * self.batch_size, (position + 1) * self.batch_size, dtype=np.uint64)
        outside = np.ones(len(indices), dtype=bool)
        while outside.any():
            indices[outside] = self._network(indices[outside], keys)
            outside = indices >= self.examples
        return np.sort(indices.astype(np.int64))

    def _network(self, indices: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Permute 0 .. 2^(2 half_bits) - 1, the numbers of as many bits as an index has."""
        half, mask = self._half_bits, (np.uint64(1) << self._half_bits) - np.uint64(1)
        left, right = indices >> half, indices & mask
        for key in keys:
            mixed = (right ^ key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        return (left << half) | right


@dataclass(frozen=True)
class Shuffled:
    """The paper's sampler; ``dpfest.planning.sampling.Sampler`` documents the members."""

    name: ClassVar[str] = "shuffled"
    statement: ClassVar[str] = (
        "Shuffled batches of a fixed size are accounted as if they were Poisson samples: epsilon is the paper's "
        "claim. sound_epsilon counts no amplification by sampling, under zero-out adjacency."
    )
    branches: ClassVar[bool] = True

    def batches(self, examples: int, batch_size: int, key: NoiseKey) -> ShuffledBatches:
        """Return shuffled batches."""
        return ShuffledBatches(examples, batch_size, key)

    def accounted(self, step: Event, examples: int, batch_size: int) -> Event:
        """Return the step with ``steps_per_epoch``: a shuffled batch contains an example once in so many steps."""
        return replace(step, steps_per_epoch=examples // batch_size)


class Paper:
    """The paper's accounting; ``dpfest.planning.fidelity.Rigorous`` documents the members."""

    samplings = (Shuffled.name,)
    own_rates = False
    selects_rows_by = "gumbel"
    splits_rows = "equal"
    counts_of_gumbel = "claim"

    @staticmethod
    def cost(events: Sequence[Event], delta: float, interval: float = accountant.INTERVAL) -> float:
        """Return ``claimed_epsilon``."""
        return claimed_epsilon(events, delta, interval)

    @staticmethod
    def sound(events: Sequence[Event]) -> Sequence[Event]:
        """Return the events ``without_amplification``."""
        return without_amplification(events)

    @staticmethod
    def to_compose(target: float, selections: list[Event]) -> tuple[float, list[Event]]:
        """Return the target minus the selections' claims, and the selections without a claim, to be composed."""
        claim = sum(event.claimed_epsilon or 0.0 for event in selections)
        if claim and target - claim < LEAST_EPSILON:
            raise UserError(
                f"selection.epsilon={claim:g} leaves nothing of epsilon={target:g} to train with: lower the one or "
                "raise the other."
            )
        return target - claim, [event for event in selections if not event.claimed_epsilon]


def claimed_epsilon(events: Sequence[Event], delta: float, interval: float = accountant.INTERVAL) -> float:
    """Return epsilon as the paper counts it; of streams, of which it states nothing, at the whole stream's rate.

    Claims are added to the cost of the other events (basic composition), and shuffled steps count as those of one run
    on all examples, whatever period of a stream they belong to.
    """
    steps = Counter[Event]()
    for event in events:
        if event.steps_per_epoch:
            steps[replace(event, count=1, part=(), steps_per_epoch=None)] += event.count
    events = [event for event in events if not event.steps_per_epoch]
    events += [replace(step, count=count) for step, count in steps.items()]

    def cost(paid: Sequence[Event]) -> float:
        claims = [event for event in paid if event.kind == "pure" and event.claimed_epsilon]
        rest = [event for event in paid if event not in claims]
        added = sum(event.count * (event.claimed_epsilon or 0) for event in claims)
        return accountant.epsilon(rest, delta, interval) + added

    return max(map(cost, accountant.by_example(events)), default=0.0)


def without_amplification(events: Sequence[Event]) -> list[Event]:
    """Return the events as shuffled batches of fixed size really spend them, without amplification by sampling.

    An example is in one batch per epoch, so ``count`` steps from an epoch's start touch it at most ceil(count /
    steps_per_epoch) times, unsampled; no other batch depends on it. Adjacency is zero-out: neighbours differ in one
    example that is present or zeroed out (batches of fixed size do not allow adding an example).
    """
    return [
        replace(event, sampling_probability=1.0, count=math.ceil(event.count / every))
        if (every := event.steps_per_epoch)
        else event
        for event in events
    ]


def epsilon_at_own_rates(plan: PrivacyPlan) -> float:
    """Return the epsilon that a plan would have if its batches were Poisson samples of their periods.

    It is the plan's own epsilon except under ``paper``, which counts batches as samples of the whole stream.
    """
    if not plan.algorithm.private:
        return 0.0
    if plan.sampling != Shuffled.name:
        return accountant.epsilon(plan.events, plan.delta)
    own = [
        replace(step, sampling_probability=plan.batch_size / period.examples, count=period.steps)
        for number, period in enumerate(plan.periods)
        if (step := plan.step(number))
    ]
    return accountant.epsilon([*plan.selections, *own], plan.delta)
