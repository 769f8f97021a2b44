"""The laws that `dpfest check` compares with: rows that pass DP-AdaFEST's map, values that share rows."""

from __future__ import annotations

import numpy as np
import pytest

from dpfest.algorithms.adafest import AdaFEST
from pipelines.check import Feature, surviving
from reports.criteo import _used

RATE, FEATURES, NOISE = 0.02, 26, 2.0


@pytest.mark.parametrize(("norm", "share"), [(1.0, 1 / np.sqrt(26)), (10.0, 1.0)])
def test_rows_pass_the_map_as_often_as_foretold(norm: float, share: float) -> None:
    """Against the map itself: a binomial count of examples, each clipped to C1 over its 26 rows, and Gaussian noise."""
    counts = np.array([0, 0, 3, 500, 5_000, 20_000, 100_000])
    algorithm, generator = AdaFEST(threshold=20.0 * norm, contribution_clipping_norm=norm), np.random.default_rng(0)
    batches = generator.binomial(counts, RATE, (40_000, len(counts)))
    noised = share * batches + NOISE * norm * generator.standard_normal(batches.shape)
    met = (noised >= algorithm.threshold).mean(0)
    foretold = surviving(algorithm, NOISE, counts, RATE, FEATURES)
    assert foretold == pytest.approx(met, abs=0.01)
    assert foretold[-1] > 0.99 and foretold[0] < 1e-3


def test_values_fall_on_as_many_rows_as_foretold() -> None:
    generator = np.random.default_rng(0)
    for rows, values in ((3, 4), (23, 24), (1172, 9000), (82_741, 400_000), (5000, 12)):
        low, high = _used(Feature("x", values, rows, 0, 0.0))
        met = [len(np.unique(generator.integers(rows, size=values))) for _ in range(20)]
        assert low <= min(met) <= max(met) <= high <= min(rows, values)
        assert high - low <= 0.05 * rows or rows < 100
