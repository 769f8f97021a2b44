"""Look-ups, maps, norms, sums and updates by kernels: those of the CPU's parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpfest import devices
from dpfest.errors import UserError
from dpfest.gradients import embeddings
from dpfest.gradients.contributions import Contributions
from dpfest.gradients.layers import Call
from dpfest.gradients.parts import RowGradient
from dpfest.gradients.tables import Survivors, TableLayout
from dpfest.gradients.units import Groups
from tests.dpfest.device.conftest import HERE

parts = pytest.importorskip("dpfest.device.parts", reason="the kernels need Triton: pip install triton")

pytestmark = pytest.mark.usefixtures("pretended")

EXAMPLES = 60
LAYOUT = TableLayout(("one", "text", "places"), (9, 30, 40), (3, 70, 4))
UNITS = np.repeat(np.arange(100, 124), [1, 4, 2, 1, 3, 4] * 4)
"""Of 60 examples."""


def calls(seed: int = 0, dtype: torch.dtype = torch.float32) -> list[list[tuple[Any, Call]]]:
    """A column; texts with repeated tokens and padding, whose table is looked up twice; positions that all share."""
    generator = torch.Generator().manual_seed(seed)
    layers = [nn.Embedding(r, d, dtype=dtype).to(HERE) for r, d in zip(LAYOUT.rows, LAYOUT.dims, strict=True)]
    layers[1].padding_idx = 29
    columns = torch.randint(0, 9, (EXAMPLES, 2), generator=generator)
    tokens = torch.randint(20, 30, (EXAMPLES, 5), generator=generator)
    tokens[:, 3:] = 29
    again = tokens[:, 0].clone()
    places = torch.arange(37, 40).expand(EXAMPLES, 3)

    def call(layer: Any, ids: Tensor) -> tuple[Any, Call]:
        made = Call((ids.to(HERE),), {}, torch.empty(*ids.shape, layer.embedding_dim))
        wide = torch.randn(*ids.shape, layer.embedding_dim + 5, generator=generator)
        made.gradient = wide.to(HERE, dtype)[..., 2 : 2 + layer.embedding_dim]  # as of a concatenation
        return layer, made

    return [
        [call(layers[0], columns[:, 1])],
        [call(layers[1], tokens), call(layers[1], again.to(torch.int32))],
        [call(layers[2], places)],
    ]


def pair(made: Any, units: bool) -> tuple[Any, embeddings.Lookups]:
    """Look-ups by kernels, and the CPU's."""
    groups = Groups(UNITS, "sum", HERE) if units else None
    here = parts.look_up(LAYOUT, made, EXAMPLES, groups)
    there = embeddings.Lookups(LAYOUT, made, torch.arange(EXAMPLES, device=HERE), groups)
    for one in (here, there):
        one.take_gradients()
    assert here is not None
    return here, there


@pytest.mark.parametrize("units", [False, True])
def test_look_ups_are_the_cpus(units: bool) -> None:
    made = calls()
    here, there = pair(made, units)
    for name in ("rows", "row_of", "example"):
        assert torch.equal(getattr(here, name), getattr(there, name)), name
    assert 29 + 9 not in here.rows.tolist() and len(here.row_of) < sum(
        call.input.numel() for use in made for _, call in use
    )


@pytest.mark.parametrize(("units", "kind"), [(False, "few"), (True, "touched"), (False, "all"), (True, "none")])
def test_norms_and_sums_are_those_of_float64(units: bool, kind: str) -> None:
    """Of pairs, not of look-ups; with padding behind the last row; over several tiles of columns and of a run."""
    here, _ = pair(calls(), units)
    exact = pair(calls(dtype=torch.float64), units)[1]
    chosen = {"few": here.rows[1::2].contiguous(), "all": None, "touched": here.rows, "none": here.rows[:0]}[kind]
    survivors, count = Survivors(LAYOUT, chosen), 24 if units else EXAMPLES
    weight = torch.rand(count, generator=torch.Generator().manual_seed(3)).to(HERE)
    found, of_norms = {}, {}
    for name, own, dtype in (("here", here, torch.float32), ("exact", exact, torch.float64)):
        sums = [torch.zeros(shape, dtype=dtype, device=HERE) for shape in survivors.shapes]
        norms, masked = torch.ones(count, dtype=dtype, device=HERE), own.masked(survivors)
        masked.add_squared_norms(norms)
        masked.add_weighted_sums(weight.to(dtype), sums)
        masked.add_weighted_sums(None, sums)  # a second micro-batch adds to the first
        found[name], of_norms[name] = sums, norms
    torch.testing.assert_close(of_norms["here"].double(), of_norms["exact"], rtol=1e-6, atol=0)
    for ours, theirs in zip(found["here"], found["exact"], strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-6)
    assert (of_norms["here"] > 1).any() == (kind != "none")


@pytest.mark.skipif(HERE.type != "cpu", reason="a GPU runs programs in an order of its own")
def test_the_order_of_programs_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of floats have one order, whichever program is first; of several look-ups' programs each."""
    for module, sizes in (("lookups", {"_BLOCK": 256}), ("sums", {"_BLOCK": 32, "_RUNS": 64})):
        for name, size in sizes.items():
            monkeypatch.setattr(f"dpfest.device.{module}.{name}", size)
    made, weight = calls(), torch.rand(EXAMPLES, generator=torch.Generator().manual_seed(3))

    def step() -> list[Tensor]:
        found = parts.look_up(LAYOUT, made, EXAMPLES, None)
        found.take_gradients()
        survivors, norms = Survivors(LAYOUT, found.rows[::3].contiguous()), torch.zeros(EXAMPLES)
        sums = [torch.zeros(shape) for shape in survivors.shapes]
        masked = found.masked(survivors)
        masked.add_squared_norms(norms)
        masked.add_weighted_sums(weight, sums)
        of_map = parts.clipped_map(found.example, found.row_of, EXAMPLES, len(found.rows), 1.0, 2.0**-22)
        return [found.rows, found.row_of, found.example, norms, of_map, *sums]

    before = step()
    builder = type(pytest.importorskip("triton.runtime.interpreter").interpreter_builder)
    forwards = builder.set_grid_idx

    def backwards(self: Any, *at: int) -> None:
        forwards(self, *(most - 1 - one for most, one in zip(self.grid_dim, at, strict=True)))

    monkeypatch.setattr(builder, "set_grid_idx", backwards)
    assert all(torch.equal(*each) for each in zip(before, step(), strict=True)) and before[3].any()


def test_what_an_example_of_weight_0_holds_is_not_read() -> None:
    made = calls()
    for use in made:
        for _, call in use:
            call.gradient[7] = torch.inf
    here, _ = pair(made, units=False)
    norms = torch.zeros(EXAMPLES, device=HERE)
    masked = here.masked(Survivors(LAYOUT, None))
    masked.add_squared_norms(norms)
    assert norms.isfinite().nonzero().flatten().tolist() == [n for n in range(EXAMPLES) if n != 7]
    weight, sums = norms.isfinite().float(), [torch.zeros(r, d, device=HERE) for r, d in Survivors(LAYOUT, None).shapes]
    masked.add_weighted_sums(weight, sums)
    assert all(one.isfinite().all() and one.any() for one in sums)


def test_other_rows_of_another_pass_are_refused() -> None:
    here, _ = pair(calls(), units=False)
    here.take_calls(calls())
    with pytest.raises(UserError, match="looks up other rows"):
        here.take_calls(calls(seed=1))


def test_bags_take_the_way_of_a_cpu() -> None:
    ids = torch.zeros(EXAMPLES, 2, dtype=torch.int64, device=HERE)
    bag = nn.EmbeddingBag(9, 3, mode="sum").to(HERE)
    uses = [[(bag, Call((ids,), {}, torch.zeros(EXAMPLES, 3)))], [], []]
    assert parts.look_up(LAYOUT, uses, EXAMPLES, None) is None
    made = embeddings.look_up(LAYOUT, uses, torch.arange(EXAMPLES, device=HERE), None)
    assert isinstance(made, embeddings.Lookups) and made.rows.tolist() == [0]


def test_a_map_is_rounded_down_where_a_quotient_is_exact() -> None:
    """Four rows of one example at a norm of 1: a half each, less what a rounded root may have added."""
    rows = torch.arange(4, device=HERE)
    made = Contributions(rows, rows, torch.zeros_like(rows), 1).clipped(1.0, 2.0**-40)
    assert made.tolist() == [0.5 - 2.0**-40] * 4


@pytest.mark.parametrize("clipping_norm", [1.0, 2.7, 0.013])
def test_a_map_has_the_cpus_bits(monkeypatch: pytest.MonkeyPatch, clipping_norm: float) -> None:
    here, _ = pair(calls(), units=False)
    made = Contributions(here.rows, here.row_of, here.example, EXAMPLES)
    on_cpu = Contributions(here.rows.cpu(), here.row_of.cpu(), here.example.cpu(), EXAMPLES)
    for grid in (2.0**-22, 2.0**-40):
        with monkeypatch.context() as patch:
            ours = made.clipped(clipping_norm, grid).cpu()
            patch.setattr(devices, "PRETENDED", False)
            assert torch.equal(ours, on_cpu.clipped(clipping_norm, grid)) and ours.min() > 0


def tables(seed: int) -> list[nn.Embedding]:
    torch.manual_seed(seed)
    return [nn.Embedding(50, 3).to(HERE), nn.Embedding(70, 40).to(HERE), nn.Embedding(5, 2).to(HERE)]


@pytest.mark.parametrize(
    ("kind", "settings", "stepped"),
    [
        (torch.optim.SGD, {"lr": 0.1}, {0, 1}),
        (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.01, "initial_accumulator_value": 0.3}, {0, 1}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, set()),
        (torch.optim.SGD, {"lr": 0.1, "maximize": True}, set()),
        (torch.optim.SparseAdam, {"lr": 0.1}, set()),
    ],
)
def test_steps_on_rows_are_those_of_torch(kind: Any, settings: dict[str, Any], stepped: set[int]) -> None:
    """SGD's to the last bit on a CPU, Adagrad's up to it; a table without rows takes none."""
    theirs, ours = tables(0), tables(0)
    optimizers = [kind([table.weight for table in own], **settings) for own in (theirs, ours)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        gradients = [RowGradient(torch.tensor([], dtype=torch.int64, device=HERE), torch.empty(0, 2, device=HERE))]
        for rows, dim in ((70, 40), (50, 3)):
            chosen = torch.randperm(rows, generator=generator)[:20].sort().values.to(HERE)
            values = torch.randn(20, dim, generator=generator) * 10 ** torch.randn(20, 1, generator=generator)
            gradients.insert(0, RowGradient(chosen, values.to(HERE)))
        for table, gradient in zip(theirs, gradients, strict=True):
            if len(gradient.values):
                rows = gradient.rows.unsqueeze(0)  # type: ignore[union-attr]
                table.weight.grad = torch.sparse_coo_tensor(
                    rows, gradient.values, table.weight.shape, is_coalesced=True
                )
        versions = [table.weight._version for table in ours]
        assert parts.take_steps(ours, gradients, [optimizers[1]]) == stepped
        assert [table.weight._version > old for table, old in zip(ours, versions, strict=True)] == [
            number in stepped for number in range(3)
        ]
        optimizers[0].step()
    for number in stepped:
        mine, others = ours[number].weight, theirs[number].weight
        tolerance = 0 if HERE.type == "cpu" and kind is torch.optim.SGD else 2.5e-7
        torch.testing.assert_close(mine, others, rtol=tolerance, atol=tolerance)
        states = [one.state[weight] for one, weight in zip(optimizers[::-1], (mine, others), strict=True)]
        assert states[0].keys() == states[1].keys() and not torch.equal(mine, tables(0)[number].weight)
        for name, value in states[1].items():
            torch.testing.assert_close(states[0][name], value, rtol=tolerance, atol=tolerance)


def test_an_optimizer_with_a_hook_takes_its_own_step() -> None:
    (table,), seen = tables(0)[:1], []
    optimizer = torch.optim.SGD([table.weight], lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: seen.append(1))
    gradient: Sequence[RowGradient] = [RowGradient(torch.tensor([1], device=HERE), torch.ones(1, 3, device=HERE))]
    assert parts.take_steps([table], gradient, [optimizer]) == set()
