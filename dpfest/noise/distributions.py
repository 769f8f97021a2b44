"""Exact sampling of Laplace noise, bounded numbers and subsets, as :mod:`dpfest.noise.bernoulli` samples trials.

Formal guarantee: each variate is within 2^-100 in total variation of its exact law, given a keystream of independent
uniform bits (:mod:`dpfest.noise.key`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpfest.noise.bernoulli import Floats, exponentials
from dpfest.noise.gaussian import gaussian_grid
from dpfest.noise.keystream import Keystream
from dpfest.noise.precise import exponential, precise


def laplace(stream: Keystream, count: int, scale: float) -> Floats:
    """Return Laplace variates of this scale, multiples of ``gaussian_grid(scale)``: float64 ``[count]``.

    Formal guarantee: each is the grid point nearest to a real Laplace variate, within 2^-100. Added to multiples of the
    grid it is therefore the rounded output of a real Laplace mechanism.
    """
    first, grid = stream.reserve(2 * count), gaussian_grid(scale)
    words, signs = np.split(stream.at(first, 2 * count), 2)
    value, error = exponentials(words)
    value *= scale / grid
    error *= scale / grid
    near = np.rint(value)
    for place in np.flatnonzero(~(np.abs(value - near) < 0.5 - error)).tolist():
        with precise() as mp:
            near[place] = float(mp.nint(exponential(stream, int(words[place]), first + place) * (scale / grid)))
    near *= np.where(signs >> np.uint64(63), -grid, grid)
    return near


def below(stream: Keystream, count: int, bound: int) -> NDArray[np.uint64]:
    """Return independent numbers of ``range(bound)``, each equally likely: uint64 ``[count]``.

    Formal guarantee: exact; words from which the remainder would be uneven are drawn again.
    """
    words, most = stream.words(count), np.uint64((1 << 64) // bound * bound - 1)
    while len(uneven := np.flatnonzero(words > most)):
        words[uneven] = stream.words(len(uneven))
    return words % np.uint64(bound)


def distinct(stream: Keystream, universe: int, count: int) -> NDArray[np.int64]:
    """Return ``count`` distinct numbers of ``range(universe)``, every ordered choice equally likely: int64 ``[count]``.

    Formal guarantee: exact. Numbers come from words by rejection; of repeated numbers the first counts.

    Raises:
        ValueError: ``count`` exceeds ``universe``.
    """
    if not 0 <= count <= universe:
        raise ValueError(f"{count} different numbers cannot be drawn from {universe}.")
    if 2 * count > universe:  # order all numbers by random words, which must differ
        while True:
            words = stream.words(universe)
            order = np.argsort(words, kind="stable")
            if (np.diff(words[order]) > 0).all():
                return order[:count]
    chosen = np.empty(0, dtype=np.int64)
    while len(chosen) < count:
        words = stream.words(count - len(chosen) + 8)
        words = words[words <= np.uint64((1 << 64) // universe * universe - 1)]
        drawn = np.concatenate([chosen, (words % np.uint64(universe)).astype(np.int64)])
        _, places = np.unique(drawn, return_index=True)
        chosen = drawn[np.sort(places)]
    return chosen[:count]
