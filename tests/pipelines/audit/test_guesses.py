"""Bounds from one run: right in closed forms, honest on synthetic mechanisms, and able to refute."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpfest.accounting import accountant, calibration
from dpfest.accounting.accountant import Event
from pipelines.audit.attack import Attack
from pipelines.audit.family import Family
from pipelines.audit.guesses import Guesses, Points, epsilon_at_delta, p_value, refutes

DELTA = 1e-5


def points(delta_at: Callable[[float], float], most: float = 12.0) -> Points:
    epsilons = np.linspace(0, most, 121)
    return Points(epsilons, np.array([delta_at(epsilon) for epsilon in epsilons]))


def randomised_response(epsilon: float) -> Points:
    """Its whole privacy profile."""
    honest = 1 / (1 + math.exp(-epsilon))
    return points(lambda at: max(0.0, honest - math.exp(at) * (1 - honest)))


def normal_profile(epsilon: float) -> float:
    """Delta of a Gaussian mechanism of noise multiplier 1 (Balle and Wang, 2018)."""
    return float(ndtr(0.5 - epsilon) - math.exp(epsilon) * ndtr(-0.5 - epsilon))


def gaussian(sigma: float) -> Event:
    return Event(kind="gaussian", what="audited", noise_multiplier=sigma)


def test_without_delta_the_p_value_is_the_tail_of_randomised_response() -> None:
    guesses = Guesses(canaries=500, made=200, right=160, one_sided=False)
    assert p_value(guesses, 1.0, 0.0) == pytest.approx(binom.sf(159, 200, 1 / (1 + math.exp(-1))))
    found = epsilon_at_delta(guesses, 0.0, 0.95)
    assert binom.sf(159, 200, 1 / (1 + math.exp(-found))) == pytest.approx(0.05, rel=0.02)


def test_what_delta_adds_to_the_p_value_is_the_theorems_maximum() -> None:
    m, r, v, epsilon, delta = 50, 30, 27, 1.5, 1e-3
    honest = 1 / (1 + math.exp(-epsilon))
    law = [math.comb(r, k) * honest**k * (1 - honest) ** (r - k) for k in range(r + 1)]
    worst = max(sum(law[v - i : v]) / i for i in range(1, v + 1))
    expected = sum(law[v:]) + 2 * m * delta * worst
    assert p_value(Guesses(m, r, v, False), epsilon, delta) == pytest.approx(expected)


@pytest.mark.parametrize("right", [0, 1, 50, 100])
def test_guesses_no_better_than_coins_refute_nothing(right: int) -> None:
    guesses = Guesses(canaries=1000, made=200, right=right, one_sided=False)
    assert epsilon_at_delta(guesses, DELTA, 0.95) == 0
    assert not refutes(guesses, randomised_response(0.0), 0.95)
    assert Family([gaussian(10.0)], DELTA).refuted(guesses, 0.95) == 0


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
@pytest.mark.parametrize("made", [40, 1000])
def test_randomised_response_is_refuted_exactly_as_rarely_as_stated(epsilon: float, made: int) -> None:
    """Its right guesses are binomial, so that the probability of a false alarm is a sum and not an experiment."""
    honest, curve = 1 / (1 + math.exp(-epsilon)), randomised_response(epsilon)
    first = next((v for v in range(made + 1) if refutes(Guesses(made, made, v, False), curve, 0.95)), made + 1)
    assert binom.sf(first - 1, made, honest) <= 0.05
    assert all(refutes(Guesses(made, made, v, False), curve, 0.95) for v in range(first, made + 1))
    assert first <= made * honest + 4 * math.sqrt(made * honest * (1 - honest)) + 1  # and it can refute


def test_a_mechanism_that_reveals_all_with_probability_delta_is_not_refuted_at_its_delta() -> None:
    """All m guesses are right at once with probability delta: beyond 5% that must never count as evidence."""
    all_right = Guesses(canaries=1000, made=1000, right=1000, one_sided=False)
    assert not refutes(all_right, points(lambda at: 0.06), 0.95)
    assert refutes(all_right, points(lambda at: 0.01), 0.95)
    assert p_value(all_right, 0.0, 0.06) > 0.05 > p_value(all_right, 0.0, 1e-6)


def test_guesses_of_one_world_refute_more() -> None:
    curve = points(normal_profile)
    needed = {
        one_sided: next(v for v in range(401) if refutes(Guesses(2000, 400, v, one_sided), curve, 0.95))
        for one_sided in (False, True)
    }
    assert needed[True] < needed[False] < 400


def test_what_all_points_allow_is_the_inverse_of_the_gaussians_trade_off_curve() -> None:
    """For N(0, 1) against N(1, 1) a set of probability p has at least Phi(Phi^-1(p) - 1) in the other world."""
    curve = points(normal_profile)
    for probability in (1e-4, 0.01, 0.3, 0.5, 0.9, 0.999):
        exact = float(ndtr(ndtri(probability) - 1))
        assert exact * (1 - 0.02) - 1e-6 <= curve.least(probability) <= exact + 1e-12


@pytest.mark.parametrize("attack", [Attack(200, 200), Attack(150)], ids=["both", "included"])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_bounds_of_a_gaussian_on_independent_coordinates_are_honest_and_near(attack: Attack, epsilon: float) -> None:
    """Of 30 runs each, a bound above the truth would be allowed in 5%, and occurs in none; the seed is fixed."""
    sigma = calibration.calibrate(lambda sigma: [gaussian(sigma)], epsilon, DELTA)
    generator, canaries, family = np.random.default_rng(7), 20_000, Family([gaussian(sigma)], DELTA)
    runs = []
    for _ in range(30):
        present = generator.random(canaries) < 0.5
        guesses = attack.guess(present + sigma * generator.normal(size=canaries), present)
        runs.append((family.refuted(guesses, 0.95), epsilon_at_delta(guesses, DELTA, 0.95)))
    of_family, of_any = np.array(runs).T
    assert of_family.max() <= family.claim and of_any.max() <= family.claim
    assert np.median(of_family) > 0.4 * epsilon
    assert np.median(of_any) < np.median(of_family)  # a whole curve says more than one of its points


def test_half_the_noise_is_refuted() -> None:
    sigma = calibration.calibrate(lambda sigma: [gaussian(sigma)], 2.0, DELTA)
    generator, family = np.random.default_rng(8), Family([gaussian(sigma)], DELTA)
    present = generator.random(20_000) < 0.5
    guesses = Attack(100, 100).guess(present + sigma / 2 * generator.normal(size=20_000), present)
    assert family.refuted(guesses, 0.95) >= family.claim


def test_the_claim_is_a_member_of_its_family_and_noise_orders_it() -> None:
    step = Event(kind="gaussian", what="step", count=64, sampling_probability=0.125, noise_multiplier=2.0)
    family = Family([step, gaussian(8.0)], DELTA)
    assert family.claim == pytest.approx(accountant.epsilon([step, gaussian(8.0)], DELTA), rel=2e-3)
    found = [family.refuted(Guesses(20_000, 400, right, False), 0.95) for right in range(200, 401, 50)]
    assert found == sorted(found) and found[0] == 0 and found[-1] > family.claim
