"""Samplers: how the examples of each batch are drawn, and as what a step on such a batch is accounted.

One object answers both, and a plan holds it: the training loop draws its batches and the ledger its events from it, so
that a sampler and the accounting of another cannot be combined. Batches are functions of key and step alone.

Each class states what it guarantees; proofs are in docs/PRIVACY.md (section 2). ``dpfest.planning.unproven`` has the
paper's shuffled batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfest.accounting.accountant import Event, chance_of_truncation
from dpfest.errors import UserError
from dpfest.noise.key import NoiseKey
from dpfest.planning.batches import AllocatedBatches, CyclicBatches, PoissonBatches, TruncatedBatches


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
        most = examples // batch_size
        if self.bands > most:
            raise UserError(
                f"bands={self.bands} samples {batch_size:,} examples a step from one in {self.bands} of {examples:,}, "
                "which are fewer: " + (f"choose bands={most} or fewer" if most > 1 else "leave bands out") + ", or "
                "choose smaller batches."
            )
        return replace(step, sampling_probability=self.bands * batch_size / examples, bands=self.bands)


def refuse_all_but_gaussian(step: Event, name: str) -> None:
    """Raise UserError for steps with releases that the sampler's accounting does not cover."""
    if step.kind != "gaussian":
        raise UserError(
            f"sampling={name} is accounted for Gaussian releases alone, and this algorithm draws rows by exponential "
            "selection: choose sampling=poisson."
        )


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
