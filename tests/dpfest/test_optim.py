"""Row optimisers equal torch's own on dense gradients and leave other rows alone on sparse ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfest.engine import NoisedGradient, RowGradient
from dpfest.errors import UserError
from dpfest.optim import (
    DenseOptimizerConfig,
    Optimizer,
    OptimizerConfig,
    RowAdagrad,
    RowAdam,
    RowSGD,
    TableOptimizerConfig,
)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(RowSGD, torch.optim.SGD), (RowAdam, torch.optim.Adam)],
)
def test_dense_gradients_equal_torch(ours: type, theirs: type) -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 3, dtype=torch.float64)
    parameter = nn.Parameter(weight.clone())
    mine, reference = ours(weight, 0.1), theirs([parameter], lr=0.1)
    for _ in range(5):
        gradient = torch.randn(6, 3, dtype=torch.float64)
        mine.step(RowGradient(None, gradient))
        parameter.grad = gradient
        reference.step()
    torch.testing.assert_close(weight, parameter.detach(), rtol=1e-6, atol=1e-7)


def test_sparse_adam_equals_torch_sparse_adam_on_one_row_set() -> None:
    torch.manual_seed(0)
    weight, rows = torch.randn(6, 3), torch.tensor([1, 4])
    parameter = nn.Parameter(weight.clone())
    mine, reference = RowAdam(weight, 0.1), torch.optim.SparseAdam([parameter], lr=0.1)
    for _ in range(5):
        values = torch.randn(2, 3)
        mine.step(RowGradient(rows, values))
        parameter.grad = torch.sparse_coo_tensor(rows[None], values, (6, 3))
        reference.step()
    torch.testing.assert_close(weight, parameter.detach(), rtol=1e-4, atol=1e-5)


def test_row_wise_adagrad_by_hand() -> None:
    weight = torch.zeros(3, 2)
    optimizer = RowAdagrad(weight, 1.0)
    optimizer.step(RowGradient(torch.tensor([1]), torch.tensor([[3.0, 4.0]])))
    scale = 1 / (25 / 2) ** 0.5
    torch.testing.assert_close(weight, torch.tensor([[0, 0], [-3 * scale, -4 * scale], [0, 0]]))


@pytest.mark.parametrize("kind", [RowSGD, RowAdagrad, RowAdam])
def test_rows_without_gradient_do_not_move(kind: type) -> None:
    weight = torch.ones(5, 2)
    optimizer = kind(weight, 0.5)
    for _ in range(3):
        optimizer.step(RowGradient(torch.tensor([0, 3]), torch.randn(2, 2)))
    assert torch.equal(weight[[1, 2, 4]], torch.ones(3, 2))
    assert bool((weight[[0, 3]] != 1).all())


def gradient_for(table: nn.Embedding, dense: nn.Linear) -> NoisedGradient:
    return NoisedGradient(
        dense={"weight": torch.randn_like(dense.weight)},
        tables=[RowGradient(torch.tensor([2]), torch.randn(1, 2))],
        rows_per_table=[1],
        examples=1,
        loss=0.0,
    )


def test_state_survives_a_round_trip() -> None:
    torch.manual_seed(0)
    config = OptimizerConfig(tables=TableOptimizerConfig(name="adam", learning_rate=0.1))
    table, dense = nn.Embedding(4, 2), nn.Linear(2, 2, bias=False)
    optimizer = Optimizer({"t": table}, {"weight": dense.weight}, config)
    optimizer.step(gradient_for(table, dense))
    state, weights = optimizer.state_dict(), (table.weight.detach().clone(), dense.weight.detach().clone())
    state = {
        "dense": state["dense"],
        "tables": {n: {k: v.clone() for k, v in t.items()} for n, t in state["tables"].items()},
    }
    after = gradient_for(table, dense)
    optimizer.step(after)
    other_table, other_dense = nn.Embedding(4, 2), nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        other_table.weight.copy_(weights[0])
        other_dense.weight.copy_(weights[1])
    other = Optimizer({"t": other_table}, {"weight": other_dense.weight}, config)
    other.load_state_dict(state)
    other.step(after)
    assert torch.equal(other_table.weight, table.weight)


def test_wrong_optimisers_are_named() -> None:
    dense = nn.Linear(2, 2)
    for config, words in (
        (DenseOptimizerConfig(name="addam"), "optimizer.dense.name=addam"),
        (DenseOptimizerConfig(name="lbfgs"), "optimizer.dense.name=lbfgs"),
        (DenseOptimizerConfig(options={"betaz": 1}), "optimizer.dense.options"),
    ):
        with pytest.raises(UserError, match=words):
            Optimizer({}, {"weight": dense.weight}, OptimizerConfig(dense=config))
    with pytest.raises(ValueError, match=r"optimizer\.tables\.name"):
        TableOptimizerConfig(name="adamm")
