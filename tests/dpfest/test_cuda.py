"""The same step on a GPU: without noise the CPU's gradient, with noise the right law, and a whole training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpfest import (
    DPSGD,
    FEST,
    AdaFEST,
    AdaFESTPlus,
    Exponential,
    Frozen,
    NoiseKey,
    Nonprivate,
    PrivateEngine,
    PrivateTraining,
    Threshold,
    plan,
)
from dpfest.algorithms import Algorithm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

RULES = [
    Nonprivate(),
    DPSGD(),
    DPSGD(noise="lazy"),
    Threshold(),
    FEST(),
    AdaFEST(threshold=1.0),
    AdaFESTPlus(threshold=0.5),
    Exponential(rows_per_step=8),
    Frozen(),
]


class Model(nn.Module):
    """A table read once, a text with repeated tokens and padding, a mean bag; linear layers and a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.text = nn.Embedding(40, 3), nn.Embedding(30, 4, padding_idx=0)
        self.bag = nn.EmbeddingBag(20, 2, mode="mean")
        self.head = nn.Sequential(nn.Linear(9, 5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 1))

    def forward(self, one: Tensor, text: Tensor, bag: Tensor) -> Tensor:
        return self.head(torch.cat([self.one(one), self.text(text).sum(1), self.bag(bag)], dim=1)).squeeze(1)


def batch(examples: int = 50) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = [(40, (examples,)), (30, (examples, 6)), (20, (examples, 3))]
    return [torch.randint(0, rows, shape, generator=generator) for rows, shape in sizes]


def gradient(algorithm: Algorithm, device: str, noise: float = 0.0, step: int = 0) -> Any:
    model = Model().to(device)
    engine = PrivateEngine(
        model,
        algorithm,
        lambda ids: model(*ids).square(),
        NoiseKey.from_seed(0),
        gradient_noise_multiplier=noise,
        expected_batch_size=50.0,
        map_noise_multiplier=1e-6,  # the map's own noise differs from device to device
        epsilon_per_row=1e6,
        selected=torch.arange(0, 90, 3) if algorithm.selection else None,
    )
    return engine.gradient([[ids.to(device) for ids in batch()]], step)


@pytest.mark.parametrize("algorithm", RULES, ids=lambda rule: f"{rule.name}{'-lazy' * rule.lazy}")
def test_a_step_without_noise_is_the_cpus(algorithm: Algorithm) -> None:
    here, there = gradient(algorithm, "cpu"), gradient(algorithm, "cuda")
    for name, value in here.dense.items():
        torch.testing.assert_close(there.dense[name].cpu(), value, rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(here.tables, there.tables, strict=True):
        assert (ours.rows is None) == (theirs.rows is None)
        assert ours.rows is None or torch.equal(ours.rows, theirs.rows.cpu())
        torch.testing.assert_close(theirs.values.cpu(), ours.values, rtol=1e-4, atol=1e-6)


def test_noise_has_the_right_deviation() -> None:
    """Chi-squared on 20,000 differences of two steps, false-alarm rate 1e-4; 3% off is rejected."""
    draws = [
        torch.cat([v.flatten() for v in gradient(DPSGD(), "cuda", 2.0, step).dense.values()]) for step in range(300)
    ]
    differences = torch.stack(draws).diff(dim=0)[::2].double().cpu().numpy() / (np.sqrt(2) * 2.0 / 50)
    total, size = float((differences**2).sum()), differences.size
    assert min(stats.chi2.sf(total, size), stats.chi2.cdf(total, size)) > 5e-5
    assert stats.chi2.cdf(total / 1.03**2, size) < 1e-3


@pytest.mark.parametrize("algorithm", [AdaFEST(threshold=1.0), DPSGD(noise="lazy")], ids=["adafest", "lazy"])
def test_a_training_moves_and_resumes(algorithm: Algorithm) -> None:
    data = TensorDataset(*batch(200))
    budget = plan(
        algorithm,
        epsilon=3.0,
        fixed_noise_seed=True,
        examples=200,
        batch_size=20,
        steps=4,
    )

    def training() -> PrivateTraining:
        model = Model().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return PrivateTraining(
            model,
            lambda ids: model(*(i.cuda() for i in ids)).square(),
            optimizer,
            algorithm,
            budget,
            key=NoiseKey.from_seed(1),
        )

    whole, half = training(), training()
    for run, steps in ((whole, 4), (half, 2)):
        for _, part in zip(range(steps), run.batches(data), strict=False):
            run.step(part)
    resumed = training()
    resumed.load_state_dict(half.state_dict())
    for part in resumed.batches(data):
        resumed.step(part)
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert bool(ours.isfinite().all())
