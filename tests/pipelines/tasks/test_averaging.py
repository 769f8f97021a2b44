"""Averaged weights: the mean of the last steps, resumed in the middle."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from pipelines.tasks.averaging import TailAverage


def moved(model: nn.Module, step: int) -> Tensor:
    """The weights after a step, in float64."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.empty_like(weight).normal_(generator=generator))
    return torch.cat([weight.detach().double().flatten() for weight in model.parameters()])


@pytest.mark.parametrize(("share", "averaged"), [(1e-9, 1), (0.25, 25), (0.07, 7), (0.071, 8), (1.0, 100)])
def test_weights_become_the_mean_after_each_of_the_last_steps(share: float, averaged: int) -> None:
    model = nn.Sequential(nn.Embedding(50, 3), nn.Linear(3, 2))
    average, after = TailAverage(model, 100, share), []
    for step in range(1, 101):
        after.append(moved(model, step))
        average.add(step)
    average.replace_weights()
    found = torch.cat([weight.detach().double().flatten() for weight in model.parameters()])
    torch.testing.assert_close(found, torch.stack(after[-averaged:]).mean(0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("stopped_after", [3, 6])  # before and within the averaged steps
def test_a_resumed_average_is_that_of_a_run_without_a_stop(stopped_after: int) -> None:
    model = nn.Linear(3, 2)
    average = TailAverage(model, 8, 0.5)
    for step in range(1, stopped_after + 1):
        moved(model, step)
        average.add(step)
    other = copy.deepcopy(model)
    resumed = TailAverage(other, 8, 0.5)
    resumed.load_state_dict(copy.deepcopy(average.state_dict()))
    for one, its in ((model, average), (other, resumed)):
        for step in range(stopped_after + 1, 9):
            moved(one, step)
            its.add(step)
        its.replace_weights()
    assert torch.equal(model.weight, other.weight) and torch.equal(model.bias, other.bias)
