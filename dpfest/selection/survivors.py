"""Random choice of rows: DP-AdaFEST's noisy, thresholded contribution map, and the exponential mechanism.

Under AES time and memory do not grow with the tables. Law of the map (Ghazi et al., 2023, Algorithm 1, lines 5-6): with
``v_i`` the 0/1 contribution map of example ``i`` over all rows and ``[v]_C1 = v / max(1, |v| / C1)``, row ``j``
survives iff

    sum_i [v_i]_C1[j] + C1 * sigma_1 * N(0, 1)  >=  tau,        independently for every row of the universe.

Map and noise are multiples of a grid g (:mod:`dpfest.noise.gaussian`). Each example's map is rounded *down* to it: its
norm stays below ``C1``, and sums are exact in any order.

A row that no example touches survives with the probability of a touched row of sum 0:
``Psi((ceil(tau / g) - 1/2) g / (sigma_1 * C1))``, Psi the standard normal survival function. (Appendix B.2 of the paper
prints ``sigma_1^2 * C1^2``, which gives the wrong law, and too few survivors if ``sigma_1 * C1 < 1``: a broken
guarantee.) Untouched survivors are drawn by the gaps between them, in O(touched + survivors). Under ``chacha20/1`` a
row's noise is a function of its number, touched or not, and so the noise of all rows is drawn, as the law says, up to
:data:`dpfest.noise.places.MOST_VALUES` of them: whether a row survives does not depend on the other rows. Of more,
untouched rows are drawn by gaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfest import devices
from dpfest.gradients.tables import ascending, locate
from dpfest.noise.box_muller import BLOCK, Scratch
from dpfest.noise.distributions import bernoulli, distinct, exponentials
from dpfest.noise.gaussian import add_gaussian, blocks_of, gaussian_grid, on_threads
from dpfest.noise.key import Keystream
from dpfest.noise.places import MOST_VALUES, MapPlaces
from dpfest.noise.precise import exponential, precise


def surviving_rows(
    touched: Tensor,
    sums: Tensor,
    stream: Keystream,
    *,
    universe: int,
    threshold: float,
    deviation: float,
    selected: Tensor | None = None,
) -> Tensor:
    """Return the rows whose noisy contribution reaches the threshold: sorted int64 ``[s]``, touched or not.

    Args:
        touched: sorted distinct rows, int64 ``[u]``, of ``range(universe)``.
        sums: the clipped map there, on the noise's grid, float64 ``[u]``; it is 0 at all other rows.
        stream: source of the touched rows' noise, then of the untouched survivors, or of all rows' noise.
        universe: number of rows over which the map is taken.
        threshold: ``tau``, in units of the clipped map; minus infinity keeps every row.
        deviation: standard deviation of the noise, ``sigma_1 C1``.
        selected: sorted distinct rows to which the map is restricted; None for all.

    Formal guarantee: post-processing of the Gaussian mechanism with noise multiplier ``sigma_1`` on the clipped map, up
    to the keystream and 2^-100 per row that is touched or survives (:mod:`dpfest.noise.gaussian`). An untouched row's
    survival probability has a relative error of at most 2^-53, which adds as much to an example's privacy loss per row.
    """
    if selected is not None:
        rank, inside = locate(selected, touched)
        chosen = surviving_rows(
            rank[inside], sums[inside], stream, universe=len(selected), threshold=threshold, deviation=deviation
        )
        return selected[chosen]
    if stream.placed and universe <= MOST_VALUES and math.isfinite(threshold):
        parts = devices.serving(touched)
        of_all = parts.surviving_rows if parts else _noised_everywhere
        return of_all(touched, sums, stream, universe, threshold, deviation)
    noised = sums.clone()
    add_gaussian(noised, stream, deviation, MapPlaces(touched))
    kept = touched[noised >= threshold]
    probability = survival_probability(threshold, deviation)
    extra = untouched_survivors(touched.cpu().numpy(), universe, probability, stream)
    if len(extra) == 0:
        return kept
    return ascending(torch.cat([kept, torch.from_numpy(extra).to(kept.device)]))


def _noised_everywhere(
    touched: Tensor, sums: Tensor, stream: Keystream, universe: int, threshold: float, deviation: float
) -> Tensor:
    """Do what :func:`surviving_rows` does by drawing the noise of every row."""
    noise, grid = blocks_of(stream, universe, deviation, MapPlaces(None)), gaussian_grid(deviation)
    rows, least = touched.cpu().numpy(), math.ceil(threshold / grid)  # a quotient by a power of two is exact
    due = least - np.rint(sums.cpu().numpy() / grid)  # what a touched row's noise must reach
    cuts = np.searchsorted(rows, np.arange(-(-universe // BLOCK) + 1) * BLOCK)
    found: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)] * (len(cuts) - 1)

    def work(begin: int, end: int, scratch: Scratch) -> None:
        own = noise.part(0, universe)
        for block in range(begin, end):
            units, part = own.draw(block, scratch), slice(cuts[block], cuts[block + 1])
            survives = units >= least
            within = rows[part] - block * BLOCK
            survives[within] = units[within] >= due[part]
            found[block] = np.flatnonzero(survives) + block * BLOCK

    on_threads(universe, work)
    return torch.from_numpy(np.concatenate(found or [rows[:0]])).to(touched.device)


@lru_cache
def survival_probability(threshold: float, deviation: float) -> float:
    """Return the probability that noise alone, on its grid, reaches the threshold; relative error at most 2^-53."""
    if math.isinf(threshold):
        return float(threshold < 0)
    grid = gaussian_grid(deviation)
    with precise() as mp:
        least = mp.ceil(mp.mpf(threshold) / grid) - 0.5
        return float(mp.erfc(least * grid / deviation / mp.sqrt(2)) / 2)


def untouched_survivors(
    touched: NDArray[np.int64], universe: int, probability: float, stream: Keystream
) -> NDArray[np.int64]:
    """Draw each row outside ``touched`` (sorted distinct int64 ``[u]``) with ``probability``; return them sorted."""
    return _outside(touched, bernoulli(stream, universe - len(touched), probability))


def draw_rows(
    rows: NDArray[np.int64],
    utilities: NDArray[np.float64],
    *,
    universe: int,
    count: int,
    scale: float,
    stream: Keystream,
) -> NDArray[np.int64]:
    """Return the ``count`` rows of largest utility + Gumbel(scale), where unnamed rows have utility 0.

    The largest Gumbel variates of the unnamed rows come from the order statistics of exponential spacings (Rényi, 1953)
    and are assigned to a uniform draw of those rows, so the cost is O(named + count), not O(universe).

    Args:
        rows: the named rows, sorted distinct int64 ``[u]``.
        utilities: utility of each named row, float64 ``[u]``.
        universe: number of rows in all.
        count: number of rows to draw.
        scale: scale of the Gumbel noise.
        stream: source of the draw.

    Returns:
        Sorted global rows, int64 ``[min(count, universe)]``.

    Formal guarantee: the law of ``count`` successive draws of the exponential mechanism without replacement (Durfee and
    Rogers, 2019, Lemma 4.2), within 2^-100 per row: scores that float64 cannot order are compared in 320 bits.
    """
    unnamed = universe - len(rows)
    others = min(count, unnamed)
    first = stream.reserve(len(rows) + others)
    words = stream.at(first, len(rows) + others)
    # The order of this subset must be random: it pairs rows with order statistics.
    candidates = np.concatenate([rows, _outside(rows, distinct(stream, unnamed, others))])
    if len(candidates) <= count:
        return np.sort(candidates)

    waits, error = exponentials(words)
    spacings = unnamed - np.arange(others)
    for terms in (waits, error):
        terms[len(rows) :] = np.cumsum(terms[len(rows) :] / spacings)
    error += waits * ((others + 4) * 2.0**-52)  # rounding of the sums
    utility = np.concatenate([utilities, np.zeros(others)])
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = utility - scale * np.log(waits)
        relative = np.where(error < 0.5 * waits, 2 * error / waits, np.inf)
        error = scale * (relative + 2.0**-50 * np.abs(np.log(waits))) + 2.0**-51 * (np.abs(scores) + np.abs(utility))

    def exactly(place: int) -> Any:
        with precise() as mp:
            start = place if place < len(rows) else len(rows)
            wait = mp.mpf(0)
            for one in range(start, place + 1):
                divisor = 1 if place < len(rows) else int(spacings[one - len(rows)])
                wait += exponential(stream, int(words[one]), first + one) / divisor
            return float(utility[place]) - scale * mp.log(wait)

    return np.sort(candidates[_largest(scores, error, count, exactly)])


def _largest(
    scores: NDArray[np.float64], error: NDArray[np.float64], count: int, exactly: Callable[[int], Any]
) -> NDArray[np.int64]:
    """Return the positions of the ``count`` largest scores, each within ``error``, computed ``exactly`` at need."""
    least, most = np.nan_to_num(scores - error, nan=-np.inf), np.nan_to_num(scores + error, nan=np.inf)
    inside = least > np.partition(most, -count - 1)[-count - 1]  # fewer than count others can be larger
    unsure = np.flatnonzero(~inside & (most >= np.partition(least, -count)[-count]))
    missing = count - int(inside.sum())
    if missing < len(unsure):
        unsure = np.array(sorted(unsure.tolist(), key=exactly, reverse=True), dtype=np.int64)
    return np.concatenate([np.flatnonzero(inside), unsure[:missing]])


def _outside(taken: NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers with the given ranks among those not in sorted distinct ``taken``."""
    # The free number of rank k lies above every taken t_i (i from 0) with t_i - i <= k.
    return ranks + np.searchsorted(taken - np.arange(len(taken)), ranks, side="right")
