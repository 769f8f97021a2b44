"""Rows that lie in several processes: the parts of a private step over ranks (:mod:`dpfest.step.order`).

1. Each rank asks the owners for the rows that its examples touch, and for their values.
2. Each rank sends its examples' clipped contributions; owners sum them, choose each own shard's survivors under the
   shard's key, and answer which rows survive.
3. Each rank masks and clips its examples' whole gradients: an example lies on one rank, so no norm is reduced.
4. Sums of the surviving rows go to their owners, sums of the dense parameters to slices of them.
5. Owners add noise to every survivor of theirs, touched or not; each slice of the dense sum gets its part of *one* draw
   of noise, and all ranks receive the same dense gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfest.errors import UserError
from dpfest.gradients.batch import LogicalBatch, contributions
from dpfest.gradients.capture import Recorder, Recording
from dpfest.gradients.clipped_sum import ClippedSum
from dpfest.gradients.contributions import Contributions
from dpfest.gradients.embeddings import Lookups
from dpfest.gradients.parts import DenseSums, RowGradient, RowSums, Shard, split
from dpfest.gradients.reading import MicroBatch
from dpfest.gradients.tables import Survivors, locate
from dpfest.noise.gaussian import BLOCK
from dpfest.noise.key import NoiseKey
from dpfest.ranks.exchange import RowExchange
from dpfest.ranks.group import Group
from dpfest.ranks.layout import Rows, ShardLayout
from dpfest.ranks.lazy import ShardLazyNoise
from dpfest.ranks.table import SHARED_LOOK_UP, Enough, OnlyLookUps, ShardedLayer, asking, by_table, hiding, reading
from dpfest.step.local import named_dense

QUANTUM_BITS = 8
"""A part's sum is rounded to 2^-8 of the noise's grid. Sums are then exact in any order while no coordinate exceeds
2^20 deviations of the noise."""
_QUANTUM_WITHOUT_NOISE = 2.0**-30
"""Without noise there is no grid; sums are exact in any order while no coordinate exceeds 2^23."""


class RankRows:
    """The rows of one rank's shards; see :class:`dpfest.gradients.parts.Rows`.

    Args:
        recorder: of a model whose trainable tables went through :func:`dpfest.ranks.table.shard_tables`, and the rest
            of which is the same on every rank.
        selected: DP-FEST's set, whole on every rank.
        sum_dtype: dtype in which a part's gradients are summed.
        places: which rank owns which rows.
        group: the ranks.
        parts: M; the micro-batches of all ranks together are the parts of a batch.

    Formal guarantee: every coordinate of map and gradient gets one variate of one stream, drawn by the one rank that
    owns it: row noise under the shard's key, dense noise by position in one stream. Parts are rounded before they are
    summed, which ``roundings`` charges.
    """

    joint = False

    def __init__(
        self,
        recorder: Recorder,
        selected: Tensor | None,
        sum_dtype: torch.dtype,
        *,
        places: ShardLayout,
        group: Group,
        parts: int,
    ) -> None:
        if recorder.unit is not None:
            raise UserError("Over ranks a batch is cut by example, and the parts of a unit would be clipped apart.")
        if recorder.device.type != "cpu":
            raise UserError("Training over ranks computes on CPUs: set device=cpu.")
        tables = list(recorder.tables.values())
        if not tables or not all(isinstance(table, ShardedLayer) for table in tables):
            raise UserError("Over ranks every trainable table must lie in shards: call shard_tables(model, ...) first.")
        self._recorder, self.selected, self.sum_dtype = recorder, selected, sum_dtype
        self.places, self.group = places, group
        self.tables = cast(list[ShardedLayer], tables)
        self.roundings = 1 + parts * 2.0**-QUANTUM_BITS
        self._losses = lambda data: recorder.loss_fn(recorder.model, data)
        self._selected = [None if selected is None else _in_shard(selected, v, places.shards) for v in places.own]
        self._most: WeakKeyDictionary[Callable[[Any], Any], int] = WeakKeyDictionary()  # look-ups of a complete pass
        self._calls: WeakKeyDictionary[Callable[[Any], Any], int] = WeakKeyDictionary()
        dense = sum(p.numel() for p in recorder.dense_parameters.values())
        blocks = -(-dense // BLOCK)  # a slice of the dense sum holds whole blocks of a draw
        self._cuts = [min(blocks * rank // group.world * BLOCK, dense) for rank in range(group.world + 1)]
        self._asked: _Asked
        self._lazy: ShardLazyNoise | None = None

    @property
    def key(self) -> NoiseKey:
        """The run's key."""
        return self._recorder.key

    def shard_key(self, shard: int) -> NoiseKey:
        """Return the key of everything random in a shard."""
        return self.key.derive("shard", shard)

    def lazy_noise(self) -> ShardLazyNoise:
        """Return what draws the tables' noise when a row is next read."""
        self._lazy = ShardLazyNoise(self.places, list(self._recorder.tables), self.tables, self.key)
        return self._lazy

    def batch(self, microbatches: Sequence[MicroBatch], step: int) -> LogicalBatch:
        """Return a batch of this rank's parts; none if it has no example."""
        return _RankBatch(self._recorder, microbatches, step, self)

    def ask(self, batch: LogicalBatch) -> list[Shard]:
        """See :meth:`dpfest.gradients.parts.Rows.ask`; every rank calls it."""
        self._asked = asked = _Asked(self.group, self.places, batch.contributions())
        own = zip(self.places.own, self.places.layouts, self._selected, asked.by_shard, strict=True)
        return [
            Shard(
                layout, self.shard_key(shard), self._recorder.device, selected,
                partial(asked.touched_in_shard, at, self.places.shards),
            )
            for shard, layout, selected, at in own
        ]  # fmt: skip

    @contextmanager
    def readable(self) -> Iterator[None]:
        """See :meth:`dpfest.gradients.parts.Rows.readable`; every rank enters it."""
        asked = self._asked
        values = asked.exchange.values([table.weight.detach() for table in self.tables])
        with reading(self.tables, by_table(self.places, asked.rows.numpy())[0], values):
            yield

    def total(self, values: Tensor) -> list[Tensor]:
        """See :class:`~dpfest.gradients.parts.Rows`; values are multiples of one power of two, so sums are exact."""
        summed = torch.from_numpy(self._asked.exchange.summed(values.numpy()))
        return [summed[torch.from_numpy(at)] for at in self._asked.by_shard]

    def mask(self, chosen: Sequence[Survivors]) -> Survivors:
        """See :meth:`dpfest.gradients.parts.Rows.mask`."""
        asked = self._asked
        alive = np.ones(len(asked.exchange.touched), dtype=bool)
        for at, survivors in zip(asked.by_shard, chosen, strict=True):
            if survivors.rows is not None:
                wanted = asked.touched_in_shard(at, self.places.shards)
                alive[at] = locate(survivors.rows, wanted)[1].numpy()
        asked.survived = asked.exchange.answered(alive)
        return Survivors(self._recorder.layout, asked.rows[torch.from_numpy(asked.survived)])

    def quantum(self, grid: float) -> float:
        """See :meth:`dpfest.gradients.parts.Rows.quantum`."""
        return grid * 2.0**-QUANTUM_BITS or _QUANTUM_WITHOUT_NOISE

    def reduce(self, sums: ClippedSum, chosen: Sequence[Survivors]) -> tuple[list[RowSums], DenseSums]:
        """See :meth:`dpfest.gradients.parts.Rows.reduce`."""
        rows, values = self._asked.exchange.returned(sums.rows, self._asked.survived)
        return self._by_shard(chosen, rows, values), self._own_slice(sums.flat_dense)

    def _by_shard(self, chosen: Sequence[Survivors], rows: Rows, values: NDArray[np.float64]) -> list[RowSums]:
        """Sum what ranks returned of own rows, each once for every rank, at the survivors of each own shard."""
        places, found = self.places, []
        table = places.table(rows)
        dims = places.dims[table]
        starts = np.cumsum(dims) - dims
        for at, survivors in zip(places.by_shard(rows), chosen, strict=True):
            sizes = [math.prod(shape) for shape in survivors.shapes]
            _, position = survivors.find(torch.from_numpy(rows[at] // places.shards))
            width, of = dims[at], table[at]
            first = (np.cumsum(sizes) - sizes)[of] + (position.numpy() - np.asarray(survivors.bounds)[of]) * width
            within = np.arange(width.sum()) - np.repeat(np.cumsum(width) - width, width)
            coordinates = np.repeat(first, width) + within
            sent = values[np.repeat(starts[at], width) + within]
            summed = np.bincount(coordinates, weights=sent, minlength=sum(sizes))
            found.append(RowSums(survivors, torch.from_numpy(np.asarray(summed, float))))  # no rows: of integers
        return found

    def _own_slice(self, sums: Tensor) -> DenseSums:
        low, high = self._cuts[self.group.rank : self.group.rank + 2]
        parts = self.group.exchange(sums, np.diff(self._cuts).tolist(), [high - low] * self.group.world)
        total, *others = parts.split(high - low) if high > low else [parts]
        for other in others:
            total += other
        return DenseSums(total, low)

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """See :meth:`dpfest.gradients.parts.Rows.totals`."""
        return self.group.sum(torch.tensor(list(numbers), dtype=torch.float64)).tolist()

    def joined(self, shards: Sequence[RowSums], divisor: float) -> list[RowGradient]:
        """See :class:`~dpfest.gradients.parts.Rows`; rows are numbered as this rank's tables, padding gets zeros."""
        released, dtype = [], self._recorder.dtype
        values = [split(sums.flat.div_(divisor).to(dtype), sums.survivors.shapes) for sums in shards]
        every = shards[0].survivors.rows is None
        for number, dim in enumerate(self._recorder.layout.dims):
            slots = [torch.empty(0, dtype=torch.int64)]
            for shard, sums in zip(self.places.own, shards, strict=True):
                if (local := sums.survivors.local[number]) is not None:
                    slots.append(local + self.places.part(number, shard).start)
            rows = None if every else torch.cat(slots)
            of_table = torch.cat([torch.empty(0, dim, dtype=dtype), *(each[number] for each in values)])
            padding = self.places.own_slot(number, self.tables[number].padding_idx)
            if padding is not None:
                of_table[padding if rows is None else rows == padding] = 0
            released.append(RowGradient(rows, of_table))
        return released

    def joined_dense(self, sums: DenseSums, divisor: float) -> dict[str, Tensor]:
        """See :meth:`dpfest.gradients.parts.Rows.joined_dense`."""
        own = sums.flat.div_(divisor).to(self._recorder.dtype)
        return named_dense(self._recorder, self.group.joined(own, np.diff(self._cuts).tolist()))

    def look_ups(self, data: Any, examples: NDArray[np.int64], step: int, run: Callable[[Any], Any]) -> Lookups:
        """Return the look-ups of ``run(data)``, learnt from a pass over tables of zeros.

        The pass ends after as many look-ups as the longest complete pass of the same function ``run`` has made.
        """
        recorder = self._recorder
        draws = nullcontext() if recorder.draws is False else recorder.drawing(step, examples)
        complete = False
        with asking(self.tables, self._most.get(run)) as calls, torch.no_grad(), draws:
            try:
                run(data)
                complete = True
            except Enough:
                pass
        if complete:
            self._most[run] = max(self._most.get(run, 0), len(calls))
        found: list[list[Any]] = [[] for _ in self.tables]
        names = {id(table): name for name, table in recorder.tables.items()}
        for table, call in calls:
            if call.output.shape[:-1][:1] != (len(examples),):
                raise UserError(SHARED_LOOK_UP.format(names[id(table)]))
            found[recorder.table_of[id(table.weight)]].append((table, call))
        return Lookups(recorder.layout, found, torch.arange(len(examples)))

    def look_ups_of_losses(self, part: MicroBatch, step: int) -> Lookups:
        """Return the look-ups of a part of a batch."""
        return self.look_ups(part.data, part.examples, step, self._losses)

    @contextmanager
    def readable_outside(self, data: Any, examples: int, run: Callable[[Any], Any]) -> Iterator[None]:
        """A context, entered by every rank at once, in which ``run(data)`` can be called outside of a step.

        Args:
            data: its argument, with so many ``examples``; nothing is run for none.
            examples: number of examples.
            run: a function that looks up rows of the tables.

        Raises:
            UserError: noise is pending.
        """
        rows = torch.empty(0, dtype=torch.int64)
        if examples:
            rows = self.look_ups(data, np.arange(examples), 0, run).rows
        values = self.fetch(rows.numpy())
        with reading(self.tables, by_table(self.places, rows.numpy())[0], values), self.hidden(run):
            yield

    @contextmanager
    def hidden(self, run: Callable[[Any], Any] | None = None) -> Iterator[None]:
        """A context for a call of ``run`` (None: the losses), in which rows can be looked up, and weights are empty.

        Another way to read a weight finds nothing. To say so costs a Python call for each operation: the first, second,
        fourth, ... call pays for that.
        """
        run = run or self._losses
        self._calls[run] = calls = self._calls.get(run, 0) + 1
        named = dict(zip(self._recorder.tables, self.tables, strict=True))
        with hiding(self.tables), OnlyLookUps(named) if calls.bit_count() == 1 else nullcontext():
            yield

    def fetch(self, rows: Rows) -> list[Tensor]:
        """Return copies of sorted distinct global rows by table, ``[n, dim]``; entered by every rank at once.

        Raises:
            UserError: noise is pending.
        """
        if self._lazy and self.group.any(self._lazy.is_pending):
            raise UserError("Noise is pending on the tables' rows: call flush() on every rank before you read them.")
        return RowExchange(self.group, self.places, rows).values([table.weight.detach() for table in self.tables])


class _Asked:
    """What one batch asks of the owners of rows.

    Attributes:
        rows: global rows that this rank's examples touch, sorted ``[n]``.
        exchange: the traffic about them.
        by_shard: where the rows of each own shard stand among those that any rank touches.
        survived: which of ``rows`` survive, once they are chosen.
    """

    def __init__(self, group: Group, places: ShardLayout, touched: Contributions) -> None:
        self.rows = touched.rows
        self.exchange = RowExchange(group, places, touched.rows.numpy())
        self.by_shard = places.by_shard(self.exchange.touched)
        self.survived: NDArray[np.bool_]

    def touched_in_shard(self, at: Rows, shards: int) -> Tensor:
        """Return the touched rows of one own shard, numbered within it."""
        return torch.from_numpy(self.exchange.touched[at] // shards)


class _RankBatch(LogicalBatch):
    """One rank's parts of a batch. Look-ups are learnt first: they say which rows the parts can be run with."""

    def __init__(self, recorder: Recorder, microbatches: Sequence[MicroBatch], step: int, rows: RankRows) -> None:
        super().__init__(recorder, microbatches, step)
        self._rows = rows
        self._known = [rows.look_ups_of_losses(part, step) for part, _ in self._parts]
        found = [
            contributions(known, len(part.examples)) for known, (part, _) in zip(self._known, self._parts, strict=True)
        ]
        self._contributions = Contributions.joined(found, recorder.device)

    def recordings(self) -> Iterator[Recording]:
        """See :meth:`LogicalBatch.recordings`."""
        for known, (part, _) in zip(self._known, self._parts, strict=True):
            with self._rows.hidden():
                recording = self.recorder.record(part.data, part.examples, self.step, known=known)
                recording.backward()
            yield recording


def _in_shard(rows: Tensor, shard: int, shards: int) -> Tensor:
    return rows[rows % shards == shard] // shards
