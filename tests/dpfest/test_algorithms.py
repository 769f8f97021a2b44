"""Exponential selection's sparse sampler has the law of a Gumbel on every row; settings are checked by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from dpfest.algorithms import rules
from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.algorithm import INDEPENDENT, Algorithm, PrivateAlgorithm
from dpfest.algorithms.exponential import Exponential
from dpfest.algorithms.rules import ALGORITHMS, DPSGD, FEST
from dpfest.errors import UserError
from dpfest.gradients.parts import NoisedGradient, RowSums, Shard
from dpfest.gradients.tables import Survivors
from dpfest.noise.key import NoiseKey
from dpfest.selection import exponential
from dpfest.selection.exponential import draw_rows
from tests.dpfest.steps import by_batch, engine_with, released


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
    original = exponential.exponentials
    monkeypatch.setattr(exponential, "exponentials", lambda words: (original(words)[0], np.full(len(words), np.inf)))
    assert [draw(step) for step in range(10)] == sure


def test_exact_scores_decide_where_rounded_ones_mislead() -> None:
    exact = [1.0, 2.0, 3.0, 2.5]
    misled = np.array([1.0, 2.6, 3.0, 2.4])
    assert sorted(exponential._largest(misled, np.full(4, 0.2), 2, exact.__getitem__)) == [2, 3]
    assert sorted(exponential._largest(misled, np.full(4, 0.05), 2, exact.__getitem__)) == [1, 2]


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
        (DPSGD, "clipping_norm", 1e-10),
        (Exponential, "selection_clipping_norm", 1e-10),
        (Exponential, "rows_per_step", 2.5),
    ],
)
def test_wrong_settings_are_named(kind: type, key: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{key}="):
        kind(**{key: value})


def test_every_private_algorithm_is_registered_under_its_name() -> None:
    classes = [value for value in vars(rules).values() if isinstance(value, type)]
    private = {kind for kind in classes if issubclass(kind, PrivateAlgorithm)} - {PrivateAlgorithm}
    assert set(ALGORITHMS.values()) == private
    assert all(kind().name == name for name, kind in ALGORITHMS.items())


class Touched:
    """The exact rows that a batch touches: whoever sees them knows who was there."""

    def survivors(self, shard: Shard, measured: Any, cost: Any, step: int) -> Tensor:
        return shard.touched()


@pytest.mark.parametrize("base", [PrivateAlgorithm, DPSGD, FEST, AdaFEST])
def test_a_choice_of_rows_of_ones_own_is_not_accounted_as_another(base: type) -> None:
    """Whatever it derives from, and through however many classes."""
    own = {"survivors": Touched.survivors, "__module__": __name__}
    with pytest.raises(UserError, match=r"Mine redefines survivors, and inherits the step_event of another"):
        type("Mine", (base,), own)
    with pytest.raises(UserError, match=r"Mine redefines survivors"):
        type("Mine", (Touched, base), {})
    stated = type("Mine", (base,), own | {"step_event": base.step_event})
    with pytest.raises(UserError, match=r"Later redefines survivors"):
        type("Later", (stated,), own)
    with pytest.raises(UserError, match=r"Mine redefines measure"):
        type("Mine", (base,), {"choice": INDEPENDENT, "measure": lambda self, *given: [None]})
    with pytest.raises(UserError, match=r"Mine redefines draws_untouched"):
        type("Mine", (base,), {"draws_untouched": True})


def test_a_choice_that_is_independent_of_the_batch_is_not_told_what_it_touches() -> None:
    def step(rule: Algorithm) -> NoisedGradient:
        torch.manual_seed(1)
        table = nn.Embedding(9, 2)
        model = nn.Sequential(table, nn.Linear(2, 1))
        losses = by_batch(lambda ids: model(ids).squeeze(1))
        engine = engine_with(
            model, rule, losses, NoiseKey.from_seed(1), gradient_noise_multiplier=1.0, expected_batch_size=4.0
        )
        return released(engine, [torch.tensor([1, 2, 2])], 0)

    class Claims(DPSGD):
        choice = INDEPENDENT
        survivors = Touched.survivors

    class Keeps(DPSGD):
        def kept(self, shard: Shard, noised: RowSums, deviation: float, step: int) -> RowSums:
            return RowSums(Survivors(shard.layout, shard.touched()), noised.flat[:4])

    class Even(PrivateAlgorithm):
        choice = INDEPENDENT

        def survivors(self, shard: Shard, measured: Any, cost: Any, step: int) -> Tensor:
            return torch.arange(step % 2, shard.layout.total_rows, 2)

    for rule in (Claims(), Keeps()):
        with pytest.raises(UserError, match="asks what the batch touches where nothing pays for the answer"):
            step(rule)
    assert step(Even()).rows_per_table == [5]
