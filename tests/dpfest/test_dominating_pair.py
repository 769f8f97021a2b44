"""The published pair against dp_accounting's mechanisms, and against two-dimensional integration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom, norm

from dpfest.accounting.dominating_pair import hockey_stick, privacy_loss

DELTAS = (1e-3, 1e-5, 1e-7)


@pytest.mark.parametrize("rows, epsilon_per_draw", [(0, 1.0), (1, 1e-6), (50, 1e-6)])
@pytest.mark.parametrize("sigma, q, steps", [(0.8, 0.01, 100), (1.2, 0.2, 10), (3.0, 1.0, 1)])
def test_without_selection_it_is_the_sampled_gaussian(sigma, q, steps, rows, epsilon_per_draw):
    ours = privacy_loss(epsilon_per_draw, rows, sigma, q, 1e-3).self_compose(steps)
    theirs = pld.from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=1e-3).self_compose(steps)
    for delta in DELTAS:
        assert ours.get_epsilon_for_delta(delta) == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=2e-4)


@pytest.mark.parametrize("rows, epsilon", [(1, 0.7), (8, 0.3), (40, 0.1)])
def test_without_gaussian_it_is_repeated_randomised_response(rows, epsilon):
    ours = privacy_loss(epsilon, rows, math.inf, 1.0, 1e-4)
    flip = 2 / (1 + math.exp(epsilon))  # dp_accounting's noise parameter of two-valued randomised response
    theirs = pld.from_randomized_response(flip, 2, value_discretization_interval=1e-5).self_compose(rows)
    for level in (0.1, 0.5, 1.0):
        assert ours.get_delta_for_epsilon(level) == pytest.approx(
            theirs.get_delta_for_epsilon(level), rel=3e-3, abs=1e-9
        )


def _delta_by_integration(level, q, e, m, sigma, *, removed):
    """sup_S of mixed(S) - exp(level) Q(S) (or its reverse) by summing over J and a fine grid of x."""
    x = np.linspace(-12 * sigma, 1 + 12 * sigma, 200_001)
    step = x[1] - x[0]
    chance = 1 / (1 + math.exp(-e))
    total = 0.0
    for ones in range(m + 1):
        p = binom.pmf(ones, m, chance) * norm.pdf(x, 1, sigma)
        r = binom.pmf(ones, m, 1 - chance) * norm.pdf(x, 0, sigma)
        mixed = (1 - q) * r + q * p
        gap = mixed - math.exp(level) * r if removed else r - math.exp(level) * mixed
        total += float(np.maximum(gap, 0).sum()) * step
    return total


@pytest.mark.parametrize("q, e, m, sigma", [(0.1, 0.4, 6, 0.9), (0.5, 0.05, 20, 1.5), (1.0, 1.0, 3, 2.0)])
def test_delta_of_one_step_equals_integration_over_both_coordinates(q, e, m, sigma):
    ours = privacy_loss(e, m, sigma, q, 1e-3)
    for level in (0.0, 0.1, 0.5, 1.0):
        exact = max(_delta_by_integration(level, q, e, m, sigma, removed=side) for side in (True, False))
        assert ours.get_delta_for_epsilon(level) == pytest.approx(exact, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("level", [-0.3, 0.0, 0.2])
def test_both_orders_of_the_neighbours_are_covered(level):
    q, e, m, sigma = 0.3, 0.3, 10, 1.1
    ours = privacy_loss(e, m, sigma, q, 1e-3)
    for pmf, removed in ((ours._pmf_remove, True), (ours._pmf_add, False)):
        exact = _delta_by_integration(level, q, e, m, sigma, removed=removed)
        assert pmf.get_delta_for_epsilon(level) == pytest.approx(exact, rel=1e-3, abs=1e-9)


def test_it_is_pessimistic_and_converges_from_above():
    q, e, m, sigma = 0.05, 0.1, 50, 1.0
    levels = [privacy_loss(e, m, sigma, q, step).get_delta_for_epsilon(0.415) for step in (4e-2, 1e-2, 1e-3)]
    exact = _delta_by_integration(0.415, q, e, m, sigma, removed=True)
    assert levels[0] >= levels[1] >= levels[2] >= exact * (1 - 1e-6)


def test_more_rows_more_epsilon_a_row_or_less_noise_costs_more():
    def cost(e=0.1, m=10, sigma=1.0, q=0.1):
        return privacy_loss(e, m, sigma, q, 1e-3).self_compose(20).get_epsilon_for_delta(1e-5)

    assert cost() < cost(e=0.2)
    assert cost() < cost(m=20)
    assert cost() < cost(sigma=0.8)
    assert cost() < cost(q=0.2)


def test_many_draws_cost_like_the_gaussian_that_sets_their_epsilon():
    """m draws at 1 / (s sqrt(m)) approach a Gaussian of multiplier s; one draw at m times it costs more."""
    s, m = 1.5, 1000
    ours = privacy_loss(1 / (s * math.sqrt(m)), m, math.inf, 1.0, 1e-3).get_epsilon_for_delta(1e-6)
    gaussian = pld.from_gaussian_mechanism(s, value_discretization_interval=1e-3).get_epsilon_for_delta(1e-6)
    assert ours == pytest.approx(gaussian, rel=5e-3)
    assert ours < 0.2 * math.sqrt(m) / s


def test_hockey_stick_is_a_divergence():
    orders = np.linspace(-3, 6, 400)
    curve = hockey_stick(orders, 0.2, 30, 1.3)
    assert np.all(np.diff(curve) <= 0)
    assert np.all(curve >= np.maximum(0, 1 - np.exp(orders)) - 1e-15)
    chords = np.interp(np.exp(orders[1:-1]), np.exp(orders[[0, -1]]), curve[[0, -1]])
    assert np.all(curve[1:-1] <= chords)


@pytest.mark.parametrize("q", [1e-5, 0.5])
def test_extreme_settings_stay_finite_and_silent(q):
    with np.errstate(over="raise", invalid="raise"):
        loss = privacy_loss(20.0, 100, 1 / 16, q, 1e-2)
    assert 0 <= loss.get_delta_for_epsilon(1.0) <= 1
