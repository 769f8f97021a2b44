"""What rounding moves in the other examples' part of a clipped sum when one example is missing (docs/PRIVACY.md, 4)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpfest import DPSGD, MicroBatch, NoiseKey
from dpfest.noise.gaussian import ROUNDING_ALLOWANCE
from tests.dpfest.steps import engine_with


def clipped_sum(model: nn.Module, batch: tuple[Tensor, Tensor], **settings: Any) -> Tensor:
    """The noiseless clipped sum of ``model(x) * y`` at a clipping norm of 1, as one float64 vector."""
    engine = engine_with(
        model,
        DPSGD(),
        lambda model, batch: model(batch[0])[:, 0] * batch[1],
        NoiseKey.from_seed(0),
        gradient_noise_multiplier=0.0,
        expected_batch_size=None if settings.get("mean") else 1.0,
        sum_dtype=settings.get("sum_dtype"),
    )
    release, _ = engine.gradient([MicroBatch(np.arange(len(batch[0])), batch)], 0)
    return torch.cat([value.flatten() for value in release.dense.values()]).double()


def moved(model: nn.Module, batch: tuple[Tensor, Tensor], missing: int, **settings: Any) -> float:
    """How far leaving out an example moves the float32 sum beyond what it moves the float64 one."""
    kept = torch.arange(len(batch[0])) != missing
    found = []
    for dtype in (torch.float32, torch.float64):
        parts = [tuple(part.to(dtype) for part in whole) for whole in (batch, tuple(part[kept] for part in batch))]
        own = copy.deepcopy(model).to(dtype)
        found.append(clipped_sum(own, parts[0], **settings) - clipped_sum(own, parts[1], **settings))
    return float((found[0] - found[1]).norm())


def test_on_networks_it_stays_far_under_what_is_charged() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 1))
    batch = (torch.randn(2048, 100), torch.randn(2048))
    worst = max(moved(model, batch, missing) for missing in range(3))
    assert worst < ROUNDING_ALLOWANCE / 10


def crafted(examples: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Ones up to a power of two, then terms of just under half an ulp of it: lost above it, rounded up below."""
    model, power = nn.Linear(1, 1, bias=False), examples // 2
    inputs = torch.ones(examples, 1)
    inputs[power:] = 0.49 * power * 2.0**-23
    return model, (inputs, torch.ones(examples))


def test_crafted_data_pass_the_charge_in_float32_and_not_where_sums_are_float64() -> None:
    """The hole that docs/PRIVACY.md states; whoever needs it closed sums in float64."""
    model, batch = crafted(2048)
    assert moved(model, batch, 0) > 10 * ROUNDING_ALLOWANCE
    assert moved(model, batch, 0, sum_dtype=torch.float64) < 1e-7


def test_what_is_charged_is_in_the_noise() -> None:
    engine = engine_with(
        nn.Linear(4, 1), DPSGD(clipping_norm=2.0), lambda model, batch: model(batch)[:, 0], NoiseKey.from_seed(0),
        gradient_noise_multiplier=3.0, expected_batch_size=1.0,
    )  # fmt: skip
    assert engine.noise.deviation == pytest.approx(6.0 * (1 + ROUNDING_ALLOWANCE), rel=1e-6)
    assert engine.noise.deviation > 6.0 * (1 + ROUNDING_ALLOWANCE)
