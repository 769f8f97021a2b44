"""The random choice of rows: DP-AdaFEST's noisy, thresholded contribution map, and draws by the exponential mechanism.

Both in time and memory that do not grow with the tables.  Law of the map (Ghazi et al., 2023, Algorithm 1, lines 5-6):
with ``v_i`` the 0/1 map of example ``i`` over all rows and ``[v]_C1 = v / max(1, |v| / C1)``, row ``j`` survives iff

    sum_i [v_i]_C1[j] + C1 * sigma_1 * N(0, 1)  >=  tau,        independently for every row of the universe.

Map and noise are multiples of a grid g (:mod:`dpfest.gaussian`), each example's map rounded *down* to it: its norm
stays below ``C1``, and sums are exact in whatever order they are taken.

A row that no example touches survives with the probability that a touched one of sum 0 would:
``Psi((ceil(tau / g) - 1/2) g / (sigma_1 * C1))``, Psi the standard normal survival function.  (Appendix B.2 of the
paper prints ``sigma_1^2 * C1^2``, which gives the wrong law, and too few survivors where ``sigma_1 * C1 < 1``: a
broken guarantee.)  Those that do are drawn one after another, by the gaps between them, in O(touched + survivors).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfest.distributions import bernoulli, distinct, exponentials
from dpfest.gaussian import add_gaussian, gaussian_grid
from dpfest.noise import Keystream
from dpfest.precise import exponential, precise
from dpfest.tables import locate


@dataclass(frozen=True)
class Contributions:
    """Who touched what in a batch: the distinct (example, row) pairs.

    Attributes:
        rows: sorted distinct rows touched, int64 ``[u]``.
        row_of: which of ``rows`` each pair is, int64 ``[p]``.
        example: the example of each pair, int64 ``[p]``, in ``range(examples)``.
    """

    rows: Tensor
    row_of: Tensor
    example: Tensor
    examples: int

    def within(self, selected: Tensor) -> Contributions:
        """Those to sorted distinct ``selected`` rows alone, each known by its rank within them."""
        rank, inside = locate(selected, self.rows)
        pairs = torch.nonzero(inside[self.row_of]).squeeze(1)
        renumbered = inside.cumsum(0) - 1
        return Contributions(rank[inside], renumbered[self.row_of[pairs]], self.example[pairs], self.examples)

    def clipped(self, contribution_clipping_norm: float, grid: float = 0.0) -> Tensor:
        """``sum_i [v_i]_C1`` at ``rows``, float64 ``[u]``: each example's map clipped to ``C1`` in l2 norm.

        Args:
            contribution_clipping_norm: ``C1``.
            grid: power of two to whose multiples each entry of a clipped map is rounded down; 0 for no rounding.

        Formal guarantee: adding or removing one example changes the map by at most ``C1`` in l2 norm; on a grid this
        holds of the floats themselves, as their sums are exact.
        """
        distinct = torch.bincount(self.example, minlength=self.examples).to(torch.float64)
        weight = contribution_clipping_norm / distinct.sqrt().clamp_min(contribution_clipping_norm)
        if grid > 0:  # a weight below 1 came from a root and a quotient, each off by up to half a unit
            weight = torch.where(weight < 1, weight * (1 - 2.0**-51), weight)
            weight = (weight / grid).floor_().mul_(grid)
        sums = torch.bincount(self.row_of, weights=weight.index_select(0, self.example), minlength=len(self.rows))
        return sums.to(torch.float64)  # of no pairs, bincount makes integers


def surviving_rows(
    touched: Contributions,
    stream: Keystream,
    *,
    universe: int,
    threshold: float,
    contribution_clipping_norm: float,
    map_noise_multiplier: float,
) -> Tensor:
    """Rows whose noisy contribution reaches the threshold: sorted int64 ``[s]``, touched or not.

    Args:
        touched: who touched which of the rows ``range(universe)``.
        stream: gives the touched rows' noise, and then the untouched survivors.
        universe: number of rows over which the map is taken.
        threshold: ``tau``, in units of the clipped map; minus infinity keeps every row.
        contribution_clipping_norm: ``C1``.
        map_noise_multiplier: ``sigma_1``; the noise's deviation is ``sigma_1 C1``.

    Formal guarantee: post-processing of the Gaussian mechanism with noise multiplier ``sigma_1`` on the clipped map,
    up to the keystream and 2^-100 a row that is touched or survives (:mod:`dpfest.gaussian`).  An untouched row's
    probability of survival is right to 2^-53 of it, which adds as much to an example's privacy loss, a row.
    """
    deviation = map_noise_multiplier * contribution_clipping_norm
    grid = gaussian_grid(deviation) if deviation > 0 else 0.0
    sums = touched.clipped(contribution_clipping_norm, grid)
    if deviation > 0:
        add_gaussian(sums, stream, deviation)
    kept = touched.rows[sums >= threshold]
    probability = survival_probability(threshold, deviation)
    extra = untouched_survivors(touched.rows.cpu().numpy(), universe, probability, stream)
    if len(extra) == 0:
        return kept
    return torch.sort(torch.cat([kept, torch.from_numpy(extra).to(kept.device)])).values


@lru_cache
def survival_probability(threshold: float, deviation: float) -> float:
    """That noise of this deviation, on its grid, reaches the threshold by itself: right to 2^-53 of it."""
    if deviation == 0 or math.isinf(threshold):
        return float(threshold <= 0)
    grid = gaussian_grid(deviation)
    with precise() as many:
        least = many.ceil(many.mpf(threshold) / grid) - 0.5
        return float(many.erfc(least * grid / deviation / many.sqrt(2)) / 2)


def untouched_survivors(
    touched: NDArray[np.int64], universe: int, probability: float, stream: Keystream
) -> NDArray[np.int64]:
    """Rows outside ``touched`` (sorted distinct int64 ``[u]``) that survive, each with ``probability``: sorted."""
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
    """The ``count`` rows of largest utility + Gumbel(scale), where rows not named have utility 0.

    The largest Gumbel variates of the unnamed rows come from the order statistics of exponential spacings (Rényi,
    1953) and go to a uniform draw of those rows, so the cost is O(named + count) and not O(universe).

    Args:
        rows: the named rows, sorted distinct int64 ``[u]``.
        utilities: what each of them is worth, float64 ``[u]``.
        universe: how many rows there are.
        count: how many to draw.
        scale: of the Gumbel noise.
        stream: the draw's.

    Returns:
        Sorted global rows, int64 ``[min(count, universe)]``.

    Formal guarantee: the law of ``count`` draws of the exponential mechanism, one after another (Durfee and Rogers,
    2019, Lemma 4.2), within 2^-100 a row: scores that float64 cannot tell apart at the cut are compared in 320 bits.
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
    for of in (waits, error):
        of[len(rows) :] = np.cumsum(of[len(rows) :] / spacings)
    error += waits * ((others + 4) * 2.0**-52)  # of the sums
    worth = np.concatenate([utilities, np.zeros(others)])
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = worth - scale * np.log(waits)
        relative = np.where(error < 0.5 * waits, 2 * error / waits, np.inf)
        error = scale * (relative + 2.0**-50 * np.abs(np.log(waits))) + 2.0**-51 * (np.abs(scores) + np.abs(worth))

    def exactly(place: int) -> Any:
        with precise() as many:
            start = place if place < len(rows) else len(rows)
            wait = many.mpf(0)
            for one in range(start, place + 1):
                divisor = 1 if place < len(rows) else int(spacings[one - len(rows)])
                wait += exponential(stream, int(words[one]), first + one) / divisor
            return float(worth[place]) - scale * many.log(wait)

    return np.sort(candidates[_largest(scores, error, count, exactly)])


def _largest(
    scores: NDArray[np.float64], error: NDArray[np.float64], count: int, exactly: Callable[[int], Any]
) -> NDArray[np.int64]:
    """Places of the ``count`` largest of scores that are each off by up to ``error``, and known ``exactly`` at need."""
    least, most = np.nan_to_num(scores - error, nan=-np.inf), np.nan_to_num(scores + error, nan=np.inf)
    inside = least > np.partition(most, -count - 1)[-count - 1]  # at most count others can be as large
    unsure = np.flatnonzero(~inside & (most >= np.partition(least, -count)[-count]))
    missing = count - int(inside.sum())
    if missing < len(unsure):
        unsure = np.array(sorted(unsure.tolist(), key=exactly, reverse=True), dtype=np.int64)
    return np.concatenate([np.flatnonzero(inside), unsure[:missing]])


def _outside(taken: NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of the given ranks among those that are not in sorted distinct ``taken``."""
    # The free number of rank k lies above as many taken t_i (i from 0) as have t_i - i <= k.
    return ranks + np.searchsorted(taken - np.arange(len(taken)), ranks, side="right")
