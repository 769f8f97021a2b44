"""A lower bound on epsilon from draws of a mechanism in two neighbouring worlds.

Any set S of releases of an (epsilon, delta)-DP mechanism has P1(S) <= exp(epsilon) P0(S) + delta, and the same with the
worlds exchanged.  So a set with P1(S) at least ``p`` and P0(S) at most ``q`` refutes every epsilon below
``log((p - delta) / q)`` (Kairouz, Oh and Viswanath, 2015; Jagielski, Ullman and Oprea, 2020).

The best set is one of large likelihood ratio (Neyman and Pearson, 1933).  The ratio is estimated instead of derived, to
detect unforeseen flaws too: the first half of the draws is sorted into cells, the cells are ranked by their observed
ratio, and the ranking is cut where the bound is largest.  The second half, independent of that choice, gives the bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

BINS, DRAWS_A_BIN = (10, 200), 500
"""Cells into which the values of one kind of release are sorted: fewest and most, and draws for one more."""

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Draws:
    """Releases of a mechanism, one per row, in the order of drawing.

    Attributes:
        world: bool ``[n]``, whether the canary was present.
        kind: int ``[n]``, kind of the release, a small number.
        value: float ``[n]``, its value.
    """

    world: NDArray[np.bool_]
    kind: NDArray[np.int64]
    value: NDArray[np.floating]


def lower_bound(draws: Draws, delta: float, confidence: float) -> float:
    """Return the epsilon that the draws refute: the mechanism has a larger one at ``delta``.

    Formal guarantee: for independent draws, the result exceeds the true epsilon with probability at most
    ``1 - confidence``, divided between the two error rates by Bonferroni's inequality.

    Args:
        draws: draws of one mechanism; the first half chooses the set, the second gives the bound.
        delta: in [0, 1).
        confidence: in (0, 1).

    Returns:
        At least 0.
    """
    half = len(draws.world) // 2
    bins = min(max(BINS[0], half // DRAWS_A_BIN), BINS[1])
    edges = np.unique(np.quantile(draws.value[:half], np.arange(1, bins) / bins))
    cell = draws.kind * (len(edges) + 1) + np.searchsorted(edges, draws.value, side="right")
    cells = int(cell.max()) + 1
    chosen, tested = (_histograms(cell[part], draws.world[part], cells) for part in (slice(half), slice(half, None)))
    best, best_set, best_worlds = -1.0, np.zeros(cells, dtype=bool), (1, 0)
    for likely, unlikely in ((1, 0), (0, 1)):
        order = np.argsort(-(chosen[likely] + 0.5) / (chosen[unlikely] + 0.5), kind="stable")
        bounds = refuted(chosen, chosen[:, order].cumsum(axis=1), likely, unlikely, delta, confidence)
        cut = int(np.argmax(bounds))
        if bounds[cut] > best:
            best, best_worlds = float(bounds[cut]), (likely, unlikely)
            best_set = np.isin(np.arange(cells), order[: cut + 1])
    hits = (tested * best_set).sum(axis=1, keepdims=True)
    return float(refuted(tested, hits, *best_worlds, delta, confidence)[0])


def refuted(
    histograms: Counts, hits: Counts, likely: int, unlikely: int, delta: float, confidence: float
) -> NDArray[np.floating]:
    """Return the epsilon that each of several sets refutes, ``[sets]``.

    Args:
        histograms: draws in each cell in each world, ``[2, cells]``.
        hits: draws within each set in each world, ``[2, sets]``.
        likely: world whose probability of the set is bounded from below.
        unlikely: world whose probability is bounded from above.
    """
    totals, error = histograms.sum(axis=1), (1 - confidence) / 2
    k, n = hits[likely], totals[likely]
    least = np.where(k > 0, beta.ppf(error, np.maximum(k, 1), n - k + 1), 0.0)  # Clopper and Pearson, 1934
    k, n = hits[unlikely], totals[unlikely]
    most = np.where(k < n, beta.ppf(1 - error, k + 1, np.maximum(n - k, 1)), 1.0)
    return np.log(np.maximum((least - delta) / most, 1.0))


def _histograms(cell: NDArray[np.int64], world: NDArray[np.bool_], cells: int) -> Counts:
    return np.stack([np.bincount(cell[world == with_canary], minlength=cells) for with_canary in (False, True)])
