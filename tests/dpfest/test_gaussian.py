"""Gaussian noise on a grid: exactly rounded, whoever computes it; right in its law; off every lattice.

Each statistical test is run at a fixed seed with false-alarm rate 1e-4.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats

from dpfest import kernels
from dpfest.noise import box_muller
from dpfest.noise import gaussian as module
from dpfest.noise.box_muller import BLOCK, Scratch, nearest_normals
from dpfest.noise.gaussian import add_gaussian, charged_deviation, gaussian, gaussian_grid
from dpfest.noise.key import NoiseKey
from dpfest.noise.keystream import Keystream
from dpfest.step import step_noise
from dpfest.step.step_noise import NoiseAhead

FALSE_ALARM = 1e-4
GIVEN = NoiseKey.from_seed(1)


def stream(step: int = 0) -> Keystream:
    return GIVEN.stream("x", step)


# The law


def test_normal_law_and_a_wrong_scale_is_rejected() -> None:
    sample = gaussian(stream(), 200_000, 3.0) / 3
    assert stats.kstest(sample, "norm").pvalue > FALSE_ALARM
    assert stats.kstest(sample, "norm", args=(0, 1.04)).pvalue < 1e-6
    n = len(sample)
    assert stats.chi2.sf((sample**2).sum(), n) > FALSE_ALARM
    assert stats.chi2.cdf((sample**2).sum() / 1.02**2, n) < 1e-3


def test_moments_and_pairs() -> None:
    """The first six moments, and that the two variates of a pair, a radius and an angle, are independent."""
    size = 4 * BLOCK
    sample = gaussian(stream(2), size, 1.0)
    for power, mean in enumerate((0, 1, 0, 3, 0, 15), start=1):
        z = ((sample**power).mean() - mean) / math.sqrt((stats.norm.moment(2 * power) - mean**2) / size)
        assert abs(z) < stats.norm.isf(FALSE_ALARM / 12)
    halves = sample.reshape(4, 2, BLOCK // 2).swapaxes(0, 1).reshape(2, -1)
    for first, second in (halves, halves**2, abs(halves), halves * [[1], [-1]] > 0.5):
        assert abs(np.corrcoef(first, second)[0, 1]) * math.sqrt(size / 2) < stats.norm.isf(FALSE_ALARM / 8)
    angle = np.arctan2(halves[1], halves[0]) / (2 * math.pi) + 0.5
    assert stats.kstest(angle, "uniform").pvalue > FALSE_ALARM
    assert stats.kstest(halves[0] ** 2 + halves[1] ** 2, "chi2", args=(2,)).pvalue > FALSE_ALARM


@pytest.mark.parametrize(("limit", "draws"), [(5.0, 10**7), pytest.param(5.77, 12 * 10**8, marks=pytest.mark.slow)])
def test_tails_reach_as_far_as_the_law(limit: float, draws: int) -> None:
    """Box-Muller on 24-bit uniforms ends at 5.768: whatever lies beyond would then tell that an example is there."""
    size, beyond = 10**6, 0
    for step in range(draws // size):
        beyond += int((np.abs(gaussian(GIVEN.stream("tail", step), size, 1.0)) > limit).sum())
    expected = 2 * stats.norm.sf(limit) * draws
    assert stats.poisson.sf(beyond - 1, expected) > FALSE_ALARM
    assert stats.poisson.cdf(beyond, expected) > FALSE_ALARM


def test_the_largest_radius_has_192_bits() -> None:
    """A word of zero stands for a radius beyond 9.3, and the 128 bits more say which."""
    largest = {box_muller._precisely(below, 0, False, 2.0**24) / 2.0**24 for below in (0, 2**64, 2**127, 2**128)}
    assert len(largest) == 4 and 9.25 < min(largest) < max(largest) < 16.4


# The lattice attack (issue 14, A.5): on pairs of small radius exp(-r^2 / 2) shows its uniform


def lattice_score(values: np.ndarray, bits: int) -> float:
    """Sum of cos(2 pi k) over 2,000 pairs of small radius, k = exp(-r^2 / 2) 2^bits, in units of its deviation.

    A standard normal where the k are anything, and 63 where they are all whole.
    """
    near = (values**2).sum(0) < 0.15
    with mpmath.workprec(160):
        squared = [sum(mpmath.mpf(one) ** 2 for one in pair) for pair in values[:, near][:, :2000].T.tolist()]
        k = [mpmath.ldexp(mpmath.exp(-one / 2), bits) for one in squared]
        off = np.array([float(one - mpmath.nint(one)) for one in k])
    return float(np.cos(2 * math.pi * off).sum() / math.sqrt(len(off) / 2))


def from_bits(bits: int) -> np.ndarray:
    """Box and Muller's pairs from uniforms of so many bits."""
    generator = np.random.default_rng(0)
    whole = generator.integers(int(math.exp(-0.08) * 2**bits), 2**bits, 3000)
    radius = np.sqrt(-2 * np.log(whole / 2.0**bits))
    angle = 2 * math.pi * generator.random(3000)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)])


@pytest.mark.parametrize("bits", [24, 32, 53])
@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_radii_lie_on_no_lattice(bits: int, kind: str) -> None:
    """At chance; while float64 noise from uniforms of 24 or 32 bits, which the attack is made for, scores the most."""
    noise = torch.zeros(BLOCK, dtype=getattr(torch, kind))
    add_gaussian(noise, stream(), 1.0)
    assert abs(lattice_score(noise.double().numpy().reshape(2, -1), bits)) < stats.norm.isf(FALSE_ALARM / 2)
    if bits < 53:
        assert lattice_score(from_bits(bits), bits) > 30


def test_presence_is_not_told_from_a_released_step() -> None:
    """The attack as it was made: 4,000 weights, sigma = 20, one example of norm 1 there or not; 200 worlds.

    An ideal Gaussian lets it be told right 51% of the time.  Chance, one-sided false alarm 1e-4; before, 60 of 60.
    """
    size, sigma, right, worlds = 4000, 20.0, 0, 200
    contribution = 1 / math.sqrt(size)

    def score(values: np.ndarray) -> float:
        squared = (values[: size // 2] ** 2 + values[size // 2 :] ** 2) / sigma**2
        k = np.exp(-squared[squared < 0.15] / 2) * 2**24
        return float(np.cos(2 * math.pi * k).mean())

    for world in range(worlds):
        present = bool(world % 2)
        released = torch.full((size,), contribution * present)
        add_gaussian(released, GIVEN.stream("world", world), sigma)
        values = released.double().numpy()
        right += (score(values - contribution) > score(values)) == present
    assert stats.binom.sf(right - 1, worlds, 0.51) > FALSE_ALARM


# Exactness


@pytest.fixture(params=["compiled", "python"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which variates are computed."""
    if request.param == "python":
        monkeypatch.setattr(kernels, "library", None)
    elif not kernels.library:
        pytest.skip("dpfest was installed without a compiler")
    return request.param


def units(count: int, deviation: float) -> np.ndarray:
    given, scratch = stream(), Scratch(count)
    given.reader(0)(scratch.words)
    return nearest_normals(given, 0, scratch.words, count, deviation, scratch)


@pytest.mark.usefixtures("loops")
def test_float64_rounds_as_many_digits_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of 4,000 variates, computed both ways: in float64, and in 320 bits as if float64 never decided."""
    fast = units(4000, 1.4 * 2**24).copy()
    each_alone = {"_TOLERANCE": 2.0**-26}
    never = {"_TOLERANCE": 2.0**-26, "_error": lambda logarithm: math.inf}
    for replaced in (each_alone, never):
        for name, value in replaced.items():
            monkeypatch.setattr(box_muller, name, value)
        assert np.array_equal(fast, units(4000, 1.4 * 2**24))


def test_the_error_of_float64_is_below_the_tolerance_in_every_corner() -> None:
    """Radii next to both limits, angles next to 0 and to a quarter turn, and 2,000 of all kinds."""
    least, most = math.exp(box_muller._LEAST), math.exp(box_muller._HIGHEST)
    corners = [int(u * 2**63) for u in (least * 1.001, least * 1.5, 0.1, 0.5, 0.99, most * (1 - 2**-30))]
    turns = [0, 1, 2**40, 2**61, 2**62, 2**63 - 1, -1, -(2**63), -(2**62)]
    grid = [(sign * u + (sign < 0) * -1, turn) for u in corners for turn in turns for sign in (1, -1)]
    generator = np.random.default_rng(0)
    drawn = generator.integers(-(2**63), 2**63 - 1, (2, 2000))
    radii, angles = (np.concatenate([np.array(a), b]) for a, b in zip(zip(*grid, strict=True), drawn, strict=True))
    out, pairs, scale = np.empty(2 * len(radii)), len(radii), 2**80
    logarithms = box_muller._box_muller(radii, angles, out, np.empty((4, pairs)))
    sure = (logarithms >= box_muller._LEAST) & (logarithms <= box_muller._HIGHEST)
    assert sure[: len(grid)].all()
    for below in (0, 2**128 - 1):
        for place in np.flatnonzero(np.concatenate([sure, sure])).tolist():
            radius, angle = (int(words[place % pairs]) << 128 | below for words in (radii, angles))
            exact = box_muller._precisely(radius, angle, place >= pairs, float(scale))
            off = abs(exact - int(mpmath.nint(mpmath.mpf(out[place]) * scale))) / scale
            assert off < box_muller._TOLERANCE / 1.5


def test_a_variates_own_error_bound_holds_for_every_radius() -> None:
    """From the least word to the greatest; nothing is known of the least, nor where float64 takes u for 1."""
    radii = [0, 1, 2**32, 2**34, 2**42, 2**60, 2**62, 2**63 - 2**50, 2**63 - 2**20, 2**63 - 2**11, 2**63 - 1]
    turns = [0, 1, 2**50, 2**62, -(2**61), 2**63 - 1]
    words = np.array([(sign * u, turn) for u in radii for turn in turns for sign in (1, -1)]).T.copy()
    pairs, scale = words.shape[1], 2**80
    out = np.empty(2 * pairs)
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithms = box_muller._box_muller(words[0], words[1], out, np.empty((4, pairs)))
    bounds = [box_muller._error(one) for one in logarithms.tolist()] * 2
    assert bounds[0] == bounds[pairs - 1] == math.inf and np.isfinite(bounds[36 : pairs - 12]).all()
    for below in (0, 2**128 - 1):
        for place in np.flatnonzero(np.isfinite(bounds)).tolist():
            radius, angle = (int(word) << 128 | below for word in words[:, place % pairs])
            exact = box_muller._precisely(radius, angle, place >= pairs, float(scale))
            assert abs(exact - int(mpmath.nint(mpmath.mpf(out[place]) * scale))) / scale < bounds[place]


@pytest.mark.usefixtures("loops")
def test_extreme_radii_are_computed_in_many_digits() -> None:
    """The words 0 and -1 (u below 2^-63) and 2^63 - 1 (u above 1 - 2^-63): no infinity, no zero for a rounded 1."""
    words = np.array([0, -1, 2**63 - 1, -(2**63), 2**61, 3, 2**20, -5], dtype=np.int64)
    given, scratch = stream(), Scratch(8)
    found = nearest_normals(given, 0, words, 8, 2.0**24, scratch) / 2**24
    assert np.isfinite(found).all() and (np.abs(found[:2]) < 16).all() and (np.abs(found[2:4]) < 2**-20).all()
    for pair in range(4):
        radius, angle = given.extended(int(words[pair]), pair), given.extended(int(words[4 + pair]), 4 + pair)
        for sine in (False, True):
            assert found[pair + 4 * sine] == box_muller._precisely(radius, angle, sine, 2.0**24) / 2**24


def test_the_polynomial_is_the_sine() -> None:
    with mpmath.workprec(120):
        for turn in map(mpmath.mpf, np.linspace(-1, 1, 501).tolist()):
            value = sum(mpmath.mpf(c) * turn ** (2 * n + 1) for n, c in enumerate(box_muller._SINE))
            assert abs(value - mpmath.sin(mpmath.pi / 4 * turn)) < 2.0**-55


# The grid


@pytest.mark.parametrize("deviation", [3e-25, 0.1, 1.0, 1.999, 2.0, 1e6])
def test_noise_and_sums_are_on_the_grid(deviation: float) -> None:
    grid = gaussian_grid(deviation)
    assert math.frexp(grid)[0] == 0.5 and 2**24 <= deviation / grid < 2**25
    noise = gaussian(stream(), 1001, deviation)
    assert (np.rint(noise / grid) * grid == noise).all() and (noise / grid % 2 == 1).mean() > 0.4
    sums = torch.linspace(-3, 3, 1001, dtype=torch.float64) * deviation
    expected = np.rint(sums.numpy() / grid) * grid + noise
    add_gaussian(sums, stream(), deviation)
    assert np.array_equal(sums.numpy(), expected)


def test_a_sum_moves_by_no_more_than_half_a_grid_point_a_coordinate() -> None:
    values = torch.rand(5000, dtype=torch.float64) * 10
    noised = values.clone()
    add_gaussian(noised, stream(), 1.0)
    moved = np.abs(noised.numpy() - gaussian(stream(), 5000, 1.0) - values.numpy())
    assert moved.max() <= 0.5 * gaussian_grid(1.0) and moved.max() > 0.4 * gaussian_grid(1.0)


@pytest.mark.usefixtures("loops")
def test_float32_is_rounded_once() -> None:
    values = torch.randn(70_007, generator=torch.Generator().manual_seed(0)).reshape(7, -1)
    wide = values.double()
    add_gaussian(values, stream(), 0.3)
    add_gaussian(wide, stream(), 0.3)
    assert values.dtype == torch.float32 and torch.equal(values, wide.float())


@pytest.mark.usefixtures("loops")
def test_every_row_has_the_noise_and_grid_of_its_own_deviation() -> None:
    rows, dim = 900, 147  # rows across the blocks' borders
    deviations = torch.logspace(-6, 3, rows, dtype=torch.float64)
    values, unit = torch.zeros(rows, dim, dtype=torch.float64), torch.zeros(rows * dim, dtype=torch.float64)
    add_gaussian(values, stream(), deviations)
    add_gaussian(unit, stream(), 1.0)
    torch.testing.assert_close(values / deviations[:, None], unit.view(rows, dim), rtol=0, atol=2.0**-24)
    for row in (0, 5, 445, 446, 899):
        multiples = values[row] / gaussian_grid(float(deviations[row]))
        assert torch.equal(multiples, multiples.round()) and multiples.abs().max() > 2**24
    same = torch.zeros(rows, dim)
    add_gaussian(same, stream(), np.full(rows, 0.7))
    assert np.array_equal(same.flatten().numpy(), gaussian(stream(), rows * dim, 0.7).astype(np.float32))


@pytest.mark.parametrize("size", [0, 1, 2, 3, BLOCK - 1, BLOCK + 1, 3 * BLOCK + 5])
def test_threads_do_not_matter_and_no_block_repeats(size: int, loops: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PER_THREAD", BLOCK)
    before, drawn = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            drawn.append(gaussian(stream(), size, 1.0))
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(drawn[0], drawn[1]) and np.array_equal(drawn[0], drawn[2])
    assert len(np.unique(drawn[0])) >= 0.98 * size and len(drawn[0]) == size


def test_draws_of_one_stream_follow_one_another() -> None:
    given = stream()
    first, second = gaussian(given, 1001, 1.0), gaussian(given, 1001, 1.0)
    assert given.position == 2004 and not np.intersect1d(first, second).size


@pytest.mark.parametrize("deviation", [0.0, -1.0, math.nan, math.inf, 1e-300])
def test_deviations_that_are_none_are_refused(deviation: float) -> None:
    with pytest.raises(ValueError, match="cannot be drawn"):
        gaussian(stream(), 3, deviation)
    with pytest.raises(ValueError, match="cannot be drawn"):
        add_gaussian(torch.zeros(2, 2), stream(), np.array([1.0, deviation]))


def test_values_that_cannot_take_noise_are_refused() -> None:
    with pytest.raises(ValueError, match="bfloat16"):
        add_gaussian(torch.zeros(3, dtype=torch.bfloat16), stream(), 1.0)
    with pytest.raises(ValueError, match="not contiguous"):
        add_gaussian(torch.zeros(3, 2).t(), stream(), 1.0)
    with pytest.raises(ValueError, match="one per row"):
        add_gaussian(torch.zeros(3, 2), stream(), np.ones(2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_gpu_gets_the_same_bits(kind: torch.dtype) -> None:
    here = torch.randn(41, 130_001, dtype=kind, generator=torch.Generator().manual_seed(0))
    there, deviations = here.cuda(), torch.linspace(0.1, 9, 41, dtype=torch.float64)
    for deviation in (0.7, deviations):
        add_gaussian(here, stream(), deviation)
        add_gaussian(there, stream(), deviation)
        assert torch.equal(there.cpu(), here)


def test_a_tensor_that_is_sent_to_a_gpu_in_parts_gets_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a GPU's tensors, taken by one of the CPU: one deviation, and one a row, rows across the parts."""
    monkeypatch.setattr(module, "_CUDA_BLOCKS", 1)
    values = torch.randn(500, 301, generator=torch.Generator().manual_seed(0))
    for deviation in (0.7, torch.linspace(0.1, 9, 500, dtype=torch.float64)):
        here, there = values.clone(), values.clone()
        add_gaussian(here, stream(), deviation)
        module._add_elsewhere(
            there.view(-1), module._blocks(stream(), there.numel(), module._Grid(deviation, there.shape), None)
        )
        assert torch.equal(there, here) and not torch.equal(here, values)


# What the rounding costs


@pytest.mark.parametrize("sigma", [0.1, 0.4, 1.0])
@pytest.mark.parametrize("norm", [1e-3, 1.0, 1.3])
def test_the_charge_is_what_rounding_can_cost_and_small(sigma: float, norm: float) -> None:
    for coordinates in (1, 10**6, 10**9):
        deviation = charged_deviation(sigma, norm, coordinates)
        assert deviation == sigma * (norm + gaussian_grid(deviation) * math.sqrt(coordinates))
        assert 1 < deviation / (sigma * norm) < 1.002
    assert charged_deviation(sigma, norm, 1_430_000) / (sigma * norm) < 1.0001
    assert charged_deviation(0.0, norm, 10) == 0


def test_the_charge_settles_where_it_crosses_to_the_next_grid() -> None:
    deviation = charged_deviation(1.0, 1 - 2.0**-30, 10**6)
    assert gaussian_grid(deviation) == 2.0**-24 and deviation == 1 - 2.0**-30 + 1000 * 2.0**-24


def test_too_many_coordinates_are_refused() -> None:
    with pytest.raises(ValueError, match="too many for noise on a grid"):
        charged_deviation(1e4, 1.0, 10**9)


def test_rounded_neighbours_stay_within_the_charged_sensitivity() -> None:
    """The worst of 200 neighbours, each moved so as to cross the most midpoints, against C + g sqrt(d)."""
    d, norm, sigma = 400, 1.0, 1.0
    deviation = charged_deviation(sigma, norm, d)
    grid, generator = gaussian_grid(deviation), np.random.default_rng(0)
    for _ in range(200):
        midpoints = (generator.integers(-(2**20), 2**20, d) + 0.5) * grid
        direction = np.abs(generator.standard_normal(d))
        step = norm * direction / np.linalg.norm(direction)
        moved = np.rint((midpoints - 1e-12 + step) / grid) - np.rint((midpoints - 1e-12) / grid)
        assert np.linalg.norm(moved * grid) * sigma <= deviation


def test_epsilon_does_not_see_the_charge() -> None:
    """Of a pCTR step: the noise multiplier that the charge takes away moves epsilon by less than a thousandth."""
    lost = charged_deviation(1.0, 1.0, 1_430_000)
    exact, charged = (pld.from_gaussian_mechanism(s).get_epsilon_for_delta(1e-8) for s in (1.0, 1 / lost))
    assert charged / exact - 1 < 1e-3


# Drawn ahead


def test_noise_that_is_drawn_ahead_is_that_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of steps in order, left out, repeated, under another key, and of another size or deviation."""
    monkeypatch.setattr(step_noise, "_LEAST", 100)
    added, drawn, other = NoiseAhead("x"), [], NoiseKey.from_seed(2)
    original = step_noise.draw_units
    monkeypatch.setattr(step_noise, "draw_units", lambda *given: drawn.append(given[1:]) or original(*given))
    asked = [(GIVEN, 0), (GIVEN, 1), (GIVEN, 2), (GIVEN, 5), (GIVEN, 5), (GIVEN, 6), (other, 7), (other, 8)]
    for kind in (torch.float32, torch.float64):
        for size, deviation in ((1001, 0.7), (1001, 0.9), (900, 0.9), (99, 0.9)):
            for key, step in asked:
                values = torch.linspace(-3, 3, size).to(kind)
                expected = values.clone()
                added.add(values, key, step, deviation)
                add_gaussian(expected, key.stream("x", step), deviation)
                assert torch.equal(values, expected)
    added._next[1].result()  # the thread may not have begun the last draw
    assert len(drawn) == 2 * 3 * len(asked)
