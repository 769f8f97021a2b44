"""Adam without the noise in its second moment: the formula, what it corrects, and that it costs no privacy.

Statistical tests at a fixed seed, false-alarm rate 1e-4 each.
"""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dpfest
from dpfest.errors import UserError
from dpfest.gradients.validation import optimizer_faults, refuse
from dpfest.noise.key import NoiseKey

NOISE = 0.5


def stepped(optimizer: torch.optim.Optimizer, weight: nn.Parameter, gradients: Tensor) -> Tensor:
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


def with_noise(weight: nn.Parameter, deviation: float = NOISE, **options: float) -> dpfest.AdamBC:
    optimizer = dpfest.AdamBC([weight], **options)  # type: ignore[arg-type]
    optimizer.param_groups[0]["noise_deviation"] = deviation
    return optimizer


def test_without_noise_it_is_adam() -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(5, 3, dtype=torch.float64), torch.randn(20, 5, 3, dtype=torch.float64)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    stepped(dpfest.AdamBC([ours], lr=0.1), ours, gradients)
    stepped(torch.optim.Adam([theirs], lr=0.1), theirs, gradients)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_two_steps_by_hand() -> None:
    weight = nn.Parameter(torch.tensor([0.0, 0.0], dtype=torch.float64))
    optimizer = with_noise(weight, lr=1.0, betas=(0.5, 0.8), floor=0.25)  # type: ignore[arg-type]
    stepped(optimizer, weight, torch.tensor([[2.0, 0.1], [1.0, 0.3]], dtype=torch.float64))
    expected = []
    for first, second in ((2.0, 1.0), (0.1, 0.3)):
        v1 = first**2 - NOISE**2  # (1 - 0.8) v / (1 - 0.8)
        v2 = (0.8 * 0.2 * v1 + 0.2 * (second**2 - NOISE**2)) / (1 - 0.8**2)
        m2 = (0.25 * first + 0.5 * second) / 0.75
        least = 0.25 * NOISE**2
        expected.append(-first / math.sqrt(max(v1, least)) - m2 / math.sqrt(max(v2, least)))
    torch.testing.assert_close(weight.detach(), torch.tensor(expected, dtype=torch.float64))


def test_its_second_moment_is_that_of_the_gradient_and_adams_is_that_of_the_noise() -> None:
    """The law of the average: chi-squared of a constant plus noise, over many coordinates."""
    torch.manual_seed(1)
    signal, steps, coordinates = 0.2, 300, 4_000
    gradients = signal + NOISE * torch.randn(steps, coordinates, dtype=torch.float64)
    weight = nn.Parameter(torch.zeros(coordinates, dtype=torch.float64))
    optimizer = with_noise(weight, lr=1e-3)
    stepped(optimizer, weight, gradients)
    ours = optimizer.state[weight]["square"] / (1 - 0.999**steps)
    error = float(ours.std() / math.sqrt(coordinates))
    z = stats.norm.isf(0.5e-4)
    assert abs(float(ours.mean()) - signal**2) < z * error < 0.2 * signal**2
    assert abs(float(ours.mean()) + NOISE**2 - signal**2) > 100 * error  # what Adam's average is


def test_a_coordinate_with_a_small_gradient_moves_as_far_as_one_with_a_large_one() -> None:
    """What Adam does without noise, and fails to do under noise: there it moves in proportion, as SGD does."""
    torch.manual_seed(2)
    signal = torch.tensor([0.02, 0.1], dtype=torch.float64).repeat_interleave(500)
    gradients = signal + NOISE * torch.randn(400, 1000, dtype=torch.float64)

    def distances(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> float:
        moved = -stepped(optimizer, weight, gradients)
        return float(moved[500:].mean() / moved[:500].mean())

    ours, theirs = (nn.Parameter(torch.zeros(1000, dtype=torch.float64)) for _ in range(2))
    assert 4 < distances(torch.optim.Adam([theirs], lr=1e-3), theirs) < 6.5
    assert distances(with_noise(ours, lr=1e-3, floor=1e-3), ours) < 3.5


def training(ids: Tensor) -> dpfest.PrivateTraining:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(8, 1))
    plan = dpfest.plan(
        dpfest.DPSGD(), epsilon=3.0, delta=1e-3, examples=200, batch_size=20, steps=6, fixed_noise_seed=True,
        calibrate=lambda *_: 1.5,
    )  # fmt: skip
    tables = torch.optim.SGD(model[0].parameters(), lr=0.1)
    return dpfest.PrivateTraining(
        model,
        lambda model, batch: (model(batch[0]).squeeze(1) - batch[1]).square(),
        [tables, dpfest.AdamBC(model[2].parameters(), lr=0.01)],
        plan,
        dpfest.DatasetReader(TensorDataset(ids, ids.sum(1).float())),
        key=NoiseKey.from_seed(4),
    )


IDS = torch.randint(0, 20, (200, 2), generator=torch.Generator().manual_seed(1))


def test_the_engine_tells_it_the_noise_which_no_example_moves() -> None:
    one, other = training(IDS), training((IDS + 3) % 20)
    told = [each.optimizers[1].param_groups[0]["noise_deviation"] for each in (one, other)]
    assert told[0] == told[1] == one.engine.noise.deviation / 20
    assert told[0] == pytest.approx(1.5 / 20, rel=2e-3)  # sigma C / B
    assert "noise_deviation" not in one.optimizers[0].param_groups[0]


def test_its_update_is_a_function_of_what_was_released() -> None:
    """Replayed from the releases alone, without data: the same weights, to the last bit."""
    run = training(IDS)
    weights = [parameter.detach().clone() for parameter in run.model[2].parameters()]  # type: ignore[union-attr]
    replayed = [nn.Parameter(weight) for weight in weights]
    optimizer = dpfest.AdamBC(replayed, lr=0.01)
    optimizer.param_groups[0]["noise_deviation"] = run.engine.noise.deviation / 20
    for batch in run:
        release = run.step(batch).release
        for parameter, gradient in zip(replayed, release.dense.values(), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    for ours, trained in zip(replayed, run.model[2].parameters(), strict=True):  # type: ignore[union-attr]
        assert torch.equal(ours, trained)


def test_a_resumed_training_keeps_its_moments() -> None:
    whole, stopped = training(IDS), training(IDS)
    for batch in whole:
        whole.step(batch)
    for batch in stopped:
        stopped.step(batch)
        if stopped.steps_done == 3:
            break
    resumed = training(IDS)
    resumed.load_state_dict(stopped.state_dict())
    for batch in resumed:
        resumed.step(batch)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_sparse_tables_and_wrong_settings_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(8, 1))
    with pytest.raises(UserError, match=r"AdamBC cannot take the sparse gradient of 0\.weight"):
        refuse(optimizer_faults([dpfest.AdamBC(model.parameters())], model, sparse=True, lazy=False))
    for wrong in ({"lr": 0.0}, {"floor": -1.0}, {"betas": (0.9, 1.0)}, {"eps": 2.0}):
        with pytest.raises(ValueError, match=f"^{next(iter(wrong))}="):
            dpfest.AdamBC(model.parameters(), **wrong)  # type: ignore[arg-type]
