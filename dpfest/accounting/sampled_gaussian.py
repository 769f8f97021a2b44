"""Privacy loss of the Gaussian mechanism on a Poisson sample: that of ``dp_accounting``, for all losses at once.

``dp_accounting.pld.from_gaussian_mechanism`` inverts the loss at one epsilon after another, in Python, which takes four
fifths of the time of an accounting. Here its formulas (``privacy_loss_mechanism``) act on arrays; range, cumulative
distributions and discretisation are its own functions. A test compares the two bit by bit.
"""

from __future__ import annotations

import math

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from numpy.typing import NDArray

_CLOSE = 1e-9  # math.isclose's tolerance


def privacy_loss(noise_multiplier: float, q: float, interval: float) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of one draw, for both directions of adjacency.

    Formal guarantee: pessimistic; every number is that of ``from_gaussian_mechanism(noise_multiplier,
    sampling_prob=q, value_discretization_interval=interval)``.

    Args:
        noise_multiplier: standard deviation over l2-sensitivity.
        q: Poisson sampling rate, above 0 and below 1.
        interval: spacing of the grid of losses.
    """

    def discretised(adjacency: AdjacencyType) -> pld_pmf.PLDPmf:
        mechanism = GaussianPrivacyLoss(noise_multiplier, sampling_prob=q, adjacency_type=adjacency)
        bounds = mechanism.connect_dots_bounds()
        first, last = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
        deltas = _deltas(mechanism, noise_multiplier, np.arange(first, last + 1) * interval)
        return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas)

    return PrivacyLossDistribution(discretised(AdjacencyType.REMOVE), discretised(AdjacencyType.ADD))


def _deltas(
    mechanism: GaussianPrivacyLoss, noise_multiplier: float, epsilons: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the hockey-stick divergence at every epsilon: ``mechanism.get_delta_for_epsilon``."""
    q, added = mechanism.sampling_prob, mechanism.adjacency_type is AdjacencyType.ADD
    side = -1.0 if added else 1.0
    # M = (1-q) Q + q P, of a sample that may have the example, against Q, without it: below log(1-q), M >= e^eps Q
    # everywhere and delta is 1 - e^eps. The other way round, Q <= e^eps M everywhere above -log(1-q).
    inside = side * epsilons > math.log1p(-q)
    deltas = np.zeros_like(epsilons) if added else -np.expm1(epsilons)
    losses = side * epsilons[inside]

    # The loss without sampling is +-log((e^+-eps - 1) / q + 1), which is -+inf at the edge.
    edge = math.log(1 - q)
    at_edge = np.abs(losses - edge) <= _CLOSE * np.maximum(np.abs(losses), abs(edge))
    with np.errstate(divide="ignore"):  # at a rate below 1e-16, 1 - 1 / q rounds to -1 / q
        unsampled = np.where(at_edge, -np.inf, np.log(1 / q + (1 - 1 / q)))  # the second at eps = 0
    plain = ~at_edge & (losses != 0)
    gained, constant = losses[plain] + np.log(1 / q), np.log(1 / q - 1)
    if not np.all(gained > constant):
        raise ValueError(f"losses of a sample at rate {q} lie below {edge}")
    unsampled[plain] = gained + np.log1p(-np.exp(constant - gained))

    cuts = -0.5 - side * unsampled * noise_multiplier**2 + (1.0 if added else 0.0)
    upper, lower = mechanism.mu_upper_cdf(cuts), mechanism.mu_lower_log_cdf(cuts)
    deltas[inside] = upper - np.exp(epsilons[inside] + lower)
    return np.clip(deltas, 0, 1)
