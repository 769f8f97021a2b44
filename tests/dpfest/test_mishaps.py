"""What goes wrong in a notebook: an exception in the loss, a model that diverges or is converted, ids out of range."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dpfest
from dpfest import DPSGD, AdaFEST, PrivateTraining, UserError, make_private
from dpfest.algorithms.algorithm import Algorithm

PLAN: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-4, "batch_size": 40, "steps": 4}


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).flatten()


def data() -> TensorDataset:
    return TensorDataset(torch.arange(400) % 6)


def losses(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0]) ** 2 + model(batch[0])


def training(
    loss: Any = losses, items: TensorDataset | None = None, algorithm: Algorithm | None = None
) -> PrivateTraining:
    model = Scores()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return make_private(model, sgd, items or data(), loss, algorithm=algorithm or DPSGD(), **PLAN)


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_after_an_exception_in_the_loss_the_rest_of_the_plan_is_taken(error: BaseException) -> None:
    """A step that released nothing is taken again, on its batch and with its noise, and paid for once."""
    fails = [False]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if fails[0]:
            raise error
        return losses(model, batch)

    run = training(loss)
    for batch in run:
        run.step(batch)
        break
    taken, fails[0] = run.indices(1), True
    with pytest.raises(type(error)) as raised:
        run.step(run.read(run.request(1)))
    assert raised.value.__notes__ == [
        "Nothing of step 1 was released, and it is paid for: iterate over the training again to take it and what "
        "follows, 3 steps in all."
    ]
    fails[0] = False
    drawn = [run.indices(batch.step).tolist() for batch in run if run.step(batch)]
    assert run.steps_done == 4 and run.steps_left == 0 and run.epsilon() <= 4.0
    assert len(drawn) == 3 and drawn[0] == taken.tolist()
    assert sum(event.count for event in run.ledger.events) == 4


def test_a_batch_without_a_finite_gradient_is_warned_of_and_counted() -> None:
    run = training(lambda model, batch: losses(model, batch) * math.inf)
    with pytest.warns(UserWarning, match="No example of this batch has a finite gradient"):
        private = next(run.step(batch).private for batch in run)
    assert private.without_gradient == private.examples > 0


@pytest.mark.parametrize("wrong", [-1, 6, 149])
def test_an_id_beyond_its_table_is_named_with_table_and_size(wrong: int) -> None:
    ids = torch.arange(400) % 6
    ids[::7] = wrong
    run = training(items=TensorDataset(ids))
    with pytest.raises(UserError, match=rf"The id {wrong} is looked up in table, a table of 6 rows: ids are 0 to 5"):
        run.step(next(iter(run)))


def test_a_model_that_is_converted_after_it_was_wrapped_is_refused_by_name() -> None:
    run = training()
    run.model.double()
    with pytest.raises(UserError, match=r"is torch\.float64 on cpu now, and was torch\.float32 on cpu when the model"):
        run.step(next(iter(run)))


def test_all_that_keeps_a_model_from_training_is_said_at_once_with_each_cure() -> None:
    model = nn.Sequential(nn.Embedding(9, 4, max_norm=1.0), nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 1))
    adam = torch.optim.Adam(model[:3].parameters())
    with pytest.raises(UserError) as refusal:
        make_private(model, adam, data(), losses, algorithm=AdaFEST(), **PLAN)
    first, *faults = str(refusal.value).split("\n- ")
    assert first == "4 things keep this from being trained privately:"
    cures = ("Set max_norm=None", "Use GroupNorm", "= dpfest.parameter_groups(model)", "3.bias: give each one")
    assert all(cure in fault for cure, fault in zip(cures, faults, strict=True))
    with pytest.raises(
        UserError, match=r"3 things(?s:.*)max_norm(?s:.*)BatchNorm1d(?s:.*)No optimiser steps 3\.weight"
    ):
        dpfest.validate(model, losses, data(), adam)


def test_an_optimiser_for_all_parameters_is_refused_with_the_way_to_have_two() -> None:
    model = Scores()
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(UserError, match=r"Adam cannot take the sparse gradient") as refusal:
        make_private(model, adam, data(), losses, algorithm=AdaFEST(), **PLAN)
    way = {"dpfest": dpfest, "torch": torch, "model": model}
    exec("\n".join(line.strip() for line in str(refusal.value).splitlines()[1:]), way)
    run = make_private(model, way["optimizers"], data(), losses, algorithm=AdaFEST(), **PLAN)
    run.step(next(iter(run)))
