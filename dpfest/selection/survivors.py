"""DP-AdaFEST's choice of rows: a noisy, thresholded contribution map.

Under AES time and memory do not grow with the tables. Law of the map (Ghazi et al., 2023, Algorithm 1, lines 5-6): with
``v_i`` the 0/1 contribution map of example ``i`` over all rows and ``[v]_C1 = v / max(1, |v| / C1)``, row ``j``
survives iff

    sum_i [v_i]_C1[j] + C1 * sigma_1 * N(0, 1)  >=  tau,        independently for every row of the universe.

Map and noise are multiples of a grid g (:mod:`dpfest.noise.gaussian`). Each example's map is rounded *down* to it: its
norm stays below ``C1``, and sums are exact in any order.

A row that no example touches survives with the probability of a touched row of sum 0:
``Psi((ceil(tau / g) - 1/2) g / (sigma_1 * C1))``, Psi the standard normal survival function. (Appendix B.2 of the paper
prints ``sigma_1^2 * C1^2``, which gives the wrong law, and too few survivors if ``sigma_1 * C1 < 1``: a broken
guarantee.) Untouched survivors are drawn by the gaps between them, in O(touched + survivors); where most rows survive,
the noise of all is drawn. Under ``chacha20/1`` a row's noise is a function of its number, touched or not, and so the
noise of all rows is drawn, as the law says, up to :data:`dpfest.noise.places.MOST_VALUES` of them: whether a row
survives does not depend on the other rows. Of more, untouched rows are drawn by gaps.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfest import devices
from dpfest.gradients.tables import ascending, locate
from dpfest.noise.bernoulli import bernoulli
from dpfest.noise.box_muller import BLOCK, Scratch
from dpfest.noise.gaussian import add_gaussian, blocks_of, gaussian_grid, on_threads
from dpfest.noise.keystream import Keystream
from dpfest.noise.places import MOST_VALUES, MapPlaces
from dpfest.noise.precise import precise


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
    to the keystream and 2^-100 per row that is touched or survives (:mod:`dpfest.noise.gaussian`). Where untouched rows
    are drawn by gaps, the probability that one survives is at most 1/2; it and that of the opposite have a relative
    error of at most 2^-53, which adds as much to an example's privacy loss per row.
    """
    if selected is not None:
        rank, inside = locate(selected, touched)
        chosen = surviving_rows(
            rank[inside], sums[inside], stream, universe=len(selected), threshold=threshold, deviation=deviation
        )
        return selected[chosen]
    probability = survival_probability(threshold, deviation)
    placed = stream.placed and universe <= MOST_VALUES
    if math.isfinite(threshold) and (placed or probability > 1 / 2):
        parts = devices.serving(touched) if placed else None
        of_all = parts.surviving_rows if parts else _noised_everywhere
        return of_all(touched, sums, stream, universe, threshold, deviation)
    noised = sums.clone()
    add_gaussian(noised, stream, deviation, MapPlaces(touched))
    kept = touched[noised >= threshold]
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
    return outside(touched, bernoulli(stream, universe - len(touched), probability))


def outside(taken: NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers with the given ranks among those not in sorted distinct ``taken``."""
    # The free number of rank k lies above every taken t_i (i from 0) with t_i - i <= k.
    return ranks + np.searchsorted(taken - np.arange(len(taken)), ranks, side="right")
