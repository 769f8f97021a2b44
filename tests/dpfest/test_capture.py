"""What observes a pass: hooks that leave no trace, and a watch that sees what any module comes to hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dpfest.algorithms.rules import DPSGD
from dpfest.errors import UserError
from dpfest.gradients.tables import ascending
from dpfest.noise.key import NoiseKey
from dpfest.step.engine import PrivateEngine
from tests.dpfest.steps import engine_with, released

BATCH = (torch.arange(6) % 4,)


class Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out, self.inner = nn.Embedding(4, 3), nn.Linear(3, 1), nn.Sequential(nn.Identity())
        self.during: Callable[[Scorer, Tensor], None] = lambda model, ids: None

    def forward(self, ids: Tensor) -> Tensor:
        self.during(self, ids)
        return self.out(self.inner(self.table(ids))).squeeze(1)


def engine_of(model: nn.Module) -> PrivateEngine:
    return engine_with(
        model, DPSGD(), lambda model, batch: model(*batch), NoiseKey.from_seed(0),
        gradient_noise_multiplier=0.0, expected_batch_size=6,
    )  # fmt: skip


def test_hooks_come_last_and_go() -> None:
    """A user's hook that was placed after the engine was made still changes what the layer returns to the engine."""
    model = Scorer()
    engine = engine_of(model)
    seen = []
    model.table.register_forward_pre_hook(lambda layer, args: seen.append("before") or (3 - args[0],))
    model.table.register_forward_hook(lambda layer, args, output: seen.append("after"))
    held = [len(hooks) for m in model.modules() for hooks in (m._forward_hooks, m._forward_pre_hooks)]
    release = released(engine, [(torch.zeros(6, dtype=torch.int64),)], 0)
    assert seen == ["before", "after"]
    rows = release.tables[0].values.any(1)
    assert rows.tolist() == [False, False, False, True]  # the rows that the layer was given, not those of the batch
    assert held == [len(hooks) for m in model.modules() for hooks in (m._forward_hooks, m._forward_pre_hooks)]
    for layer in (model.table, model.out):
        assert not layer._forward_hooks_with_kwargs and not layer._forward_pre_hooks_with_kwargs
    model.during = lambda model, ids: (_ for _ in ()).throw(KeyError("user"))
    with pytest.raises(KeyError):
        released(engine, [BATCH], 1)
    assert not model.out._forward_hooks and all(p.requires_grad for p in model.parameters())


def attribute(model: Scorer, ids: Tensor) -> None:
    model.inner[0].kept = ids.clone()


def replaced(model: Scorer, ids: Tensor) -> None:
    model.inner[0] = nn.BatchNorm1d(3, affine=False)


def deeper(model: Scorer, ids: Tensor) -> None:
    model.inner.add_module("more", nn.Sequential(nn.BatchNorm1d(3, affine=False)))


def buffer(model: Scorer, ids: Tensor) -> None:
    model.inner.register_buffer("kept", ids.float())


@pytest.mark.parametrize("change", [attribute, replaced, deeper, buffer])
def test_what_a_module_comes_to_hold_in_a_later_step_is_refused(change: Callable[[Scorer, Tensor], None]) -> None:
    model = Scorer()
    engine = engine_of(model)
    for step in range(2):
        released(engine, [BATCH], step)
    model.counter = 1  # between steps a model may be changed, and in them numbers may
    model.during = lambda model, ids: setattr(model, "counter", 2)
    released(engine, [BATCH], 2)
    model.during = change
    with pytest.raises(UserError, match=r"forward pass changes inner"):
        released(engine, [BATCH], 3)


def test_parts_are_sorted_as_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [5, 0, 100, 1, 0]
    parts = [torch.randint(1000 * n, 1000 * n + 999, (size,), generator=generator) for n, size in enumerate(sizes)]
    keys = torch.cat(parts)
    before = keys.clone()
    assert torch.equal(ascending(keys, sizes), keys.sort().values) and torch.equal(keys, before)
    assert torch.equal(ascending(keys), keys.sort().values) and len(ascending(keys[:0], [0, 0])) == 0
