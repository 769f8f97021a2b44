"""The fast privacy loss of a sampled Gaussian is that of dp_accounting, to the last bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism

from dpfest.accounting.sampled_gaussian import privacy_loss

RATES = (1e-17, 1e-12, 3.5e-6, 0.01, 0.1, 0.5, 0.9, 1 - 1e-9)


def assert_equal(ours: PrivacyLossDistribution, theirs: PrivacyLossDistribution) -> None:
    for side in ("_pmf_remove", "_pmf_add"):
        one, other = vars(getattr(ours, side)), vars(getattr(theirs, side))
        assert one.keys() == other.keys() and len(one) >= 4
        for name, value in other.items():
            assert np.array_equal(one[name], value), (side, name)


@pytest.mark.parametrize("q", RATES)
@pytest.mark.parametrize("sigma", [0.3, 0.735, 4.0, 200.0])
def test_every_probability_is_that_of_dp_accounting(sigma: float, q: float) -> None:
    interval = min(1e-2, 0.2 / sigma)
    theirs = from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=interval)
    assert_equal(privacy_loss(sigma, q, interval), theirs)


@pytest.mark.parametrize("q", [0.25, 1 - math.exp(-0.5)])
def test_an_edge_that_lies_on_the_grid_is_met(q: float) -> None:
    """log(1 - q) is a multiple of the interval, where the loss without sampling is infinite."""
    interval = -math.log(1 - q) / 64
    theirs = from_gaussian_mechanism(0.8, sampling_prob=q, value_discretization_interval=interval)
    assert_equal(privacy_loss(0.8, q, interval), theirs)


def test_on_the_grid_of_accounting() -> None:
    theirs = from_gaussian_mechanism(1.1, sampling_prob=0.05, value_discretization_interval=1e-4)
    assert_equal(privacy_loss(1.1, 0.05, 1e-4), theirs)
