"""Samplers: how the examples of each batch are drawn, and as what a step on such a batch is accounted.

One object answers both, and a plan holds it: the training loop draws its batches and the ledger its events from it, so
that a sampler and the accounting of another cannot be combined. Batches are functions of key and step alone.

Each class states what it guarantees; proofs are in docs/PRIVACY.md (section 2). :mod:`dpfest.planning.other_samplers`
has samplers beside Poisson's, :mod:`dpfest.planning.unproven` the paper's shuffled batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfest.accounting.accountant import Event
from dpfest.errors import UserError
from dpfest.noise.bernoulli import bernoulli
from dpfest.noise.key import NoiseKey


class Batches(Protocol):
    """The batches of a training, one after another."""

    def indices(self, step: int) -> NDArray[np.int64]:
        """Return the distinct examples of batch ``step`` (from 0), sorted int64 ``[b]``."""


class Sampler(Protocol):
    """Interface of a sampler.

    Attributes:
        name: the value of ``Event.sampling`` of its events.
        statement: what a ledger says of it.
        branches: whether a training may hand some of its steps to a branch under another key.
    """

    name: ClassVar[str]
    statement: ClassVar[str]
    branches: ClassVar[bool]

    def batches(self, examples: int, batch_size: int, key: NoiseKey) -> Batches:
        """Return the batches of a training on this many examples."""

    def accounted(self, step: Event, examples: int, batch_size: int) -> Event:
        """Return what a step costs on such batches.

        Args:
            step: what it costs on Poisson batches.
            examples: N.
            batch_size: B.
        """


class PoissonBatches:
    """Each example enters each batch independently with probability ``batch_size / examples``.

    Drawn by the gaps between successes, in O(b). A batch may be empty.

    Formal guarantee: Poisson subsampling at rate ``q = batch_size / examples``, rounded to float64, the sampling of
    :class:`dp_accounting.PoissonSampledDpEvent`; within 2^-100 per drawn example (:mod:`dpfest.noise.bernoulli`).
    """

    def __init__(self, examples: int, batch_size: float, key: NoiseKey) -> None:
        refuse_batch_size(examples, batch_size)
        self.examples, self.key, self.sampling_probability = examples, key, batch_size / examples

    def indices(self, step: int) -> NDArray[np.int64]:
        """Return the distinct examples of batch ``step`` (from 0), sorted int64 ``[b]``: a function of key and step."""
        return bernoulli(self.key.stream("poisson batch", step), self.examples, self.sampling_probability)


@dataclass(frozen=True)
class Poisson:
    """Each example enters each batch independently with probability q = B / N.

    Formal guarantee: a step on such a batch is what :class:`dp_accounting.PoissonSampledDpEvent` describes.
    """

    name: ClassVar[str] = "poisson"
    statement: ClassVar[str] = "Each batch is a Poisson sample, and is accounted as one."
    branches: ClassVar[bool] = True

    def batches(self, examples: int, batch_size: int, key: NoiseKey) -> Batches:
        """Return Poisson batches."""
        return PoissonBatches(examples, batch_size, key)

    def accounted(self, step: Event, examples: int, batch_size: int) -> Event:
        """Return the step unchanged."""
        return step


def refuse_batch_size(examples: int, batch_size: float) -> None:
    """Raise ValueError for batches larger than the data set."""
    if not 0 < batch_size <= examples:
        raise ValueError(f"batch_size={batch_size:g} must lie between 1 and the {examples} training examples.")


def refuse_all_but_gaussian(step: Event, name: str) -> None:
    """Raise UserError for steps with releases that the sampler's accounting does not cover."""
    if step.kind != "gaussian":
        raise UserError(
            f"sampling={name} is accounted for Gaussian releases alone, and this algorithm draws rows by exponential "
            "selection: choose sampling=poisson."
        )
