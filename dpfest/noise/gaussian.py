"""Gaussian noise on a grid: each variate is the nearest grid point to a real Gaussian.

A floating-point sampler of normals reaches only some floats, and which sums it reaches depends on the values it is
added to: the last bits of a release can distinguish neighbours (Mironov, 2012). Remedy: sums and noise are multiples of
one power of two, the *grid* g, between 2^-25 and 2^-24 standard deviations. For x on the grid,
``x + round(N) = round(x + N)``, so the release is post-processing of a real Gaussian mechanism. It remains to draw
``round(N)`` with the law of a rounded real Gaussian, which :mod:`dpfest.noise.box_muller` computes.

Formal guarantee: a draw's total variation distance from the rounded real Gaussian is at most 2^-100, since in 320-bit
arithmetic only values within 2^-127 deviations of a midpoint are undecided, and there are 2^25 midpoints per deviation,
with the density of a normal below 0.4 on each: 10^12 variates are within 2^-60. It rests on the key's cipher
(:mod:`dpfest.noise.key`), on IEEE 754, and on an error of at most four units in the last place in the logarithm,
numpy's or the compiled loop's. As each variate is *the* nearest grid point, it does not depend on machine, versions,
threads, device, or whether loops are compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpfest import devices, kernels
from dpfest.kernels import Whole32
from dpfest.noise.box_muller import BLOCK, GRID_BITS, Floats, Scratch, nearest_normals
from dpfest.noise.keystream import Keystream, Words
from dpfest.noise.placed_keystream import ChaCha
from dpfest.noise.places import Places

Deviation = float | Floats | Tensor

ROUNDING_ALLOWANCE = 2.0**-10
"""Share of a clipping norm charged to the sensitivity: how far the floating-point rounding of the others' sum may move
when one example is added or removed. docs/PRIVACY.md has measurements, and crafted data that exceed it in float32.
"""
_CUDA_BLOCKS = 64  # blocks copied to a GPU at a time
_PER_THREAD = 1 << 20  # variates, at least: for some milliseconds after an operation, torch's threads wait busily


def gaussian_grid(deviation: float) -> float:
    """Return the grid ``g``, a power of two, for noise of this deviation: ``2^24 <= deviation / g < 2^25``.

    Raises:
        ValueError: the deviation is not a finite number above 2^-960, below which there is no grid.
    """
    if not 2.0**-960 <= deviation < math.inf:
        raise ValueError(f"Noise of scale {deviation} cannot be drawn: the scale must be positive and finite.")
    return math.ldexp(1.0, math.frexp(deviation)[1] - GRID_BITS)


def charged_deviation(
    noise_multiplier: float,
    clipping_norm: float,
    coordinates: float,
    grid_of: Callable[[float], float] = gaussian_grid,
) -> float:
    """Return the standard deviation of noise for a sum that is rounded to the grid of that very noise.

    Rounding moves each coordinate of two neighbouring sums by at most ``g / 2``, so their distance grows from
    ``clipping_norm`` to at most ``clipping_norm + g sqrt(coordinates)``.

    Args:
        noise_multiplier: sigma.
        clipping_norm: sensitivity without rounding.
        coordinates: of the sum.
        grid_of: returns g, a power of two, for noise of a deviation.

    Returns:
        ``s = noise_multiplier (clipping_norm + grid_of(s) sqrt(coordinates))``: larger than without the charge by a
        factor of at most ``1 + noise_multiplier sqrt(coordinates) 2^-24``, on the grid of :func:`gaussian_grid`.

    Formal guarantee: :func:`add_gaussian` with this deviation, on sums of clipped terms of l2-sensitivity
    ``clipping_norm``, is a Gaussian mechanism of this noise multiplier.

    Raises:
        ValueError: so many coordinates that the charge would dominate the noise.
    """
    if noise_multiplier * math.sqrt(coordinates) * grid_of(1.0) > 2.0**-4:
        raise ValueError(
            f"{coordinates:,.0f} coordinates under a noise multiplier of {noise_multiplier:g} are too many for noise "
            "on a grid: rounding them would cost more than a sixteenth of the noise."
        )
    deviation = noise_multiplier * clipping_norm
    if deviation == 0:
        return 0.0
    grid = 0.0
    while grid != grid_of(deviation):  # at most twice: a larger grid's charge does not reach the next
        grid = grid_of(deviation)
        deviation = noise_multiplier * (clipping_norm + grid * math.sqrt(coordinates))
    return deviation


def gaussian(stream: Keystream, count: int, deviation: float) -> Floats:
    """Draw normal variates of mean 0 and this standard deviation, multiples of its grid: float64 ``[count]``.

    Formal guarantee: within 2^-100 per variate of the rounded real Gaussian (see the module).

    Raises:
        ValueError: see :func:`gaussian_grid`.
    """
    units = draw_units(stream, count, deviation)
    units *= gaussian_grid(deviation)
    return units


def draw_units(stream: Keystream, count: int, deviation: float, at: Places | None = None) -> Floats:
    """Return what :func:`add_gaussian` adds, in units of the grid: whole numbers, float64 ``[count]``."""
    out = np.empty(count)

    def write(start: int, units: Floats, _: Floats) -> None:
        out[start : start + len(units)] = units

    _draw(blocks_of(stream, count, deviation, at), write)
    return out


def add_units(values: Tensor, units: Floats, deviation: float) -> None:
    """Add noise of :func:`draw_units` as :func:`add_gaussian` does, to contiguous values on the CPU, in place."""
    _add(values.detach().view(-1).numpy(), units, gaussian_grid(deviation))


def add_whole(values: Tensor, units: Whole32, size: float) -> None:
    """Round contiguous values to multiples of ``size``, a power of two, and add so many units of it, in place.

    As exact as :func:`add_gaussian`, and the same on every device.
    """
    flat = values.detach().view(-1)
    if flat.device.type == "cpu":
        _add(flat.numpy(), units, size)
    else:
        flat.copy_(((flat.double() / size).round_() + torch.from_numpy(units).to(flat.device)) * size)


def add_gaussian(values: Tensor, stream: Keystream, deviation: Deviation, at: Places | None = None) -> None:
    """Round values to the noise's grid and add the noise of :func:`gaussian`, in place.

    The sum is exact in float64 for values below 2^27 deviations, and is rounded once more to the tensor's own dtype. A
    tensor on a GPU gets the same bits as one on the CPU.

    Args:
        values: contiguous float32 or float64, of any shape.
        stream: source of the draw.
        deviation: the standard deviation; or one for each row of ``values [rows, dim]``, ``[rows]``, each with its own
            grid.
        at: which coordinates the values are. Under ``chacha20/1`` their noise is a function of that, and two draws of a
            stream at the same places are the same noise; under AES it follows the stream's order. None for values of no
            place but the stream's next.

    Formal guarantee: post-processing of ``round(values) + N(0, deviation^2)``, within 2^-100 per value;
    :func:`charged_deviation` accounts for the rounding.

    Raises:
        ValueError: values of another dtype or not contiguous; a deviation that is not positive and finite.
    """
    if values.dtype not in (torch.float32, torch.float64) or not values.is_contiguous():
        raise ValueError(
            f"Noise is added in place to contiguous float32 or float64 values; these are {values.dtype}"
            f"{'' if values.is_contiguous() else ', not contiguous'}."
        )
    flat, grid = values.detach().view(-1), _Grid(deviation, values.shape)
    blocks = _blocks(stream, len(flat), grid, at)
    if not len(flat):
        return
    if (parts := devices.serving(flat)) and parts.adds(blocks):
        return parts.add_noise(flat, blocks)
    if flat.device.type != "cpu":
        return _add_elsewhere(flat, blocks)
    array = flat.numpy()

    def add(start: int, units: Floats, scratch: Floats) -> None:
        _add(array[start : start + len(units)], units, grid.sizes(start, len(units)), scratch)

    _draw(blocks, add)


def _add(values: Floats, units: Floats | Whole32, size: float | Floats, rounded: Floats | None = None) -> None:
    """Round values to multiples of ``size`` and add units of it, in place."""
    if kernels.library:
        return kernels.add_units(values, units, size)
    rounded = np.empty(len(values)) if rounded is None else rounded
    np.multiply(values, 1 / size, out=rounded, dtype=np.float64)
    np.rint(rounded, out=rounded)
    rounded += units
    np.multiply(rounded, size, out=values, dtype=np.float64, casting="same_kind")


def _add_elsewhere(flat: Tensor, blocks: Blocks) -> None:
    for start in range(0, len(flat), _CUDA_BLOCKS * BLOCK):
        part = flat[start : start + _CUDA_BLOCKS * BLOCK]
        units = np.empty(len(part))

        def write(at: int, drawn: Floats, _: Floats, units: Floats = units) -> None:
            units[at : at + len(drawn)] = drawn

        _draw(blocks.part(start, len(part)), write)
        size = torch.as_tensor(blocks.grid.sizes(start, len(part)), device=flat.device, dtype=torch.float64)
        units_there = torch.from_numpy(units).to(flat.device)
        part.copy_(((part.double() / size).round_() + units_there) * size)


class _Grid:
    """Grid size, and standard deviation in units of it, of every value: one for all, or one per row."""

    def __init__(self, deviation: Deviation, shape: torch.Size | None = None) -> None:
        self._width = 0
        if isinstance(deviation, float | int):
            self.size = gaussian_grid(deviation)
            self.deviation = deviation / self.size
            return
        rows = np.asarray(deviation.cpu() if isinstance(deviation, Tensor) else deviation, dtype=np.float64)
        if shape is None or len(shape) != 2 or rows.shape != shape[:1]:
            raise ValueError(f"{rows.shape} deviations, one per row, do not fit values of shape {tuple(shape or ())}.")
        for extreme in (rows.min(), rows.max()) if len(rows) else ():
            gaussian_grid(float(extreme))
        mantissa, exponent = np.frexp(rows)
        self._sizes, self._deviations = np.ldexp(1.0, exponent - GRID_BITS), np.ldexp(mantissa, GRID_BITS)
        self._width = shape[1]

    def sizes(self, start: int, count: int) -> float | Floats:
        return self._of_rows(self._sizes, start, count) if self._width else self.size

    def deviations(self, start: int, count: int) -> float | Floats:
        return self._of_rows(self._deviations, start, count) if self._width else self.deviation

    def _of_rows(self, rows: Floats, start: int, count: int) -> Floats:
        row, within = divmod(start, self._width)
        last = (start + count - 1) // self._width
        return np.repeat(rows[row : last + 1], self._width)[within : within + count]


def _words(count: int) -> int:
    return count + count % 2


class Blocks:
    """The blocks of a draw, in units of the grid; quickest in order.

    Args:
        stream: source of the draw.
        count: variates; every block has :data:`BLOCK` of them but the last.
        grid: of the noise.
        at: the places of the values, of a stream that has such; otherwise None. A block of n variates then takes the
            stream's next n words: the radii of its n / 2 pairs, then their angles; its first half are the cosines and
            its second half the sines.
        first: position of the draw's first word in the stream; None to reserve as many as it needs.
        start: number of the first value.
    """

    def __init__(
        self,
        stream: Keystream,
        count: int,
        grid: _Grid,
        at: Places | None = None,
        *,
        first: int | None = None,
        start: int = 0,
    ) -> None:
        self.count, self.grid = count, grid
        self.stream, self.at, self._start = stream, at, start
        self._first = stream.reserve(0 if at else _words(count)) if first is None else first
        self._next: int | None = None

    def part(self, start: int, count: int) -> Blocks:
        """Return ``count`` of the values, from number ``start`` on, a multiple of :data:`BLOCK`."""
        return Blocks(self.stream, count, self.grid, self.at, first=self._first, start=self._start + start)

    def one(self, place: int) -> float:
        """Return value number ``place`` alone, of a stream that has places."""
        with Scratch.kept() as scratch:
            own = Blocks(self.stream, 1, self.grid, self.at, first=self._first, start=self._start + place)
            return float(own.draw(0, scratch)[0])

    def draw(self, block: int, scratch: Scratch) -> Floats:
        """Return block number ``block``, ``[n]``: a part of ``scratch``."""
        start, size = self._start + block * BLOCK, min(BLOCK, self.count - block * BLOCK)
        if self.at:
            return self._placed(self.at, start, size, scratch)
        first = self._first + start
        if block != self._next:
            self._read = self.stream.reader(first)
        self._next = block + 1
        self._read(words := scratch.words[: _words(size)])
        return nearest_normals(self.stream, first, words, size, self.grid.deviations(start, size), scratch)

    def _placed(self, at: Places, start: int, size: int, scratch: Scratch) -> Floats:
        assert isinstance(self.stream, ChaCha)
        units, done, of_each = scratch.placed[:size], 0, self.grid.deviations(start, size)
        for layout, counters, index in at.pieces(start, size):
            words = scratch.words[: 8 * len(counters)]
            self.stream.blocks(layout, counters, words.view(np.uint64))
            part, scale = slice(done, done + len(index)), of_each
            if not isinstance(of_each, float):
                scale = np.full(len(words), 1.0)
                scale[index] = of_each[part]
            beyond = _Extensions(self.stream, layout, counters)
            drawn = nearest_normals(beyond, 0, words, len(words), scale, scratch)
            np.take(drawn, index, out=units[part], mode="clip")  # other modes take a copy
            done = part.stop
        return units


class _Extensions(NamedTuple):
    """The extensions of the words of some blocks by pair (see :class:`dpfest.noise.box_muller.Extends`)."""

    stream: ChaCha
    layout: int
    counters: Words

    def extended(self, word: int, position: int) -> int:
        place, block = divmod(position, len(self.counters))
        angle, pair = divmod(place, 4)
        return self.stream.extended_at(word, self.layout, int(self.counters[block]), 2 * pair + angle)


def blocks_of(stream: Keystream, count: int, deviation: float, at: Places | None = None) -> Blocks:
    """Return the blocks of what :func:`draw_units` draws."""
    return _blocks(stream, count, _Grid(deviation), at)


def _blocks(stream: Keystream, count: int, grid: _Grid, at: Places | None) -> Blocks:
    return Blocks(stream, count, grid, at if stream.placed else None)


def _draw(blocks: Blocks, use: Callable[[int, Floats, Floats], None]) -> None:
    """Pass every block of a draw to ``use(start, units [n], scratch [n])``, in units of the grid, on all threads."""

    def work(begin: int, end: int, scratch: Scratch) -> None:
        own = blocks.part(0, blocks.count)
        for block in range(begin, end):
            units = own.draw(block, scratch)
            use(block * BLOCK, units, scratch.values[: len(units)])

    on_threads(blocks.count, work)


def on_threads(count: int, work: Callable[[int, int, Scratch], None]) -> None:
    """Call ``work(begin, end, scratch)`` for ranges of the blocks of so many variates, on all threads."""
    blocks = -(-count // BLOCK)

    def part(begin: int, end: int) -> None:
        with Scratch.kept() as scratch:
            work(begin, end, scratch)

    threads = min(torch.get_num_threads(), max(count // _PER_THREAD, 1))
    cuts = [blocks * number // threads for number in range(threads + 1)]
    if threads == 1:
        part(0, blocks)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(part, cuts[:-1], cuts[1:]))
