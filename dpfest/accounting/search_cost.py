"""What the best of a random number of runs costs: two upper bounds, of which the smaller one holds.

A search A makes K runs of a mechanism Q (a run draws its setting, trains, and is scored by a function of what it
releases), K random and secret, and releases the best run alone. Let f be the generating function of K, q and q' the
densities of Q on neighbouring data, and F, F' the probabilities that a run is no better than y (ties broken by random
ranks, which are independent of the data). A has the density ``q(y) f'(F(y))``, and an atom f(0) for K = 0, which is the
same on all data.

1. *Renyi* (Papernot and Steinke 2022, Theorems 2 and 6): :func:`by_renyi`, dp_accounting's RepeatAndSelectDpEvent.
2. *Privacy profiles* (Koskela, Redberg and Wang 2024): :func:`by_profile`. For all x = 1 - F and every e1,
   ``1 - F' <= G(x) = min over e1 of (e^e1 x + delta_Q(e1))``, so with the decreasing function ``d(x) = f'(1 - x)``

       q f'(F) - e^epsilon q' f'(F') <= q d(x) - e^epsilon q' d(G(x)).

   They take the least C with ``d(x) <= C d(G(x))`` for all x, and d(0) = E[K] for the first d(x):
   ``delta_A(epsilon) <= E[K] delta_Q(epsilon - ln C)``. We take the maximum over x of both terms together: over x in
   the bands ``x_j .. x_(j+1)``, q d(x) - e^epsilon q' d(G(x)) is at most ``a_j q - e^epsilon b_j q'``, with ``a_j =
   d(x_j)`` and ``b_j = d(G(x_(j+1)))``. With r = e^-epsilon q / q', the maximum over j of ``(a_j r - b_j)+`` is convex
   and piecewise linear in r, a sum of ``w_k (r - t_k)+`` whose w_k sum to E[K]. Multiplied by e^epsilon q' and
   integrated, each summand is a hockey-stick divergence of Q:

       delta_A(epsilon) <= sum over k of w_k delta_Q(epsilon + ln t_k).

   Every t_k is at least 1/C, so this is never above their bound (but for the width of the bands).

Both directions of adjacency are covered, since delta_Q is the larger of both. Of several settings, the largest delta_Q
(and Renyi divergence) of any counts: Q is their mixture, and says which it drew. A bound on delta_Q at epsilon >= 0 is
one below 0: ``delta_Q(-e) = 1 - e^-e + e^-e delta_Q(e)``, directions exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from numpy.typing import NDArray

from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event

Floats = NDArray[np.float64]

_POINTS = 4_001  # of a profile: interpolation between them is an upper bound, 0.1% above the curve at most
_BANDS = 2_000  # of the probability that a run is better
_LARGEST = 600.0  # epsilon whose exponential float64 holds
# dp_accounting's own orders without the fractions, which take it seconds and which it leaves out where its series fail.
_ORDERS = np.array([order for order in rdp.DEFAULT_RDP_ORDERS if order == int(order)], dtype=np.float64)


@dataclass(frozen=True)
class Repeats:
    """The law of the number of runs, as the bounds need it.

    Attributes:
        mean: E[K], or slightly more.
        slope: d(x) = f'(1 - x), elementwise on 0 .. 1; decreasing, and ``mean`` at 0.
        gamma, shape: of the truncated negative binomial distribution; None for the Poisson distribution.
    """

    mean: float
    slope: Callable[[Floats], Floats]
    gamma: float | None = None
    shape: float | None = None


@dataclass(frozen=True)
class Profile:
    """An upper bound on delta_Q at every epsilon, in both directions.

    delta is a convex function of e^epsilon, so that the chord between two points lies above it.

    Attributes:
        epsilons: from 0, ascending: ``[n]``.
        deltas: delta at each: ``[n]``.
    """

    epsilons: Floats
    deltas: Floats

    def __call__(self, epsilon: Floats) -> Floats:
        """Return delta at each epsilon, which may be negative; beyond the last point, that of the last."""
        with np.errstate(over="ignore"):  # beyond the last point
            found = np.interp(np.exp(np.abs(epsilon)), np.exp(self.epsilons), self.deltas)
        below = np.minimum(epsilon, 0.0)
        return -np.expm1(below) + np.exp(below) * found


def profile(runs: Sequence[Sequence[Event]], least: float, interval: float = accountant.INTERVAL) -> Profile | None:
    """Return the pointwise largest profile of several settings, down to a delta of ``least``; None if it stays above.

    Args:
        runs: for each setting, what one run of it pays.
        least: delta from which on the curve is not needed.
        interval: spacing of the grid of privacy losses.
    """
    parts = list(dict.fromkeys(paid for events in runs for paid in accountant.by_example(events)))
    top = max(accountant.epsilon(paid, least, interval) for paid in parts)
    if top > _LARGEST:
        return None
    epsilons = np.linspace(0.0, top, _POINTS)
    deltas = np.max([accountant.deltas(paid, epsilons, interval) for paid in parts], axis=0)
    return Profile(epsilons, deltas)


def by_profile(
    repeats: Repeats, runs: Sequence[Sequence[Event]], delta: float, interval: float = accountant.INTERVAL
) -> float:
    """Return the epsilon of a search at ``delta``: bound 2 of the module; inf if ``delta`` cannot be met."""
    for share in (0.01, 1.0):  # what lies beyond the curve counts as much as its end
        curve = profile(runs, share * delta / repeats.mean, interval)
        if curve is not None:
            return of_profile(repeats, curve, delta)
    return math.inf


def of_profile(repeats: Repeats, curve: Profile, delta: float) -> float:
    """Return bound 2 for any mechanism of this privacy profile."""
    weights, shifts = _lines(repeats, curve, delta)

    def spent(epsilon: float) -> float:
        return float(weights @ curve(epsilon + shifts))

    low, high = 0.0, 1.0
    if spent(0.0) <= delta:
        return 0.0
    while spent(high) > delta:
        low, high = high, 2 * high
        if high > _LARGEST:
            return math.inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if spent(middle) <= delta else (middle, high)
    return high


def _lines(repeats: Repeats, curve: Profile, delta: float) -> tuple[Floats, Floats]:
    """Return w_k and ln t_k: ``[k]`` both."""
    e1 = curve.epsilons[:: len(curve.epsilons) // 200 or 1]
    e1 = np.concatenate([-e1[:0:-1], e1])
    deltas = curve(e1)

    def reach(better: Floats) -> Floats:
        return np.minimum(np.min(np.exp(e1) * better[:, None] + deltas, axis=1), 1.0)

    # Bands in each of which neither d(x) nor d(G(x)) changes by much, as far as d(x) matters.
    tried = np.concatenate([[0.0], np.geomspace(1e-3 * delta / repeats.mean, 1.0, 20_000)])
    logs = np.log(repeats.slope(tried) + 1e-300)
    even = np.interp(-np.linspace(logs[0], max(logs[-1], math.log(0.01 * delta)), _BANDS), -logs, tried)
    coarse = tried[1::20]
    better = np.union1d(np.concatenate([even, np.interp(even, reach(coarse), coarse)]), [1.0])
    better = better[better > 0]
    a = repeats.slope(np.concatenate([[0.0], better[:-1]]))
    b = repeats.slope(reach(better))
    # The maximum over j of (a_j r - b_j)+ changes its slope where the lower convex hull of the points (a_j, b_j) and
    # (0, 0) has an edge: at the edge's own slope, by the edge's width.
    hull = [(0.0, 0.0)]
    for point in zip(a[::-1].tolist(), b[::-1].tolist(), strict=True):
        while len(hull) > 1 and _above(hull[-2], hull[-1], point):
            hull.pop()
        if point[0] > hull[-1][0]:
            hull.append(point)
    edges = np.diff(np.array(hull), axis=0)
    with np.errstate(divide="ignore"):  # t = 0, where a neighbouring world cannot tell: ln t = -inf, and delta = 1
        return edges[:, 0], np.log(edges[:, 1]) - np.log(edges[:, 0])


def _above(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    """Whether the middle point lies on or above the line from the first to the last."""
    rise = (middle[1] - first[1]) * (last[0] - first[0])
    return rise >= (last[1] - first[1]) * (middle[0] - first[0])


def by_renyi(repeats: Repeats, runs: Sequence[Sequence[Event]], delta: float) -> float:
    """Return the epsilon of a search at ``delta``: bound 1 of the module; inf for events that it does not know."""
    parts = {paid for events in runs for paid in accountant.by_example(events)}
    one = np.max([_renyi(paid) for paid in parts], axis=0)
    if not np.isfinite(one).any():
        return math.inf
    added = np.log(repeats.mean) / (_ORDERS - 1)
    if repeats.gamma is None or repeats.shape is None:
        added += [repeats.mean * rdp.compute_delta(_ORDERS, one, math.log1p(1 / (a - 1)))[0] for a in _ORDERS]
    else:
        added += (1 + repeats.shape) * np.min((1 - 1 / _ORDERS) * one - math.log(repeats.gamma) / _ORDERS)
    return float(rdp.compute_epsilon(_ORDERS, one + added, delta)[0])


@lru_cache(maxsize=64)
def _renyi(events: tuple[Event, ...]) -> Floats:
    """Return the Renyi divergences of a composition at ``_ORDERS``; inf for events without one in dp_accounting."""
    accountant = rdp.RdpAccountant(_ORDERS.tolist())
    for event in events:
        sampled = event.sampling_probability < 1
        if event.sampling not in (None, "poisson"):
            return np.full(len(_ORDERS), math.inf)
        if event.kind == "gaussian":
            one: dp_event.DpEvent = dp_event.GaussianDpEvent(event.noise_multiplier)
        elif event.kind == "laplace" and not sampled:
            one = dp_event.LaplaceDpEvent(event.noise_multiplier)
        else:
            return np.full(len(_ORDERS), math.inf)
        if sampled:
            one = dp_event.PoissonSampledDpEvent(event.sampling_probability, one)
        accountant.compose(one, event.count)
    return np.array(accountant._rdp)
