"""Dominating pair of exponential row selection, and of repeated randomised response.

One step of exponential selection (Zhang, Mironov and Hejazinia, "Wide network learning with differential privacy",
2021) draws m embedding rows by the norms of the summed, clipped gradient, re-clips every example's gradient on the
drawn rows and adds Gaussian noise of multiplier sigma there. It is dominated by

    P = RR(e)^m x N(1, sigma^2)        Q = RR'(e)^m x N(0, sigma^2)

where e is the epsilon of one draw and RR(e) is a bit that is 1 with probability exp(e) / (1 + exp(e)) under P and 1 /
(1 + exp(e)) under Q. Derivation, under add-or-remove-one adjacency of the batch:

1. A row's utility (its norm) has sensitivity S1, the clipping norm, in either direction: one draw of the exponential
   mechanism with Gumbel scale 2*S1/e is e-DP (McSherry and Talwar 2007, Theorem 6). The m largest noisy utilities are
   m such draws, each from the rows the previous draws left.
2. Every e-DP pair is dominated by RR(e) (Kairouz, Oh and Viswanath 2015, Theorem 3.4), here for each outcome of the
   draws before it. Given all draws, the noised sum is a Gaussian mechanism of sensitivity S2.
3. Adaptive composition multiplies dominating pairs (Zhu, Dong and Wang 2022, Theorem 10): hence P and Q. One randomised
   response at m*e is sound too, but its loss is m*e almost surely, whereas that of the product is about sqrt(m)*e.
4. Poisson sampling at rate q turns (P, Q) into ((1-q)Q + qP, Q) when the example is removed, and its reverse when it is
   added (Zhu, Dong and Wang 2022, Theorem 11).

Closed form: with J ~ Binomial(m, .) the number of ones, the log ratio of P to Q is e(2J - m) + (2x - 1) / (2 sigma^2),
so the hockey-stick divergence is a binomial mixture of Gaussian ones. It is sampled on a grid of losses and
interpolated pessimistically (Doroshenko et al. 2022, "Connect the dots"); ``dp_accounting`` composes the steps. sigma =
inf leaves randomised response alone, m = 0 the Gaussian alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

Floats = NDArray[np.floating]

# Probability mass that the discretisation truncates: counted as delta, far below any delta in use.
_TAIL = 1e-22
_TAIL_DEVIATIONS = 10.0  # a standard normal exceeds it with probability 8e-24
_ROUNDING = 1e-15
_LARGEST_LOSS = 600.0  # exp() of it is still a double
# Points on the curve of one unsampled step: fewer where each costs a sum over many numbers of ones.
_DOTS, _FEWEST_DOTS, _CELLS_OF_A_CURVE = 40_001, 4_001, 40_000_000
_CELLS_AT_ONCE = 2_000_000


def _ones(rows: int, epsilon_per_row: float) -> tuple[Floats, Floats]:
    """Return log ratios e(2J - m) and probabilities of J under P, except for J of total probability ``_TAIL``."""
    chance = 1 / (1 + math.exp(-epsilon_per_row))
    # The upper end is found from the number of zeros: scipy's isf fails at such tails and returns all rows.
    low, high = binom.ppf(_TAIL / 2, rows, chance), rows - binom.ppf(_TAIL / 2, rows, 1 - chance)
    count = np.arange(max(0, int(low)), min(rows, int(high)) + 1)
    losses = epsilon_per_row * (2.0 * count - rows)
    return losses, binom.pmf(count, rows, chance)


def hockey_stick(log_ratio: Floats, epsilon_per_row: float, rows: int, noise_multiplier: float) -> Floats:
    """Return an upper bound, tight to 1e-22, on the divergence D_s = sup_S P(S) - s Q(S), and on that between Q and P.

    The pair is symmetric: flip the bits, mirror x about 1/2.

    Args:
        log_ratio: log s, any real, shape ``(n,)``.
        epsilon_per_row: e > 0, of one draw.
        rows: m >= 0, number of draws.
        noise_multiplier: sigma > 0, inf for no Gaussian.
    """
    if math.isinf(noise_multiplier):
        # The best event is "more ones than j": its probability under P, less s times that under Q.
        ones = np.floor((log_ratio / epsilon_per_row + rows) / 2)
        chance = 1 / (1 + math.exp(-epsilon_per_row))
        with np.errstate(divide="ignore"):
            rival = np.exp(log_ratio + np.log(binom.sf(ones, rows, 1 - chance)))
        return np.maximum(0.0, binom.sf(ones, rows, chance) - rival)
    losses, probabilities = _ones(rows, epsilon_per_row)
    half = 0.5 / noise_multiplier
    divergence = np.full(log_ratio.shape, _TAIL)
    stride = max(1, _CELLS_AT_ONCE // len(losses))
    for start in range(0, len(log_ratio), stride):
        order = log_ratio[start : start + stride, None] - losses
        upper, lower = half - noise_multiplier * order, -half - noise_multiplier * order
        given_ones = np.maximum(0.0, ndtr(upper) - np.exp(order + log_ndtr(lower)))
        divergence[start : start + stride] += given_ones @ probabilities
    return np.minimum(divergence, 1.0)


def privacy_loss(
    epsilon_per_row: float, rows: int, noise_multiplier: float, q: float, interval: float
) -> PrivacyLossDistribution:
    """Return one step's privacy loss distribution, for both directions of adjacency.

    Formal guarantee: pessimistic. The hockey-stick curves of the result lie on or above those of every step that the
    pair dominates, whichever of the two data sets has the additional example.

    Arguments as for ``hockey_stick``; q in (0, 1] is the Poisson sampling rate, ``interval`` the grid's spacing.
    """
    furthest, orders, curve = _unsampled(epsilon_per_row, rows, noise_multiplier)

    def divergence(s: Floats) -> Floats:
        return np.interp(s, orders, curve)  # convex in s, so chords lie on or above it

    def removed(losses: Floats) -> Floats:
        # [(1-q)Q + qP] - e^t Q = q (P - s Q) with s = (e^t - (1-q)) / q; it is positive everywhere if s <= 0.
        s = 1 + np.expm1(losses) / q
        return np.where(s > 0, q * divergence(s), -np.expm1(losses))

    def added(losses: Floats) -> Floats:
        # Q - e^t [(1-q)Q + qP] = w (Q - s P) with w = 1 - e^t (1-q) and s = q e^t / w; nowhere positive if w <= 0.
        weight = q * np.exp(losses) - np.expm1(losses)
        s = q * np.exp(losses) / np.where(weight > 0, weight, 1.0)
        return np.where(weight > 0, weight * divergence(s), 0.0)

    if q == 1:
        return PrivacyLossDistribution(discretised(removed, -furthest, furthest, interval))
    least = -math.log1p(-q)
    most = float(np.logaddexp(-least, math.log(q) + furthest))
    return PrivacyLossDistribution(
        discretised(removed, -least, most, interval), discretised(added, -most, least, interval)
    )


@lru_cache(maxsize=32)  # a composition is computed at several intervals
def _unsampled(epsilon_per_row: float, rows: int, noise_multiplier: float) -> tuple[float, Floats, Floats]:
    """Return the largest loss of one unsampled step, but for tails, and its divergence D_s at many s: ``[n]`` both."""
    # Beyond this loss the divergence is below the two tails together.
    ones = _ones(rows, epsilon_per_row)[0]
    furthest = float(np.abs(ones).max(initial=0.0))
    dots = min(_DOTS, max(_FEWEST_DOTS, _CELLS_OF_A_CURVE // len(ones)))
    if math.isfinite(noise_multiplier):
        furthest += 0.5 / noise_multiplier**2 + _TAIL_DEVIATIONS / noise_multiplier
    furthest = min(furthest, _LARGEST_LOSS)
    log_orders = np.linspace(-furthest, furthest, dots)
    curve = hockey_stick(log_orders, epsilon_per_row, rows, noise_multiplier)
    return furthest, np.append(0.0, np.exp(log_orders)), np.append(1.0, curve)


def discretised(curve: Callable[[Floats], Floats], lowest: float, highest: float, interval: float) -> pld_pmf.PLDPmf:
    """Return a privacy loss distribution whose hockey-stick curve lies on or above ``curve`` (Doroshenko et al. 2022).

    Args:
        curve: divergence at each loss, ``[n]`` to ``[n]``.
        lowest: loss below which almost none lies.
        highest: loss above which almost none lies; what is left there counts as infinite.
        interval: spacing of the grid.
    """
    first, last = math.floor(lowest / interval), math.ceil(highest / interval)
    losses = np.arange(first, max(last, first + 1) + 1) * interval
    deltas = np.minimum.accumulate(curve(losses))
    # Any first point is sound; points whose delta is only rounding would make the result drift in composition.
    skip = max(0, int(np.argmax(deltas + np.expm1(losses) > _ROUNDING)) - 1)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, first + skip, first + len(losses) - 1, deltas[skip:]
    )
