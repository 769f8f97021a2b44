"""Passes that a graph starts: those that Python makes, of every batch. Where there is no GPU, a graph is pretended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dpfest
from dpfest.algorithms.rules import DPSGD
from dpfest.device import graph
from dpfest.errors import UserError
from dpfest.gradients.parts import NoisedGradient
from dpfest.gradients.reading import MicroBatch
from dpfest.gradients.recording import Recording
from dpfest.noise.key import NoiseKey
from dpfest.step.engine import PrivateEngine
from tests.dpfest.device.conftest import HERE
from tests.dpfest.steps import engine_with

KEY = NoiseKey.from_seed(3)


class Shop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = dpfest.Tables(nn.Embedding(rows, dim) for rows, dim in ((6, 3), (50, 4)))
        self.norm, self.head = nn.LayerNorm(7), nn.Linear(7, 1)
        self.factor, self.dropout = 1.0, nn.Dropout(0.0)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(torch.cat(self.tables(ids.unbind(1)), 1))
        if self.dropout.p:
            x = self.dropout(x)
        return self.factor * self.head(x).squeeze(1)


def losses(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square()


def micro(step: int, count: int) -> MicroBatch:
    drawn = torch.Generator().manual_seed(step)
    ids = torch.randint(0, 1000, (count, 2), generator=drawn) % torch.tensor([6, 50])
    examples = np.arange(count) + 1000 * step
    return MicroBatch(examples, (ids.to(HERE), torch.randn(count, generator=drawn).to(HERE)))


def results(recording: Recording) -> Iterator[Tensor]:
    """All that passes computed, of padding too."""
    yield recording._losses
    for call in recording.calls():
        yield from (call.input, call.output, call.gradient)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done with graphs, which on a CPU are their own operations again, into the same memory."""
    seen: list[str] = []
    of_gpu = graph.captured

    def captured(run: Callable[[], Recording]) -> tuple[Recording, Callable[[], None]]:
        if HERE.type == "cuda":
            first, again = of_gpu(run)
        else:
            first = run()

            def again() -> None:
                for place, value in zip(results(first), results(run()), strict=True):
                    place.detach().copy_(value.detach())

        def start() -> None:
            seen.append("started")
            again()

        seen.append("made")
        return first, start

    monkeypatch.setattr(graph, "captured", captured)
    return seen


def engine_of(model: nn.Module, *, by_graph: bool, usual: int = 32) -> PrivateEngine:
    engine = engine_with(
        model.to(HERE), DPSGD(clipping_norm=0.7), losses, KEY, gradient_noise_multiplier=0.5, expected_batch_size=20.0
    )
    engine.recorder.usual = usual
    engine.recorder.graphs = graph.Graphs(engine.recorder) if by_graph else None
    return engine


def trained(sizes: list[int], by_graph: bool, change: Callable[[nn.Module, int], None] | None = None) -> Any:
    model = Shop()
    engine = engine_of(model, by_graph=by_graph)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    found: list[tuple[NoisedGradient, float]] = []
    for step, count in enumerate(sizes):
        if change:
            change(model, step)
        release, private = engine.gradient([micro(step, count)], step)
        found.append((release, private.loss))
        engine.update(release, [optimizer])
    return found, [parameter.detach().clone() for parameter in model.parameters()]


SIZES = [20, 17, 24, 31, 16, 40, 41, 42, 23, 3]
"""Those of capacity 32, with 40 to 42 of 256, and 3 of 256 again, as it is fewer than half of 32."""


def test_a_training_by_graphs_has_the_bits_of_one_without(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pass of a shape is Python's own; two shapes, two graphs; every second step is compared."""
    monkeypatch.setattr(graph, "_CHECK_EVERY", 2)
    ours, theirs = trained(SIZES, by_graph=True), trained(SIZES, by_graph=False)
    assert made == ["made", *["started"] * 3, "made", *["started"] * 4]
    for (mine, loss), (other, its) in zip(ours[0], theirs[0], strict=True):
        assert loss == its and all(torch.equal(value, other.dense[name]) for name, value in mine.dense.items())
        assert all(torch.equal(one.values, two.values) for one, two in zip(mine.tables, other.tables, strict=True))
    assert all(torch.equal(*both) for both in zip(ours[1], theirs[1], strict=True))


def moved(model: nn.Module, step: int) -> None:
    if step == 4:
        model.head.weight.data = model.head.weight.data.clone()
    if step == 6:
        model.norm.eval()


def test_a_graph_is_made_again_where_the_model_is_another(made: list[str]) -> None:
    """Of weights that lie elsewhere, whose old place a graph would read; of a module that no longer trains."""
    ours, theirs = trained([20] * 8, True, moved), trained([20] * 8, False, moved)
    assert made == ["made", *["started"] * 2, "made", *["started"] * 2, "made", *["started"] * 2]
    assert all(torch.equal(*both) for both in zip(ours[1], theirs[1], strict=True))


def test_a_python_value_that_changes_is_refused_where_a_step_is_checked(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "_CHECK_EVERY", 5)

    def change(model: Any, step: int) -> None:
        model.factor = 1.0 + (step == 5)

    if HERE.type == "cpu":  # whose pretended graph runs Python: what it saw then is what it computes

        def captured(run: Callable[[], Recording]) -> tuple[Recording, Callable[[], None]]:
            return run(), lambda: None

        monkeypatch.setattr(graph, "captured", captured)
    with pytest.raises(UserError, match="something else than when its passes were made a graph"):
        trained([20] * 6, True, change)
    trained([20] * 2, True, change)


def test_what_cannot_be_a_graph_runs_eagerly_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def captured(run: Any) -> Any:
        tried.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graph, "captured", captured)
    with pytest.warns(UserWarning, match=r"cannot be made a graph, .*: operation not permitted"):
        ours = trained([20] * 5, True)
    assert tried == [1] and all(torch.equal(*both) for both in zip(ours[1], trained([20] * 5, False)[1], strict=True))


def test_passes_that_draw_are_no_graph(made: list[str]) -> None:
    def change(model: Any, step: int) -> None:
        model.dropout.p = 0.5

    ours, theirs = trained([20] * 5, True, change), trained([20] * 5, False, change)
    assert not made and all(torch.equal(*both) for both in zip(ours[1], theirs[1], strict=True))
