"""Noise on a GPU: which rows survive, from the noise of every row; noise on rows and on dense parameters.

Every variate is the one of :mod:`dpfest.noise.gaussian`, bit for bit. What float64 does not decide (one in ten million)
is listed by number, and decided by the host as on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from dpfest.device.chacha import words
from dpfest.device.memory import blocks, key, launch, reals, table
from dpfest.device.normal import append, nearest, pair, rint, unsure
from dpfest.gradients.tables import locate
from dpfest.noise.gaussian import Blocks, blocks_of, gaussian_grid
from dpfest.noise.keystream import Keystream
from dpfest.noise.placed_keystream import ChaCha
from dpfest.noise.places import DENSE, LANES, MAP, ROWS, TILE, DensePlaces, MapPlaces, RowPlaces

_BLOCK = 128  # lanes of a program, of one block of the cipher each
_TILE, _LANES = tl.constexpr(TILE), tl.constexpr(LANES)
_DENSE, _ROWS, _MAP = tl.constexpr(DENSE), tl.constexpr(ROWS), tl.constexpr(MAP)


@triton.jit
def _words_of(number, r0, a0, r1, a1, r2, a2, r3, a3):
    """Return radius and angle of a pair of a block, ``number`` a constant or a lane's own."""
    radius = tl.where(number == 0, r0, tl.where(number == 1, r1, tl.where(number == 2, r2, r3)))
    angle = tl.where(number == 0, a0, tl.where(number == 1, a1, tl.where(number == 2, a2, a3)))
    return radius, angle


@triton.jit
def _add(values, at, inside, x, factor, error, reals, found, places, rounded, room):
    deviation, size, inverse = tl.load(reals), tl.load(reals + 1), tl.load(reals + 2)
    unit = nearest(x)
    before = rint(tl.load(values + at, mask=inside, other=0).to(tl.float64) * inverse)
    tl.store(values + at, ((before + unit) * size).to(values.dtype.element_ty), mask=inside)
    flag = inside & unsure(0.5 - tl.abs(x - unit), factor, error, deviation)
    append(found, at, flag, before, places, rounded, room)


@triton.jit
def _add_block(
    values, at, step: tl.constexpr, inside, last, block, layout: tl.constexpr, key, reals, found, places, rounded, room
):
    """Add a block's eight variates to values ``at``, ``at + step``, ... that lie before ``last``."""
    r0, a0, r1, a1, r2, a2, r3, a3 = words(key, block, layout)
    deviation = tl.load(reals)
    for number in tl.static_range(4):
        radius, angle = _words_of(number, r0, a0, r1, a1, r2, a2, r3, a3)
        cosine, sine, factor, error = pair(radius, angle, deviation)
        now = at + 2 * number * step
        here = inside & (now >= 0) & (now < last)
        _add(values, now, here, cosine, factor, error, reals, found, places, rounded, room)
        now += step
        here = inside & (now >= 0) & (now < last)
        _add(values, now, here, sine, factor, error, reals, found, places, rounded, room)


@triton.jit(do_not_specialize=["count", "first", "room"])
def dense_noise(values, count, first, key, reals, found, places, rounded, room, BLOCK: tl.constexpr):
    """Add noise to coordinates ``first`` and those after it of the dense parameters, 128 lanes a tile of them.

    Memory:
        values: ``[count]``.
        reals: deviation in units of the grid, grid, 1 / grid.
        found, places, rounded, room: list of what is unsure: its number, and the sum in units before noise.
    """
    start = first.to(tl.int64) // _TILE
    block = start * _LANES + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = block // _LANES * _TILE + block % _LANES - first
    _add_block(values, at, _LANES, block >= 0, count, block, _DENSE, key, reals, found, places, rounded, room)


@triton.jit(do_not_specialize=["room"])
def row_noise(values, rows, tables, key, reals, found, places, rounded, room, EVERY: tl.constexpr, BLOCK: tl.constexpr):
    """Add noise to the values of some rows, a lane a block of eight coordinates, programs of axis 1 a table each.

    Memory:
        values: table by table and row by row.
        rows: their numbers, of all tables; not read if they are EVERY row.
        tables: of each, number of rows, values and rows before its own, and dimension.
    """
    own = tables + 4 * tl.program_id(1)
    count, start, begin, dim = tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
    per_row = (dim + 7) // 8
    first = tl.program_id(0).to(tl.int64) * BLOCK
    if first < count * per_row:  # a smaller table than the largest needs fewer programs
        lane = first + tl.arange(0, BLOCK)
        row, block = lane // per_row, lane % per_row
        inside = row < count
        number = begin + row
        if not EVERY:
            number = tl.load(rows + number, mask=inside, other=0)
        at = start + row * dim
        _add_block(
            values, at + 8 * block, 1, inside, at + dim, number + (block << 48), _ROWS, key, reals, found,
            places, rounded, room,
        )  # fmt: skip


@triton.jit
def _alive(number, inside, x, factor, error, least, deviation, found, places, rounded, room):
    """Return whether the nearest whole number to x is at least ``least``."""
    distance = x - (least - 0.5)
    flag = inside & unsure(tl.abs(distance), factor, error, deviation)
    append(found, number, flag, least, places, rounded, room)
    return (inside & (distance > 0)).to(tl.int64)


@triton.jit(do_not_specialize=["universe", "room"])
def untouched_rows(alive, universe, key, reals, found, places, rounded, room, BLOCK: tl.constexpr):
    """Write for every row whether its noise alone suffices, a lane eight rows and the eight bytes of a word.

    Memory:
        alive: a byte a row, in whole words.
        reals: deviation and what noise must reach, in units of the grid.
    """
    block = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    r0, a0, r1, a1, r2, a2, r3, a3 = words(key, block, _MAP)
    deviation, least = tl.load(reals), tl.load(reals + 1)
    flags = block * 0
    for number in tl.static_range(4):
        radius, angle = _words_of(number, r0, a0, r1, a1, r2, a2, r3, a3)
        cosine, sine, factor, error = pair(radius, angle, deviation)
        row = block * 8 + 2 * number
        inside = row < universe
        own = _alive(row, inside, cosine, factor, error, least, deviation, found, places, rounded, room)
        flags |= own << (16 * number)
        row += 1
        inside = row < universe
        own = _alive(row, inside, sine, factor, error, least, deviation, found, places, rounded, room)
        flags |= own << (16 * number + 8)
    tl.store(alive + block, flags, mask=block * 8 < universe)


@triton.jit(do_not_specialize=["count", "room"])
def touched_rows(alive, rows, sums, count, key, reals, found, places, rounded, room, BLOCK: tl.constexpr):
    """Write for every touched row whether its sum and its noise together suffice, a lane a row.

    Memory:
        alive: a byte a row.
        rows: ``[count]``.
        sums: the map there, multiples of the grid.
        reals: deviation and what sum and noise must reach, in units of the grid; 1 / grid.
    """
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < count
    row = tl.load(rows + lane, mask=inside, other=0)
    r0, a0, r1, a1, r2, a2, r3, a3 = words(key, row >> 3, _MAP)
    radius, angle = _words_of((row >> 1) & 3, r0, a0, r1, a1, r2, a2, r3, a3)
    deviation = tl.load(reals)
    cosine, sine, factor, error = pair(radius, angle, deviation)
    x = tl.where((row & 1) == 0, cosine, sine)
    least = tl.load(reals + 1) - rint(tl.load(sums + lane, mask=inside, other=0.0) * tl.load(reals + 2))
    own = _alive(row, inside, x, factor, error, least, deviation, found, places, rounded, room)
    tl.store(alive + row, own.to(tl.int8), mask=inside)


def surviving_rows(
    touched: Tensor, sums: Tensor, stream: Keystream, universe: int, threshold: float, deviation: float
) -> Tensor:
    """Do what :func:`dpfest.selection.survivors.surviving_rows` does by drawing the noise of every row."""
    grid, device = gaussian_grid(deviation), touched.device
    noise, least = blocks_of(stream, universe, deviation, MapPlaces(None)), math.ceil(threshold / grid)
    in_units = reals(device, deviation / grid, float(least), 1 / grid)
    alive = torch.empty(blocks(universe, 8), dtype=torch.int64, device=device)
    flags, listed, own = alive.view(torch.int8), _Unsure(universe, device), key(device, _secret(noise))
    launch(untouched_rows, (blocks(len(alive), _BLOCK),), alive, universe, own, in_units, *listed.room, BLOCK=_BLOCK)
    args = flags, touched.contiguous(), sums.contiguous(), len(touched), own, in_units
    launch(touched_rows, (blocks(len(touched), _BLOCK),), *args, *listed.room, BLOCK=_BLOCK)
    for row, _ in listed:
        place, there = locate(touched, touched.new_tensor([row]))
        due = least - (np.rint(float(sums[place]) / grid) if there else 0)
        flags[row] = int(noise.one(row) >= due)
    return torch.nonzero(flags[:universe]).squeeze(1)


def adds(noise: Blocks) -> bool:
    """Return whether :func:`add_noise` draws this noise: one deviation, on dense parameters or on all of some rows."""
    whole = isinstance(noise.at, DensePlaces) or (isinstance(noise.at, RowPlaces) and noise.at.ends[-1] == noise.count)
    return whole and isinstance(noise.grid.deviations(0, 1), float)


def add_noise(values: Tensor, noise: Blocks) -> None:
    """Do what :func:`dpfest.noise.gaussian.add_gaussian` does with the noise of these blocks."""
    device, at = values.device, noise.at
    size, deviation = float(noise.grid.sizes(0, 1)), float(noise.grid.deviations(0, 1))
    listed = _Unsure(len(values), device)
    args: tuple[Any, ...] = key(device, _secret(noise)), reals(device, deviation, size, 1 / size), *listed.room
    if isinstance(at, DensePlaces):
        tiles = blocks(at.first + len(values), TILE) - at.first // TILE
        launch(dense_noise, (blocks(tiles * LANES, _BLOCK),), values, len(values), at.first, *args, BLOCK=_BLOCK)
    else:
        assert isinstance(at, RowPlaces)
        lanes = max((rows * blocks(dim, 8) for rows, dim in at.shapes), default=0)
        before = zip(at.shapes, at.ends[:-1], at.bounds[:-1], strict=True)
        tables = table(device, [(rows, first, begin, dim) for (rows, dim), first, begin in before])
        rows, every = (values, True) if at.rows is None else (at.rows.to(device).contiguous(), False)
        grid = blocks(lanes, _BLOCK), len(at.shapes)
        launch(row_noise, grid, values, rows, tables, *args, EVERY=every, BLOCK=_BLOCK)
    for place, rounded in listed:
        values[place] = (rounded + noise.one(place)) * size


def _secret(noise: Blocks) -> bytes:
    assert isinstance(noise.stream, ChaCha)
    return noise.stream.secret


class _Unsure:
    """A list that a kernel appends to, of those of so many values that it is not sure of."""

    def __init__(self, values: int, device: torch.device) -> None:
        self._size = 64 + values // 1024  # one in ten million is unsure
        self._found = torch.zeros(1, dtype=torch.int32, device=device)
        self._places = torch.empty(self._size, dtype=torch.int64, device=device)
        self._values = torch.empty(self._size, dtype=torch.float64, device=device)

    @property
    def room(self) -> tuple[Any, ...]:
        """Arguments of the kernel."""
        return self._found, self._places, self._values, self._size

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Yield place and value of each; waits for the kernel."""
        if not (found := int(self._found)):
            return
        if found > self._size:
            raise RuntimeError(f"{found} variates are unsure, of which there should be {self._size} at most.")
        yield from zip(self._places[:found].tolist(), self._values[:found].tolist(), strict=True)
