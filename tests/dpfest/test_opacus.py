"""Norms and clipped sums equal those of Opacus's per-example gradients, which no one here wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import opacus
import pytest
import torch
from torch import Tensor, nn

from dpfest.algorithms.rules import DPSGD
from dpfest.gradients.clipped_sum import ClippedSum
from dpfest.gradients.tables import Survivors
from dpfest.noise.key import NoiseKey
from tests.dpfest.steps import engine_with


class Words(nn.Module):
    """Padding, repeated tokens, a table looked up twice, layers called twice, every normalisation Opacus knows."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 4, padding_idx=0)
        self.mix, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.conv, self.group = nn.Conv1d(4, 6, 3, padding=1), nn.GroupNorm(2, 6)
        self.head = nn.Linear(10, 1)

    def forward(self, tokens: Tensor, query: Tensor) -> Tensor:
        hidden = self.norm(self.mix(torch.tanh(self.mix(self.words(tokens)))))
        hidden = self.group(self.conv(hidden.transpose(1, 2))).amax(2)
        return self.head(torch.cat([hidden, self.words(query)], dim=1)).squeeze(1)


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, groups=1)
        self.group, self.kind = nn.GroupNorm(2, 4), nn.Embedding(5, 3)
        self.head = nn.Sequential(nn.Linear(4 * 9 + 3, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))

    def forward(self, picture: Tensor, kind: Tensor) -> Tensor:
        hidden = self.group(self.conv(picture)).flatten(1)
        return self.head(torch.cat([hidden, self.kind(kind)], dim=1)).squeeze(1)


class Bags(nn.Module):
    """Bags of variable length and distinct ids: Opacus loses repeated ones, which test_engine.py has."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(12, 3, mode=mode), nn.Linear(3, 1)

    def forward(self, ids: Tensor, ends: Tensor) -> Tensor:
        return self.head(torch.tanh(self.bag(ids, ends))).squeeze(1)


def case(name: str, seed: int) -> tuple[nn.Module, tuple[Tensor, ...], int]:
    torch.manual_seed(seed)
    if name == "words":
        return Words(), (torch.randint(0, 12, (9, 7)), torch.randint(0, 12, (9,))), 9
    if name == "pictures":
        return Pictures(), (torch.randn(6, 3, 8, 8), torch.randint(0, 5, (6,))), 6
    lengths = torch.randint(1, 6, (8,))
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)[:-1]])
    return Bags(name), (torch.cat([torch.randperm(12)[:length] for length in lengths]), ends), 8


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["words", "pictures", "sum", "mean"])
def test_norms_and_clipped_sums_equal_opacus(name: str, seed: int) -> None:
    model, inputs, examples = case(name, seed)
    model = model.double()
    inputs = tuple(part.double() if part.is_floating_point() else part for part in inputs)
    labels = torch.randint(0, 2, (examples,)).double()
    if name == "words":
        inputs[0][:, -2:] = 0  # padding for all

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(*batch), labels, reduction="none")

    engine = engine_with(
        model, DPSGD(), losses, NoiseKey.from_seed(0), gradient_noise_multiplier=0.0, expected_batch_size=1.0
    )
    recording = engine.recorder.record(inputs, np.arange(examples), 0)
    recording.backward()
    everything = Survivors(engine.layout, None)

    sampled = opacus.GradSampleModule(model, loss_reduction="sum")
    loss = nn.functional.binary_cross_entropy_with_logits(sampled(*inputs), labels, reduction="sum")
    loss.backward()
    theirs = {n.removeprefix("_module."): _per_example(p.grad_sample) for n, p in sampled.named_parameters()}
    for table, layer in engine.recorder.tables.items():
        if layer.padding_idx is not None:  # Opacus counts padding as a look-up, in norm and sum; torch does not
            theirs[f"{table}.weight"][:, layer.padding_idx] = 0
    squares = torch.stack([value.flatten(1).square().sum(1) for value in theirs.values()]).sum(0)
    bound = float(squares.sqrt().median())
    factor = (bound / squares.sqrt()).clamp_max(1.0)

    total = ClippedSum(engine.recorder, everything, bound)
    total.add(recording)
    torch.testing.assert_close(total.example_norms[0], squares.sqrt(), rtol=1e-9, atol=1e-12)
    assert 0 < int((factor < 1).sum()) < examples, "the bound must cut some and spare some"
    ours = dict(zip((f"{table}.weight" for table in engine.layout.names), total.rows, strict=True))
    ours.update(zip(engine.recorder.dense_parameters, total.dense.values(), strict=True))
    assert ours.keys() == theirs.keys()
    for parameter, value in theirs.items():
        want = torch.tensordot(factor, value, 1)
        torch.testing.assert_close(ours[parameter], want, rtol=1e-9, atol=1e-12)


def _per_example(samples: Any) -> Tensor:
    """Opacus keeps one sample a call of a layer that is called several times."""
    return torch.stack(samples).sum(0) if isinstance(samples, list) else samples
