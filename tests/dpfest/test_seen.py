"""Which rows a contribution map and a selection can see: the formulas against what trainings and selections do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfest
from dpfest.errors import UserError
from dpfest.noise.key import NoiseKey
from dpfest.planning.seen import seen_by_map, seen_by_selection, survival
from dpfest.selection.topk import SelectionConfig, noisy_counts

EXAMPLES, BATCH, STEPS, FEATURES = 2_000, 200, 200, 4
FREQUENCIES = (0, 10, 30, 60, 100, 700)
"""Examples in which the first rows of the first table occur; the others are spread over many rows."""


class Model(nn.Module):
    """A linear model of four features."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(1_000, 1) for _ in range(FEATURES)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits ``[b]``."""
        return sum(table(ids[:, n])[:, 0] for n, table in enumerate(self.tables))


def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    ids, labels = batch
    return nn.functional.binary_cross_entropy_with_logits(model(ids), labels, reduction="none")


def data() -> TensorDataset:
    generator = np.random.default_rng(0)
    ids = generator.integers(500, 1_000, (EXAMPLES, FEATURES))
    ids[:, 0] = np.concatenate([np.repeat(np.arange(len(FREQUENCIES)), FREQUENCIES), ids[sum(FREQUENCIES) :, 0]])
    return TensorDataset(torch.from_numpy(ids), torch.ones(EXAMPLES))


@pytest.mark.parametrize(
    "norm", [pytest.param(1.0, marks=pytest.mark.slow), 3.0]
)  # below and above the norm of a map, sqrt(4)
def test_rows_survive_as_often_as_their_frequency_says(norm: float) -> None:
    """Normal approximation of 200 steps and six rows: false alarm below 1e-3 at the right law; twice the noise is
    rejected."""
    algorithm = dpfest.AdaFEST(threshold=3.0, noise_ratio=1.0, contribution_clipping_norm=norm)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    training = dpfest.make_private(
        model, optimizer, data(), loss_fn, algorithm=algorithm, epsilon=40.0, delta=1e-5, batch_size=BATCH, steps=STEPS,
        noise_seed=1,
    )  # fmt: skip
    survived = np.zeros(len(FREQUENCIES))
    for batch in training:
        rows = training.step(batch).release.tables[0].rows.numpy()
        survived += np.isin(np.arange(len(FREQUENCIES)), rows)
    chances = np.array([survival(training.plan, m, FEATURES) for m in FREQUENCIES])

    def distance(chances: np.ndarray) -> float:
        return float(np.square((survived - STEPS * chances) / np.sqrt(STEPS * chances * (1 - chances) + 0.25)).sum())

    assert distance(chances) < 22.5  # chi-square of six degrees at 1e-3
    step = training.plan.step()
    assert step is not None and step.map_noise_multiplier is not None
    sigma = step.map_noise_multiplier * norm
    entry = min(1.0, norm / 2)
    wrong = [
        np.mean(_ndtr((np.random.default_rng(m).binomial(m, 0.1, 20_000) * entry - 3.0) / (2 * sigma)))
        for m in FREQUENCIES
    ]
    assert distance(np.array(wrong)) > 22.5


def _ndtr(values: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.vectorize(math.erf)(values / math.sqrt(2)))


def planned(algorithm: dpfest.Algorithm, **more: object) -> dpfest.PrivacyPlan:
    settings = {"examples": 1_000_000, "batch_size": 8_192, "steps": 100, "epsilon": 1.0, "features": [1000] * 8}
    return dpfest.plan(algorithm, **{**settings, **more})  # type: ignore[arg-type]


def test_at_one_deviation_of_the_map_a_row_is_kept_at_threshold_zero_with_the_probability_of_one_deviation() -> None:
    plan = planned(dpfest.AdaFEST(threshold=0.0, noise_ratio=5.0))
    seen = seen_by_map(plan, 8)
    step = plan.step()
    assert step is not None and step.map_noise_multiplier is not None and seen.in_batch is not None
    assert seen.in_batch == pytest.approx(math.sqrt(8) * step.map_noise_multiplier)
    assert seen.in_all == pytest.approx(seen.in_batch * 1_000_000 / 8_192)
    assert survival(plan, seen.in_all, 8) == pytest.approx(0.8413, abs=0.02)
    clipped_less = seen_by_map(planned(dpfest.AdaFEST(noise_ratio=5.0, contribution_clipping_norm=10.0)), 8)
    assert clipped_less.in_batch == pytest.approx(seen.in_batch * 10 / math.sqrt(8))


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_a_selection_sees_a_count_of_one_deviation_of_its_noise(mechanism: str) -> None:
    """The deviation of 40,000 draws within 3%: more than five of its standard errors under either law."""
    selection = SelectionConfig(mechanism=mechanism, rows=100, noise_multiplier=20.0, epsilon=0.5)
    seen = seen_by_selection(planned(dpfest.FEST(selection=selection)), 8)
    assert seen is not None and seen.in_batch is None
    stream = NoiseKey.from_seed(0).stream("selection", 0)
    noise = noisy_counts([np.zeros(5_000, np.int64)] * 8, selection, stream, examples=10, rows_per_example=1)
    assert seen.in_all == pytest.approx(np.concatenate([block for _, block in noise]).std(), rel=0.03)


def test_what_counts_no_rows_sees_none_and_what_has_no_map_is_named() -> None:
    assert seen_by_selection(planned(dpfest.AdaFEST()), 8) is None
    gumbel = SelectionConfig(mechanism="gumbel", rows=100)
    assert seen_by_selection(planned(dpfest.FEST(selection=gumbel)), 8) is None
    with pytest.raises(UserError, match="fest has no contribution map"):
        seen_by_map(planned(dpfest.FEST()), 8)
