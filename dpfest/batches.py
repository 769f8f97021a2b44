"""Which examples make each step's batch: Poisson sampling, or fixed-size batches of a shuffled set."""

from __future__ import annotations

import numpy as np

from dpfest.distributions import bernoulli
from dpfest.noise import NoiseKey


class PoissonBatches:
    """Each example enters each batch independently with probability ``batch_size / examples``.

    Drawn by the gaps between them, in O(b).  A batch may be empty.

    Formal guarantee: Poisson subsampling at rate ``q = batch_size / examples``, rounded to float64, the sampling of
    :class:`dp_accounting.PoissonSampledDpEvent`; within 2^-100 an example drawn (:mod:`dpfest.distributions`).
    """

    sampling = "poisson"

    def __init__(self, examples: int, batch_size: float, key: NoiseKey) -> None:
        _check(examples, batch_size)
        self.examples, self.key, self.sampling_probability = examples, key, batch_size / examples

    def indices(self, step: int) -> np.ndarray:
        """Distinct example indices of batch ``step`` (from 0), sorted, int64 ``[b]``: a function of key and step."""
        return bernoulli(self.key.stream("poisson batch", step), self.examples, self.sampling_probability)


class ShuffledBatches:
    """Batches of exactly ``batch_size`` from a fresh permutation each epoch; an epoch's remainder is left out.

    The permutation is a Feistel network of eight rounds on the bits of an index, walked on while it leads out of the
    examples (Black and Rogaway, 2002): a batch costs O(b), whatever the number of examples.

    Formal guarantee: none as it stands.  The paper accounts such batches as if they were Poisson samples; an epsilon
    made that way carries the word ``shuffled``.
    """

    sampling = "shuffled"

    def __init__(self, examples: int, batch_size: int, key: NoiseKey) -> None:
        _check(examples, batch_size)
        self.examples, self.batch_size, self.key = examples, int(batch_size), key
        self._half_bits = np.uint64(max((examples - 1).bit_length() + 1, 2) // 2)

    def indices(self, step: int) -> np.ndarray:
        """See :meth:`PoissonBatches.indices`."""
        epoch, position = divmod(step, self.examples // self.batch_size)
        keys = self.key.stream("epoch order", epoch).words(8)
        indices = np.arange(position * self.batch_size, (position + 1) * self.batch_size, dtype=np.uint64)
        outside = np.ones(len(indices), dtype=bool)
        while outside.any():
            indices[outside] = self._network(indices[outside], keys)
            outside = indices >= self.examples
        return np.sort(indices.astype(np.int64))

    def _network(self, indices: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """A permutation of 0 .. 2^(2 half_bits) - 1, that is of all numbers of as many bits as an index has."""
        half, mask = self._half_bits, (np.uint64(1) << self._half_bits) - np.uint64(1)
        left, right = indices >> half, indices & mask
        for key in keys:
            mixed = (right ^ key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        return (left << half) | right


Batches = PoissonBatches | ShuffledBatches


def _check(examples: int, batch_size: float) -> None:
    if not 0 < batch_size <= examples:
        raise ValueError(
            f"train.batch_size={batch_size:g} must lie between 1 and the number of training examples, {examples}"
        )
