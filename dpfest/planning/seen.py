"""How often a row must occur for an algorithm to tell it from its own noise, and the threshold that tells it.

A contribution map sees a row in one batch, and pays for it in each step: an example that touches F rows adds
``min(1, C1 / sqrt(F))`` to each, and the noise on a row has standard deviation ``C1 sigma_1``. A row's sum therefore
equals one standard deviation where it occurs in ``sigma_1 max(C1, sqrt(F))`` examples *of a batch*, which at a rate q
takes 1/q times as many of all. A selection before training counts all examples once, under noise of
``sigma_h sqrt(F)``. Where bags hold up to so many rows, F is the most that an example can touch.

Both are means: which rows survive is drawn anew in each step, or once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpfest.algorithms.adafest import AdaFEST
from dpfest.errors import UserError
from dpfest.planning.privacy_plan import PrivacyPlan


@dataclass(frozen=True)
class Seen:
    """Occurrences at which a row's count equals one standard deviation of the noise on it.

    Attributes:
        in_batch: examples (or units) of a batch that must touch the row; None for a selection before training.
        in_all: examples (or units) of all that the mechanism counts: of a stream's period for a map, of a day or of
            all days for a selection.
    """

    in_batch: float | None
    in_all: float


def seen_by_map(plan: PrivacyPlan, rows_per_example: int, period: int = 0) -> Seen:
    """Return what the contribution map of a step sees.

    Args:
        plan: of an algorithm with a contribution map.
        rows_per_example: F, distinct rows that an example touches in all tables: the number of features, where each
            holds one category; of bags the most that they hold.
        period: of a stream, from 0.

    Raises:
        UserError: the plan has no contribution map.
    """
    algorithm, sigma, rate = _map(plan, period)
    in_batch = seen_in_batch(sigma, algorithm.contribution_clipping_norm, rows_per_example)
    return Seen(in_batch, in_batch / rate)


def seen_in_batch(noise_multiplier: float, contribution_clipping_norm: float, rows_per_example: int) -> float:
    """Return how many examples of a batch must touch a row for a contribution map with this noise multiplier to see it.

    Args:
        noise_multiplier: sigma_1.
        contribution_clipping_norm: C_1.
        rows_per_example: F, as for :func:`seen_by_map`.
    """
    return noise_multiplier * max(contribution_clipping_norm, math.sqrt(rows_per_example))


def seen_by_selection(plan: PrivacyPlan, rows_per_example: int | Sequence[int]) -> Seen | None:
    """Return what the counts of a selection before training see; None where there are none, or no noise on them.

    Args:
        plan: of any algorithm.
        rows_per_example: as for :func:`seen_by_map`; or the most rows of each feature in which an example is counted.
            Laplace noise is larger where they are more: of the feature with the most noise.
    """
    selection = plan.algorithm.selection
    if selection is None or selection.law not in ("gaussian", "laplace"):
        return None
    most = [1] * rows_per_example if isinstance(rows_per_example, int) else rows_per_example
    if selection.law == "gaussian":
        return Seen(None, selection.noise_multiplier * math.sqrt(sum(most)))
    return Seen(None, math.sqrt(2) * len(most) * max(most) / selection.epsilon)


def survival(plan: PrivacyPlan, occurrences: float, rows_per_example: int, period: int = 0) -> float:
    """Return the probability that a row survives a step of DP-AdaFEST.

    Args:
        plan: of an algorithm with a contribution map.
        occurrences: number of the period's examples that touch the row.
        rows_per_example: as for :func:`seen_by_map`.
        period: of a stream, from 0.
    """
    algorithm, sigma, rate = _map(plan, period)
    norm = algorithm.contribution_clipping_norm
    touched = np.arange(int(occurrences) + 1)
    sums = touched * min(1.0, norm / math.sqrt(rows_per_example))
    return float(binom.pmf(touched, int(occurrences), rate) @ ndtr((sums - algorithm.threshold) / (norm * sigma)))


def _map(plan: PrivacyPlan, period: int) -> tuple[AdaFEST, float, float]:
    """Return the algorithm, the noise multiplier of its map and the rate at which batches are drawn."""
    step, algorithm = plan.step(period), plan.algorithm
    if not isinstance(algorithm, AdaFEST) or step is None or step.map_noise_multiplier is None:
        raise UserError(f"{algorithm.name} has no contribution map: plan with dpfest.AdaFEST().")
    return algorithm, step.map_noise_multiplier, plan.batch_size / plan.periods[period].examples


def threshold_for(plan: PrivacyPlan, *, rows: int, false_rows: float = 1.0) -> float:
    """Return DP-AdaFEST's threshold at which ``false_rows`` untouched rows survive a step, on average.

    An untouched row survives with probability Psi(tau / (sigma_1 C1)), Psi the standard normal survival function (Ghazi
    et al., 2023, appendix B.2, but for a misprint), whatever the data: tau = sigma_1 C1 Psi^-1(false_rows / rows). The
    threshold costs no privacy: ``replace(plan, algorithm=replace(plan.algorithm, threshold=tau))``.

    Args:
        plan: plan of an algorithm with a contribution map; if its periods differ, the largest sigma_1 counts.
        rows: number of rows of all tables, or of DP-FEST's set within them.
        false_rows: expected number of untouched survivors, above 0 and below ``rows``.

    Raises:
        UserError: the plan has no contribution map, or false_rows is out of range.
    """
    maps = [_map(plan, period) for period in range(len(plan.periods))]
    if not 0 < false_rows < rows:
        raise UserError(f"false_rows={false_rows} must lie between 0 and the {rows} rows.")
    deviation = max(sigma * algorithm.contribution_clipping_norm for algorithm, sigma, _ in maps)
    return -deviation * float(ndtri(false_rows / rows))
