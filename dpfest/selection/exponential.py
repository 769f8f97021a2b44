"""The exponential mechanism's draws of rows, at the cost of the rows that have a utility."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfest.noise.bernoulli import exponentials
from dpfest.noise.distributions import distinct
from dpfest.noise.keystream import Keystream
from dpfest.noise.precise import exponential, precise
from dpfest.selection.survivors import outside


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
    candidates = np.concatenate([rows, outside(rows, distinct(stream, unnamed, others))])
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
