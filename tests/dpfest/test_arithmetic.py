"""Settings of torch that a program may choose, and that must not reach what a step guarantees."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from dpfest import UserError
from dpfest.gradients import arithmetic
from dpfest.gradients.arithmetic import full_precision, one_order
from dpfest.gradients.layers import LinearFactors
from dpfest.noise.gaussian import ROUNDING_ALLOWANCE
from tests.dpfest.test_rounding import clipped_sum

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def medium() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.mkldnn.matmul.fp32_precision = torch.backends.cuda.matmul.fp32_precision = "none"


def network() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(500, 600), nn.ReLU(), nn.Linear(600, 1)), (torch.randn(600, 500), torch.ones(600))


@pytest.mark.usefixtures("medium")
def test_a_clipped_sum_holds_no_more_than_its_clipping_norm_where_products_are_in_bfloat16() -> None:
    """Equal examples' gradients, which add up to as many clipping norms; no news where a processor lacks bfloat16."""
    model, (inputs, weights) = network()
    same = inputs[:1].expand(600, -1).contiguous(), weights * 1e3
    assert float(clipped_sum(model, same).norm()) / 600 == pytest.approx(1.0, rel=ROUNDING_ALLOWANCE / 100)


@pytest.mark.usefixtures("medium")
def test_leaving_an_example_out_moves_the_others_by_little_where_the_models_products_are_in_bfloat16() -> None:
    model, (inputs, weights) = network()
    for missing in range(3):
        kept = torch.arange(len(inputs)) != missing
        with_it, without = clipped_sum(model, (inputs, weights)), clipped_sum(model, (inputs[kept], weights[kept]))
        assert float((with_it - without).norm()) < 1 + ROUNDING_ALLOWANCE / 10


@pytest.mark.usefixtures("medium")
def test_sums_are_multiplied_in_full_precision_and_the_model_as_its_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    class Told(nn.Sequential):
        def forward(self, of: torch.Tensor) -> torch.Tensor:
            seen["model"] = torch.backends.mkldnn.matmul.fp32_precision
            return super().forward(of)  # type: ignore[no-any-return]

    add = LinearFactors.add_weighted_sums

    def told(self: LinearFactors, *arguments: object) -> None:
        seen["sums"] = torch.backends.mkldnn.matmul.fp32_precision
        add(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LinearFactors, "add_weighted_sums", told)
    clipped_sum(Told(nn.Linear(5, 1)), (torch.randn(4, 5), torch.ones(4)))
    assert seen == {"model": "bf16", "sums": "ieee"}
    assert torch.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
def test_what_was_set_for_everything_stays_set_for_everything(device: torch.device) -> None:
    one = torch.backends.mkldnn.matmul if device == CPU else torch.backends.cudnn.conv
    torch.backends.fp32_precision = "tf32"
    try:
        assert arithmetic.describe(CPU) == "cpu, products in tf32, convolutions in tf32, recurrent layers in tf32"
        with full_precision(device):
            assert one.fp32_precision == "ieee"
        assert one.fp32_precision == "tf32"
    finally:
        torch.backends.fp32_precision = "none"
    assert arithmetic.describe(CPU) == "cpu"


def test_on_a_gpu_sums_are_added_in_one_order_and_the_programs_own_settings_come_back() -> None:
    with contextlib.suppress(KeyError), one_order(GPU):
        assert torch.are_deterministic_algorithms_enabled()
        raise KeyError
    assert not torch.are_deterministic_algorithms_enabled()
    with one_order(CPU):
        assert not torch.are_deterministic_algorithms_enabled()


def test_an_operation_without_such_an_order_is_refused_by_its_name() -> None:
    with (
        pytest.raises(UserError, match=r"second release .* on cuda .* put_ does not have a deterministic"),
        one_order(GPU),
    ):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))
    with pytest.raises(RuntimeError, match="shape"), one_order(GPU):
        torch.ones(2) @ torch.ones(3, 4)
