"""The random choice of rows: DP-AdaFEST's noisy, thresholded contribution map, and draws by the exponential mechanism.

Both in time and memory that do not grow with the tables.  Law of the map (Ghazi et al., 2023, Algorithm 1, lines 5-6):
with ``v_i`` the 0/1 map of example ``i`` over all rows and ``[v]_C1 = v / max(1, |v| / C1)``, row ``j`` survives iff

    sum_i [v_i]_C1[j] + C1 * sigma_1 * N(0, 1)  >=  tau,        independently for every row of the universe.

A row that no example touches survives with probability ``Psi(tau / (sigma_1 * C1))``, Psi the standard normal
survival function.  (Appendix B.2 of the paper prints ``sigma_1^2 * C1^2``, which gives the wrong law, and too few
survivors where ``sigma_1 * C1 < 1``: a broken guarantee.)  The untouched survivors are drawn as a binomial count and
a uniform subset of that size, the same law as one coin a row, in O(touched + survivors).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import special
from torch import Tensor

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

    def clipped(self, contribution_clipping_norm: float) -> Tensor:
        """``sum_i [v_i]_C1`` at ``rows``, float64 ``[u]``: each example's map clipped to ``C1`` in l2 norm.

        Formal guarantee: adding or removing one example changes the map by at most ``C1`` in l2 norm.
        """
        distinct = torch.bincount(self.example, minlength=self.examples).to(torch.float64)
        weight = contribution_clipping_norm / distinct.sqrt().clamp_min(contribution_clipping_norm)
        sums = torch.bincount(self.row_of, weights=weight.index_select(0, self.example), minlength=len(self.rows))
        return sums.to(torch.float64)  # of no pairs, bincount makes integers


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
        rows, sums: sorted distinct touched rows ``[u]`` in ``range(universe)``, and their clipped contributions.
        universe: number of rows over which the map is taken.
        threshold: ``tau``, in units of the clipped map.
        contribution_clipping_norm, map_noise_multiplier: ``C1``, ``sigma_1``; the noise's deviation is their product.
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


def untouched_survivors(
    touched: np.ndarray, universe: int, probability: float, generator: np.random.Generator
) -> np.ndarray:
    """Rows outside ``touched`` (sorted distinct int64 ``[u]``) that survive, each with ``probability``: sorted."""
    untouched = universe - len(touched)
    count = generator.binomial(untouched, probability) if untouched else 0
    return _outside(touched, np.sort(_subset(untouched, count, generator)))


def draw_rows(
    rows: np.ndarray, utilities: np.ndarray, *, universe: int, count: int, scale: float, generator: np.random.Generator
) -> np.ndarray:
    """The ``count`` rows of largest utility + Gumbel(scale), where rows not named have utility 0.

    The largest Gumbel variates of the unnamed rows come from the order statistics of exponential spacings (Rényi,
    1953) and go to a uniform draw of those rows, so the cost is O(named + count) and not O(universe).

    Returns:
        Sorted global rows, int64 ``[min(count, universe)]``.
    """
    noisy = utilities + scale * generator.gumbel(size=len(rows))
    unnamed = universe - len(rows)
    others = min(count, unnamed)
    spacings = generator.standard_exponential(others) / (unnamed - np.arange(others))
    largest_gumbels = -scale * np.log(np.cumsum(spacings))
    # The order of this subset must be random: it pairs rows with order statistics.
    candidates = np.concatenate([rows, _outside(rows, generator.choice(unnamed, size=others, replace=False))])
    scores = np.concatenate([noisy, largest_gumbels])
    best = np.argpartition(-scores, count - 1)[:count] if count < len(scores) else np.arange(len(scores))
    return np.sort(candidates[best])


def _subset(universe: int, count: int, generator: np.random.Generator) -> np.ndarray:
    if count == universe:
        return np.arange(universe, dtype=np.int64)
    return generator.choice(universe, size=count, replace=False, shuffle=False)


def _outside(taken: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """The numbers of the given ranks among those that are not in sorted distinct ``taken``."""
    # The free number of rank k lies above as many taken t_i (i from 0) as have t_i - i <= k.
    return ranks + np.searchsorted(taken - np.arange(len(taken)), ranks, side="right")
