"""The privacy loss of balls-in-bins against closed forms, exact integrals and Monte Carlo.

Statistical tests at a fixed seed, false-alarm rate 1e-4 each.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from dpfest.accounting import accountant, allocation
from dpfest.accounting.accountant import Event


def step(sigma: float, bins: int, count: int) -> Event:
    chance = 1 / bins
    return Event(
        kind="gaussian", what="step", count=count, noise_multiplier=sigma, sampling_probability=chance, bins=bins
    )


def divergences(sigma: float, bins: int, steps: int, epsilon: float, draws: int) -> list[tuple[float, float]]:
    """Both divergences and their standard errors, by Monte Carlo under P, or Q: exp(-loss) is in 0 .. exp(-epsilon)."""
    generator = np.random.default_rng(5)
    found = []
    for added in (False, True):
        x = generator.standard_normal((draws, steps)) * sigma
        if not added:
            x[np.arange(draws), 0] += generator.random(draws) < steps / bins  # by symmetry, the first
        ratio = 1 - steps / bins + np.exp((2 * x - 1) / (2 * sigma**2)).sum(1) / bins
        terms = np.maximum(1 - math.exp(epsilon) / ratio if not added else 1 - math.exp(epsilon) * ratio, 0)
        found.append((float(terms.mean()), float(terms.std() / math.sqrt(draws))))
    return found


@pytest.mark.parametrize("sigma", [0.9, 5.0])
def test_one_bin_is_the_gaussian_mechanism(sigma: float) -> None:
    plain = Event(kind="gaussian", what="step", noise_multiplier=sigma)
    for count in (1, 2):
        exact = accountant.epsilon([Event(**{**vars(plain), "count": count})], 1e-6)
        ours = accountant.epsilon([step(sigma, 1, count)], 1e-6)
        assert exact * (1 - 1e-6) <= ours <= exact * 1.003 + 1e-4


@pytest.mark.parametrize(("sigma", "steps"), [(0.6, 2), (0.8, 1), (2.0, 2)])
def test_two_bins_by_integration(sigma: float, steps: int) -> None:
    """E (R - a)+ over one coordinate, the other in closed form (Black and Scholes) or absent."""
    half = 0.5 / sigma**2

    def call(strike: float) -> float:  # E (R_1 - strike)+ of one log-normal ratio
        if strike <= 0:
            return 1 - strike
        z = math.log(strike)
        return float(stats.norm.cdf((half - z) * sigma) - strike * stats.norm.cdf((-half - z) * sigma))

    for epsilon in (0.3, 2.0, 5.0 if sigma < 1 else 1.0):
        a = math.exp(epsilon)
        if steps == 1:
            removed, added = call(2 * a - 1) / 2, (1 - a / 2 > 0) * 0.0
            strike = 2 / a - 1  # 1 - a (1 + R_1) / 2 = (strike - R_1) a / 2
            added = a / 2 * (call(strike) - 1 + strike) if strike > 0 else 0.0
        else:

            def over(x: float, strike: float) -> float:
                return call(strike - math.exp((2 * x - 1) / (2 * sigma**2))) * stats.norm.pdf(x, 0, sigma)

            def expected(strike: float) -> float:
                kink = sigma**2 * math.log(strike) + 0.5
                return integrate.quad(over, -9 * sigma, 9 * sigma + 1, (strike,), points=[kink], limit=200)[0]

            removed = expected(2 * a) / 2
            added = a / 2 * (expected(2 / a) - 2 + 2 / a)
        exact = max(removed, added)
        ours = accountant.delta([step(sigma, 2, steps)], epsilon)
        assert exact * (1 - 1e-6) <= ours <= exact * 1.004 + 1e-9


@pytest.mark.parametrize(
    ("sigma", "bins", "steps", "epsilon"),
    [(0.6, 10, 10, 1.0), (0.6, 64, 64, 0.5), (0.6, 50, 20, 0.3), (1.0, 7, 7, 0.7)],
)
def test_it_is_an_upper_bound_of_monte_carlo_and_near_it(sigma: float, bins: int, steps: int, epsilon: float) -> None:
    drawn = divergences(sigma, bins, steps, epsilon, draws=3_000_000 // steps)
    ours = accountant.delta([step(sigma, bins, steps)], epsilon)
    mean, error = max(drawn)
    z = stats.norm.isf(1e-4)
    assert ours >= mean - z * error
    assert ours <= (mean + z * error) * 1.01 and error < 0.03 * mean


def test_less_noise_than_it_says_would_be_noticed() -> None:
    drawn = max(divergences(0.6, 10, 10, 1.0, draws=300_000))
    assert accountant.delta([step(0.62, 10, 10)], 1.0) < drawn[0] - 4 * drawn[1]


def test_more_points_lower_the_bound_and_hardly_move_it() -> None:
    coarse, fine = (
        accountant.epsilon([step(0.8, 100, 100)], 1e-6, interval) for interval in (accountant.COARSE_INTERVAL, 1e-4)
    )
    assert fine <= coarse <= 1.01 * fine


def test_the_law_of_a_sum_keeps_its_probability_and_mean() -> None:
    """Splits keep both; so the divergences are those of two probability measures."""
    for sigma, count in ((0.4, 1), (0.6, 37), (2.0, 500)):
        law = allocation.sum_of_ratios(sigma, count, 300)
        assert law.chances.sum() == pytest.approx(1, abs=1e-12) and (law.chances >= 0).all()
        assert law.chances @ law.values + law.cut == pytest.approx(count, rel=1e-12)
        spread = math.exp(1 / sigma**2) - 1
        second = law.chances @ law.values**2 - count**2
        assert second == pytest.approx(count * spread, rel=0.02)


def test_epsilon_grows_with_every_step_and_epochs_compose() -> None:
    spent = [accountant.epsilon([step(1.0, 20, count)], 1e-5, 1e-3) for count in (1, 5, 19, 20, 21, 40, 60)]
    assert all(earlier < later for earlier, later in pairwise(spent))
    assert spent[-1] < 3 * spent[3]


def test_at_equal_noise_an_epoch_costs_less_than_poisson_batches_as_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "PRIVACY.md").read_text(encoding="utf-8")
    text = " ".join(page.split())
    for bins in (200, 1_000):
        poisson = Event(kind="gaussian", what="step", count=bins, noise_multiplier=0.6, sampling_probability=1 / bins)
        ours, theirs = (accountant.epsilon([event], 1e-6) for event in (step(0.6, bins, bins), poisson))
        told = re.findall(rf"([\d.]+) instead of ([\d.]+) for (?:one epoch of )?{bins:,} steps", text)
        assert ours < theirs and told == [(f"{ours:.2f}", f"{theirs:.2f}")]
