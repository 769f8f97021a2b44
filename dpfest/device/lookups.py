"""Which rows each example touched, on a GPU: the look-ups of all tables as one sorted list, and the map's sums.

A look-up's *place* orders those of one row: by example, then by call. A key is (global row, place), so that one sort
orders all look-ups, and all else is found from a place by the calls that they were made in (:class:`Calls`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from dpfest.device.memory import blocks, launch, power_of_two, reals, table
from dpfest.device.sums import FLOATS, MaskedLookups
from dpfest.errors import UserError
from dpfest.gradients.embeddings import OTHER_ROWS, refuse_lacking_ids
from dpfest.gradients.layers import Call
from dpfest.gradients.tables import Survivors, TableLayout
from dpfest.gradients.units import Groups

_BLOCK = 128  # look-ups of a program
_COLUMNS = tl.constexpr(10)  # of a call: what Calls writes of it


@triton.jit(do_not_specialize=["examples", "universe", "bits"])
def keys(out, calls, lacking, examples, universe, bits, BLOCK: tl.constexpr):
    """Write the key of every look-up, programs of axis 1 a call each; padding has the row after the last.

    Memory:
        lacking: number of look-ups of rows that their tables lack, which are taken for padding.
    """
    call = calls + tl.program_id(1) * _COLUMNS
    length = tl.load(call + 3)
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < examples * length
    example, within = lane // length, lane % length
    ids = tl.load(call).to(tl.pointer_type(tl.int64))
    row = tl.load(ids + example * tl.load(call + 1) + within * tl.load(call + 2), mask=inside, other=0)
    place = tl.load(call + 4) + example * tl.load(call + 6) + within
    lacks = inside & ((row < 0) | (row >= tl.load(call + 9)))
    tl.atomic_add(lacking + row * 0, lacks.to(tl.int32), mask=lacks)
    row = tl.where(lacks | (row == tl.load(call + 8)), universe, row + tl.load(call + 7))
    tl.store(out + place, (row << bits) | place, mask=inside)


@triton.jit
def _found(place, calls, count, COUNT: tl.constexpr):
    """Return the example of places, the call, and the row of the call's output."""
    each = tl.arange(0, COUNT)
    start = tl.load(calls + each * _COLUMNS + 4, mask=each < count, other=9223372036854775807)
    base = tl.load(calls + each * _COLUMNS + 5, mask=each < count, other=9223372036854775807)
    last = tl.sum((base[None, :] <= place[:, None]).to(tl.int32), 1) - 1  # a call of the same table
    base_of = tl.load(calls + last * _COLUMNS + 5)
    step = tl.load(calls + last * _COLUMNS + 6)
    example, within = (place - base_of) // step, (place - base_of) % step
    call = tl.sum((start[None, :] <= (base_of + within)[:, None]).to(tl.int32), 1) - 1
    before = tl.load(calls + call * _COLUMNS + 4) - base_of
    return example, call, example * tl.load(calls + call * _COLUMNS + 3) + within - before


@triton.jit(do_not_specialize=["n", "count", "universe", "bits"])
def heads(
    keys, calls, units, new, unit_of, call_of, output_of, n, count, universe, bits,
    UNITS: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write what sorted look-ups are of, and where a row and a (row, example) pair begins; padding begins nothing.

    Memory:
        keys: sorted, ``[n]``.
        units: unit of each example, if there are UNITS.
        new: flags ``[2, n]``: of a row, of a pair.
        unit_of, call_of, output_of: example (or unit), call and row of its output of each look-up, ``[n]``.
    """
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < n
    key = tl.load(keys + lane, mask=inside, other=0)
    before = tl.load(keys + lane - 1, mask=inside & (lane > 0), other=-1)
    places = (tl.cast(1, tl.int64) << bits) - 1
    unit, call, output = _found(key & places, calls, count, COUNT)
    unit_before, _, _ = _found(tl.where(before < 0, 0, before & places), calls, count, COUNT)
    if UNITS:
        unit, unit_before = tl.load(units + unit), tl.load(units + unit_before)
    row = key >> bits
    new_row = (row != (before >> bits)) & (row < universe)
    tl.store(new + lane, new_row.to(tl.int32), mask=inside)
    tl.store(new + n + lane, (new_row | ((unit != unit_before) & (row < universe))).to(tl.int32), mask=inside)
    tl.store(unit_of + lane, unit, mask=inside)
    tl.store(call_of + lane, call, mask=inside)
    tl.store(output_of + lane, output, mask=inside)


@triton.jit(do_not_specialize=["n", "universe", "bits"])
def compact(keys, new, rank, unit_of, rows, starts, row_of, example, n, universe, bits, BLOCK: tl.constexpr):
    """Write the distinct rows, where the look-ups of each begin (and end), and the (row, example) pairs.

    Memory:
        rank: cumulative sums of ``new``, ``[2, n]``.
    """
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < n
    row = tl.load(keys + lane, mask=inside, other=0) >> bits
    inside = inside & (row < universe)
    after = tl.load(keys + lane + 1, mask=inside & (lane + 1 < n), other=9223372036854775807) >> bits
    new_row = tl.load(new + lane, mask=inside, other=0) != 0
    new_pair = tl.load(new + n + lane, mask=inside, other=0) != 0
    of_row = tl.load(rank + lane, mask=inside, other=1) - 1
    of_pair = tl.load(rank + n + lane, mask=inside, other=1) - 1
    tl.store(rows + of_row, row, mask=inside & new_row)
    tl.store(starts + of_row, lane, mask=inside & new_row)
    tl.store(starts + of_row + 1, lane + 1, mask=inside & (after >= universe))
    tl.store(row_of + of_pair, of_row, mask=inside & new_pair)
    tl.store(example + of_pair, tl.load(unit_of + lane, mask=inside, other=0), mask=inside & new_pair)


@triton.jit(do_not_specialize=["pairs"])
def count_rows(example, counts, pairs, BLOCK: tl.constexpr):
    """Count the rows of each example, ``counts [b]``: whole numbers, which are exact in any order."""
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < pairs
    tl.atomic_add(counts + tl.load(example + lane, mask=inside, other=0), (lane >= 0).to(tl.int32), mask=inside)


@triton.jit(do_not_specialize=["pairs"])
def map_sums(example, row_of, counts, sums, pairs, reals, BLOCK: tl.constexpr):
    """Add each example's clipped map to ``sums [u]``, in units of the grid, rounded down: exact in any order.

    Memory:
        reals: clipping norm and grid.
    """
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < pairs
    count = tl.load(counts + tl.load(example + lane, mask=inside, other=0), mask=inside, other=1)
    norm, grid = tl.load(reals), tl.load(reals + 1)
    weight = norm / tl.maximum(tl.sqrt(count.to(tl.float64)), norm)
    weight = tl.where(weight < 1, weight * 0.9999999999999996, weight)  # 1 - 2^-51: see Contributions.clipped
    units = tl.floor(weight / grid).to(tl.int64)
    tl.atomic_add(sums + tl.load(row_of + lane, mask=inside, other=0), units, mask=inside)


def clipped_map(example: Tensor, row_of: Tensor, examples: int, rows: int, clipping_norm: float, grid: float) -> Tensor:
    """Do what :meth:`dpfest.gradients.contributions.Contributions.clipped` does, on a grid."""
    counts = torch.zeros(examples, dtype=torch.int32, device=example.device)
    sums = torch.zeros(rows, dtype=torch.int64, device=example.device)
    pairs = len(example)
    launch(count_rows, (blocks(pairs, _BLOCK),), example, counts, pairs, BLOCK=_BLOCK)
    numbers = reals(example.device, clipping_norm, grid)
    launch(map_sums, (blocks(pairs, _BLOCK),), example, row_of, counts, sums, pairs, numbers, BLOCK=_BLOCK)
    return sums.double() * grid


class Calls:
    """The calls of tables that look-ups were made in.

    Of each, the kernels read: address of its ids and their steps by example and within one; look-ups of an example;
    place of its first; place of its table's first, and look-ups of an example in it; first row of the table; padding;
    number of its rows.

    Attributes:
        uses: the layer of each, and the call.
        spans: place of each table's first look-up, and look-ups of an example in it.
        lookups: number of look-ups.
        longest: most look-ups of a call.
        shapes: of each, how many look-ups have which places, rows and padding.
        rows: what kernels read, int64 ``[calls, 10]``.
    """

    def __init__(self, layout: TableLayout, calls: Sequence[Sequence[tuple[Any, Call]]], examples: int) -> None:
        self.uses = [use for uses in calls for use in uses]
        self.spans: list[tuple[int, int]] = []
        self._ids: list[Tensor] = []
        found: list[list[int]] = []
        first = 0
        for number, uses in enumerate(calls):
            own = [call.input.long().reshape(examples, -1) for _, call in uses]
            before, length = first, sum(ids.shape[1] for ids in own)
            for (layer, _), ids in zip(uses, own, strict=True):
                padding = -1 if layer.padding_idx is None else layer.padding_idx
                of_table = first, length, layout.offsets[number], padding, layout.rows[number]
                found.append([ids.data_ptr(), *ids.stride(), ids.shape[1], before, *of_table])
                before += ids.shape[1]
            if uses:
                self.spans.append((first, length))
            self._ids += own  # kept while kernels may read them
            first += examples * length
        self.lookups, self.longest = first, examples * max(ids.shape[1] for ids in self._ids)
        self.device = self._ids[0].device
        self.shapes, self.rows = [one[3:] for one in found], table(self.device, found)


class Lookups:
    """What :class:`dpfest.gradients.embeddings.Lookups` is, of calls of ``nn.Embedding`` alone.

    Attributes:
        keys: sorted, ``[n]``: of each look-up its global row, and in the low ``place_bits`` its place.
        new: whether a row begins there, and a (row, example) pair, ``[2, n]``.
        rank: cumulative sums of that, ``[2, n]``.
        unit_of, call_of, output_of: its example (or unit), call and row of the call's output, ``[n]``.
        starts: where the look-ups of each row begin, and those of the last end, ``[u + 1]``.
    """

    def __init__(
        self,
        layout: TableLayout,
        calls: Sequence[Sequence[tuple[Any, Call]]],
        examples: int,
        groups: Groups | None,
    ) -> None:
        self.layout, self.examples, self.groups = layout, examples, groups
        self.calls = Calls(layout, calls, examples)
        n, device = self.calls.lookups, self.calls.device
        self.place_bits, self._universe = n.bit_length(), layout.total_rows
        self.keys, lacking = self._sorted(self.calls)
        new = torch.empty(2, n, dtype=torch.int32, device=device)
        self.unit_of, self.call_of, self.output_of = (
            torch.empty(n, dtype=torch.int64, device=device) for _ in range(3)
        )
        count, width = len(self.calls.uses), power_of_two(len(self.calls.uses))
        block = max(_BLOCK // max(width // 32, 1), 1)
        units = self.unit_of if groups is None else groups.of
        launch(
            heads, (blocks(n, block),), self.keys, self.calls.rows, units, new, self.unit_of, self.call_of,
            self.output_of, n, count, self._universe, self.place_bits, UNITS=groups is not None, COUNT=width,
            BLOCK=block,
        )  # fmt: skip
        rank = new.cumsum(1)
        rows, row_of, example = (torch.empty(n, dtype=torch.int64, device=device) for _ in range(3))
        self.starts = torch.empty(n + 1, dtype=torch.int64, device=device)
        launch(
            compact, (blocks(n, _BLOCK),), self.keys, new, rank, self.unit_of, rows, self.starts, row_of, example, n,
            self._universe, self.place_bits, BLOCK=_BLOCK,
        )  # fmt: skip
        u, pairs, lacks = torch.cat([rank[:, -1], lacking]).tolist()
        if lacks:
            refuse_lacking_ids(layout, calls)
        self.rank, self.new = rank, new
        self.rows, self.row_of, self.example = rows[:u], row_of[:pairs], example[:pairs]

    def _sorted(self, calls: Calls) -> tuple[Tensor, Tensor]:
        """Return sorted keys, and how many look-ups are of rows that their tables lack, ``[1]``."""
        out = torch.empty(calls.lookups, dtype=torch.int64, device=calls.device)
        lacking = torch.zeros(1, dtype=torch.int32, device=calls.device)
        grid = blocks(calls.longest, _BLOCK), len(calls.uses)
        launch(keys, grid, out, calls.rows, lacking, self.examples, self._universe, self.place_bits, BLOCK=_BLOCK)
        return torch.sort(out).values, lacking

    def take_calls(self, calls: Sequence[Sequence[tuple[Any, Call]]]) -> None:
        """See :meth:`dpfest.gradients.embeddings.Lookups.take_calls`."""
        now = Calls(self.layout, calls, self.examples)
        if now.shapes != self.calls.shapes or not torch.equal(self._sorted(now)[0], self.keys):
            raise UserError(OTHER_ROWS)
        self.calls = now

    def take_gradients(self) -> None:
        """Collect the calls' output gradients; call after the backward pass has filled them."""
        found = []
        for layer, call in self.calls.uses:
            gradient = call.gradient.reshape(-1, layer.embedding_dim).to(layer.weight.dtype)
            found.append(gradient if gradient.stride(1) == 1 else gradient.contiguous())
        self.gradients = found
        rows = [[one.data_ptr(), one.stride(0), one.shape[1]] for one in found]
        self.gradient_rows = table(self.calls.device, rows)

    def masked(self, survivors: Survivors) -> MaskedLookups:
        """See :meth:`dpfest.gradients.embeddings.Lookups.masked`."""
        return MaskedLookups(self, survivors)

    def drop(self, broken: Tensor) -> None:
        """Do nothing: of examples whose weight is 0 no gradient is read."""


def look_up(
    layout: TableLayout, calls: Sequence[Sequence[tuple[Any, Call]]], examples: int, groups: Groups | None
) -> Lookups | None:
    """Return the look-ups of these calls; None where there are others than of ``nn.Embedding``, or keys have no room.

    Bags, and tables used outside of look-ups, take the way of a CPU.
    """
    uses = [use for of_table in calls for use in of_table]
    count = sum(call.input.numel() for _, call in uses)
    fits = layout.total_rows.bit_length() + count.bit_length() < 64
    plain = all(isinstance(layer, nn.Embedding) and layer.weight.dtype in FLOATS for layer, _ in uses)
    return Lookups(layout, calls, examples, groups) if count and examples and fits and plain else None
