"""Privacy loss of balls-in-bins: an example is in one of the t batches of an epoch, drawn uniformly.

Batches of an epoch are allocated independently for every example. A step releases a Gaussian mechanism of noise
multiplier sigma on its batch and may depend on all releases before it. An epoch's first s steps are then dominated, in
either direction of adjacency, by

    P = (1 - s/t) N(0, sigma^2 I_s) + (1/t) sum_i N(e_i, sigma^2 I_s)        Q = N(0, sigma^2 I_s)

(Chua et al., "Balls-and-Bins sampling for DP-SGD", 2025; docs/PRIVACY.md has the proof). With independent R_i = dN(1,
sigma^2) / dN(0, sigma^2), log-normal and of mean 1 under Q, the likelihood ratio is R = (1 - s/t) + (R_1 + ... + R_s) /
t, and the divergences are E_Q (R - a)+ and E_Q (1 - a R)+. That the sum has no closed form is why the literature draws
it at random; here it is bounded, deterministically:

- Both divergences are expectations of convex functions of R. So R may be replaced by any variable above it in convex
  order: independent summands by summands above them, and a variable by one whose every value is split between the two
  neighbouring points of a grid, such that its mean stays (a mean-preserving spread). The log-normal is split so onto
  finitely many points; the sum of s is made by doubling, each sum of two split onto a grid again.
- What the largest point cuts off is split between 0 and infinity: its mean is counted as a divergence, P's mass where Q
  has none.

The grids are dense where the probability lies: twice as many points move epsilon by less than half a percent.
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.special import ndtr

from dpfest.accounting.dominating_pair import Floats, discretised

_REACH = 7.7  # standard deviations; a normal exceeds them with probability 7e-15, which is counted as delta
_NEGLIGIBLE = 1e-16  # probability below which grids need not be dense
_DROPPED = 1e-19  # probability below which a value is dropped, and counted as delta: 1e-14 for a thousand points
_POINTS, _FEWER_POINTS = 600, 400  # of a grid; the fewer for quick bounds
_FINE = 5e-4  # spacing of losses up to which the bound is to be tight


class Law(NamedTuple):
    """A variable of finitely many values, and infinity.

    Attributes:
        values: sorted, from 0, ``[n]``.
        chances: their probabilities, ``[n]``.
        cut: the mean that is at infinity.
    """

    values: Floats
    chances: Floats
    cut: float


def privacy_loss(noise_multiplier: float, bins: int, steps: int, interval: float) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of ``steps`` consecutive steps, from the start of an epoch on.

    Formal guarantee: pessimistic, for both directions of adjacency: the hockey-stick curves of the result lie on or
    above those of the steps, up to rounding errors of about 1e-13 of them.

    Args:
        noise_multiplier: sigma.
        bins: t, steps of an epoch.
        steps: of one or several epochs, the last perhaps incomplete; 1 or more.
        interval: spacing of the grid of losses.
    """
    epochs, rest = divmod(steps, bins)
    parts = [_of_an_epoch(noise_multiplier, bins, bins, interval).self_compose(epochs)] if epochs else []
    parts += [_of_an_epoch(noise_multiplier, bins, rest, interval)] if rest else []
    return parts[0] if len(parts) == 1 else parts[0].compose(parts[1])


@lru_cache(maxsize=4)
def _of_an_epoch(sigma: float, bins: int, steps: int, interval: float) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of an epoch's first ``steps``."""
    total = sum_of_ratios(sigma, steps, _POINTS if interval <= _FINE else _FEWER_POINTS)
    ratios, chances, cut = total.values / bins + (1 - steps / bins), total.chances, total.cut / bins
    # Suffix sums for (R - a)+, prefix sums for (1 - a R)+.
    above, mean_above = (np.append(np.cumsum(one[::-1])[::-1], 0.0) for one in (chances, chances * ratios))
    below, mean_below = (np.append(0.0, np.cumsum(one)) for one in (chances, chances * ratios))

    def removed(losses: Floats) -> Floats:
        a = np.exp(losses)
        first = np.searchsorted(ratios, a, side="right")
        return np.maximum(mean_above[first] - a * above[first], 0.0) + cut

    def added(losses: Floats) -> Floats:
        a = np.exp(losses)
        last = np.searchsorted(ratios, 1 / a, side="left")
        return np.maximum(below[last] - a * mean_below[last], 0.0)

    likely = ratios[(ratios > 0) & (below[1:] > _NEGLIGIBLE) & (mean_above[:-1] > _NEGLIGIBLE)]
    lowest, highest = math.log(likely[0]), math.log(likely[-1])
    return PrivacyLossDistribution(
        discretised(removed, lowest, highest, interval), discretised(added, -highest, -lowest, interval)
    )


def sum_of_ratios(noise_multiplier: float, count: int, points: int) -> Law:
    """Return a law above that of ``count`` independent likelihood ratios in convex order; ``points`` sets its size."""
    powers = [_doubled(noise_multiplier, place, points) for place in range(count.bit_length()) if count >> place & 1]
    return reduce(lambda one, other: _added(one, other, points), powers)


@lru_cache(maxsize=64)
def _doubled(sigma: float, times: int, points: int) -> Law:
    """Return a law above that of the sum of ``2 ** times`` likelihood ratios."""
    if not times:
        return _ratio(sigma, points)
    half = _doubled(sigma, times - 1, points)
    return _added(half, half, points)


def _ratio(sigma: float, points: int) -> Law:
    """Return a law above that of one likelihood ratio: log-normal, with mean 1."""
    half, reach = 0.5 / sigma**2, _REACH / sigma
    logs = np.linspace(-half - reach, half + reach, points)
    grid = np.append(0.0, np.exp(logs))
    # Probability of each interval between grid points under Q, and under P, which is Q's mean of R there.
    masses = _differences(np.append(-np.inf, (logs + half) * sigma))
    means = _differences(np.append(-np.inf, (logs - half) * sigma))
    upper = np.clip((means - grid[:-1] * masses) / np.diff(grid), 0.0, masses)
    chances = np.append(masses - upper, 0.0) + np.append(0.0, upper)
    beyond = float(ndtr(-(logs[-1] + half) * sigma))
    chances[0] += beyond  # split between 0 and infinity
    return _without_the_negligible(grid, chances, float(ndtr(-(logs[-1] - half) * sigma)))


def _differences(z: Floats) -> Floats:
    """Return the standard normal's probabilities between sorted points, exact in either tail: ``[n - 1]``."""
    low, high = z[:-1], z[1:]
    return np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))


def _added(one: Law, other: Law, points: int) -> Law:
    """Return a law above that of the sum of two independent variables."""
    grid = _grid(one, other, points)
    if one is other:  # each pair of different values once
        first, second = np.triu_indices(len(one.values))
        chances = one.chances[first] * one.chances[second] * np.where(first == second, 1.0, 2.0)
        values = one.values[first] + one.values[second]
    else:
        chances = (one.chances[:, None] * other.chances).ravel()
        values = (one.values[:, None] + other.values).ravel()
    place = np.minimum(np.searchsorted(grid, values, side="right") - 1, len(grid) - 2)
    upper = chances * np.clip((values - grid[place]) / np.diff(grid)[place], 0.0, 1.0)
    chances -= upper
    split = np.zeros(len(grid))
    split += np.bincount(place, chances, len(grid))
    split += np.bincount(place + 1, upper, len(grid))
    return _without_the_negligible(grid, split, one.cut + other.cut)


def _without_the_negligible(values: Floats, chances: Floats, cut: float) -> Law:
    """Return a law above the given one, in which values of hardly any probability and mean are 0 and infinity."""
    means = chances * values
    kept = (chances > _DROPPED) | (means > _DROPPED * means.sum())
    kept[0] = True
    chances = chances.copy()
    chances[0] += chances[~kept].sum()
    return Law(values[kept], chances[kept], cut + means[~kept].sum())


def _grid(one: Law, other: Law, points: int) -> Floats:
    """Return grid points for a sum: 0, then dense about its mean, by distance, and by ratio towards either end."""
    laws = (one, other)
    means = [law.chances @ law.values for law in laws]
    mean, highest = sum(means), one.values[-1] + other.values[-1]
    spread = math.sqrt(sum(law.chances @ (law.values - each) ** 2 for law, each in zip(laws, means, strict=True)))
    # The sum is below x only if both are.
    below = np.cumsum(one.chances) * np.interp(one.values, other.values, np.cumsum(other.chances))
    lowest = max(one.values[np.argmax(below > _NEGLIGIBLE)], one.values[1])
    above = mean + spread * np.sinh(np.linspace(0.0, math.asinh((highest - mean) / spread), points * 3 // 5))
    above[-1] = highest
    near = mean - spread * np.sinh(np.linspace(0.0, math.asinh((mean - lowest) / spread), points // 5))
    return np.unique(np.concatenate([[0.0], np.geomspace(lowest, mean, points // 5), near, above]))
