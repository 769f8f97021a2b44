"""Poisson batches have the law that the accountant assumes; shuffled ones cover every example once an epoch.

Statistical tests at a fixed seed, false-alarm rate 1e-4 each.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy import stats

from dpfest.noise.key import NoiseKey
from dpfest.planning.sampling import PoissonBatches
from dpfest.planning.unproven import ShuffledBatches

KEY = NoiseKey.from_seed(11)
FALSE_ALARM = 1e-4


def test_poisson_inclusion_rate_size_and_independence() -> None:
    examples, rate, steps = 40, 0.15, 4000
    batches = PoissonBatches(examples, examples * rate, KEY)
    included = np.zeros((steps, examples), dtype=bool)
    for step in range(steps):
        indices = batches.indices(step)
        assert (np.diff(indices) > 0).all()
        included[step, indices] = True
    z = (included.sum(0) - steps * rate) / np.sqrt(steps * rate * (1 - rate))
    assert stats.chi2.sf((z**2).sum(), examples) > FALSE_ALARM
    sizes = np.bincount(included.sum(1), minlength=examples + 1)
    expected = stats.binom.pmf(np.arange(examples + 1), examples, rate) * steps
    common = expected > 5
    observed = np.append(sizes[common], sizes[~common].sum())
    assert stats.chisquare(observed, np.append(expected[common], expected[~common].sum())).pvalue > FALSE_ALARM
    correlation = np.corrcoef(included.T.astype(float))[np.triu_indices(examples, 1)] * np.sqrt(steps)
    assert stats.chi2.sf((correlation**2).sum(), len(correlation)) > FALSE_ALARM
    serial = [np.corrcoef(included[:-1, i], included[1:, i])[0, 1] for i in range(examples)]
    assert stats.chi2.sf(((np.array(serial) * np.sqrt(steps)) ** 2).sum(), examples) > FALSE_ALARM


def test_poisson_batches_can_be_empty_and_are_reproducible() -> None:
    batches = PoissonBatches(1000, 0.5, KEY)
    sizes = [len(batches.indices(step)) for step in range(50)]
    assert 0 in sizes
    assert np.array_equal(batches.indices(7), PoissonBatches(1000, 0.5, KEY).indices(7))


def test_shuffled_epochs_cover_everything_once() -> None:
    batches = ShuffledBatches(100, 10, KEY)
    first = np.concatenate([batches.indices(step) for step in range(10)])
    second = np.concatenate([batches.indices(step) for step in range(10, 20)])
    assert np.array_equal(np.sort(first), np.arange(100)) and np.array_equal(np.sort(second), np.arange(100))
    assert not np.array_equal(first, second)
    resumed = ShuffledBatches(100, 10, KEY)
    assert np.array_equal(resumed.indices(13), batches.indices(13))


@pytest.mark.parametrize("examples", [1, 2, 3, 7, 64, 1000])
def test_an_epoch_is_a_permutation_of_any_number_of_examples(examples: int) -> None:
    batches = ShuffledBatches(examples, 1, KEY)
    for epoch in range(3):
        drawn = [int(batches.indices(epoch * examples + step)[0]) for step in range(examples)]
        assert sorted(drawn) == list(range(examples))


def test_an_epochs_order_is_as_good_as_random() -> None:
    """Where an example stands, and who its neighbour is, are uniform over epochs."""
    examples, epochs = 12, 3000
    batches = ShuffledBatches(examples, 1, KEY)
    for first, second in ((0, 1), (3, 7), (10, 11)):
        pairs = np.zeros((examples, examples))
        for start in range(0, epochs * examples, examples):
            pairs[batches.indices(start + first)[0], batches.indices(start + second)[0]] += 1
        observed = pairs[~np.eye(examples, dtype=bool)]
        assert observed.sum() == epochs and stats.chisquare(observed).pvalue > FALSE_ALARM


@pytest.mark.parametrize("kind", [PoissonBatches, ShuffledBatches])
def test_batches_of_a_billion_examples_take_no_memory_that_grows_with_them(kind: type) -> None:
    batches = kind(10**9, 1000, KEY)
    tracemalloc.start()
    drawn = np.concatenate([batches.indices(step) for step in (0, 1, 999_999)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert abs(len(np.unique(drawn)) - 3000) < 300 and drawn.max() < 10**9 and peak < 2**20
    assert stats.kstest(drawn / 1e9, "uniform").pvalue > FALSE_ALARM


@pytest.mark.parametrize("kind", [PoissonBatches, ShuffledBatches])
def test_batch_larger_than_the_data_is_refused(kind: type) -> None:
    with pytest.raises(ValueError, match=r"^batch_size=200"):
        kind(100, 200, KEY)
