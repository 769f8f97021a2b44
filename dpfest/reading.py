"""From the indices of a batch to the tensors of its micro-batches: the data set's side of a private step.

An example is read by its index alone.  Where ``dataset[index]`` draws random numbers (PyTorch's, numpy's or Python's
global generators), these are seeded by (key, step, index), so that they do not depend on which examples were read
before; a ``collate_fn`` that draws is refused.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, Sampler, default_collate

from dpfest.errors import UserError
from dpfest.noise import NoiseKey

Indices = NDArray[np.int64]

_PARTS = 7  # of a batch that is checked


class MicroBatch(NamedTuple):
    """Examples that are run at once: their indices in the data set, int64 ``[b]``, and what the loss function takes."""

    examples: Indices
    data: Any


@dataclass(frozen=True)
class Request:
    """What is to be read for a step.

    Attributes:
        step: its number.
        examples: indices of the batch, sorted.
        parts: of them, where the step's examples are checked not to mix; else none.
        seed: of the draws that the data set makes.
    """

    step: int
    examples: Indices
    parts: tuple[Indices, ...]
    seed: bytes


@dataclass(frozen=True)
class Batch:
    """A batch, read: micro-batches of its examples, and of each half where it is checked.  Private, its size too."""

    step: int
    microbatches: list[MicroBatch]
    parts: tuple[list[MicroBatch], ...] = ()

    def __len__(self) -> int:
        return sum(len(part.examples) for part in self.microbatches)

    def pin_memory(self) -> Batch:
        """A copy in pinned memory; PyTorch's loader calls it."""
        return Batch(self.step, _pinned(self.microbatches), tuple(map(_pinned, self.parts)))


Read = Callable[[Indices, bytes], list[MicroBatch]]
"""Reads examples: their indices and the seed of what the data set draws, to micro-batches."""


class DatasetReader:
    """Reads micro-batches from a map-style data set.

    Args:
        dataset: a ``torch.utils.data.Dataset`` with ``__getitem__`` and ``__len__``; ``__getitems__`` is used where
            there is one.
        collate_fn: makes what the loss function takes from a list of examples.
        micro_batch_size: most examples that are run at once; None for all.

    Raises:
        UserError: no such data set; later, a ``collate_fn`` that draws random numbers.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        micro_batch_size: int | None = None,
    ) -> None:
        if isinstance(dataset, DataLoader | IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise UserError(
                f"dataset must be a map-style torch.utils.data.Dataset, whose examples are read by index, not "
                f"{type(dataset).__name__}: batches are Poisson samples, which no loader of its own can make."
            )
        if micro_batch_size is not None and micro_batch_size < 1:
            raise UserError(f"micro_batch_size={micro_batch_size} must be 1 or more, or None.")
        self.dataset, self.collate_fn = dataset, collate_fn or default_collate
        self.micro_batch_size = micro_batch_size
        self._draws = False

    def __call__(self, indices: Indices, seed: bytes) -> list[MicroBatch]:
        """The examples at ``indices``, in their order, ``micro_batch_size`` at once."""
        size = self.micro_batch_size or max(len(indices), 1)
        parts = [indices[start : start + size] for start in range(0, len(indices), size)]
        return [MicroBatch(part, self._collated(part, seed)) for part in parts]

    def _collated(self, indices: Indices, seed: bytes) -> Any:
        before = _random_state()
        examples = self._examples(indices, seed)
        after = _random_state()
        if not self._draws and after != before:
            self._draws = True  # and read them anew, each by a seed of its own
            examples = self._examples(indices, seed)
            after = _random_state()
        batch = self.collate_fn(examples)
        if _random_state() != after:
            raise UserError(
                "collate_fn draws random numbers, which would depend on who else is in the batch. Draw in the data "
                "set's __getitem__ or in loss_fn: both are made by example."
            )
        return batch

    def _examples(self, indices: Indices, seed: bytes) -> Any:
        if self._draws:
            return [self._seeded(index, seed) for index in indices.tolist()]
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__(indices.tolist())
        return [self.dataset[index] for index in indices.tolist()]

    def _seeded(self, index: int, seed: bytes) -> Any:
        word = int.from_bytes(hashlib.blake2b(seed + index.to_bytes(8, "little"), digest_size=4).digest(), "little")
        torch.manual_seed(word)
        np.random.seed(word)
        random.seed(word)
        return self.dataset[index]


class Requests(Sampler[Request]):
    """The requests of the steps to come; what PyTorch's loader asks for in place of indices."""

    def __init__(self, make: Callable[[int], Request], steps: range) -> None:
        self._make, self._steps = make, steps

    def __iter__(self) -> Iterator[Request]:
        return map(self._make, self._steps)

    def __len__(self) -> int:
        return len(self._steps)


class Batches:
    """A data set of batches: what PyTorch's loader, or a thread, reads for a request."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def __getitem__(self, request: Request) -> Batch:
        parts = tuple(self._read(part, request.seed) for part in request.parts)
        return Batch(request.step, self._read(request.examples, request.seed), parts)


def request_of(key: NoiseKey, step: int, examples: Indices, *, check: bool) -> Request:
    """The request of a step; with ``check`` its examples fall into parts, in an order drawn from the key.

    The first part is half of the batch, the next half of what is left, down to two examples: two even halves would
    share what shows in their extremes, such as the length that texts are cut to, which small parts lack.
    """
    parts: tuple[Indices, ...] = ()
    if check:
        count, order = len(examples), np.argsort(key.stream("check halves", step).words(len(examples)))
        cuts = [count - (count >> part) for part in range(1, _PARTS) if part == 1 or count >> part > 1]
        parts = tuple(examples[np.sort(part)] for part in np.split(order, cuts))
    return Request(step, examples, parts, key.derive("data set", step).secret)


def foreign_state() -> tuple[Any, ...]:
    """The states of numpy's and Python's global generators, which no key covers."""
    return str(np.random.get_state(legacy=False)["state"]), random.getstate()


def _random_state() -> tuple[Any, ...]:
    return torch.get_rng_state().numpy().tobytes(), *foreign_state()


def _pinned(parts: Sequence[MicroBatch]) -> list[MicroBatch]:
    from torch.utils.data._utils.pin_memory import pin_memory

    return [MicroBatch(part.examples, pin_memory(part.data)) for part in parts]
