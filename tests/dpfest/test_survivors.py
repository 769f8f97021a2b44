"""The sparse sampler has the law of the dense noisy map, and a wrong multiplier is rejected.

Chi-square and normal tests with fixed seeds; each accepting test would raise a false alarm for one seed in 10^4.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from scipy import special, stats

from dpfest.gradients.contributions import Contributions
from dpfest.noise.gaussian import gaussian, gaussian_grid
from dpfest.noise.key import NoiseKey
from dpfest.noise.keystream import Keystream
from dpfest.selection.survivors import survival_probability, surviving_rows, untouched_survivors

FALSE_ALARM = 1e-4


def stream(step: int = 0) -> Keystream:
    return NoiseKey.from_seed(0).stream("survivors", step)


def draws(
    *, sigma: float, clip: float, threshold: float, universe: int, rows: list[int], sums: list[float], n: int
) -> np.ndarray:
    """``n`` survivor masks, bool ``[n, universe]``."""
    key, masks = NoiseKey.from_seed(7), np.zeros((n, universe), dtype=bool)
    for i in range(n):
        kept = surviving_rows(
            torch.tensor(rows, dtype=torch.int64),
            torch.tensor(sums, dtype=torch.float64),
            key.stream("map", i),
            universe=universe,
            threshold=threshold,
            deviation=sigma * clip,
        )
        assert bool((kept[1:] > kept[:-1]).all()), "sorted, no row twice"
        masks[i, kept] = True
    return masks


def dense_probabilities(
    sigma: float, clip: float, threshold: float, *, universe: int, rows: list[int], sums: list[float]
) -> np.ndarray:
    values = np.zeros(universe)
    values[rows] = sums
    return special.ndtr(-(threshold - values) / (sigma * clip))


def row_p_value(masks: np.ndarray, probabilities: np.ndarray) -> float:
    n = len(masks)
    z = (masks.sum(0) - n * probabilities) / np.sqrt(n * probabilities * (1 - probabilities))
    return float(stats.chi2.sf((z**2).sum(), len(probabilities)))


def pair_p_value(masks: np.ndarray, probabilities: np.ndarray) -> float:
    """Every pair of rows survives together as often as independent coins would."""
    n, size = masks.shape
    joint = masks.T.astype(float) @ masks
    first, second = np.triu_indices(size, 1)
    p = probabilities[first] * probabilities[second]
    z = (joint[first, second] - n * p) / np.sqrt(n * p * (1 - p))
    return float(2 * stats.norm.sf(abs(z.sum() / np.sqrt(len(z)))))


LAW: dict = dict(universe=12, rows=[0, 3, 4, 11], sums=[0.5, 1.1, 0.2, 0.9])


@pytest.mark.parametrize(
    ("sigma", "clip", "threshold"),
    [(0.5, 1.0, 0.9), (3.0, 1.0, 4.0), pytest.param(0.7, 0.5, 0.9, marks=pytest.mark.slow), (0.4, 4.0, 1.5)],
)
def test_law_of_every_row_and_pair(sigma: float, clip: float, threshold: float) -> None:
    masks = draws(sigma=sigma, clip=clip, threshold=threshold, n=4000, **LAW)
    right = dense_probabilities(sigma, clip, threshold, **LAW)
    assert row_p_value(masks, right) > FALSE_ALARM
    assert pair_p_value(masks, right) > FALSE_ALARM
    for wrong in (0.85 * sigma, 1.18 * sigma):
        rejected = dense_probabilities(wrong, clip, threshold, **LAW)
        assert row_p_value(masks, rejected) < 1e-6


def test_the_papers_squared_denominator_is_another_law() -> None:
    """Appendix B.2 prints Psi(tau / (sigma_1^2 C1^2)): below 1 it lets far too few untouched rows through."""
    sigma, clip = 0.5, 1.0
    threshold = 0.9
    masks = draws(sigma=sigma, clip=clip, threshold=threshold, n=4000, **LAW)
    untouched = [row for row in range(12) if row not in LAW["rows"]]
    printed = special.ndtr(-threshold / (sigma * clip) ** 2)
    observed = masks[:, untouched].mean()
    assert stats.binomtest(int(masks[:, untouched].sum()), masks[:, untouched].size, printed).pvalue < 1e-12
    assert observed > 50 * printed


@pytest.mark.parametrize("probability", [1e-12, 1e-6, 1e-3, 0.3, 0.5])
@pytest.mark.parametrize("universe", [0, 1, 50, 10**6])
def test_untouched_survivors_are_never_touched(universe: int, probability: float) -> None:
    touched = np.sort(np.random.default_rng(0).choice(universe, size=min(universe, 2000), replace=False))
    found = untouched_survivors(touched, universe, probability, stream())
    assert not np.intersect1d(found, touched).size
    assert (np.diff(found) > 0).all()
    assert not found.size or (found[0] >= 0 and found[-1] < universe)
    untouched = universe - len(touched)
    spread = np.sqrt(untouched * probability * (1 - probability))
    assert abs(len(found) - untouched * probability) <= 4.5 * spread + 5  # normal tail; 5 for the Poisson ones


def test_every_untouched_row_is_as_likely() -> None:
    touched = np.array([0, 1, 5, 18, 19])
    counts = np.zeros(20)
    for step in range(4000):
        counts[untouched_survivors(touched, 20, 0.1, stream(step))] += 1
    rest = np.setdiff1d(np.arange(20), touched)
    assert counts[touched].sum() == 0
    assert stats.chisquare(counts[rest]).pvalue > FALSE_ALARM


def test_extremes() -> None:
    assert untouched_survivors(np.array([2]), 5, 1.0, stream()).tolist() == [0, 1, 3, 4]
    assert untouched_survivors(np.arange(5), 5, 1.0, stream()).size == 0
    assert untouched_survivors(np.empty(0, dtype=np.int64), 0, 1.0, stream()).size == 0


def test_clipped_contributions_by_hand() -> None:
    """Example 0 touches rows 4, 6, 9, 12 (norm 2), example 1 row 6; example 2 nothing; C1 = 1."""
    rows = torch.tensor([4, 6, 9, 12])
    touched = Contributions(rows, torch.tensor([0, 1, 1, 2, 3]), torch.tensor([0, 0, 1, 0, 0]), 3)
    assert touched.clipped(1.0).tolist() == [0.5, 1.5, 0.5, 0.5]
    assert touched.clipped(10.0).tolist() == [1, 2, 1, 1]
    empty = torch.empty(0, dtype=torch.int64)
    assert Contributions(empty, empty, empty, 0).clipped(1.0).tolist() == []


def test_a_clipped_map_on_the_grid_has_a_norm_of_at_most_c1_and_exact_sums() -> None:
    """In exact arithmetic; and examples in another order give the same floats."""
    grid, examples = gaussian_grid(0.7 * 1.3), 40
    generator = np.random.default_rng(0)
    example = np.repeat(np.arange(examples), np.arange(1, examples + 1))
    rows = np.concatenate([generator.choice(50, size=n, replace=False) for n in range(1, examples + 1)])
    # By the float root of 26, which is rounded down, a map of 26 rows would not be clipped; that of 28 is rounded up.
    for norm, n in product((0.7, 1.0, 26**0.5, 28**0.5), range(1, examples + 1)):
        alone = Contributions(torch.arange(n), torch.arange(n), torch.zeros(n, dtype=torch.int64), 1)
        values = alone.clipped(norm, grid).tolist()
        assert sum(Fraction(value) ** 2 for value in values) <= Fraction(norm) ** 2
        assert all((value / grid).is_integer() and value > min(norm / n**0.5, 1) - 2 * grid for value in values)
        assert n > Fraction(norm) ** 2 or values == [1.0] * n
    norm = 0.7
    order = generator.permutation(len(rows))
    maps = [
        Contributions(torch.arange(50), torch.from_numpy(rows[at]), torch.from_numpy(example[at]), examples)
        for at in (np.arange(len(rows)), order)
    ]
    assert torch.equal(maps[0].clipped(norm, grid), maps[1].clipped(norm, grid))
    assert not torch.equal(maps[0].clipped(norm), maps[1].clipped(norm)), "floats off the grid tell the order"


def test_an_untouched_row_survives_as_often_as_a_touched_one_of_sum_zero() -> None:
    """At the noise's own grid, made coarse by a threshold half a grid point from the next: exact, and law by law."""
    deviation = 1.25
    grid = gaussian_grid(deviation)
    for threshold in (0.3, 2.0, 7 * grid, 7.5 * grid, -0.4, 0.0):
        least = np.ceil(threshold / grid)
        expected = stats.norm.sf((least - 0.5) * grid / deviation)
        assert survival_probability(threshold, deviation) == pytest.approx(expected, rel=1e-14)
    noise = gaussian(stream(), 400_000, deviation)
    for threshold in (0.3, -0.4, 2.0):
        survived = int((noise >= threshold).sum())
        assert stats.binomtest(survived, 400_000, survival_probability(threshold, deviation)).pvalue > FALSE_ALARM
    assert survival_probability(36.0, 1.0) == pytest.approx(stats.norm.sf(36.0), rel=1e-4)
    assert survival_probability(-np.inf, 1.0) == 1 and survival_probability(np.inf, 1.0) == 0


def test_where_most_rows_survive_every_row_has_noise_of_its_own() -> None:
    """Below -8.3 deviations the float probability of survival is 1: gaps would never leave an untouched row out, which
    a touched row of the same sum can be."""
    assert survival_probability(-9.0, 1.0) == 1.0
    none = torch.empty(0, dtype=torch.int64)
    for threshold in (-9.0, -0.5, 0.0):
        kept = surviving_rows(none, none.double(), stream(), universe=5_000, threshold=threshold, deviation=1.0)
        assert kept.tolist() == np.flatnonzero(gaussian(stream(), 5_000, 1.0) >= threshold).tolist()


def test_no_threshold_keeps_every_row_and_an_infinite_one_none() -> None:
    def kept(threshold: float) -> list[int]:
        rows, sums = torch.tensor([1, 4]), torch.tensor([1.0, 3.0], dtype=torch.float64)
        return surviving_rows(rows, sums, stream(), universe=6, threshold=threshold, deviation=2.0).tolist()

    assert kept(-np.inf) == list(range(6))
    assert kept(np.inf) == []


def test_a_map_within_a_set_is_that_of_its_rows_alone() -> None:
    """The same draws, by rank within the set; what is touched outside of it leaves no trace."""
    selected = torch.tensor([6, 7, 12, 30])
    touched, sums = torch.tensor([4, 6, 9, 12]), torch.tensor([9.0, 1.0, 9.0, 2.0], dtype=torch.float64)
    settings = {"threshold": 1.0, "deviation": 1.5}
    for step in range(20):
        inside = surviving_rows(torch.tensor([0, 2]), sums[[1, 3]], stream(step), universe=4, **settings)
        found = surviving_rows(touched, sums, stream(step), universe=99, selected=selected, **settings)
        assert torch.equal(found, selected[inside])


def test_contributions_within_a_set_count_its_rows_alone() -> None:
    """Within rows 6, 7 and 12, example 0 touches two rows (norm sqrt 2) and example 1 one; ranks are 0, 1 and 2."""
    rows = torch.tensor([4, 6, 9, 12])
    touched = Contributions(rows, torch.tensor([0, 1, 1, 2, 3]), torch.tensor([0, 0, 1, 0, 0]), 2)
    within = touched.within(torch.tensor([6, 7, 12]))
    assert within.rows.tolist() == [0, 2]
    clipped = torch.tensor([0, 1 + 0.5**0.5, 0, 0.5**0.5], dtype=torch.float64)
    torch.testing.assert_close(within.clipped(1.0), clipped[[1, 3]])
    torch.testing.assert_close(touched.clipped(1.0, selected=torch.tensor([6, 7, 12])), clipped)


def test_cost_does_not_grow_with_the_universe() -> None:
    """10^12 rows: any O(c) step would not return."""
    found = untouched_survivors(np.array([5]), 10**12, 1e-11, stream())
    assert 0 < len(found) < 60
