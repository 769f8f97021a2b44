"""What a step can see only when the model runs: mixed examples, changed tensors, kept statistics, half precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpfest import DPSGD, NoiseKey, PrivateEngine, UserError
from tests.dpfest.steps import by_batch, engine_with, micro_batches, released


def engine(model: nn.Module, losses: Callable[[Any], Any], clipping_norm: float = 1.0) -> PrivateEngine:
    """An engine without noise that does not average: its gradient is the sum of clipped ones."""
    return engine_with(
        model,
        DPSGD(clipping_norm=clipping_norm),
        by_batch(losses),
        NoiseKey.from_seed(0),
        gradient_noise_multiplier=0.0,
        expected_batch_size=1.0,
    )


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))


def test_examples_that_do_not_mix_pass_once_and_the_gradient_stands() -> None:
    model, x = two_layers(), torch.randn(20, 3)
    checked = engine(model, lambda x: model(x).squeeze(1).square(), clipping_norm=1e6)
    first, again = (released(checked, [x], step).dense for step in range(2))
    model(x).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(first[name], parameter.grad)
        assert torch.equal(first[name], again[name])


def test_an_input_changed_after_the_call_is_refused() -> None:
    model = two_layers()

    def losses(x: Tensor) -> Tensor:
        hidden = torch.zeros(len(x), 4)
        hidden += model[0](x)
        out = model[1](hidden)
        hidden += 1
        return out.squeeze(1)

    with pytest.raises(UserError, match="layer 1 is changed in place"):
        released(engine(model, losses), [torch.randn(5, 3)], 0)


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.mean(0), 0.1)
        return self.layer(x - self.mean).squeeze(1)


def test_a_buffer_that_keeps_raw_data_is_refused() -> None:
    model = Remembers()
    with pytest.raises(UserError, match="forward pass changes mean"):
        released(engine(model, model), [torch.randn(5, 3)], 0)


class KeepsLater(nn.Module):
    """Has no buffer when it is wrapped."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.register_buffer("mean", x.detach().mean(0))
        return self.layer(x)


def test_a_buffer_that_comes_after_wrapping_is_watched_too() -> None:
    model, x = KeepsLater(), torch.randn(4, 3)
    wrapped = engine(model, lambda x: model(x).squeeze(1).square())
    with pytest.raises(UserError, match="forward pass changes mean"):
        released(wrapped, [x], 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(UserError, match="float32"):
        engine(two_layers().to(dtype), lambda x: x)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(UserError, match="there are none"):
        engine(two_layers().requires_grad_(False), lambda x: x)


def test_autocast_takes_norms_in_full_precision() -> None:
    """Within bfloat16's own rounding of activations; a norm summed in bfloat16 would be off by tenths."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(50, 8, mode="sum"), nn.LayerNorm(8), nn.Linear(8, 1))
    ids = torch.randint(0, 50, (6, 400))

    def losses(ids: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(ids).squeeze(1).square().float()

    clipped = released(engine(model, losses, clipping_norm=1e-3), [ids[:1]], 0)
    parts = [*clipped.dense.values(), *(table.values for table in clipped.tables)]
    norm = torch.stack([part.square().sum() for part in parts]).sum().sqrt()
    assert norm == pytest.approx(1e-3, rel=1e-4)
    assert all(part.dtype == torch.float32 for part in parts)


def test_parameters_frozen_after_wrapping_are_noticed() -> None:
    model = two_layers()
    wrapped = engine(model, lambda x: model(x).squeeze(1))
    model[0].weight.requires_grad_(False)
    with pytest.raises(UserError, match="wrap it anew"):
        released(wrapped, [torch.randn(5, 3)], 0)
    assert not model[0].weight.requires_grad


def test_a_frozen_table_that_rewrites_its_rows_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(9, 2, max_norm=0.5).requires_grad_(False), nn.Linear(2, 1))
    with pytest.raises(UserError, match="max_norm"):
        engine(model, lambda x: x)


@pytest.mark.parametrize("losses", [None, [1.0], torch.zeros(3, 1)])
def test_losses_of_another_shape_are_refused(losses: Any) -> None:
    with pytest.raises(UserError, match="one loss per example"):
        released(engine(two_layers(), lambda _: losses), [torch.randn(3, 3)], 0)


def test_bags_with_a_last_offset_leave_out_the_tail() -> None:
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(9, 2, mode="sum", include_last_offset=True)
    ids, offsets = torch.tensor([1, 2, 2, 3, 8, 8]), torch.tensor([0, 3, 3, 4])

    def losses(batch: Any) -> Tensor:
        return bag(*batch).square().sum(1)

    bags = micro_batches([(ids, offsets)], lambda _: 3)
    table = engine(bag, losses, clipping_norm=1e6).gradient(bags, 0)[0].tables[0]
    losses((ids[:4], offsets)).sum().backward()  # with the tail, torch's own gradient of it is at times not zero
    torch.testing.assert_close(table.values, bag.weight.grad)
    assert table.values[8].abs().sum() == 0


def test_an_empty_batch_runs_nothing_and_is_noised() -> None:
    model = two_layers()
    noisy = engine_with(
        model,
        DPSGD(),
        lambda *_: pytest.fail("the model is not to be run"),
        NoiseKey.from_seed(0),
        gradient_noise_multiplier=1.0,
        expected_batch_size=1.0,
    )
    found, private = noisy.gradient([], 0)
    assert private.examples == 0 and all(bool((part != 0).all()) for part in found.dense.values())
