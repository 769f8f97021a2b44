"""Which examples make each step's batch: Poisson sampling."""

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
        refuse_batch_size(examples, batch_size)
        self.examples, self.key, self.sampling_probability = examples, key, batch_size / examples

    def indices(self, step: int) -> np.ndarray:
        """Distinct example indices of batch ``step`` (from 0), sorted, int64 ``[b]``: a function of key and step."""
        generator = self.key.generator("poisson batch", step)
        size = generator.binomial(self.examples, self.sampling_probability)
        return np.sort(generator.choice(self.examples, size=size, replace=False, shuffle=False))


def refuse_batch_size(examples: int, batch_size: float) -> None:
    """Refuse, by a ValueError, batches of more examples than there are."""
    if not 0 < batch_size <= examples:
        raise ValueError(f"batch_size={batch_size:g} must lie between 1 and the {examples} training examples.")
