"""Gaussian noise on a grid: each variate is the nearest grid point to a real Gaussian.

A floating-point sampler of normals reaches only some floats, and which sums it reaches depends on the values it is
added to: the last bits of a release can distinguish neighbours (Mironov, 2012). Remedy: sums and noise are multiples of
one power of two, the *grid* g, between 2^-25 and 2^-24 standard deviations. For x on the grid,
``x + round(N) = round(x + N)``, so the release is post-processing of a real Gaussian mechanism. It remains to draw
``round(N)`` with the law of a rounded real Gaussian, which is *computed* so:

1. Box and Muller (1958) in float64, from 64 bits for the radius and 64 for the angle. It differs from the real number
   that infinitely many bits would give by less than 2^-44 deviations (derivation at ``_TOLERANCE``).
2. If a value lies within that error of the midpoint of two grid points, or its radius is extreme (8 in a million), its
   own error is bounded; if it may still decide (one in ten million), the value is recomputed in 320-bit arithmetic
   from the same words and 128 more bits of each.

Formal guarantee: a draw's total variation distance from the rounded real Gaussian is at most 2^-100, since after step 2
only values within 2^-127 deviations of a midpoint are undecided, and there are 2^25 midpoints per deviation, with the
density of a normal below 0.4 on each: 10^12 variates are within 2^-60. It rests on AES-256 (:mod:`dpfest.noise`), on
IEEE 754, and on an error of at most four units in the last place in numpy's ``log``. As each variate is *the* nearest
grid point, it does not depend on machine, versions, threads or device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfest.noise import Keystream
from dpfest.precise import precise

Floats = NDArray[np.float64]
Deviation = float | Floats | Tensor

BLOCK = 1 << 16  # variates drawn at a time, in arrays that stay in the cache
_GRID_BITS = 25  # deviation / grid lies in [2^24, 2^25)
_CUDA_BLOCKS = 64  # blocks copied to a GPU at a time

# sin(pi a / 4) / a for |a| <= 1 as a polynomial in a^2, by interpolation in seven Chebyshev nodes; error below 2^-55.
_SINE = (
    0.7853981633974483,
    -0.08074551218828054,
    0.002490394570188844,
    -3.657620415891387e-05,
    3.133616225433416e-07,
    -1.7571500746983935e-09,
    6.877360573166326e-12,
)
# The same of a whole word w = 2^63 a: each coefficient times its power of two, which is exact.
_HORNER = [torch.tensor(c * 2.0 ** (-63 * (2 * n + 1)), dtype=torch.float64) for n, c in enumerate(_SINE)][::-1]
_HIGHEST = float(_HORNER[0])

# Outside these bounds on ln u, u the radius's uniform, _TOLERANCE does not hold: u < 2^-20, radii below 2^-9.
_LEAST, _MOST = -20 * math.log(2), -(2.0**-19)
# Error bound of float64 and 64 bits, in deviations. Within those limits the radius r = sqrt(-2 ln u) lies between
# 2^-9 and 5.27. u has 63 bits and is rounded, by at most 2^-54 and 2^-53 of itself, so that the error of r is at most
# 2^-54 / r near u = 1 and (2^-53 + 2^-63 / u) / r below: 2^-44.99 at worst, at r = 2^-9. Four units in the last
# place of the logarithm are 2^-51 r. Sine and cosine have an error of 2^-50, times r: 2^-47.6, where r is largest.
_TOLERANCE = 2.0**-44


def gaussian_grid(deviation: float) -> float:
    """Return the grid ``g``, a power of two, for noise of this deviation: ``2^24 <= deviation / g < 2^25``.

    Raises:
        ValueError: the deviation is not a finite number above 2^-960, below which there is no grid.
    """
    if not 2.0**-960 <= deviation < math.inf:
        raise ValueError(f"Noise of scale {deviation} cannot be drawn: the scale must be positive and finite.")
    return math.ldexp(1.0, math.frexp(deviation)[1] - _GRID_BITS)


def charged_deviation(noise_multiplier: float, clipping_norm: float, coordinates: float) -> float:
    """Return the standard deviation of noise for a sum that is rounded to the grid of that very noise.

    Rounding moves each coordinate of two neighbouring sums by at most ``g / 2``, so their distance grows from
    ``clipping_norm`` to at most ``clipping_norm + g sqrt(coordinates)``.

    Returns:
        ``s = noise_multiplier (clipping_norm + gaussian_grid(s) sqrt(coordinates))``: larger than without the charge by
        a factor of at most ``1 + noise_multiplier sqrt(coordinates) 2^-24``.

    Formal guarantee: :func:`add_gaussian` with this deviation, on sums of clipped terms of l2-sensitivity
    ``clipping_norm``, is a Gaussian mechanism of this noise multiplier.

    Raises:
        ValueError: so many coordinates that the charge would dominate the noise.
    """
    if noise_multiplier * math.sqrt(coordinates) > 2.0**20:
        raise ValueError(
            f"{coordinates:,.0f} coordinates under a noise multiplier of {noise_multiplier:g} are too many for noise "
            "on a grid: rounding them would cost more than a sixteenth of the noise."
        )
    deviation = noise_multiplier * clipping_norm
    if deviation == 0:
        return 0.0
    grid = 0.0
    while grid != gaussian_grid(deviation):  # at most twice: a larger grid's charge does not reach the next
        grid = gaussian_grid(deviation)
        deviation = noise_multiplier * (clipping_norm + grid * math.sqrt(coordinates))
    return deviation


def gaussian(stream: Keystream, count: int, deviation: float) -> Floats:
    """Draw normal variates of mean 0 and this standard deviation, multiples of its grid: float64 ``[count]``.

    Formal guarantee: within 2^-100 per variate of the rounded real Gaussian (see the module).

    Raises:
        ValueError: see :func:`gaussian_grid`.
    """
    out = np.empty(count)
    first, grid = stream.reserve(_words(count)), _Grid(deviation)

    def write(start: int, units: Floats, _: Floats) -> None:
        np.multiply(units, grid.size, out=out[start : start + len(units)])

    _draw(stream, first, count, grid, write)
    return out


def add_gaussian(values: Tensor, stream: Keystream, deviation: Deviation) -> None:
    """Round values to the noise's grid and add the noise of :func:`gaussian`, in place.

    The sum is exact in float64 for values below 2^27 deviations, and is rounded once more to the tensor's own dtype. A
    tensor on a GPU gets the same bits as one on the CPU.

    Args:
        values: contiguous float32 or float64, of any shape.
        stream: source of the draw.
        deviation: the standard deviation; or one for each row of ``values [rows, dim]``, ``[rows]``, each with its own
            grid.

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
    first = stream.reserve(_words(len(flat)))
    if not len(flat):
        return
    if flat.device.type != "cpu":
        return _add_elsewhere(flat, stream, first, grid)
    array = flat.numpy()

    def add(start: int, units: Floats, rounded: Floats) -> None:
        part = array[start : start + len(units)]
        size = grid.sizes(start, len(units))
        np.multiply(part, 1 / size, out=rounded, dtype=np.float64)
        np.rint(rounded, out=rounded)
        rounded += units
        np.multiply(rounded, size, out=part, dtype=np.float64, casting="same_kind")

    _draw(stream, first, len(array), grid, add)


def _add_elsewhere(flat: Tensor, stream: Keystream, first: int, grid: _Grid) -> None:
    for start in range(0, len(flat), _CUDA_BLOCKS * BLOCK):
        part = flat[start : start + _CUDA_BLOCKS * BLOCK]
        units = np.empty(len(part))

        def write(at: int, drawn: Floats, _: Floats, units: Floats = units) -> None:
            units[at : at + len(drawn)] = drawn

        _draw(stream, first + start, len(part), grid.after(start), write)
        size = torch.as_tensor(grid.sizes(start, len(part)), device=flat.device, dtype=torch.float64)
        part.copy_(((part.double() / size).round_() + torch.from_numpy(units).to(flat.device)) * size)


class _Grid:
    """Grid size, and standard deviation in units of it, of every value: one for all, or one per row."""

    def __init__(self, deviation: Deviation, shape: torch.Size | None = None, start: int = 0) -> None:
        self._start, self._width = start, 0
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
        self._sizes, self._deviations = np.ldexp(1.0, exponent - _GRID_BITS), np.ldexp(mantissa, _GRID_BITS)
        self._width = shape[1]

    def after(self, start: int) -> _Grid:
        """Return the same grid, starting from value number ``start``."""
        other = object.__new__(_Grid)
        other.__dict__ = {**self.__dict__, "_start": self._start + start}
        return other

    def sizes(self, start: int, count: int) -> float | Floats:
        return self._of_rows(self._sizes, start, count) if self._width else self.size

    def deviations(self, start: int, count: int) -> float | Floats:
        return self._of_rows(self._deviations, start, count) if self._width else self.deviation

    def _of_rows(self, rows: Floats, start: int, count: int) -> Floats:
        row, within = divmod(self._start + start, self._width)
        last = (self._start + start + count - 1) // self._width
        return np.repeat(rows[row : last + 1], self._width)[within : within + count]


def _words(count: int) -> int:
    return count + count % 2


def _draw(stream: Keystream, first: int, count: int, grid: _Grid, use: Callable[[int, Floats, Floats], None]) -> None:
    """Pass every block of a draw to ``use(start, units [n], scratch [n])``, in units of the grid, on all threads.

    A block of n variates takes n words: the radii of its n / 2 pairs, then their angles; its first half are the cosines
    and its second half the sines.
    """
    blocks = -(-count // BLOCK)

    def work(begin: int, end: int) -> None:
        read = stream.reader(first + begin * BLOCK)
        with _Scratch.kept() as scratch:
            for block in range(begin, end):
                start = block * BLOCK
                size = min(BLOCK, count - start)
                read(words := scratch.words[: _words(size)])
                units = _units(stream, first + start, words, size, grid.deviations(start, size), scratch)
                use(start, units, scratch.values[:size])

    threads = min(torch.get_num_threads(), max(count // BLOCK, 1))  # a thread is not worth its start for less
    cuts = [blocks * number // threads for number in range(threads + 1)]
    if threads == 1:
        work(0, blocks)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, cuts[:-1], cuts[1:]))


class _Scratch:
    """Work arrays of one thread."""

    _idle: ClassVar[list[_Scratch]] = []

    def __init__(self, size: int) -> None:
        self.words = np.empty(size, dtype=np.int64)
        self.pairs = np.empty((4, size // 2))
        self.values, self.units = np.empty(size), np.empty(size)

    @classmethod
    @contextmanager
    def kept(cls) -> Iterator[_Scratch]:
        """A context with arrays for a block that no other thread uses; they are kept, 2.5 MB for each thread."""
        try:
            scratch = cls._idle.pop()
        except IndexError:
            scratch = cls(BLOCK)
        try:
            yield scratch
        finally:
            cls._idle.append(scratch)


def _units(
    stream: Keystream,
    position: int,
    words: NDArray[np.int64],
    count: int,
    deviation: float | Floats,
    scratch: _Scratch,
) -> Floats:
    """Return rounded normal variates of this deviation, whole numbers ``[count]``, from ``words`` at ``position``."""
    pairs = len(words) // 2
    values, near = scratch.values[: 2 * pairs], scratch.units[:count]
    common, of_each = (deviation, None) if isinstance(deviation, float) else (1.0, deviation)
    with np.errstate(divide="ignore", invalid="ignore"):  # u = 0 is extreme
        logarithms = _box_muller(words[:pairs], words[pairs:], values, scratch.pairs[:, :pairs], common)
        values = values[:count]
        if of_each is not None:
            values *= of_each
        np.rint(values, out=near)
        values -= near
    extreme = not (logarithms.min() >= _LEAST and logarithms.max() <= _MOST)
    most = 0.5 - _TOLERANCE * (common if of_each is None else 2.0**_GRID_BITS)
    if extreme or not (values.max() <= most and values.min() >= -most):
        off = np.abs(values, out=values)
        unsure = ~(off <= most)
        if extreme:
            rare = ~((logarithms >= _LEAST) & (logarithms <= _MOST))
            unsure |= np.concatenate([rare, rare])[:count]
        for place in np.flatnonzero(unsure).tolist():
            pair, scale = place % pairs, common if of_each is None else float(of_each[place])
            if off[place] < 0.5 - scale * _error(float(logarithms[pair])):
                continue
            radius = stream.extended(int(words[pair]), position + pair)
            angle = stream.extended(int(words[pairs + pair]), position + pairs + pair)
            near[place] = _precisely(radius, angle, place >= pairs, scale)
    return near


def _box_muller(
    radii: NDArray[np.int64], angles: NDArray[np.int64], out: Floats, scratch: Floats, deviation: float = 1.0
) -> Floats:
    """Write normal variates to ``out [2 p]``, float64, from words ``[p]`` and ``[p]``; return ln u, ``[p]``.

    With r and a the signed words, in units of 2^63: ``u = |r|``, and the angle ``a pi / 2`` lies in the right half
    plane; the sign of r decides whether the cosine is mirrored to the left one. Half the angle is small enough for a
    short sine polynomial, and its cosine is a square root: ``cos = 1 - 2 s^2`` and ``sin = 2 s sqrt(1 - s^2)``.
    """
    logarithm, radius, sine, cosine = scratch
    pairs = len(radii)
    np.copyto(radius, radii)
    np.abs(radius, out=radius)
    radius *= 2.0**-63
    np.log(radius, out=logarithm)
    np.multiply(logarithm, -8 * deviation**2, out=radius)
    np.sqrt(radius, out=radius)  # twice the radius

    np.copyto(sine, angles)
    np.multiply(sine, sine, out=cosine)
    square, series = torch.from_numpy(cosine), torch.from_numpy(out[:pairs])
    torch.add(_HORNER[1], square, alpha=_HIGHEST, out=series)
    for coefficient in _HORNER[2:]:
        torch.addcmul(coefficient, series, square, out=series)
    sine *= out[:pairs]

    half = out[:pairs]
    np.multiply(sine, sine, out=half)
    np.subtract(1, half, out=cosine)
    np.sqrt(cosine, out=cosine)
    sine *= cosine
    np.multiply(sine, radius, out=out[pairs:])
    np.subtract(0.5, half, out=half)
    half *= radius
    signs, bits = cosine.view(np.int64), half.view(np.int64)
    np.bitwise_and(radii, np.int64(-(2**63)), out=signs)
    np.bitwise_xor(bits, signs, out=bits)
    return logarithm


def _error(logarithm: float) -> float:
    """Bound the error of a variate in deviations, from its pair's ``ln u``: that of ``_TOLERANCE``, at this radius.

    Doubling the first term covers what is beyond first order, ``|r - r'| <= |r^2 - r'^2| / r'``. Infinite for u below
    2^-30, of which 63 bits say too little, and for u rounded to 1.
    """
    if not -30 * math.log(2) < logarithm < 0:
        return math.inf
    radius = math.sqrt(-2 * logarithm)
    return 2 * (2.0**-53 + 2.0**-63 * math.exp(-logarithm)) / radius + (2.0**-51 + 2.0**-50) * radius


def _precisely(radius: int, angle: int, sine: bool, deviation: float) -> int:
    """Compute what :func:`_box_muller` does, in 320 bits, from signed words of 192 bits: the nearest whole number."""
    with precise() as mp:
        return int(mp.nint(_real(mp, radius, angle, sine, deviation)))


def _real(mp: Any, radius: int, angle: int, sine: bool, deviation: float) -> Any:
    """Return the real variate of signed words of 192 bits, to 320 bits."""
    uniform = mp.ldexp(abs(2 * radius + 1), -192)
    turned = mp.pi * mp.ldexp(2 * angle + 1, -193)
    value = deviation * mp.sqrt(-2 * mp.log(uniform)) * (mp.sin(turned) if sine else mp.cos(turned))
    return value if sine or radius >= 0 else -value


class NormalRows:
    """Vectors of independent real Gaussians: rounded to whole numbers, and their norms as precisely as asked.

    Args:
        stream: source of the draw.
        count, dim: number and length of the vectors; together at most :data:`BLOCK` variates.
        deviation: standard deviation of each value, in the unit to which it is rounded.

    Attributes:
        rounded: whole numbers ``[count, dim]``, each the nearest to its real variate.
    """

    def __init__(self, stream: Keystream, count: int, dim: int, deviation: float) -> None:
        self._stream, self._deviation, self._dim = stream, deviation, dim
        self._width = (dim + 1) // 2  # pairs of a row: its cosines, then its sines
        self._first = stream.reserve(2 * count * self._width)
        self._words = stream.at(self._first, 2 * count * self._width).view(np.int64)
        scratch = _Scratch(len(self._words))
        units = _units(stream, self._first, self._words, len(self._words), deviation, scratch)
        self.rounded = np.concatenate(units.reshape(2, count, self._width), axis=1)[:, :dim]

    def squared_norm(self, mp: Any, row: int) -> Any:
        """Return a row's squared norm before rounding, to 320 bits; call it within :func:`dpfest.precise.precise`."""
        total, pairs = mp.mpf(0), len(self._words) // 2
        for place in range(self._dim):
            sine, pair = place >= self._width, row * self._width + place % self._width
            radius, angle = (
                self._stream.extended(int(self._words[word]), self._first + word) for word in (pair, pairs + pair)
            )
            total += _real(mp, radius, angle, sine, self._deviation) ** 2
        return total
