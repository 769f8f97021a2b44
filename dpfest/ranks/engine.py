"""One private step over ranks: the step of :class:`dpfest.engine.PrivateEngine`, shard by shard.

1. Each rank asks the owners for the rows that its examples touch, and sends its examples' clipped contributions.
2. Owners sum them, draw each own shard's survivors under the shard's key, and answer: values, and which rows survive.
3. Each rank masks and clips its examples' whole gradients: an example lies on one rank, so no norm is reduced.
4. Sums of the surviving rows go to their owners, sums of the dense parameters to slices of them.
5. Owners add noise to every survivor of theirs, touched or not; each slice of the dense sum gets its part of *one* draw
   of noise, and all ranks receive the same dense gradient.

The algorithm chooses survivors in a shard as it does in a whole model (:mod:`dpfest.algorithms`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfest.algorithms import AdaFEST, Algorithm, Exponential, StepContext
from dpfest.draws import ExampleDraws
from dpfest.embeddings import Lookups
from dpfest.engine import ClippedSum, Diagnostics, NoisedGradient, PrivateEngine, RowGradient
from dpfest.errors import UserError
from dpfest.gaussian import BLOCK, add_gaussian, gaussian_grid
from dpfest.layers import Call
from dpfest.noise import NoiseKey
from dpfest.ranks.exchange import RowExchange
from dpfest.ranks.group import Group
from dpfest.ranks.layout import Rows, ShardLayout
from dpfest.ranks.lazy import ShardLazyNoise
from dpfest.ranks.table import Enough, OnlyLookUps, ShardedTable, asking, by_table, hiding, reading
from dpfest.reading import MicroBatch
from dpfest.survivors import Contributions
from dpfest.tables import Survivors, locate

UNIT_BITS = 8
"""A part's sum is rounded to 2^-8 of the noise's grid. Sums are then exact in any order while no coordinate exceeds
2^20 deviations of the noise."""
_UNIT_WITHOUT_NOISE = 2.0**-30
"""Without noise there is no grid; sums are exact in any order while no coordinate exceeds 2^23."""


class RankEngine(PrivateEngine):
    """The engine of one rank.

    Args:
        model: its trainable tables went through :func:`dpfest.ranks.table.shard_tables`, and the rest of it is the same
            on every rank.
        algorithm, loss_fn, key: as for :class:`dpfest.engine.PrivateEngine`, the same on every rank.
        places: which rank owns which rows.
        group: the ranks.
        parts: M; the micro-batches of all ranks together are the parts of a batch.
        selected, noise: as for :class:`dpfest.engine.PrivateEngine`; ``selected`` is whole on every rank.

    Formal guarantee: that of :class:`dpfest.engine.PrivateEngine`. Every coordinate of map and gradient gets one
    variate of one stream, drawn by the one rank that owns it: row noise under the shard's key, dense noise by position
    in one stream. Parts are rounded before they are summed, which ``roundings`` charges.
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        key: NoiseKey,
        *,
        places: ShardLayout,
        group: Group,
        parts: int,
        selected: Tensor | None = None,
        **noise: Any,
    ) -> None:
        if isinstance(algorithm, Exponential):
            raise UserError(
                "algorithm=exponential cannot be trained over ranks: it draws m rows from all tables jointly, by the "
                "norms of a clipped sum that must be complete before the first is drawn. Train it in one process."
            )
        if noise.get("unit") is not None:
            raise UserError("Over ranks a batch is cut by example, and the parts of a unit would be clipped apart.")
        self.places, self.group = places, group
        super().__init__(
            model, algorithm, loss_fn, key, selected=selected, roundings=1 + parts * 2.0**-UNIT_BITS, **noise
        )
        if self.device.type != "cpu":
            raise UserError("Training over ranks computes on CPUs: set device=cpu.")
        tables = list(self.recorder.tables.values())
        if not tables or not all(isinstance(table, ShardedTable) for table in tables):
            raise UserError("Over ranks every trainable table must lie in shards: call shard_tables(model, ...) first.")
        self.tables = cast(list[ShardedTable], tables)
        self._losses = lambda data: self.recorder.loss_fn(self.recorder.model, data)
        self.unit = gaussian_grid(self.deviation) * 2.0**-UNIT_BITS if self.deviation else _UNIT_WITHOUT_NOISE
        self._selected = [None if selected is None else _in_shard(selected, v, places.shards) for v in places.own]
        self._most: WeakKeyDictionary[Callable[[Any], Any], int] = WeakKeyDictionary()  # look-ups of a complete pass
        self._calls: WeakKeyDictionary[Callable[[Any], Any], int] = WeakKeyDictionary()
        dense = sum(p.numel() for p in self.recorder.dense_parameters.values())
        blocks = -(-dense // BLOCK)  # a slice of the dense sum holds whole blocks of a draw
        self._cuts = [min(blocks * rank // group.world * BLOCK, dense) for rank in range(group.world + 1)]

    def _lazy_noise(self) -> Any:
        return ShardLazyNoise(self.places, list(self.recorder.tables), list(self.recorder.tables.values()), self.key)

    def gradient(
        self, microbatches: Sequence[MicroBatch], step: int, check: Callable[[], None] = lambda: None
    ) -> tuple[NoisedGradient, Diagnostics]:
        """Compute the noised gradient of one logical batch; every rank calls it, with its own parts of the batch.

        Args:
            microbatches: this rank's parts; none if it has no example.
            step: step number.
            check: called while the rows of these micro-batches can be looked up.

        Returns:
            The release, with the rows of this rank's shards (dense gradient and counts of rows are the same on every
            rank), and private diagnostics of the whole batch.
        """
        self.refuse_another_process()
        microbatches = [part for part in microbatches if len(part.examples)]
        lookups = [self._asked(part, step) for part in microbatches]
        touched = Contributions.joined(map(_contributions, lookups, microbatches), self.device)
        rows = touched.rows.numpy()
        exchange = RowExchange(self.group, self.places, rows)
        summed = exchange.summed(self._clipped_map(touched)) if isinstance(self.algorithm, AdaFEST) else None
        if self.lazy:
            self.lazy.use(self.key)
            self.lazy.settle(exchange.touched)
        chosen = self._survivors(exchange.touched, summed, step)
        survived = exchange.answered(self._alive(exchange.touched, chosen))
        survivors = Survivors(self.layout, touched.rows[torch.from_numpy(survived)])
        own = [table.weight.detach() for table in self.tables]
        with reading(self.tables, by_table(self.places, rows)[0], exchange.values(own)):
            check()
            row_sums, dense, loss = self._clipped_sums(microbatches, lookups, survivors, step)
        returned = exchange.returned(_by_table(row_sums, survivors), survived)

        noised = self._noised_rows(chosen, *returned, step)
        counts = [sum(shapes) for shapes in zip(*([n for n, _ in one.shapes] for one, _ in noised), strict=True)]
        told = torch.tensor([*counts, sum(len(part.examples) for part in microbatches), loss], dtype=torch.float64)
        *per_table, examples, loss = self.group.sum(told).tolist()
        divisor = self.expected_batch_size or max(examples, 1.0)
        release = NoisedGradient(
            dense=self._noised_dense(dense, step, divisor),
            tables=self._released(noised, divisor),
            rows_per_table=list(self.layout.rows) if self.lazy else [int(count) for count in per_table],
            pending=self.deviation / divisor if self.lazy else 0.0,
        )
        return release, Diagnostics(int(examples), loss / examples if examples else math.nan)

    def asked(self, data: Any, examples: NDArray[np.int64], step: int, run: Callable[[Any], Any]) -> Lookups:
        """Return the look-ups of ``run(data)``, learnt from a pass over tables of zeros.

        The pass ends after as many look-ups as the longest complete pass of the same function ``run`` has made.
        """
        recorder = self.recorder
        draws = nullcontext() if recorder.draws is False else ExampleDraws(recorder.key, step, examples)
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
        for table, ids in calls:
            output = table.weight.new_zeros(()).expand(*ids.shape, table.embedding_dim)
            found[recorder.table_of[id(table.weight)]].append((table, Call((ids,), {}, output)))
        return Lookups(self.layout, found, torch.arange(len(examples)))

    @contextmanager
    def readable(self, data: Any, examples: int, run: Callable[[Any], Any]) -> Iterator[None]:
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
            rows = self.asked(data, np.arange(examples), 0, run).rows
        values = self.fetch(rows.numpy())
        with reading(self.tables, by_table(self.places, rows.numpy())[0], values), self._hidden(run):
            yield

    @contextmanager
    def _hidden(self, run: Callable[[Any], Any]) -> Iterator[None]:
        """A context for a call of ``run``, in which rows can be looked up, and their tables' weights are empty.

        Another way to read a weight finds nothing. To say so costs a Python call for each operation: the first, second,
        fourth, ... call pays for that.
        """
        self._calls[run] = calls = self._calls.get(run, 0) + 1
        named = dict(zip(self.recorder.tables, self.tables, strict=True))
        with hiding(self.tables), OnlyLookUps(named) if calls.bit_count() == 1 else nullcontext():
            yield

    def fetch(self, rows: Rows) -> list[Tensor]:
        """Return copies of sorted distinct global rows by table, ``[n, dim]``; entered by every rank at once.

        Raises:
            UserError: noise is pending.
        """
        if self.lazy and self.group.any(self.lazy.is_pending):
            raise UserError("Noise is pending on the tables' rows: call flush() on every rank before you read them.")
        return RowExchange(self.group, self.places, rows).values([table.weight.detach() for table in self.tables])

    def _asked(self, part: MicroBatch, step: int) -> Lookups:
        return self.asked(part.data, part.examples, step, self._losses)

    def _clipped_map(self, touched: Contributions) -> NDArray[np.float64]:
        """Return this rank's part of the clipped contribution map, at every touched row (0 outside of a selection)."""
        algorithm, sums = cast(AdaFEST, self.algorithm), torch.zeros(len(touched.rows), dtype=torch.float64)
        inside = slice(None) if self.selected is None else locate(self.selected, touched.rows)[1]
        counted = touched if self.selected is None else touched.within(self.selected)
        sums[inside] = counted.clipped(algorithm.contribution_clipping_norm, self._map_grid)
        return sums.numpy()

    @property
    def _map_grid(self) -> float:
        deviation = (self.map_noise_multiplier or 0.0) * cast(AdaFEST, self.algorithm).contribution_clipping_norm
        return gaussian_grid(deviation) if deviation > 0 else 0.0

    def shard_key(self, shard: int) -> NoiseKey:
        """Return the key of everything random in a shard."""
        return self.key.derive("shard", shard)

    def _contexts(self, step: int) -> list[StepContext]:
        """Return what the algorithm may use of each own shard: the shard's key, layout and selected rows."""
        own = zip(self.places.own, self.places.layouts, self._selected, strict=True)
        return [
            StepContext(step, self.shard_key(shard), layout, self.device, selected, self.map_noise_multiplier, None)
            for shard, layout, selected in own
        ]

    def _survivors(self, touched: Rows, summed: NDArray[np.float64] | None, step: int) -> list[Survivors]:
        """Return the surviving rows of each own shard, numbered within it, by the algorithm's own choice."""
        chosen = []
        for context, at in zip(self._contexts(step), self.places.by_shard(touched), strict=True):
            batch = _ShardBatch(touched[at] // self.places.shards, None if summed is None else summed[at])
            chosen.append(Survivors(context.layout, self.algorithm.survivors(cast(Any, batch), context)))
        return chosen

    def _alive(self, rows: Rows, chosen: Sequence[Survivors]) -> NDArray[np.bool_]:
        """Return which own global rows survive."""
        alive = np.ones(len(rows), dtype=bool)
        for at, survivors in zip(self.places.by_shard(rows), chosen, strict=True):
            if survivors.rows is not None:
                alive[at] = locate(survivors.rows, torch.from_numpy(rows[at] // self.places.shards))[1].numpy()
        return alive

    def _clipped_sums(
        self, microbatches: Sequence[MicroBatch], lookups: Sequence[Lookups], survivors: Survivors, step: int
    ) -> tuple[Tensor, Tensor, float]:
        """Return this rank's sums of masked, clipped gradients, rows and dense, on the unit; and the sum of losses."""
        rows = torch.zeros(sum(map(math.prod, survivors.shapes)), dtype=torch.float64)
        dense, loss = torch.zeros(self._cuts[-1], dtype=torch.float64), 0.0
        for part, known in zip(microbatches, lookups, strict=True):
            with self._hidden(self._losses):
                recording = self.recorder.record(part.data, part.examples, step, known=known)
                recording.backward()
            sums = ClippedSum(self, survivors)
            sums.add(recording)
            for total, own in ((rows, sums.flat_rows), (dense, sums.flat_dense)):
                for low in range(0, len(own), BLOCK):  # a block stays in the cache for its three operations
                    piece = own[low : low + BLOCK].mul_(1 / self.unit).round_()
                    total[low : low + BLOCK].add_(piece, alpha=self.unit)  # a power of two: exact in any dtype
            loss += float(recording.losses.detach().sum())
        return rows, dense, loss

    def _noised_dense(self, sums: Tensor, step: int, divisor: float) -> dict[str, Tensor]:
        """Sum the dense gradient, a slice on each rank, add the slice's part of the noise, and join the slices."""
        low, high = self._cuts[self.group.rank : self.group.rank + 2]
        sizes = np.diff(self._cuts).tolist()
        parts = self.group.exchange(sums, sizes, [high - low] * self.group.world)
        total, *others = parts.split(high - low) if high > low else [parts]
        for other in others:
            total += other
        if self.deviation > 0:
            stream = self.key.stream("dense noise", step)
            stream.position = low
            add_gaussian(total, stream, self.deviation)
        whole = self.group.joined(total.div_(divisor).to(self.dtype), sizes)
        parameters = self.recorder.dense_parameters
        values = whole.split([parameter.numel() for parameter in parameters.values()])
        return {name: value.view(p.shape) for (name, p), value in zip(parameters.items(), values, strict=True)}

    def _noised_rows(
        self, chosen: Sequence[Survivors], rows: Rows, values: NDArray[np.float64], step: int
    ) -> list[tuple[Survivors, Sequence[Tensor]]]:
        """Sum what ranks returned of own rows, add noise to every survivor, and keep what the algorithm keeps of that.

        Args:
            chosen: survivors of each own shard.
            rows: own rows, and
            values: their sums, from :meth:`RowExchange.returned`.
            step: step number.

        Returns:
            The rows that each own shard releases, and each table's values there, before any division.
        """
        places, noised = self.places, []
        table = places.table(rows)
        dims = places.dims[table]
        starts = np.cumsum(dims) - dims
        own = zip(self._contexts(step), places.by_shard(rows), chosen, strict=True)
        for context, at, survivors in own:
            sizes = [math.prod(shape) for shape in survivors.shapes]
            _, position = survivors.find(torch.from_numpy(rows[at] // places.shards))
            width, of = dims[at], table[at]
            first = (np.cumsum(sizes) - sizes)[of] + (position.numpy() - np.asarray(survivors.bounds)[of]) * width
            within = np.arange(width.sum()) - np.repeat(np.cumsum(width) - width, width)
            coordinates = np.repeat(first, width) + within
            sent = values[np.repeat(starts[at], width) + within]
            summed = np.bincount(coordinates, weights=sent, minlength=sum(sizes))
            sums = torch.from_numpy(np.asarray(summed, float))  # without a row it is of integers
            kept = None
            if self.deviation > 0 and not self.lazy:
                add_gaussian(sums, context.key.stream("row noise", step), self.deviation)
                kept = self.algorithm.kept(survivors, _by_table(sums, survivors), self.deviation, context)
            noised.append(kept or (survivors, _by_table(sums, survivors)))
        return noised

    def _released(self, noised: Sequence[tuple[Survivors, Sequence[Tensor]]], divisor: float) -> list[RowGradient]:
        """Divide what own shards release, and order it as this rank's tables are."""
        released = []
        for number, dim in enumerate(self.layout.dims):
            values = [torch.empty(0, dim, dtype=self.dtype), *(each[number].div_(divisor) for _, each in noised)]
            slots = [torch.empty(0, dtype=torch.int64)]
            for shard, (survivors, _) in zip(self.places.own, noised, strict=True):
                if (local := survivors.local[number]) is not None:
                    slots.append(local + self.places.part(number, shard).start)
            every = noised[0][0].rows is None
            released.append(
                RowGradient(None if every else torch.cat(slots), torch.cat([v.to(self.dtype) for v in values]))
            )
        return released


class _ShardBatch:
    """What an algorithm may ask of a batch, within one shard."""

    def __init__(self, touched: Rows, summed: NDArray[np.float64] | None) -> None:
        self._contributions = _ShardContributions(torch.from_numpy(touched), summed)

    def contributions(self) -> _ShardContributions:
        """See :meth:`dpfest.engine.LogicalBatch.contributions`."""
        return self._contributions


class _ShardContributions:
    """Touched rows of a shard, and the sums of the clipped maps there, which were clipped where the examples are."""

    def __init__(self, rows: Tensor, summed: NDArray[np.float64] | None) -> None:
        self.rows, self._summed = rows, summed

    def within(self, selected: Tensor) -> _ShardContributions:
        """See :meth:`dpfest.survivors.Contributions.within`; maps were clipped within the selection."""
        assert self._summed is not None
        rank, inside = locate(selected, self.rows)
        return _ShardContributions(rank[inside], self._summed[inside.numpy()])

    def clipped(self, contribution_clipping_norm: float, grid: float = 0.0) -> Tensor:
        """See :meth:`dpfest.survivors.Contributions.clipped`."""
        assert self._summed is not None
        return torch.from_numpy(self._summed)


def _contributions(lookups: Lookups, part: MicroBatch) -> Contributions:
    return Contributions(lookups.rows, lookups.row_of, lookups.example, len(part.examples))


def _in_shard(rows: Tensor, shard: int, shards: int) -> Tensor:
    return rows[rows % shards == shard] // shards


def _by_table(flat: Tensor, survivors: Survivors) -> list[Tensor]:
    parts = flat.split([math.prod(shape) for shape in survivors.shapes])
    return [part.view(tuple(shape)) for part, shape in zip(parts, survivors.shapes, strict=True)]
