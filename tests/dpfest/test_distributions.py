"""Bernoulli trials by gaps, Laplace noise and subsets: their exact laws, in float64 and in many digits alike.

Each statistical test is run at a fixed seed with false-alarm rate 1e-4.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpfest.noise import bernoulli as gaps_of_trials
from dpfest.noise import distributions
from dpfest.noise.bernoulli import bernoulli
from dpfest.noise.distributions import distinct, laplace
from dpfest.noise.gaussian import gaussian_grid
from dpfest.noise.key import CIPHERS, NoiseKey
from dpfest.noise.keystream import Keystream

FALSE_ALARM = 1e-4


KEY = NoiseKey.from_seed(3)


@pytest.fixture(autouse=True, params=CIPHERS)
def cipher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every law holds under both ciphers."""
    monkeypatch.setattr(f"{__name__}.KEY", NoiseKey.from_seed(3, cipher=request.param))


def stream(step: int = 0) -> Keystream:
    return KEY.stream("x", step)


def fit(observed: np.ndarray, expected: np.ndarray) -> float:
    """p-value of chi-square, cells of few together."""
    common = expected > 8
    seen, meant = (np.append(of[common], of[~common].sum()) for of in (observed, expected))
    return float(stats.chisquare(seen[meant > 0], meant[meant > 0] * seen.sum() / meant.sum()).pvalue)


@pytest.mark.parametrize("probability", [1e-3, 0.03, 0.4, 0.999])
def test_gaps_are_geometric_and_a_wrong_probability_is_rejected(probability: float) -> None:
    positions = bernoulli(stream(), int(60_000 / probability), probability)
    gaps = np.diff(positions) - 1
    edges = np.unique(stats.geom.ppf(np.linspace(0.05, 0.9999, 20), probability))
    observed = np.diff([0, *np.searchsorted(np.sort(gaps) + 1, edges, side="right"), len(gaps)]).astype(float)

    def p_value(tried: float) -> float:
        return fit(observed, np.diff([0, *stats.geom.cdf(edges, tried), 1]) * len(gaps))

    assert p_value(probability) > FALSE_ALARM
    assert p_value(0.95 * probability if probability < 0.9 else 0.9975) < 1e-6
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) * math.sqrt(len(gaps)) < stats.norm.isf(FALSE_ALARM / 2)
    split = abs(len(positions) - 60_000) / math.sqrt(max(60_000 * (1 - probability), 1))
    assert split < stats.norm.isf(FALSE_ALARM / 2)


@pytest.mark.parametrize("probability", [0.1, pytest.param(0.5, marks=pytest.mark.slow), 0.8])
def test_every_outcome_is_as_likely_as_of_coins(probability: float) -> None:
    """All 64 outcomes of six trials, 20,000 times."""
    observed = np.zeros(64)
    for step in range(20_000):
        observed[(1 << bernoulli(stream(step), 6, probability)).sum()] += 1
    ones = np.array([outcome.bit_count() for outcome in range(64)])
    assert fit(observed, probability**ones * (1 - probability) ** (6 - ones) * 20_000) > FALSE_ALARM
    wrong = 0.88 * probability
    assert fit(observed, wrong**ones * (1 - wrong) ** (6 - ones) * 20_000) < 1e-6


def test_extremes_of_probability_and_number() -> None:
    assert bernoulli(stream(), 5, 1.0).tolist() == [0, 1, 2, 3, 4]
    for trials, probability in ((5, 0.0), (0, 0.5), (0, 1.0), (1 << 52, 1e-300), (10**9, 5e-324)):
        assert bernoulli(stream(), trials, probability).tolist() == []
    assert bernoulli(stream(), 3, 1 - 2**-53).tolist() == [0, 1, 2]
    many = bernoulli(stream(), 1 << 52, 2.0**-42)
    assert abs(len(many) - 1024) < 4 * 32 and stats.kstest(many / 2.0**52, "uniform").pvalue > FALSE_ALARM
    assert many.dtype == np.int64
    for trials, probability in ((5, 1.5), (5, math.nan), (-1, 0.5), ((1 << 52) + 1, 0.5)):
        with pytest.raises(ValueError, match="trials"):
            bernoulli(stream(), trials, probability)


def test_more_successes_than_are_drawn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps_of_trials, "_AT_ONCE", 100)
    positions = bernoulli(stream(), 30_000, 0.2)
    assert (np.diff(positions) > 0).all() and abs(len(positions) - 6000) < 4 * math.sqrt(4800)
    assert stats.kstest(positions / 30_000, "uniform").pvalue > FALSE_ALARM


@pytest.mark.parametrize("probability", [1e-300, 1e-17, 1e-9, 0.01, 0.7])
def test_gaps_in_many_digits_are_those_in_float64(probability: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every gap computed both ways, and against the definition."""
    most = 1 << 52

    def gaps() -> np.ndarray:
        return np.minimum(gaps_of_trials._geometric(stream(), 300, probability, most), most + 1)

    fast, original = gaps(), gaps_of_trials.exponentials
    monkeypatch.setattr(gaps_of_trials, "exponentials", lambda words: (original(words)[0], np.full(len(words), np.inf)))
    assert np.array_equal(gaps(), fast)
    with mpmath.workprec(1200):
        rate = -mpmath.log(1 - mpmath.mpf(probability))
        words = stream().words(300).tolist()
        exact = [float(mpmath.floor(-mpmath.log(mpmath.mpf(2 * word + 1) / 2**65) / rate)) for word in words]
    np.testing.assert_allclose(fast, np.minimum(exact, most + 1), rtol=1e-12)


def test_gaps_next_to_a_whole_number_are_decided_by_more_bits() -> None:
    """At probability 1/2 a word of 2^63 stands next to U = 1/2: one gap below it, another above."""

    class Fixed(Keystream):
        def __init__(self, word: int, more: int) -> None:
            self.position, self.word, self.more = 0, word, more

        def at(self, position: int, count: int) -> np.ndarray:
            return np.full(count, self.word, dtype=np.uint64)

        def extended(self, word: int, position: int) -> int:
            return word << 128 | self.more

    assert gaps_of_trials._geometric(Fixed(2**63, 0), 1, 0.5, 100).tolist() == [0], "U just above 1/2"
    assert gaps_of_trials._geometric(Fixed(2**63 - 1, 2**128 - 1), 1, 0.5, 100).tolist() == [1], "U just below"
    assert gaps_of_trials._geometric(Fixed(0, 0), 1, 0.5, 1000).tolist() == [193], "U = 2^-193"
    assert gaps_of_trials._geometric(Fixed(0, 2**127), 1, 0.5, 1000).tolist() == [64], "U below 2^-65 2^1"


@pytest.mark.parametrize("scale", [1e-3, 1.0, 2600.0])
def test_laplace_law_on_its_grid(scale: float) -> None:
    noise, grid = laplace(stream(), 100_000, scale), gaussian_grid(scale)
    assert (np.rint(noise / grid) * grid == noise).all()
    assert stats.kstest(noise / scale, "laplace").pvalue > FALSE_ALARM
    assert stats.kstest(1.08 * noise / scale, "laplace").pvalue < 1e-6
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) * math.sqrt(1e5) < stats.norm.isf(FALSE_ALARM / 2)


def test_laplace_in_many_digits_is_that_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, original = laplace(stream(), 2000, 1.7), distributions.exponentials
    monkeypatch.setattr(distributions, "exponentials", lambda words: (original(words)[0], np.full(len(words), np.inf)))
    assert np.array_equal(laplace(stream(), 2000, 1.7), fast)


def test_bounds_on_exponentials_hold() -> None:
    """Against 320 bits, over the whole interval that a word stands for; words of all sizes."""
    words = np.concatenate(
        [stream().words(500), np.uint64(1) << np.arange(64, dtype=np.uint64), ~np.arange(5).astype("u8")]
    )
    value, error = gaps_of_trials.exponentials(words)
    with mpmath.workprec(320):
        for word, near, off in zip(words.tolist(), value.tolist(), error.tolist(), strict=True):
            for part in (mpmath.ldexp(1, -128), 1 - mpmath.ldexp(1, -128)):
                assert abs(-mpmath.log((word + part) / mpmath.mpf(2) ** 64) - near) <= off
    assert gaps_of_trials.exponentials(np.zeros(1, dtype=np.uint64))[1] == math.inf
    assert (error[:500] < 1e-12).all()


@pytest.mark.parametrize(("universe", "count"), [(5, 2), (5, 3), (4, 4), (7, 1)])
def test_every_ordered_choice_is_as_likely(universe: int, count: int) -> None:
    """6,000 to 21,000 draws over at most 60 choices."""
    seen: dict[tuple[int, ...], int] = {}
    choices = math.perm(universe, count)
    for step in range(300 * choices):
        drawn = tuple(distinct(stream(step), universe, count).tolist())
        seen[drawn] = seen.get(drawn, 0) + 1
    assert len(seen) == choices and all(len(set(drawn)) == count for drawn in seen)
    assert stats.chisquare(list(seen.values())).pvalue > FALSE_ALARM


def test_a_universe_that_does_not_divide_the_words_is_uniform() -> None:
    """3/8 of 2^64: without rejection two thirds of the numbers would come three times for the others' two."""
    drawn = np.concatenate([distinct(stream(step), 3 << 61, 50) for step in range(100)])
    assert stats.kstest(drawn / 2.0**61 / 3, "uniform").pvalue > FALSE_ALARM


def test_subsets_of_all_and_none() -> None:
    assert sorted(distinct(stream(), 9, 9).tolist()) == list(range(9))
    assert distinct(stream(), 9, 0).tolist() == [] and distinct(stream(), 0, 0).tolist() == []
    assert len(np.unique(distinct(stream(), 10**15, 5000))) == 5000
    with pytest.raises(ValueError, match="cannot be drawn"):
        distinct(stream(), 3, 4)
