"""Poisson sampling of batches."""

from __future__ import annotations

import numpy as np

from dpfest.distributions import bernoulli
from dpfest.noise import NoiseKey


class PoissonBatches:
    """Each example enters each batch independently with probability ``batch_size / examples``.

    Drawn by the gaps between successes, in O(b). A batch may be empty.

    Formal guarantee: Poisson subsampling at rate ``q = batch_size / examples``, rounded to float64, the sampling of
    :class:`dp_accounting.PoissonSampledDpEvent`; within 2^-100 per drawn example (:mod:`dpfest.distributions`).
    """

    sampling = "poisson"

    def __init__(self, examples: int, batch_size: float, key: NoiseKey) -> None:
        refuse_batch_size(examples, batch_size)
        self.examples, self.key, self.sampling_probability = examples, key, batch_size / examples

    def indices(self, step: int) -> np.ndarray:
        """Return the distinct examples of batch ``step`` (from 0), sorted int64 ``[b]``: a function of key and step."""
        return bernoulli(self.key.stream("poisson batch", step), self.examples, self.sampling_probability)


def refuse_batch_size(examples: int, batch_size: float) -> None:
    """Raise ValueError for batches larger than the data set."""
    if not 0 < batch_size <= examples:
        raise ValueError(f"batch_size={batch_size:g} must lie between 1 and the {examples} training examples.")
