"""Samplers beside Poisson's: batches of bounded size, each example once an epoch, groups of examples in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpfest.accounting.accountant import Event, chance_of_truncation
from dpfest.noise.bernoulli import bernoulli
from dpfest.noise.distributions import below, distinct
from dpfest.noise.key import NoiseKey
from dpfest.noise.keystream import Keystream
from dpfest.planning.sampling import Batches, PoissonBatches, refuse_all_but_gaussian, refuse_batch_size

_AT_ONCE = 1 << 20  # examples whose random words are in memory at a time


class TruncatedBatches(PoissonBatches):
    """Poisson batches; of one with more than ``max_batch_size`` examples, a subset of that size, each equally likely.

    Formal guarantee: the sampling of :class:`dp_accounting.TruncatedSubsampledGaussianDpEvent`; the subset is exact.
    """

    def __init__(self, examples: int, batch_size: float, key: NoiseKey, max_batch_size: int) -> None:
        super().__init__(examples, batch_size, key)
        self.max_batch_size = max_batch_size

    def indices(self, step: int) -> NDArray[np.int64]:
        """See :meth:`PoissonBatches.indices`."""
        drawn = super().indices(step)
        if len(drawn) <= self.max_batch_size:
            return drawn
        kept = distinct(self.key.stream("truncation", step), len(drawn), self.max_batch_size)
        return drawn[np.sort(kept)]


@dataclass(frozen=True)
class TruncatedPoisson:
    """Poisson batches, of which one with more than ``max_batch_size`` examples is cut to a uniform subset of that size.

    So the memory of a step is bounded, and the shape of its batch can be fixed.

    Formal guarantee: under add-or-remove-one adjacency a step is dominated by a coin that is seen, and shows heads with
    the probability p that ``max_batch_size`` or more of N examples are drawn. On tails follows the Gaussian mechanism
    on a Poisson sample, on heads that of twice the sensitivity, because the example then replaces another one (as in
    Ganesh, 2025, arXiv 2508.15089, whose bound is :class:`dp_accounting.TruncatedSubsampledGaussianDpEvent`).
    """

    max_batch_size: int

    name: ClassVar[str] = "truncated_poisson"
    statement: ClassVar[str] = (
        "Each batch is a Poisson sample, cut to a random subset of max_batch_size examples if it has more, and is "
        "accounted so."
    )
    branches: ClassVar[bool] = True

    def batches(self, examples: int, batch_size: int, key: NoiseKey) -> Batches:
        """Return truncated Poisson batches."""
        return TruncatedBatches(examples, batch_size, key, self.max_batch_size)

    def accounted(self, step: Event, examples: int, batch_size: int) -> Event:
        """Return the step with the two sizes from which its accountant computes p."""
        refuse_all_but_gaussian(step, self.name)
        return replace(step, dataset_size=examples, max_batch_size=self.max_batch_size)


def default_max_batch_size(periods: Sequence[tuple[int, int]], batch_size: int, delta: float) -> int:
    """Return the least size that, with probability ``1 - delta / 100``, no batch of a whole run reaches.

    Args:
        periods: examples and steps of each period.
        batch_size: B.
        delta: of the guarantee.
    """

    def reached(size: int) -> float:
        return sum(steps * chance_of_truncation(examples, batch_size / examples, size) for examples, steps in periods)

    low, high = batch_size, batch_size + 1
    while reached(high) > delta / 100:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if reached(middle) > delta / 100 else (low, middle)
    return high


class AllocatedBatches:
    """In each epoch every example is in one of the ``ceil(examples / batch_size)`` batches, each equally likely.

    An epoch's first batch draws the whole allocation, in O(examples); it and the last one are kept, 4 bytes per example
    each (8 above 2^32 examples). A batch may be empty.

    Formal guarantee: examples are allocated independently of one another and of other epochs, exactly uniformly.
    """

    def __init__(self, examples: int, batch_size: float, key: NoiseKey) -> None:
        refuse_batch_size(examples, batch_size)
        self.examples, self.key, self.bins = examples, key, int(-(-examples // batch_size))
        self._epochs: dict[int, tuple[NDArray[np.integer], NDArray[np.int64]]] = {}

    def indices(self, step: int) -> NDArray[np.int64]:
        """See :meth:`PoissonBatches.indices`."""
        epoch, bin_of_step = divmod(step, self.bins)
        allocation = self._epochs.get(epoch)
        if allocation is None:  # a reader ahead of the training, perhaps a thread, may be in the next epoch
            allocation = _dealt(self.key.stream("allocation", epoch), self.examples, self.bins)
            self._epochs = {**dict(sorted(self._epochs.items())[-1:]), epoch: allocation}
        order, ends = allocation
        return order[ends[bin_of_step] : ends[bin_of_step + 1]].astype(np.int64)


@dataclass(frozen=True)
class BallsInBins:
    """In each epoch every example enters exactly one of the ceil(N / B) batches, drawn uniformly and independently.

    Formal guarantee: an epoch is dominated by the mixture of unit shifts of a Gaussian vector with one coordinate per
    batch (:mod:`dpfest.accounting.allocation`), as long as the steps of a training are taken in order under one key.
    """

    name: ClassVar[str] = "balls_in_bins"
    statement: ClassVar[str] = (
        "In each epoch every example is in one batch, drawn uniformly and independently of the others, and is "
        "accounted so."
    )
    branches: ClassVar[bool] = False  # an example would be in a batch of either

    def batches(self, examples: int, batch_size: int, key: NoiseKey) -> Batches:
        """Return the batches to which examples are allocated."""
        return AllocatedBatches(examples, batch_size, key)

    def accounted(self, step: Event, examples: int, batch_size: int) -> Event:
        """Return the step with the number of batches in an epoch."""
        refuse_all_but_gaussian(step, self.name)
        bins = -(-examples // batch_size)
        return replace(step, sampling_probability=1 / bins, bins=bins)


class CyclicBatches:
    """Each example is in one of ``groups`` groups; batch ``step`` is a Poisson sample of group ``step mod groups``.

    The first batch draws the groups, in O(examples), which are kept, 4 bytes per example (8 above 2^32). A batch has
    ``batch_size`` examples on average, and may be empty.

    Formal guarantee: examples are in groups independently of one another, exactly uniformly, and a member enters each
    of its group's batches independently with probability ``groups * batch_size / examples``, as in
    :class:`PoissonBatches`; it enters no other batch.

    Raises:
        ValueError: that probability is above 1.
    """

    def __init__(self, examples: int, batch_size: float, key: NoiseKey, groups: int) -> None:
        refuse_batch_size(examples, groups * batch_size)
        self.examples, self.key, self.groups = examples, key, groups
        self.sampling_probability = groups * batch_size / examples
        self._members: tuple[NDArray[np.integer], NDArray[np.int64]] | None = None

    def indices(self, step: int) -> NDArray[np.int64]:
        """See :meth:`PoissonBatches.indices`."""
        if self._members is None:
            self._members = _dealt(self.key.stream("groups"), self.examples, self.groups)
        order, ends = self._members
        group = step % self.groups
        members = order[ends[group] : ends[group + 1]]
        drawn = bernoulli(self.key.stream("poisson batch", step), len(members), self.sampling_probability)
        return members[drawn].astype(np.int64)


@dataclass(frozen=True)
class CyclicPoisson:
    """Examples are dealt to b groups, uniformly and independently; step t is a Poisson sample of group t mod b.

    Made for noise that is correlated over ``bands`` steps (:mod:`dpfest.accounting.bands`): an example takes part once
    in as many consecutive steps, at most.

    Formal guarantee: T steps, counted from a period's first, with such noise or independent one, are dominated by
    ceil(T / b) Gaussian mechanisms of the same noise multiplier, each on a Poisson sample of rate q b (statement 2.8 of
    docs/PRIVACY.md), as long as they are taken in order under one key.
    """

    bands: int

    name: ClassVar[str] = "cyclic_poisson"
    statement: ClassVar[str] = (
        "Examples are dealt to groups at random, each batch is a Poisson sample of the next group, and the noise of "
        "rows is correlated over as many steps as there are groups; epsilon is accounted so."
    )
    branches: ClassVar[bool] = False  # an example would be in another group of each

    def batches(self, examples: int, batch_size: int, key: NoiseKey) -> Batches:
        """Return Poisson batches of one group after another."""
        return CyclicBatches(examples, batch_size, key, self.bands)

    def accounted(self, step: Event, examples: int, batch_size: int) -> Event:
        """Return the step at the rate of its group, with their number."""
        refuse_all_but_gaussian(step, self.name)
        return replace(step, sampling_probability=self.bands * batch_size / examples, bands=self.bands)


def _dealt(stream: Keystream, examples: int, groups: int) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Deal examples to groups: return them ordered by group, ``[examples]``, and where each ends, ``[groups + 1]``."""
    chosen = np.empty(examples, dtype=np.min_scalar_type(groups - 1))
    for start in range(0, examples, _AT_ONCE):
        part = chosen[start : start + _AT_ONCE]
        part[:] = below(stream, len(part), groups)
    ends = np.append(0, np.cumsum(np.bincount(chosen, minlength=groups)))
    order = np.argsort(chosen, kind="stable")  # so that each group is sorted
    return order.astype(np.min_scalar_type(examples - 1)), ends
