"""Words to normal variates: the nearest whole number to each real Gaussian that the words name.

The law of a rounded real Gaussian is *computed* so:

1. Box and Muller (1958) in float64, from 64 bits for the radius and 64 for the angle. It differs from the real number
   that infinitely many bits would give by less than 2^-44 deviations (derivation at ``_TOLERANCE``).
2. If a value lies within that error of the midpoint of two whole numbers, or its radius is extreme (8 in a million),
   its own error is bounded; if it may still decide (one in ten million), the value is recomputed in 320-bit arithmetic
   from the same words and 128 more bits of each.

Step 1 exists twice: here in numpy, the reference, and as one compiled loop (:mod:`dpfest.kernels`), which takes a
third of the time. Each variate is *the* nearest whole number, so both return the same.

Formal guarantee: :mod:`dpfest.noise.gaussian`. It rests on IEEE 754, and on a logarithm whose error is at most four
units in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from dpfest import kernels
from dpfest.kernels import Floats, Whole
from dpfest.noise.precise import precise

BLOCK = 1 << 16
"""Variates computed at a time, in arrays that stay in the cache."""
GRID_BITS = 25
"""A deviation is at most this power of two."""

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
_LEADING = float(_HORNER[0])

# Outside these bounds on ln u, u the radius's uniform, _TOLERANCE does not hold: u < 2^-20, radii below 2^-9.
_LEAST, _HIGHEST = -20 * math.log(2), -(2.0**-19)
# Error bound of float64 and 64 bits, in deviations. Within those limits the radius r = sqrt(-2 ln u) lies between
# 2^-9 and 5.27. u has 63 bits and is rounded, by at most 2^-54 and 2^-53 of itself, so that the error of r is at most
# 2^-54 / r near u = 1 and (2^-53 + 2^-63 / u) / r below: 2^-44.99 at worst, at r = 2^-9. Four units in the last
# place of the logarithm are 2^-51 r. Sine and cosine have an error of 2^-50, times r: 2^-47.6, where r is largest.
_TOLERANCE = 2.0**-44


class Extends(Protocol):
    """A source of words that has more bits of each."""

    def extended(self, word: int, position: int) -> int:
        """See :meth:`dpfest.noise.keystream.Keystream.extended`."""


class Scratch:
    """Work arrays of one thread.

    Args:
        size: most variates at a time; even.
    """

    _idle: ClassVar[list[Scratch]] = []

    def __init__(self, size: int) -> None:
        self.words = np.empty(size, dtype=np.int64)
        self.pairs = np.empty((4, size // 2))
        self.values, self.units, self.placed = np.empty(size), np.empty(size), np.empty(size)

    @classmethod
    @contextmanager
    def kept(cls) -> Iterator[Scratch]:
        """A context with arrays for a block that no other thread uses; they are kept, 3 MB for each thread."""
        try:
            scratch = cls._idle.pop()
        except IndexError:
            scratch = cls(BLOCK)
        try:
            yield scratch
        finally:
            cls._idle.append(scratch)


def nearest_normals(
    stream: Extends, position: int, words: Whole, count: int, deviation: float | Floats, scratch: Scratch
) -> Floats:
    """Return the nearest whole numbers to normal variates, ``[count]``: first the cosines of all pairs, then the sines.

    Args:
        stream: where the words come from, and more bits of them.
        position: position of the first word in the stream.
        words: the radii of ``count / 2`` pairs, rounded up, then their angles.
        count: number of variates.
        deviation: standard deviation, of all or of each ``[count]``, at most ``2^GRID_BITS``.
        scratch: of at least ``len(words)``; the result is a part of it.
    """
    pairs, units = len(words) // 2, scratch.units[:count]
    most = 0.5 - _TOLERANCE * (deviation if isinstance(deviation, float) else 2.0**GRID_BITS)
    for place, off, logarithm in (_compiled if kernels.library else _nearest)(words, count, deviation, most, scratch):
        pair, scale = place % pairs, deviation if isinstance(deviation, float) else float(deviation[place])
        if off < 0.5 - scale * _error(logarithm):
            continue
        radius = stream.extended(int(words[pair]), position + pair)
        angle = stream.extended(int(words[pairs + pair]), position + pairs + pair)
        units[place] = _precisely(radius, angle, place >= pairs, scale)
    return units


_Unsure = list[tuple[int, float, float]]


def _compiled(words: Whole, count: int, deviation: float | Floats, most: float, scratch: Scratch) -> _Unsure:
    """Do what :func:`_nearest` does in one compiled loop."""
    unsure = (scratch.values.view(np.int64), *scratch.pairs.reshape(2, -1))
    found = kernels.nearest_normals(
        words, count, deviation, most=most, least=_LEAST, highest=_HIGHEST, units=scratch.units, unsure=unsure
    )
    return list(zip(*(array[:found].tolist() for array in unsure), strict=True))


def _nearest(words: Whole, count: int, deviation: float | Floats, most: float, scratch: Scratch) -> _Unsure:
    """Write to ``scratch.units`` what float64 takes for the nearest; return place, distance and ln u of the unsure."""
    pairs = len(words) // 2
    values, units = scratch.values[: 2 * pairs], scratch.units[:count]
    with np.errstate(divide="ignore", invalid="ignore"):  # u = 0 is extreme
        common = deviation if isinstance(deviation, float) else 1.0
        logarithms = _box_muller(words[:pairs], words[pairs:], values, scratch.pairs[:, :pairs], common)
        values = values[:count]
        if not isinstance(deviation, float):
            values *= deviation
        np.rint(values, out=units)
        values -= units
    extreme = not (logarithms.min() >= _LEAST and logarithms.max() <= _HIGHEST)
    if not extreme and values.max() <= most and values.min() >= -most:
        return []
    off = np.abs(values, out=values)
    unsure = ~(off <= most)
    if extreme:
        rare = ~((logarithms >= _LEAST) & (logarithms <= _HIGHEST))
        unsure |= np.concatenate([rare, rare])[:count]
    places = np.flatnonzero(unsure)
    return list(zip(places.tolist(), off[places].tolist(), logarithms[places % pairs].tolist(), strict=True))


def _box_muller(radii: Whole, angles: Whole, out: Floats, scratch: Floats, deviation: float = 1.0) -> Floats:
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
    torch.add(_HORNER[1], square, alpha=_LEADING, out=series)
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
        return int(mp.nint(real_variate(mp, radius, angle, sine, deviation)))


def real_variate(mp: Any, radius: int, angle: int, sine: bool, deviation: float) -> Any:
    """Return the real variate of signed words of 192 bits, to 320 bits."""
    uniform = mp.ldexp(abs(2 * radius + 1), -192)
    turned = mp.pi * mp.ldexp(2 * angle + 1, -193)
    value = deviation * mp.sqrt(-2 * mp.log(uniform)) * (mp.sin(turned) if sine else mp.cos(turned))
    return value if sine or radius >= 0 else -value
