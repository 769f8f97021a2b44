"""The step on a GPU: without noise the CPU's gradient in float64, with noise the CPU's bits, a training, and all twice.

Where there is no GPU the same tests run on the CPU, so that they cannot fall behind the library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dpfest
from dpfest import (
    DPSGD,
    FEST,
    AdaFEST,
    AdaFESTPlus,
    Exponential,
    Frozen,
    NoiseKey,
    Nonprivate,
    PrivateTraining,
    Threshold,
)
from dpfest.algorithms.algorithm import Algorithm
from dpfest.gradients.parts import NoisedGradient
from dpfest.noise import gaussian
from dpfest.noise.box_muller import BLOCK
from dpfest.noise.key import AES, CHACHA
from dpfest.noise.places import RowPlaces
from dpfest.training.arguments import cipher_for
from tests.dpfest.steps import engine_with, released

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

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


def losses(model: nn.Module, ids: Any) -> Tensor:
    return model(*(one.to(next(model.parameters()).device) for one in ids)).square()


def gradient(
    algorithm: Algorithm, device: torch.device, dtype: torch.dtype, noise: float = 0.0, step: int = 0
) -> NoisedGradient:
    engine = engine_with(
        Model().to(device, dtype),
        algorithm,
        losses,
        NoiseKey.from_seed(0),
        gradient_noise_multiplier=noise,
        expected_batch_size=50.0,
        map_noise_multiplier=1e-6,
        epsilon_per_draw=1e6,
        selected=torch.arange(0, 90, 3) if algorithm.selection else None,
    )
    return released(engine, [batch()], step)


def flat(release: NoisedGradient) -> Tensor:
    parts = [*release.dense.values(), *(table.values for table in release.tables)]
    return torch.cat([part.double().flatten().cpu() for part in parts])


@pytest.mark.parametrize("algorithm", RULES, ids=lambda rule: f"{rule.name}{'-lazy' * rule.lazy}")
def test_a_step_without_noise_is_the_cpus(algorithm: Algorithm) -> None:
    exact, here = gradient(algorithm, torch.device("cpu"), torch.float64), gradient(algorithm, DEVICE, torch.float32)
    for name, value in exact.dense.items():
        torch.testing.assert_close(here.dense[name].double().cpu(), value, rtol=1e-4, atol=1e-6)
    for ours, table in zip(here.tables, exact.tables, strict=True):
        assert (ours.rows is None) == (table.rows is None)
        assert table.rows is None or torch.equal(ours.rows.cpu(), table.rows)
        torch.testing.assert_close(ours.values.double().cpu(), table.values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("algorithm", RULES, ids=lambda rule: f"{rule.name}{'-lazy' * rule.lazy}")
def test_a_step_that_is_taken_again_has_the_same_bits(algorithm: Algorithm) -> None:
    first, again = (
        flat(gradient(algorithm, DEVICE, torch.float32, 2.0 * (algorithm.name != "nonprivate"))) for _ in range(2)
    )
    assert torch.equal(first, again)


class Wide(nn.Module):
    """The tables of a click model, from three rows on, of each of which an example looks up one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        shapes = [(3, 2), (20, 4), (600, 9), (5_000, 16), (90_000, 34), (7, 3)] * (4 if DEVICE.type == "cuda" else 1)
        self.tables = nn.ModuleList(nn.Embedding(rows, dim) for rows, dim in shapes)
        self.head = nn.Sequential(nn.Linear(sum(dim for _, dim in shapes), 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, *ids: Tensor) -> Tensor:
        found = [table(own) for table, own in zip(self.tables, ids, strict=True)]
        return self.head(torch.cat(found, dim=1)).squeeze(1)


@pytest.mark.parametrize("algorithm", RULES, ids=lambda rule: f"{rule.name}{'-lazy' * rule.lazy}")
def test_a_step_of_many_look_ups_has_the_same_bits_three_times(algorithm: Algorithm) -> None:
    """Under the cipher of a GPU, with hot rows of hundreds of look-ups, so that many programs of each kernel run."""
    examples = 2_048 if DEVICE.type == "cuda" else 64
    generator, model = torch.Generator().manual_seed(1), Wide()
    ids = [
        (table.num_embeddings ** torch.rand(examples, generator=generator)).long() - 1
        for table in model.tables  # few rows are popular
    ]
    rows = sum(table.num_embeddings for table in model.tables)
    engine = engine_with(
        model.to(DEVICE),
        algorithm,
        losses,
        NoiseKey.from_seed(0, cipher=CHACHA),
        gradient_noise_multiplier=2.0 * (algorithm.name != "nonprivate"),
        expected_batch_size=float(examples),
        map_noise_multiplier=0.5,
        epsilon_per_draw=1.0,
        selected=torch.arange(0, rows, 7) if algorithm.selection else None,
    )
    first, *others = (released(engine, [ids], 3) for _ in range(3))
    assert flat(first).any() and all(torch.equal(flat(first), flat(other)) for other in others)
    for other in others:
        for ours, theirs in zip(first.tables, other.tables, strict=True):
            assert (ours.rows is None) == (theirs.rows is None) and (
                ours.rows is None or torch.equal(ours.rows, theirs.rows)
            )


@pytest.mark.parametrize("algorithm", [DPSGD(), FEST(), Frozen()], ids=lambda rule: rule.name)
def test_the_noise_of_a_step_is_the_cpus(algorithm: Algorithm) -> None:
    """On dense parameters and on rows: the difference from a step without noise, up to the rounding of its sums."""
    cpu = torch.device("cpu")
    exact = flat(gradient(algorithm, cpu, torch.float64, 2.0)) - flat(gradient(algorithm, cpu, torch.float64))
    here = flat(gradient(algorithm, DEVICE, torch.float32, 2.0)) - flat(gradient(algorithm, DEVICE, torch.float32))
    assert (exact == 0).sum() <= 4  # the padding row's four
    assert 0.8 < float(exact[exact != 0].std()) / (2.0 / 50) < 1.2
    torch.testing.assert_close(here, exact, rtol=0, atol=1e-6)


def test_noise_has_the_right_deviation() -> None:
    """Chi-squared on differences of steps, of dense parameters and rows, false-alarm rate 1e-4; 3% off is rejected."""
    draws = torch.stack([flat(gradient(DPSGD(), DEVICE, torch.float32, 2.0, step)) for step in range(120)])
    differences = draws.diff(dim=0)[::2].numpy() / (np.sqrt(2) * 2.0 / 50)
    differences = differences[:, differences.any(axis=0)]  # without the padding row
    total, size = float((differences**2).sum()), differences.size
    assert size > 20_000 and min(stats.chi2.sf(total, size), stats.chi2.cdf(total, size)) > 5e-5
    assert stats.chi2.cdf(total / 1.03**2, size) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("of_each_row", [False, True])
def test_added_noise_has_the_cpus_bits(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, of_each_row: bool) -> None:
    monkeypatch.setattr(gaussian, "_CUDA_BLOCKS", 1)  # values reach a GPU in several parts, with a split row between
    rows, dim = BLOCK // 3, 7
    before = torch.randn(rows, dim, generator=torch.Generator().manual_seed(2), dtype=dtype)
    deviation = torch.linspace(0.1, 30, rows, dtype=torch.float64) if of_each_row else 1.7
    here, there = before.clone(), before.clone().to(DEVICE)
    gaussian.add_gaussian(here, NoiseKey.from_seed(0).stream("noise"), deviation)
    gaussian.add_gaussian(there, NoiseKey.from_seed(0).stream("noise"), deviation)
    assert torch.equal(there.cpu(), here)
    scaled = (here - before) / (deviation.unsqueeze(1) if isinstance(deviation, Tensor) else deviation)
    assert 0.98 < float(scaled.std()) < 1.02


@pytest.mark.parametrize("of_each_row", [False, True])
def test_noise_by_place_has_the_cpus_bits(of_each_row: bool) -> None:
    rows, dim = 20_011, 7
    before, numbers = torch.zeros(rows, dim), 3 * torch.arange(rows)
    deviation = torch.linspace(0.1, 30, rows, dtype=torch.float64) if of_each_row else 1.7
    here, there = before.clone(), before.clone().to(DEVICE)
    for values, places in ((here, numbers), (there, numbers.to(DEVICE))):
        stream = NoiseKey.from_seed(0, cipher=CHACHA).stream("noise")
        gaussian.add_gaussian(values, stream, deviation, RowPlaces(places, [(rows, dim)]))
    assert torch.equal(there.cpu(), here) and here.unique().numel() > 0.9 * here.numel()


def test_a_models_device_names_its_cipher() -> None:
    for device, cipher in (("cpu", AES), (DEVICE, CHACHA if DEVICE.type == "cuda" else AES)):
        assert cipher_for(Model().to(device)) == cipher


@pytest.mark.parametrize("algorithm", [AdaFEST(threshold=1.0), DPSGD(noise="lazy")], ids=["adafest", "lazy"])
def test_a_training_moves_and_resumes(algorithm: Algorithm) -> None:
    plan = dpfest.plan(algorithm, epsilon=3.0, fixed_noise_seed=True, examples=200, batch_size=20, steps=4)
    read = dpfest.DatasetReader(TensorDataset(*batch(200)))

    def training() -> PrivateTraining:
        model = Model().to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return PrivateTraining(model, losses, optimizer, plan, read, key=NoiseKey.from_seed(1))

    def take(run: PrivateTraining, steps: int) -> PrivateTraining:
        for _, part in zip(range(steps), run, strict=False):
            run.step(part)
        return run

    whole, half, resumed = take(training(), 4), take(training(), 2), training()
    resumed.load_state_dict(half.state_dict())
    assert resumed.steps_done == 2
    take(resumed, 4)
    assert resumed.steps_done == 4
    whole.flush()
    resumed.flush()
    start = Model().to(DEVICE).state_dict()
    for (name, ours), theirs in zip(resumed.model.named_parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)  # or what is taken again would be a second release
        assert bool(ours.isfinite().all()) and not torch.equal(ours, start[name])
