"""Vectors of Gaussians whose norms can be had as precisely as asked: for rows kept by their norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpfest.noise.box_muller import Scratch, nearest_normals, real_variate
from dpfest.noise.keystream import Keystream


class NormalRows:
    """Vectors of independent real Gaussians: rounded to whole numbers, and their norms as precisely as asked.

    Args:
        stream: source of the draw.
        count, dim: number and length of the vectors; together at most :data:`dpfest.noise.box_muller.BLOCK` variates.
        deviation: standard deviation of each value, in the unit to which it is rounded.

    Attributes:
        rounded: whole numbers ``[count, dim]``, each the nearest to its real variate.
    """

    def __init__(self, stream: Keystream, count: int, dim: int, deviation: float) -> None:
        self._stream, self._deviation, self._dim = stream, deviation, dim
        self._width = (dim + 1) // 2  # pairs of a row: its cosines, then its sines
        self._first = stream.reserve(2 * count * self._width)
        self._words = stream.at(self._first, 2 * count * self._width).view(np.int64)
        scratch = Scratch(len(self._words))
        units = nearest_normals(stream, self._first, self._words, len(self._words), deviation, scratch)
        self.rounded = np.concatenate(units.reshape(2, count, self._width), axis=1)[:, :dim]

    def squared_norm(self, mp: Any, row: int) -> Any:
        """Return a row's squared norm before rounding; call it within :func:`dpfest.noise.precise.precise`."""
        total, pairs = mp.mpf(0), len(self._words) // 2
        for place in range(self._dim):
            sine, pair = place >= self._width, row * self._width + place % self._width
            radius, angle = (
                self._stream.extended(int(self._words[word]), self._first + word) for word in (pair, pairs + pair)
            )
            total += real_variate(mp, radius, angle, sine, self._deviation) ** 2
        return total
