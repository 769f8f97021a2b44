"""Exponential selection's sparse sampler has the law of a Gumbel on every row; settings are checked by name."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpfest import algorithms, survivors
from dpfest.algorithms import ALGORITHMS, AdaFEST, Exponential, PrivateAlgorithm
from dpfest.noise import NoiseKey
from dpfest.survivors import draw_rows


def test_drawn_rows_follow_the_exponential_mechanism() -> None:
    """First row drawn: softmax(utility / scale) over all rows, named or not (false-alarm rate 1e-4)."""
    rows, utilities, universe, scale, n = np.array([2, 5]), np.array([1.5, 0.4]), 9, 0.7, 20_000
    everywhere = np.zeros(universe)
    everywhere[rows] = utilities
    law = np.exp(everywhere / scale) / np.exp(everywhere / scale).sum()
    stream = NoiseKey.from_seed(0).stream("rows")
    counts = np.zeros(universe)
    for _ in range(n):
        counts[draw_rows(rows, utilities, universe=universe, count=1, scale=scale, stream=stream)] += 1
    assert stats.chisquare(counts, law * n).pvalue > 1e-4
    wrong = np.exp(everywhere / (1.2 * scale)) / np.exp(everywhere / (1.2 * scale)).sum()
    assert stats.chisquare(counts, wrong * n).pvalue < 1e-6


def test_several_rows_are_drawn_without_replacement_as_by_peeling() -> None:
    """Pairs of rows: the law of two draws without replacement (false-alarm rate 1e-4)."""
    rows, utilities, universe, scale, n = np.array([1]), np.array([1.0]), 4, 0.8, 20_000
    weights = np.exp(np.array([0, 1.0, 0, 0]) / scale)
    weights /= weights.sum()
    law = {}
    for i in range(4):
        for j in range(i + 1, 4):
            law[(i, j)] = weights[i] * weights[j] / (1 - weights[i]) + weights[j] * weights[i] / (1 - weights[j])
    stream = NoiseKey.from_seed(1).stream("rows")
    counts = dict.fromkeys(law, 0)
    for _ in range(n):
        drawn = draw_rows(rows, utilities, universe=universe, count=2, scale=scale, stream=stream)
        counts[tuple(drawn.tolist())] += 1
    assert stats.chisquare(list(counts.values()), [law[pair] * n for pair in counts]).pvalue > 1e-4


def test_more_rows_than_there_are() -> None:
    drawn = draw_rows(
        np.array([1]), np.array([3.0]), universe=4, count=9, scale=1.0, stream=NoiseKey.from_seed(0).stream("rows")
    )
    assert drawn.tolist() == [0, 1, 2, 3]


def test_cost_does_not_grow_with_the_universe() -> None:
    drawn = draw_rows(
        np.array([7]),
        np.array([99.0]),
        universe=10**12,
        count=50,
        scale=1.0,
        stream=NoiseKey.from_seed(0).stream("rows"),
    )
    assert len(drawn) == 50 and 7 in drawn


def test_scores_that_floats_cannot_tell_apart_are_compared_in_many_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With errors taken for a hundred deviations, every score counts as unsure: the same rows must be drawn."""
    rows, utilities = np.arange(0, 60, 2), np.linspace(0, 2, 30)

    def draw(step: int) -> list[int]:
        stream = NoiseKey.from_seed(2).stream("rows", step)
        return draw_rows(rows, utilities, universe=1000, count=7, scale=1.0, stream=stream).tolist()

    sure = [draw(step) for step in range(10)]
    original = survivors.exponentials
    monkeypatch.setattr(survivors, "exponentials", lambda words: (original(words)[0], np.full(len(words), np.inf)))
    assert [draw(step) for step in range(10)] == sure


def test_exact_scores_decide_where_rounded_ones_mislead() -> None:
    exact = [1.0, 2.0, 3.0, 2.5]
    misled = np.array([1.0, 2.6, 3.0, 2.4])
    assert sorted(survivors._largest(misled, np.full(4, 0.2), 2, exact.__getitem__)) == [2, 3]
    assert sorted(survivors._largest(misled, np.full(4, 0.05), 2, exact.__getitem__)) == [1, 2]


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (AdaFEST, "clipping_norm", 0.0),
        (AdaFEST, "contribution_clipping_norm", -1.0),
        (AdaFEST, "noise_ratio", 0.0),
        (Exponential, "rows_per_step", 0),
        (Exponential, "selection_clipping_norm", float("nan")),
        (AdaFEST, "contribution_clipping_norm", float("inf")),
        (AdaFEST, "threshold", float("nan")),
        (AdaFEST, "threshold", "3"),
        (AdaFEST, "clipping_norm", "1"),
        (Exponential, "rows_per_step", 2.5),
    ],
)
def test_wrong_settings_are_named(kind: type, key: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{key}="):
        kind(**{key: value})


def test_every_private_algorithm_is_registered_under_its_name() -> None:
    classes = [value for value in vars(algorithms).values() if isinstance(value, type)]
    private = {kind for kind in classes if issubclass(kind, PrivateAlgorithm)} - {PrivateAlgorithm}
    assert set(ALGORITHMS.values()) == private
    assert all(kind().name == name for name, kind in ALGORITHMS.items())
