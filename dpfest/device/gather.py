"""Look-ups of the forward pass: the rows of all tables in one launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import torch
import triton
import triton.language as tl
from torch import Tensor

from dpfest.device.memory import blocks, launch, power_of_two, wholes
from dpfest.device.sums import FLOATS

_BLOCK, _WIDTH = 64, 64
_COLUMNS = tl.constexpr(8)


@triton.jit
def gather(uses, out, FLOAT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Write the rows that each table is asked for, programs of axis 1 a table each; zeros for rows that it lacks.

    Memory:
        uses: of each table, address of its ids, and the step from one to the next; their number; address of its
            weight, and the step from row to row; number of rows; dimension; where its rows begin in ``out``.
    """
    own = uses + tl.program_id(1) * _COLUMNS
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < tl.load(own + 2)
    ids = tl.load(own).to(tl.pointer_type(tl.int64))
    row = tl.load(ids + lane * tl.load(own + 1), mask=inside, other=0)
    weight = tl.load(own + 3).to(tl.pointer_type(FLOAT)) + row * tl.load(own + 4)
    there = inside & (row >= 0) & (row < tl.load(own + 5))
    dim = tl.load(own + 6)
    at = tl.load(own + 7) + lane * dim
    column = dim * 0
    while column < dim:
        columns = column + tl.arange(0, WIDTH)
        within = columns[None, :] < dim
        x = tl.load(weight[:, None] + columns[None, :], mask=there[:, None] & within, other=0.0)
        tl.store(out + at[:, None] + columns[None, :], x, mask=inside[:, None] & within)
        column += WIDTH


def reads(weights: Sequence[Tensor]) -> bool:
    """Return whether :func:`look_up_together` reads tables of these weights."""
    types = {weight.dtype for weight in weights}
    return len(types) == 1 and types <= FLOATS.keys() and all(weight.stride(1) == 1 for weight in weights)


def look_up_together(weights: Sequence[Tensor], columns: Sequence[Tensor]) -> list[Tensor]:
    """Return the rows ``[..., dim]`` of each table's ids ``[...]``.

    Of ids that a table lacks, whose rows are zeros here, :class:`dpfest.device.lookups.Lookups` tells.
    """
    ids = [column.long().reshape(-1) for column in columns]
    shapes = [(*column.shape, weight.shape[1]) for column, weight in zip(columns, weights, strict=True)]
    sizes = [math.prod(shape) for shape in shapes]
    out = torch.empty(sum(sizes), dtype=weights[0].dtype, device=weights[0].device)
    rows, first = [], 0
    for own, weight, size in zip(ids, weights, sizes, strict=True):
        of_table = weight.data_ptr(), weight.stride(0), *weight.shape
        rows.append([own.data_ptr(), own.stride(0), len(own), *of_table, first])
        first += size
    width = min(power_of_two(max(weight.shape[1] for weight in weights)), _WIDTH)
    grid = blocks(max(map(len, ids)), _BLOCK), len(weights)
    launch(
        gather, grid, wholes(out.device, tuple(chain(*rows))), out, FLOAT=FLOATS[out.dtype], WIDTH=width, BLOCK=_BLOCK
    )
    return [part.view(shape) for part, shape in zip(out.split(sizes), shapes, strict=True)]
