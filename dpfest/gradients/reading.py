"""Reading a batch: from example indices to the tensors of its micro-batches.

An example is read by its index alone. If ``dataset[index]`` draws random numbers (from PyTorch's, numpy's or Python's
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
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset, default_collate

from dpfest.errors import UserError
from dpfest.gradients.units import Indices, Units
from dpfest.noise.alone import PROCESS_STATE
from dpfest.noise.key import NoiseKey

_PARTS = 7  # parts of a batch that is checked


class MicroBatch(NamedTuple):
    """Examples run at once: their indices in the data set, int64 ``[b]``, and the argument of the loss function.

    Under a unit of privacy, ``units`` are theirs, ascending int64 ``[b]``; no unit is in two micro-batches of a batch.
    """

    examples: Indices
    data: Any
    units: Indices | None = None


@dataclass(frozen=True)
class Request:
    """What to read for a step.

    Attributes:
        step: step number.
        examples: indices of the batch, sorted.
        parts: if the step is checked for mixing, the indices that are checked (all or a sample), then those of the
            parts that they fall into; else none.
        seed: seed of the data set's random numbers.
    """

    step: int
    examples: Indices
    parts: tuple[Indices, ...]
    seed: bytes


@dataclass(frozen=True)
class Batch:
    """A batch after reading: its micro-batches, and those of a request's parts. Private, as is its size."""

    step: int
    microbatches: list[MicroBatch]
    parts: tuple[list[MicroBatch], ...] = ()

    def __len__(self) -> int:
        return sum(len(part.examples) for part in self.microbatches)

    def pin_memory(self) -> Batch:
        """Return a copy in pinned memory; called by PyTorch's loader."""
        return Batch(self.step, _pinned(self.microbatches), tuple(map(_pinned, self.parts)))

    def moved(self, device: torch.device, units: Indices | None) -> Batch:
        """Return a copy on a device, with the units of its examples from those of all, whatever a reader says."""

        def of(part: MicroBatch) -> MicroBatch:
            data = tree_map(lambda leaf: leaf.to(device) if hasattr(leaf, "to") else leaf, part.data)
            return MicroBatch(part.examples, data, None if units is None else units[part.examples])

        parts = tuple([of(one) for one in part] for part in self.parts)
        return Batch(self.step, [of(one) for one in self.microbatches], parts)


Read = Callable[[Indices, bytes], list[MicroBatch]]
"""Reads examples: from their indices and the seed of the data set's random numbers, to micro-batches."""


class DatasetReader:
    """Reads micro-batches from a map-style data set.

    Args:
        dataset: a ``torch.utils.data.Dataset`` with ``__getitem__`` and ``__len__``; ``__getitems__`` is preferred. A
            ``TensorDataset`` is read by columns, where its tensors lie: of a GPU, there.
        collate_fn: turns a list of examples into the argument of the loss function.
        micro_batch_size: maximum number of examples run at once; None for all.

    Raises:
        UserError: not a map-style data set; later, a ``collate_fn`` that draws random numbers.
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
                f"{type(dataset).__name__}: Poisson batches cannot come from a loader or a stream."
            )
        if micro_batch_size is not None and micro_batch_size < 1:
            raise UserError(f"micro_batch_size={micro_batch_size} must be 1 or more, or None.")
        self.dataset, self.collate_fn = dataset, collate_fn or default_collate
        self.micro_batch_size = micro_batch_size
        plain = type(dataset) is TensorDataset and self.collate_fn is default_collate
        self._by_columns = plain and all(column.layout is torch.strided for column in dataset.tensors)
        self._draws: bool | None = None  # not known before the first read

    @PROCESS_STATE
    def __call__(self, indices: Indices, seed: bytes) -> list[MicroBatch]:
        """Read the examples at ``indices``, in their order, ``micro_batch_size`` at a time."""
        size = self.micro_batch_size or max(len(indices), 1)
        parts = [indices[start : start + size] for start in range(0, len(indices), size)]
        return [MicroBatch(part, self._collated(part, seed)) for part in parts]

    def _collated(self, indices: Indices, seed: bytes) -> Any:
        if self._by_columns:  # what default_collate makes of its examples, of which none is drawn
            at = torch.from_numpy(indices)
            return [column[at.to(column.device)] for column in self.dataset.tensors]
        before = _random_state()
        examples = self._examples(indices, seed)
        after = _random_state()
        if not self._draws and after != before:
            self._draws = True  # read them again, each with its own seed
            examples = self._examples(indices, seed)
            after = _random_state()
        batch = self.collate_fn(examples)
        if _random_state() != after:
            raise UserError(
                "collate_fn draws random numbers, which would depend on the other examples of the batch. Draw in the "
                "data set's __getitem__ or in loss_fn: both draw by example."
            )
        return batch

    def _examples(self, indices: Indices, seed: bytes) -> Any:
        if self._draws is None and len(indices):
            return self._first(indices, seed)
        if self._draws:
            return [self._seeded(index, seed)[0] for index in indices.tolist()]
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__(indices.tolist())
        return [self.dataset[index] for index in indices.tolist()]

    def _first(self, indices: Indices, seed: bytes) -> list[Any]:
        """Read examples before it is known whether the data set draws: one that keeps what it drew draws by example."""
        generators = torch.get_rng_state(), np.random.get_state(), random.getstate()
        try:
            examples, drew = zip(*(self._seeded(index, seed) for index in indices.tolist()), strict=True)
        finally:
            torch.set_rng_state(generators[0])
            np.random.set_state(generators[1])
            random.setstate(generators[2])
        self._draws = any(drew)
        return list(examples)

    def _seeded(self, index: int, seed: bytes) -> tuple[Any, bool]:
        """Read one example under its own seed; also return whether it drew."""
        word = int.from_bytes(hashlib.blake2b(seed + index.to_bytes(8, "little"), digest_size=4).digest(), "little")
        torch.manual_seed(word)
        np.random.seed(word)
        random.seed(word)
        before = None if self._draws else _random_state()
        return self.dataset[index], before is not None and _random_state() != before


class Requests(Sampler[Request]):
    """The requests of the remaining steps: the sampler of PyTorch's loader."""

    def __init__(self, make: Callable[[int], Request], steps: range) -> None:
        self._make, self._steps = make, steps

    def __iter__(self) -> Iterator[Request]:
        return map(self._make, self._steps)

    def __len__(self) -> int:
        return len(self._steps)


class Batches:
    """A data set of batches, which PyTorch's loader, or a thread, reads by request."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def __getitem__(self, request: Request) -> Batch:
        batch = self._read(request.examples, request.seed)
        parts = [batch if part is request.examples else self._read(part, request.seed) for part in request.parts]
        return Batch(request.step, batch, tuple(parts))


class UnitReader:
    """Reads the examples of units, each unit whole within a micro-batch.

    Args:
        read: reads up to ``read.micro_batch_size`` examples as one micro-batch; any number if it has no such limit.
        units: the units of the data set.

    Raises:
        UserError: a unit may have more examples than a micro-batch; later, ``read`` divides the examples of a unit.
    """

    def __init__(self, read: Read, units: Units) -> None:
        self.read, self._units = read, units
        self.size = getattr(read, "micro_batch_size", None)
        most = units.config.max_examples
        if self.size is not None and self.size < most:
            raise UserError(
                f"micro_batch_size={self.size} must be at least max_examples={most}: a {units.config.name} is clipped "
                "as a whole, so its examples must be run at once."
            )

    def __call__(self, indices: Indices, seed: bytes) -> list[MicroBatch]:
        """Read the examples at ``indices``, which are in the order of their units."""
        found = []
        for part in self._packed(indices):
            parts = self.read(part, seed)
            if len(parts) > 1:
                raise UserError(
                    f"The reader divides {len(part)} examples into {len(parts)} micro-batches, and may divide a "
                    f"{self._units.config.name}: let it have an attribute micro_batch_size, and read that many at once."
                )
            found += parts
        return found

    def _packed(self, indices: Indices) -> list[Indices]:
        """Cut before units that would make a micro-batch too large."""
        if self.size is None or not len(indices):
            return [indices] if len(indices) else []
        starts = np.flatnonzero(np.diff(self._units.of[indices], prepend=-1)).tolist()
        cuts, first = [], 0
        for start, end in zip(starts, [*starts[1:], len(indices)], strict=True):
            if end - first > self.size:
                cuts.append(start)
                first = start
        return np.split(indices, cuts)


def request_of(key: NoiseKey, step: int, examples: Indices, *, check: int, units: Indices | None = None) -> Request:
    """Return the request of a step; up to ``check`` examples are split into parts, in an order drawn from the key.

    Units, int64 ``[b]``, are split in place of examples.

    The first part is half of them, the next half of the rest, down to two examples: two even halves would share
    extremes, such as the length to which texts are padded, which small parts lack.
    """
    parts: tuple[Indices, ...] = ()
    if check and units is not None:
        distinct, of = np.unique(units, return_inverse=True)
        split = request_of(key, step, np.arange(len(distinct)), check=check).parts
        parts = tuple(examples if len(part) == len(distinct) else examples[np.isin(of, part)] for part in split)
    elif check:
        order = np.argsort(key.stream("check halves", step).words(len(examples)))[:check]
        count = len(order)
        cuts = [count - (count >> part) for part in range(1, _PARTS) if part == 1 or count >> part > 1]
        checked = examples if count == len(examples) else examples[np.sort(order)]
        parts = (checked, *(examples[np.sort(part)] for part in np.split(order, cuts)))
    return Request(step, examples, parts, key.derive("data set", step).secret)


def foreign_state() -> tuple[Any, ...]:
    """Return the states of numpy's and Python's global generators, which no key covers."""
    return str(np.random.get_state(legacy=False)["state"]), random.getstate()


def _random_state() -> tuple[Any, ...]:
    return torch.get_rng_state().numpy().tobytes(), *foreign_state()


def _pinned(parts: Sequence[MicroBatch]) -> list[MicroBatch]:
    from torch.utils.data._utils.pin_memory import pin_memory

    return [part._replace(data=pin_memory(part.data)) for part in parts]
