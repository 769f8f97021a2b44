"""Composition of millions of steps at tiny deltas: an upper bound, within half a percent of an independent accountant.

`contour` shares no grid, no convolution and no tilt with it.
"""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import norm

import dpfest
from dpfest.accounting import accountant, tilted
from dpfest.accounting.accountant import Event
from dpfest.accounting.tilted import Steps
from tests.dpfest import contour


def gaussian(count: int, sigma: float, q: float) -> Event:
    return Event(kind="gaussian", what="step", count=count, noise_multiplier=sigma, sampling_probability=q)


@pytest.mark.parametrize(
    ("count", "sigma", "q", "delta"),
    [
        (144, 0.9265, 0.00697, 8.5e-7),
        (30_000, 0.6, 1e-4, 1e-7),
        pytest.param(1_597_656, 0.45, 2048 / 3_272_000_000, 1 / 3_272_000_000, marks=pytest.mark.slow),
        pytest.param(4_270_969, 0.45, 1024 / 4_373_472_329, 1 / 4_373_472_329, marks=pytest.mark.slow),
        pytest.param(399_414, 0.5, 8192 / 3_272_000_000, 1 / 3_272_000_000, marks=pytest.mark.slow),
        (10_000_000, 3.0, 1e-3, 1e-10),
        (10_000_000, 3.0, 1e-3, 1e-13),
        (10_000_000, 30.0, 1e-3, 1e-13),
    ],
)
def test_epsilon_is_that_of_an_independent_accountant(
    count: int, sigma: float, q: float, delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contour, "POINTS", 4_001)  # rare losses of 1 and more need a finer integral
    found = tilted.epsilon([Steps(count, sigma, q)], delta)
    exact = contour.epsilon([gaussian(count, sigma, q)], delta, found)
    assert 0.01 < exact <= found * (1 + 1e-7) and found <= 1.005 * exact


@pytest.mark.parametrize("chance", [0.0, 1e-4])
def test_it_composes_steps_of_several_kinds_as_dp_accounting_does(chance: float) -> None:
    """A selection on all examples, and steps whose batches may be cut."""
    cut = dict(max_batch_size=240, dataset_size=1_000_000) if chance else {}
    steps = Event(
        kind="gaussian", what="step", count=2_000, noise_multiplier=1.1, sampling_probability=2e-4, **cut
    )  # fmt: skip
    events = [gaussian(1, 8.0, 1.0), steps]
    exact = accountant.epsilon(events, 1e-6)
    assert tilted.epsilon(accountant._tilted_steps(events), 1e-6) == pytest.approx(exact, rel=3e-4)
    plain = accountant.epsilon([events[0], gaussian(2_000, 1.1, 2e-4)], 1e-6)
    assert (exact > plain * (1 + 1e-4)) == bool(chance)


@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-13])
def test_a_gaussian_on_all_examples_is_that_of_its_closed_form(delta: float) -> None:
    """Balle and Wang (2018), theorem 8."""
    sigma = 2.0
    found = tilted.epsilon([Steps(1, sigma, 1.0)], delta)
    low, high = (
        norm.cdf(0.5 / sigma - e * sigma) - math.exp(e) * norm.cdf(-0.5 / sigma - e * sigma)
        for e in (found * (1 - 1e-4), found * (1 + 1e-9))
    )
    assert high <= delta < low


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("sigma", "q"), [(0.4, 1e-6), (0.7, 0.01), (3.0, 0.3), (1.0, 1.0)])
@pytest.mark.parametrize("spacing", [1e-3, 0.05])
def test_the_grid_dominates_the_mechanism(sigma: float, q: float, spacing: float, added: bool) -> None:
    """Its hockey-stick divergence is nowhere below the real one, and at grid points equal to it."""
    first, mass, beyond = tilted._gaussian_cells(sigma, q, spacing, added, 1e-20)
    losses = spacing * (first + np.arange(len(mass)))
    assert mass.min() >= 0 and mass.sum() + beyond == pytest.approx(1.0, abs=1e-10)
    for epsilon in (*(spacing * np.array([0, 1, 3, 7])), 0.6 * spacing, 0.33, 1.7):
        ours = beyond + float(mass @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))
        if added:  # Q against P: where the loss -L exceeds epsilon, t is small
            inner = np.expm1(-epsilon) / q
            cut = sigma**2 * math.log1p(inner) + 0.5 if inner > -1 else -math.inf
            mixed = (1 - q) * ndtr(cut / sigma) + q * ndtr((cut - 1) / sigma)
            real = ndtr(cut / sigma) - math.exp(epsilon) * mixed
        else:
            cut = sigma**2 * math.log1p(np.expm1(epsilon) / q) + 0.5
            mixed = (1 - q) * ndtr(-cut / sigma) + q * ndtr((1 - cut) / sigma)
            real = mixed - math.exp(epsilon) * ndtr(-cut / sigma)
        assert ours >= real - 1e-15
        if abs(epsilon / spacing - round(epsilon / spacing)) < 1e-9:
            assert ours == pytest.approx(real, abs=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("examples", [3_272_000_000, 4_373_472_329])
@pytest.mark.parametrize("batch_size", [2048, 8192])
def test_the_papers_longest_stream_is_planned(examples: int, batch_size: int) -> None:
    """Slow (20 s each): Criteo-1TB in one period, at delta 1/N; refused before, or at 0.96 of its epsilon."""
    started = time.monotonic()
    made = dpfest.plan(
        dpfest.AdaFEST(), epsilon=1.0, delta=1 / examples, examples=examples, batch_size=batch_size,
        steps=examples // batch_size,
    )  # fmt: skip
    assert time.monotonic() - started < 60
    assert 0.998 < accountant.epsilon(made.events, made.delta) <= 1.0
