"""Threshold on noised rows: of DP-SGD's noised gradient, the rows whose norm reaches a radius; the others are dropped.

Law, for every row j of every table, independently: ``u_j = round(s_j) + round(N(0, deviation^2 I))``, s_j the clipped
sum, and the row is kept iff ``|u_j| >= radius``. It is a function of the row's part of one DP-SGD release: a row that
no example touched is noise alone, and is kept, and looks, as if the noise of all rows had been drawn and most of it
dropped. Such rows are drawn in O(kept), not O(rows):

1. A row of real noise N is a *candidate* if ``|N| >= r``, r below the radius by more than rounding can move a norm: all
   rows that are kept are candidates. They are independent Bernoulli trials
   (:func:`dpfest.noise.distributions.bernoulli`) of probability ``P(|N| >= r) = Q(dim / 2, (r / deviation)^2 / 2)``,
   the tail of the chi distribution.
2. Given that, N is drawn by rejection: N' from a wider Gaussian, of deviation w, is accepted if ``|N'| >= r`` and
   ``E >= (|N'|^2 - r^2) (deviation^-2 - w^-2) / 2`` for an exponential variate E. The density of what is accepted is
   that of N, restricted to ``|N| >= r``.
3. N is rounded to the grid, and the one rule that decides of touched rows decides of it.

Under ``chacha20/1`` a row's noise is a function of its number, and that of all rows is drawn and most of it dropped, up
to :data:`dpfest.noise.places.MOST_VALUES` in a table: what is kept is then part, bit for bit, of what DP-SGD would
release.

Formal guarantee: kept rows and their values have the law of the dense computation, within 2^-90 a row in total
variation and a relative error of 2^-53 in the probability of step 1, which adds at most 2^-53 per row that an example
touches to its privacy loss. All decisions are those of the real numbers: the rounded row bounds the norm of the real
one, and where that does not decide (2 in a million), 320-bit arithmetic does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, reduce

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import chdtri
from torch import Tensor

from dpfest.gradients.tables import Survivors, TableLayout
from dpfest.noise.bernoulli import exponentials
from dpfest.noise.gaussian import BLOCK, draw_units, gaussian, gaussian_grid
from dpfest.noise.keystream import Keystream
from dpfest.noise.normal_rows import NormalRows
from dpfest.noise.places import MOST_VALUES, RowPlaces
from dpfest.noise.precise import exponential, precise
from dpfest.selection.survivors import untouched_survivors

Floats = NDArray[np.float64]

_AT_ONCE = 1 << 20  # values of all rows' noise held in memory at a time
_SLACK = 2.0**-40  # relative, far above the rounding of float64 in norms of up to 2^11 values


def radius_of(false_rate: float, dim: int, deviation: float) -> float:
    """Return the norm that real noise ``N(0, deviation^2 I)`` of length ``dim`` reaches with this probability."""
    return deviation * math.sqrt(float(chdtri(dim, false_rate)))


def keep_long_rows(
    layout: TableLayout,
    touched: Survivors,
    sums: Sequence[Tensor],
    deviation: float,
    *,
    false_rate: float,
    shrink: bool,
    stream: Keystream,
    noise: Keystream,
) -> tuple[Survivors, list[Tensor]]:
    """Keep the rows of a noised gradient whose norm reaches the threshold, touched or not.

    Args:
        layout: the tables.
        touched: rows that the batch touched.
        sums: each table's noised sum at those rows, ``[u, dim]``.
        deviation: standard deviation of the noise in ``sums``, before any division.
        false_rate: probability with which a row of noise alone is kept, the same in every table.
        shrink: whether kept rows are shortened by the radius (soft threshold).
        stream: source of the untouched rows.
        noise: source of all rows' noise, where a row has a place in it.

    Returns:
        The kept rows, and each table's values there, ``[s, dim]``.

    Formal guarantee: post-processing of the Gaussian mechanism that releases every row of ``sums``, touched or not.
    """
    rows, values = [], []
    for offset, size, dim, local, noised in zip(
        layout.offsets, layout.rows, layout.dims, touched.local, sums, strict=False
    ):
        assert local is not None
        radius = radius_of(false_rate, dim, deviation)
        known = local.cpu().numpy()
        if noise.placed and size * dim <= MOST_VALUES:
            others, drawn = _long_among_all(known, range(offset, offset + size), dim, deviation, radius, noise)
        else:
            others, drawn = untouched_rows(known, size, dim, deviation, radius, stream)
        every = torch.cat([local, torch.from_numpy(others).to(local.device)])
        table = torch.cat([noised, torch.from_numpy(drawn).to(noised)])
        norms = row_norms(table, deviation)
        kept = torch.nonzero(norms >= radius).squeeze(1)
        kept = kept[torch.argsort(every[kept])]
        table = table[kept]
        if shrink:
            factor = 1 - radius / norms[kept] if radius > 0 else torch.ones_like(norms[kept])
            table = (table.double() * factor.unsqueeze(1)).to(table.dtype)
        rows.append(every[kept] + offset)
        values.append(table)
    return Survivors(layout, torch.cat(rows)), values


def row_norms(rows: Tensor, deviation: float) -> Tensor:
    """Return the l2 norm of each row of ``[n, dim]``, float64 ``[n]``: a function of the row alone, to the last bit.

    Terms are added one by one: sums of which the library chooses the order could differ with the number of rows.
    """
    grid = gaussian_grid(deviation)
    squares = (rows.double() / grid).square_()
    return reduce(torch.add, squares.unbind(1)).sqrt_() * grid


def untouched_rows(
    touched: NDArray[np.int64], universe: int, dim: int, deviation: float, radius: float, stream: Keystream
) -> tuple[NDArray[np.int64], Floats]:
    """Draw every row of noise outside ``touched`` that can have a norm of ``radius``, and some just below.

    Args:
        touched: sorted distinct int64 ``[u]``, in ``range(universe)``.
        universe: number of rows of the table.
        dim: their length.
        deviation: standard deviation of their noise, on its :func:`dpfest.noise.gaussian.gaussian_grid`.
        radius: the least norm of interest.
        stream: source of the draw.

    Returns:
        Sorted rows ``[n]`` and their noise, float64 ``[n, dim]``. Rows that are left out are shorter than ``radius``.
    """
    grid, least = gaussian_grid(deviation), _least(radius, dim, deviation)
    probability = tail(dim, least, deviation)
    if probability > 0.5:  # not worth the error that rounding it would have where it is close to 1
        rows = untouched_survivors(touched, universe, 1.0, stream)
        return rows, gaussian(stream, len(rows) * dim, deviation).reshape(-1, dim)
    rows = untouched_survivors(touched, universe, probability, stream)
    return rows, long_rows(stream, len(rows), dim=dim, deviation=deviation / grid, least=least / grid) * grid


def _least(radius: float, dim: int, deviation: float) -> float:
    """Return a norm before rounding below which no row can have ``radius`` after it."""
    # Rounding to the grid moves a norm by at most sqrt(dim) / 2 of it; rounding to float32, by 2^-24 of itself.
    return max(radius * (1 - 2.0**-22) - gaussian_grid(deviation) * math.sqrt(dim), 0.0)


def _long_among_all(
    touched: NDArray[np.int64], rows: range, dim: int, deviation: float, radius: float, noise: Keystream
) -> tuple[NDArray[np.int64], Floats]:
    """Do what :func:`untouched_rows` does for a table of these rows, by drawing the noise of all of them."""
    grid, least = gaussian_grid(deviation), _least(radius, dim, deviation)
    found, values, step = [np.empty(0, dtype=np.int64)], [np.empty((0, dim))], max(_AT_ONCE // dim, 1)
    for start in range(0, len(rows), step):
        part = torch.arange(start, min(start + step, len(rows)))
        places = RowPlaces(part + rows.start, [(len(part), dim)])
        drawn = draw_units(noise, len(part) * dim, deviation, places).reshape(-1, dim) * grid
        others = np.square(drawn).sum(1) >= least**2
        others[touched[(touched >= start) & (touched < start + step)] - start] = False
        found.append(np.flatnonzero(others) + start)
        values.append(drawn[others])
    return np.concatenate(found), np.concatenate(values)


@lru_cache
def tail(dim: int, radius: float, deviation: float) -> float:
    """Return the probability that noise ``N(0, deviation^2 I)`` of ``dim`` values has norm ``radius``; to 2^-53 of it.

    ``Q(dim / 2, x)`` with ``x = (radius / deviation)^2 / 2``, a sum of positive terms: ``Q(a + 1, x) = Q(a, x) +
    x^a e^-x / Gamma(a + 1)``, from ``Q(1/2, x) = erfc(sqrt(x))`` or ``Q(0, x) = 0``.
    """
    if radius == 0:
        return 1.0
    with precise() as mp:
        half = (mp.mpf(radius) / deviation) ** 2 / 2
        a = mp.mpf(dim % 2) / 2
        total = mp.erfc(mp.sqrt(half)) if dim % 2 else mp.mpf(0)
        term = half**a * mp.exp(-half) / mp.gamma(a + 1)
        while 2 * a < dim:
            total += term
            a += 1
            term *= half / a
        return float(total)


def long_rows(stream: Keystream, count: int, *, dim: int, deviation: float, least: float) -> Floats:
    """Draw rows of real noise ``N(0, deviation^2 I)`` given that their norm is at least ``least``, rounded.

    Args:
        stream: source of the draw.
        count: number of rows.
        dim: length of a row.
        deviation: standard deviation, in units of the grid to which rows are rounded.
        least: least norm before rounding, in the same units.

    Returns:
        Independent rows of whole numbers, float64 ``[count, dim]``.

    Formal guarantee: the law of the rounded real rows, within 2^-90 a row.
    """
    found, missing = [np.empty((0, dim))], count
    wide = max(deviation, least / math.sqrt(dim))  # where most are accepted: about one in ten, for rare rows
    ratio = ((least / deviation) ** 2 - (least / wide) ** 2) / 2 - dim * math.log(wide / deviation)
    share = tail(dim, least, deviation) * math.exp(ratio)
    most = max(BLOCK // (dim + 1), 1)
    while missing > 0:
        tried = _accepted(stream, min(int(1.1 * missing / share) + 4, most), dim, deviation, wide, least)[:missing]
        found.append(tried)
        missing -= len(tried)
    return np.concatenate(found)


def _accepted(stream: Keystream, tries: int, dim: int, deviation: float, wide: float, least: float) -> Floats:
    """Return the rounded rows, of ``tries`` of deviation ``wide``, that step 2 of the module accepts, in order."""
    rows = NormalRows(stream, tries, dim, wide)
    first = stream.reserve(tries)
    words = stream.at(first, tries)
    wait, error = exponentials(words)
    # Rounding moves a norm by at most sqrt(dim) / 2.
    norm, half = np.sqrt(np.square(rows.rounded).sum(1)), math.sqrt(dim) / 2
    low = np.square(np.maximum(norm * (1 - _SLACK) - half, 0))
    high = np.square(norm * (1 + _SLACK) + half)
    rate = (deviation**-2 - wide**-2) / 2
    slack = _SLACK * high / deviation**2
    sure = (low >= least**2 * (1 + _SLACK)) & (wait - error >= rate * (high - least**2) + slack)
    out = (high < least**2 * (1 - _SLACK)) | (wait + error < rate * (low - least**2) - slack)
    for row in np.flatnonzero(~(sure | out)).tolist():
        with precise() as mp:
            beyond = rows.squared_norm(mp, row) - mp.mpf(least) ** 2
            due = beyond * (mp.mpf(deviation) ** -2 - mp.mpf(wide) ** -2) / 2
            sure[row] = beyond >= 0 and exponential(stream, int(words[row]), first + row) >= due
    return rows.rounded[sure]
