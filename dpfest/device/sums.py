"""Norms of examples' gradients and their clipped sums on a GPU: floats are added along sorted look-ups, in one order.

The gradient of a (row, example) pair is the sum over its look-ups, of which the norm is taken. Gradients are read where
the backward pass left them; sums are of float64, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dpfest.device.memory import blocks, launch, power_of_two, table, wholes
from dpfest.gradients.factors import Factors, TransposedLinearFactors
from dpfest.gradients.layers import LinearFactors
from dpfest.gradients.tables import Survivors, locate

if TYPE_CHECKING:
    from dpfest.device.lookups import Lookups

_BLOCK = 128  # rows, look-ups or examples of a program that reads no gradient
_RUNS, _TILE = 16, 32  # look-ups at a time of a program, in norms and in sums
_WIDTH = 64  # most columns at a time
_GRADIENT = tl.constexpr(3)  # columns of a call: address, step from row to row, width


@triton.jit(do_not_specialize=["n", "bits"])
def lookup_norms(
    keys, rank, new, call_of, output_of, position, gradients, out, n, bits,
    FLOAT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the squared norm of each pair's gradient at the place of its first look-up, and 0 elsewhere: ``out [n]``.

    Memory:
        keys, rank, new, call_of, output_of: see :class:`dpfest.device.lookups.Lookups`.
        position: rank of each touched row among the survivors, -1 if it is none.
        gradients: of each call.
        FLOAT: type of the gradients.
    """
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < n
    key = tl.load(keys + lane, mask=inside, other=0)
    place, row = key & ((tl.cast(1, tl.int64) << bits) - 1), key >> bits
    first = inside & (tl.load(new + n + lane, mask=inside, other=0) != 0)
    first = first & (tl.load(position + tl.load(rank + lane, mask=first, other=1) - 1, mask=first, other=-1) >= 0)
    call = gradients + tl.load(call_of + lane, mask=first, other=0) * _GRADIENT
    width = tl.load(call + 2, mask=first, other=0)
    most = tl.max(width, 0)
    total = tl.zeros([BLOCK], dtype=tl.float64)
    column = most * 0
    while column < most:
        columns = column + tl.arange(0, WIDTH)
        summed = tl.zeros([BLOCK, WIDTH], dtype=tl.float64)
        on, at = first, lane
        while tl.max(on.to(tl.int32), 0) > 0:
            call = gradients + tl.load(call_of + at, mask=on, other=0) * _GRADIENT
            output = tl.load(output_of + at, mask=on, other=0)
            start = tl.load(call, mask=on, other=0).to(tl.pointer_type(FLOAT))
            start += output * tl.load(call + 1, mask=on, other=0)
            mask = on[:, None] & (columns[None, :] < width[:, None])
            summed += tl.load(start[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float64)
            at += 1
            on = on & (at < n)
            on = on & (tl.load(new + n + at, mask=on, other=1) == 0)
            on = on & ((tl.load(keys + at, mask=on, other=0) >> bits) == row)  # padding is of no row
        total += tl.sum(summed * summed, 1)
        column += WIDTH
    tl.store(out + place, total, mask=inside)


@triton.jit(do_not_specialize=["examples"])
def matrix_norms(matrices, out, examples, FLOAT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Write the squared norms of matrices' rows, programs of axis 1 one each: ``out [matrices, examples]``."""
    matrix = matrices + tl.program_id(1) * _GRADIENT
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < examples
    start = tl.load(matrix).to(tl.pointer_type(FLOAT)) + lane * tl.load(matrix + 1)
    width = tl.load(matrix + 2)
    total = tl.zeros([BLOCK], dtype=tl.float64)
    column = width * 0
    while column < width:
        columns = column + tl.arange(0, WIDTH)
        mask = inside[:, None] & (columns[None, :] < width)
        x = tl.load(start[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float64)
        total += tl.sum(x * x, 1)
        column += WIDTH
    tl.store(out + tl.program_id(1) * examples + lane, total, mask=inside)


@triton.jit(do_not_specialize=["layers", "tables", "examples", "count"])
def join(
    squared, lookups, spans, tables, units, matrices, trained, layers, examples, count,
    UNITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add each example's (or unit's) squared norms of look-ups and of linear layers to ``squared [count]``.

    Memory:
        lookups: by place.
        spans: place of the first look-up of each table, and look-ups of an example.
        units: first example of each unit, and the number of examples, if there are UNITS.
        matrices: squared norms of each layer's inputs, then of each layer's output gradients, ``[2 layers, examples]``.
        trained: whether each layer's weight and bias are.
    """
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < count
    begin, end = lane.to(tl.int64), lane.to(tl.int64) + 1
    if UNITS:
        begin = tl.load(units + lane, mask=inside, other=0)
        end = tl.load(units + lane + 1, mask=inside, other=0)
    total = tl.load(squared + lane, mask=inside, other=0.0).to(tl.float64)
    at = 0
    while at < tables:
        step = tl.load(spans + 2 * at + 1)
        place = tl.load(spans + 2 * at) + begin * step
        last = tl.where(inside, place + (end - begin) * step, place)
        while tl.max((last - place), 0) > 0:
            total += tl.load(lookups + place, mask=place < last, other=0.0)
            place += 1
        at += 1
    layer = 0
    while layer < layers:
        x = tl.load(matrices + layer * examples + lane, mask=inside, other=0.0)
        slope = tl.load(matrices + (layers + layer) * examples + lane, mask=inside, other=0.0)
        weight, bias = tl.load(trained + 2 * layer), tl.load(trained + 2 * layer + 1)
        total += tl.where(weight != 0, x * slope, 0.0) + tl.where(bias != 0, slope, 0.0)
        layer += 1
    tl.store(squared + lane, total.to(squared.dtype.element_ty), mask=inside)


@triton.jit
def row_sums(
    position, rows, starts, unit_of, call_of, output_of, gradients, weights, offsets, sums, tables,
    WEIGHTED: tl.constexpr, FLOAT: tl.constexpr, SUM: tl.constexpr, COUNT: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Add the weighted sum of each surviving row's gradients to its own, a program a touched row.

    Memory:
        position: see :func:`lookup_norms`.
        weights: of each example (or unit), if they are WEIGHTED; of those of weight 0 nothing is read.
        offsets: first global row of each table.
        sums: address of each table's sums, of type SUM, and its first survivor.
    """
    touched = tl.program_id(0)
    survivor = tl.load(position + touched)
    if survivor >= 0:
        each = tl.arange(0, COUNT)
        first = tl.load(offsets + each, mask=each < tables, other=9223372036854775807)
        number = tl.sum((first <= tl.load(rows + touched)).to(tl.int32), 0) - 1
        begin, end = tl.load(starts + touched), tl.load(starts + touched + 1)
        width = tl.load(gradients + tl.load(call_of + begin) * _GRADIENT + 2)
        target = tl.load(sums + 2 * number).to(tl.pointer_type(SUM))
        target += (survivor - tl.load(sums + 2 * number + 1)) * width
        column = width * 0
        while column < width:
            columns = column + tl.arange(0, WIDTH)
            total = tl.zeros([WIDTH], dtype=tl.float64)
            at = begin
            while at < end:
                lane = at + tl.arange(0, TILE)
                inside = lane < end
                weight = inside.to(tl.float64)
                if WEIGHTED:
                    unit = tl.load(unit_of + lane, mask=inside, other=0)
                    weight = tl.load(weights + unit, mask=inside, other=0.0).to(tl.float64)
                read = inside & (weight != 0)
                call = gradients + tl.load(call_of + lane, mask=read, other=0) * _GRADIENT
                start = tl.load(call, mask=read, other=0).to(tl.pointer_type(FLOAT))
                start += tl.load(output_of + lane, mask=read, other=0) * tl.load(call + 1, mask=read, other=0)
                mask = read[:, None] & (columns[None, :] < width)
                x = tl.load(start[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float64)
                total += tl.sum(x * weight[:, None], 0)
                at += TILE
            total += tl.load(target + columns, mask=columns < width, other=0.0).to(tl.float64)
            tl.store(target + columns, total.to(SUM), mask=columns < width)
            column += WIDTH


FLOATS = {torch.float32: tl.float32, torch.float64: tl.float64}


class MaskedLookups:
    """What :class:`dpfest.gradients.embeddings.MaskedLookups` is."""

    def __init__(self, lookups: Lookups, survivors: Survivors) -> None:
        self._lookups, self._survivors = lookups, survivors
        self._float = FLOATS[lookups.gradients[0].dtype]
        self._width = min(power_of_two(max(one.shape[1] for one in lookups.gradients)), _WIDTH)
        self._position = lookups.rows
        if survivors.rows is not None:
            position, there = locate(survivors.rows, lookups.rows)
            self._position = torch.where(there, position, -1)

    def add_squared_norms(self, squared_norms: Tensor) -> None:
        """See :meth:`dpfest.gradients.embeddings.MaskedLookups.add_squared_norms`."""
        self.add_all_squared_norms(squared_norms, [])

    def add_all_squared_norms(self, squared_norms: Tensor, factors: Sequence[LinearFactors]) -> None:
        """Add each example's squared norm over the surviving rows and these layers to ``squared_norms [b]``."""
        own, device, examples = self._lookups, squared_norms.device, self._lookups.examples
        n = own.calls.lookups
        of_lookups = torch.empty(n, dtype=torch.float64, device=device)
        launch(
            lookup_norms, (blocks(n, _RUNS),), own.keys, own.rank, own.new, own.call_of, own.output_of,
            self._position, own.gradient_rows, of_lookups, n, own.place_bits, FLOAT=self._float, WIDTH=self._width,
            BLOCK=_RUNS,
        )  # fmt: skip
        of_matrices, trained = _matrix_norms(factors, examples) if factors else (of_lookups, wholes(device, (0,)))
        spans, groups = table(device, own.calls.spans), own.groups
        units = of_lookups if groups is None else groups.bounds
        launch(
            join, (blocks(len(squared_norms), _BLOCK),), squared_norms, of_lookups, spans, len(own.calls.spans), units,
            of_matrices, trained, len(factors), examples, len(squared_norms), UNITS=groups is not None,
            BLOCK=_BLOCK,
        )  # fmt: skip

    def add_weighted_sums(self, weight: Tensor | None, tables: Sequence[Tensor]) -> None:
        """See :class:`~dpfest.gradients.embeddings.MaskedLookups`; the sums of a row lie side by side."""
        own, device = self._lookups, self._position.device
        of_tables = zip(tables, self._survivors.bounds[:-1], strict=True)
        sums = table(device, [[one.data_ptr(), first] for one, first in of_tables])
        launch(
            row_sums, (len(own.rows),), self._position, own.rows, own.starts, own.unit_of, own.call_of, own.output_of,
            own.gradient_rows, sums if weight is None else weight, wholes(device, own.layout.offsets), sums,
            len(tables), WEIGHTED=weight is not None, FLOAT=self._float, SUM=FLOATS[tables[0].dtype],
            COUNT=power_of_two(len(tables)), WIDTH=self._width, TILE=_TILE, num_warps=4,
        )  # fmt: skip


def add_squared_norms(pairs: Any, factors: Sequence[Factors], squared_norms: Tensor) -> None:
    """Add each example's (or unit's) squared norm over these pairs and layers to ``squared_norms``."""
    own = isinstance(pairs, MaskedLookups)
    plain = [
        one for one in factors
        if own and isinstance(one, LinearFactors) and one.groups is None and one.inputs.dim() == 2
        and type(one) in (LinearFactors, TransposedLinearFactors)
    ]  # fmt: skip
    for layer in factors:
        if not any(layer is one for one in plain):
            squared_norms += layer.squared_norms()
    if own:
        pairs.add_all_squared_norms(squared_norms, plain)
    else:
        pairs.add_squared_norms(squared_norms)


def _matrix_norms(factors: Sequence[LinearFactors], examples: int) -> tuple[Tensor, Tensor]:
    """Return squared norms of each layer's inputs and output gradients, and whether its weight and bias are trained."""
    matrices = [*(one.inputs for one in factors), *(one.gradients for one in factors)]
    matrices = [one if one.stride(1) == 1 else one.contiguous() for one in matrices]
    device = matrices[0].device
    rows = table(device, [[one.data_ptr(), one.stride(0), one.shape[1]] for one in matrices])
    out = torch.empty(len(matrices), examples, dtype=torch.float64, device=device)
    launch(
        matrix_norms, (blocks(examples, _RUNS), len(matrices)), rows, out, examples,
        FLOAT=FLOATS[matrices[0].dtype], WIDTH=_WIDTH, BLOCK=_RUNS,
    )  # fmt: skip
    trained = [
        int(parameter is not None and parameter.requires_grad)
        for one in factors for parameter in (one.layer.weight, one.layer.bias)
    ]  # fmt: skip
    return out, wholes(device, tuple(trained))
