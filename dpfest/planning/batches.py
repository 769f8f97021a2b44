"""Batches, drawn from the key: Poisson samples, truncated or of groups in turn, and examples allocated to batches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpfest.noise.distributions import below, bernoulli, distinct
from dpfest.noise.key import Keystream, NoiseKey

_AT_ONCE = 1 << 20  # examples whose random words are in memory at a time


class PoissonBatches:
    """Each example enters each batch independently with probability ``batch_size / examples``.

    Drawn by the gaps between successes, in O(b). A batch may be empty.

    Formal guarantee: Poisson subsampling at rate ``q = batch_size / examples``, rounded to float64, the sampling of
    :class:`dp_accounting.PoissonSampledDpEvent`; within 2^-100 per drawn example (:mod:`dpfest.noise.distributions`).
    """

    def __init__(self, examples: int, batch_size: float, key: NoiseKey) -> None:
        refuse_batch_size(examples, batch_size)
        self.examples, self.key, self.sampling_probability = examples, key, batch_size / examples

    def indices(self, step: int) -> NDArray[np.int64]:
        """Return the distinct examples of batch ``step`` (from 0), sorted int64 ``[b]``: a function of key and step."""
        return bernoulli(self.key.stream("poisson batch", step), self.examples, self.sampling_probability)


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


def _dealt(stream: Keystream, examples: int, groups: int) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Deal examples to groups: return them ordered by group, ``[examples]``, and where each ends, ``[groups + 1]``."""
    chosen = np.empty(examples, dtype=np.min_scalar_type(groups - 1))
    for start in range(0, examples, _AT_ONCE):
        part = chosen[start : start + _AT_ONCE]
        part[:] = below(stream, len(part), groups)
    ends = np.append(0, np.cumsum(np.bincount(chosen, minlength=groups)))
    order = np.argsort(chosen, kind="stable")  # so that each group is sorted
    return order.astype(np.min_scalar_type(examples - 1)), ends


def refuse_batch_size(examples: int, batch_size: float) -> None:
    """Raise ValueError for batches larger than the data set."""
    if not 0 < batch_size <= examples:
        raise ValueError(f"batch_size={batch_size:g} must lie between 1 and the {examples} training examples.")
