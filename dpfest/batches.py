"""Which examples make each step's batch: Poisson sampling, or fixed-size batches of a shuffled set."""

from __future__ import annotations

import numpy as np

from dpfest.noise import NoiseKey


class PoissonBatches:
    """Each example enters each batch independently with probability ``batch_size / examples``.

    Drawn as a binomial size and a uniform subset of that size: the same law, in O(b).  A batch may be empty.

    Formal guarantee: Poisson subsampling at rate ``q = batch_size / examples``, the sampling of
    :class:`dp_accounting.PoissonSampledDpEvent`.
    """

    sampling = "poisson"

    def __init__(self, examples: int, batch_size: float, key: NoiseKey) -> None:
        _check(examples, batch_size)
        self.examples, self.key, self.sampling_probability = examples, key, batch_size / examples

    def indices(self, step: int) -> np.ndarray:
        """Distinct example indices of batch ``step`` (from 0), sorted, int64 ``[b]``: a function of key and step."""
        generator = self.key.generator("poisson batch", step)
        size = generator.binomial(self.examples, self.sampling_probability)
        return np.sort(generator.choice(self.examples, size=size, replace=False, shuffle=False))


class ShuffledBatches:
    """Batches of exactly ``batch_size`` from a fresh permutation each epoch; an epoch's remainder is left out.

    Formal guarantee: none as it stands.  The paper accounts such batches as if they were Poisson samples; an epsilon
    made that way carries the word ``shuffled``.
    """

    sampling = "shuffled"

    def __init__(self, examples: int, batch_size: int, key: NoiseKey) -> None:
        _check(examples, batch_size)
        self.examples, self.batch_size, self.key = examples, int(batch_size), key
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def indices(self, step: int) -> np.ndarray:
        """See :meth:`PoissonBatches.indices`."""
        epoch, position = divmod(step, self.examples // self.batch_size)
        if epoch != self._epoch:
            self._order = self.key.generator("epoch order", epoch).permutation(self.examples)
            self._epoch = epoch
        start = position * self.batch_size
        return np.sort(self._order[start : start + self.batch_size])


Batches = PoissonBatches | ShuffledBatches


def _check(examples: int, batch_size: float) -> None:
    if not 0 < batch_size <= examples:
        raise ValueError(
            f"train.batch_size={batch_size:g} must lie between 1 and the number of training examples, {examples}"
        )
