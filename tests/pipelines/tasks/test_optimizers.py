"""Row optimisers equal torch's own on dense gradients and leave other rows alone on sparse ones."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from dpfest.errors import UserError
from dpfest.training.optimizers import AdamBC
from pipelines.tasks.optimizers import (
    DenseOptimizerConfig,
    OptimizerConfig,
    RowAdagrad,
    RowAdam,
    TableOptimizerConfig,
    optimizers,
    set_learning_rates,
)


def sparse(rows: list[int], values: Tensor, table: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, table.shape, is_coalesced=True)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(RowAdam, torch.optim.Adam)],
)
def test_dense_gradients_equal_torch(ours: type, theirs: type) -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 3, dtype=torch.float64))
    parameter = nn.Parameter(weight.detach().clone())
    mine, reference = ours([weight], 0.1), theirs([parameter], lr=0.1)
    for _ in range(5):
        weight.grad = torch.randn(6, 3, dtype=torch.float64)
        parameter.grad = weight.grad.clone()
        mine.step()
        reference.step()
    torch.testing.assert_close(weight, parameter, rtol=1e-6, atol=1e-7)


def test_sparse_adam_equals_torch_sparse_adam_on_one_row_set() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 3))
    parameter = nn.Parameter(weight.detach().clone())
    mine, reference = RowAdam([weight], 0.1), torch.optim.SparseAdam([parameter], lr=0.1)
    for _ in range(5):
        weight.grad = sparse([1, 4], torch.randn(2, 3), weight)
        parameter.grad = weight.grad.clone()
        mine.step()
        reference.step()
    torch.testing.assert_close(weight, parameter, rtol=1e-4, atol=1e-5)


def test_row_wise_adagrad_by_hand() -> None:
    weight = nn.Parameter(torch.zeros(3, 2))
    weight.grad = sparse([1], torch.tensor([[3.0, 4.0]]), weight)
    RowAdagrad([weight], 1.0).step()
    scale = 1 / (25 / 2) ** 0.5
    torch.testing.assert_close(weight.detach(), torch.tensor([[0, 0], [-3 * scale, -4 * scale], [0, 0]]))


@pytest.mark.parametrize("kind", [RowAdagrad, RowAdam])
def test_rows_without_gradient_do_not_move(kind: type) -> None:
    weight = nn.Parameter(torch.ones(5, 2))
    optimizer = kind([weight], 0.5)
    for _ in range(3):
        weight.grad = sparse([0, 3], torch.randn(2, 2), weight)
        optimizer.step()
    assert torch.equal(weight[[1, 2, 4]], torch.ones(3, 2))
    assert bool((weight[[0, 3]] != 1).all())


def test_state_survives_a_round_trip() -> None:
    config = OptimizerConfig(tables=TableOptimizerConfig(name="adam", learning_rate=0.1))

    def step(model: nn.Module, found: list[torch.optim.Optimizer], seed: int) -> None:
        torch.manual_seed(seed)
        model[0].weight.grad = sparse([2], torch.randn(1, 2), model[0].weight)
        model[1].weight.grad = torch.randn(2, 2)
        for optimizer in found:
            optimizer.step()

    model = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 2, bias=False))
    found = optimizers(model, config)
    step(model, found, 1)
    state, other = copy.deepcopy([o.state_dict() for o in found]), copy.deepcopy(model)
    step(model, found, 2)
    resumed = optimizers(other, config)
    for optimizer, saved in zip(resumed, state, strict=True):
        optimizer.load_state_dict(saved)
    step(other, resumed, 2)
    assert torch.equal(other[0].weight, model[0].weight)
    assert torch.equal(other[1].weight, model[1].weight)


def test_wrong_optimisers_are_named() -> None:
    for config, words in (
        (DenseOptimizerConfig(name="addam"), "optimizer.dense.name=addam"),
        (DenseOptimizerConfig(name="lbfgs"), "optimizer.dense.name=lbfgs"),
        (DenseOptimizerConfig(options={"betaz": 1}), "optimizer.dense.options"),
    ):
        with pytest.raises(UserError, match=words):
            optimizers(nn.Linear(2, 2), OptimizerConfig(dense=config))
    with pytest.raises(ValueError, match=r"optimizer\.tables\.name"):
        TableOptimizerConfig(name="adamm")


def test_adam_that_knows_the_noise_is_an_optimiser_of_the_dense_part() -> None:
    model = nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 1))
    dense = DenseOptimizerConfig(name="adambc", learning_rate=0.02, options={"floor": 0.3})
    _, update = optimizers(model, OptimizerConfig(dense=dense))
    assert isinstance(update, AdamBC) and [len(group["params"]) for group in update.param_groups] == [2]
    assert (update.defaults["lr"], update.defaults["floor"]) == (0.02, 0.3)
    dense = DenseOptimizerConfig(name="adambc", options={"ceiling": 1})
    with pytest.raises(UserError, match="do not fit adambc"):
        optimizers(model, OptimizerConfig(dense=dense))


def test_linear_schedule_falls_to_zero_after_the_last_step() -> None:
    model = nn.Sequential(nn.Embedding(3, 2, sparse=True), nn.Linear(2, 1))
    config = OptimizerConfig(schedule="linear")
    made = optimizers(model, config)
    found = []
    for step in range(4):
        set_learning_rates(made, config, step / 4)
        found.append([group["lr"] for optimizer in made for group in optimizer.param_groups])
    assert found == [[30.0 * share, 0.003 * share] for share in (1, 0.75, 0.5, 0.25)]


def test_learning_rates_are_constant_by_default() -> None:
    made = optimizers(nn.Linear(2, 1), OptimizerConfig())
    set_learning_rates(made, OptimizerConfig(), 0.75)
    assert made[0].param_groups[0]["lr"] == 0.003


def test_unknown_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optimizer\.schedule=cosine must be null or linear"):
        OptimizerConfig(schedule="cosine")
