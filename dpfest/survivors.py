"""The noisy, thresholded contribution map of DP-AdaFEST, in time and memory that do not grow with the tables.

Law (Ghazi et al., 2023, Algorithm 1, lines 5-6): with ``v_i`` the 0/1 map of example ``i`` over all rows and
``[v]_C1 = v / max(1, |v| / C1)`` its clipped form, row ``j`` survives iff

    sum_i [v_i]_C1[j] + C1 * sigma_1 * N(0, 1)  >=  tau,        independently for every row of the universe.

A row that no example touches survives with probability ``Psi(tau / (sigma_1 * C1))``, Psi the standard normal
survival function.  (Appendix B.2 of the paper prints ``sigma_1^2 * C1^2``, which gives the wrong law, and too few
survivors where ``sigma_1 * C1 < 1``: a broken guarantee.)  The untouched survivors are drawn as a binomial count and
a uniform subset of that size, the same law as one coin a row, in O(touched + survivors).
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import special
from torch import Tensor


def clipped_contributions(
    example: Tensor, row: Tensor, examples: int, contribution_clipping_norm: float
) -> tuple[Tensor, Tensor]:
    """Sum of the clipped contribution maps of a batch, at the rows that it touches.

    Args:
        example: int64 ``[P]``, the example of each distinct (example, row) pair.
        row: int64 ``[P]``, its row.
        examples: number of examples in the batch.
        contribution_clipping_norm: ``C1``, the l2 norm to which an example's map is clipped.

    Returns:
        ``(rows, sums)``: sorted distinct rows int64 ``[u]``, and ``sum_i [v_i]_C1`` there, float64 ``[u]``.

    Formal guarantee: adding or removing one example changes the map by at most ``C1`` in l2 norm.
    """
    distinct = torch.bincount(example, minlength=examples).to(torch.float64)
    weight = contribution_clipping_norm / distinct.sqrt().clamp_min(contribution_clipping_norm)
    ordered, order = torch.sort(row)
    rows, inverse = torch.unique_consecutive(ordered, return_inverse=True)
    sums = torch.zeros(len(rows), dtype=torch.float64, device=row.device)
    return rows, sums.index_add_(0, inverse, weight[example[order]])


def untouched_survivors(
    touched: np.ndarray, universe: int, probability: float, generator: np.random.Generator
) -> np.ndarray:
    """Rows outside ``touched`` that survive, each independently with ``probability``.

    Args:
        touched: sorted distinct int64 ``[u]`` within ``range(universe)``.
        universe: number of rows.
        probability: ``Psi(tau / (sigma_1 * C1))``.

    Returns:
        Sorted int64 ``[s]``, disjoint from ``touched``.
    """
    untouched = universe - len(touched)
    count = generator.binomial(untouched, probability) if untouched else 0
    if count == untouched:
        ranks = np.arange(untouched, dtype=np.int64)
    else:
        ranks = np.sort(generator.choice(untouched, size=count, replace=False, shuffle=False))
    # The untouched row of rank k lies above as many touched rows t_i (i from 0) as have t_i - i <= k.
    below = np.searchsorted(touched - np.arange(len(touched)), ranks, side="right")
    return ranks + below


def surviving_rows(
    rows: Tensor,
    sums: Tensor,
    *,
    universe: int,
    threshold: float,
    contribution_clipping_norm: float,
    map_noise_multiplier: float,
    touched_noise: Tensor,
    generator: np.random.Generator,
) -> Tensor:
    """Rows whose noisy contribution reaches the threshold: sorted int64 ``[s]``, touched or not.

    Args:
        rows: sorted distinct touched rows ``[u]``, numbers in ``range(universe)``.
        sums: their clipped contributions ``[u]``.
        universe: number of rows over which the map is taken.
        threshold: ``tau``, in units of the clipped map.
        contribution_clipping_norm: ``C1``.
        map_noise_multiplier: ``sigma_1``; the noise on the map has standard deviation ``sigma_1 * C1``.
        touched_noise: standard normal ``[u]``.
        generator: draws the untouched survivors.

    Formal guarantee: post-processing of the Gaussian mechanism with noise multiplier ``sigma_1`` on the clipped map.
    """
    scale = map_noise_multiplier * contribution_clipping_norm
    kept = rows[sums + scale * touched_noise >= threshold]
    probability = float(special.ndtr(-threshold / scale)) if scale > 0 else float(threshold <= 0)
    extra = untouched_survivors(rows.cpu().numpy(), universe, probability, generator)
    if len(extra) == 0:
        return kept
    return torch.sort(torch.cat([kept, torch.from_numpy(extra).to(kept.device)])).values
