"""Tables that are looked up together by a kernel, in a private step: the step that look-ups one by one make."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dpfest
from dpfest.algorithms.rules import FEST
from dpfest.errors import UserError
from dpfest.gradients.parts import NoisedGradient
from dpfest.noise.key import CHACHA, NoiseKey
from tests.dpfest.device.conftest import HERE
from tests.dpfest.steps import engine_with, released

gather = pytest.importorskip("dpfest.device.gather", reason="the kernels need Triton: pip install triton")

pytestmark = pytest.mark.usefixtures("pretended")

KEY = NoiseKey.from_seed(3, cipher=CHACHA)
SHAPES = ((6, 3), (50, 70), (9, 4))


class Shop(nn.Module):
    """Two columns and a text of two tokens, whose table has padding; perhaps a bag."""

    def __init__(self, kind: type[nn.ModuleList], bag: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = kind(nn.Embedding(*shape) for shape in SHAPES)
        self.tables[2].padding_idx = 8
        self.head = nn.Linear(3 + 70 + 2 * 4, 1)
        self.bag = nn.EmbeddingBag(4, 81, mode="sum") if bag else None

    def forward(self, ids: Tensor) -> Tensor:
        columns = [*ids[:, :2].unbind(1), ids[:, 2:].int()]
        if isinstance(self.tables, dpfest.Tables):
            embedded = self.tables(columns)
        else:
            embedded = [table(column) for table, column in zip(self.tables, columns, strict=True)]
        x = torch.cat([one.flatten(1) for one in embedded], 1)
        return self.head(x if self.bag is None else x + self.bag(ids[:, :1] % 4)).squeeze(1)


def ids_of(count: int = 20) -> Tensor:
    drawn = torch.randint(0, 1000, (count, 4), generator=torch.Generator().manual_seed(1))
    return (drawn % torch.tensor([6, 50, 9, 9])).to(HERE)


def step(model: nn.Module, ids: Tensor) -> NoisedGradient:
    """The second step: in the first pass functions are followed, too, and tables look up one by one."""
    trained = [t.num_embeddings for t in model.modules() if isinstance(t, nn.Embedding | nn.EmbeddingBag)
               if t.weight.requires_grad]  # fmt: skip
    engine = engine_with(
        model, FEST(clipping_norm=0.7), lambda own, batch: own(batch[0]).square(), KEY, gradient_noise_multiplier=0.0,
        expected_batch_size=10.0, selected=torch.arange(0, sum(trained), device=HERE),
    )  # fmt: skip
    released(engine, [(ids_of(),)], 0)
    return released(engine, [(ids,)], 1)


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tables each launch has looked up."""
    seen: list[int] = []
    launch = gather.launch

    def counted(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        seen.append(grid[1])
        launch(kernel, grid, *args, **constants)

    monkeypatch.setattr(gather, "launch", counted)
    return seen


def test_a_step_has_the_bits_of_look_ups_one_by_one(gathered: list[int]) -> None:
    """In one launch, over several tiles of columns; strided ids, a text of 32-bit ids, padding."""
    together = step(Shop(dpfest.Tables).to(HERE), ids_of())
    assert gathered == [3]
    apart = step(Shop(nn.ModuleList).to(HERE), ids_of())
    assert gathered == [3]
    for ours, theirs in zip(together.tables, apart.tables, strict=True):
        assert torch.equal(ours.rows, theirs.rows)  # type: ignore[arg-type]
        assert torch.equal(ours.values, theirs.values) and ours.values.any()
    for name, value in apart.dense.items():
        assert torch.equal(together.dense[name], value) and value.any()


@pytest.mark.parametrize("bag", [False, True])
@pytest.mark.parametrize(("column", "wrong"), [(1, -1), (3, 9), (0, 2**40)])
@pytest.mark.skipif(HERE.type != "cpu", reason="look-ups one by one end a process on a GPU")
def test_an_id_that_a_table_lacks_is_named(bag: bool, column: int, wrong: int, gathered: list[int]) -> None:
    ids = ids_of()
    ids[7, column] = wrong
    table, rows = {0: (0, 6), 1: (1, 50), 3: (2, 9)}[column]
    with pytest.raises(UserError, match=rf"The id {wrong} is looked up in tables\.{table}, a table of {rows} rows"):
        step(Shop(dpfest.Tables, bag).to(HERE), ids)
    assert gathered == [3]


def test_tables_that_others_observe_or_nobody_does_look_up_by_themselves(gathered: list[int]) -> None:
    """Outside of private steps, with a hook of the user's, where a look-up writes into its table."""
    model = Shop(dpfest.Tables).to(HERE)
    model(ids_of())
    seen: list[int] = []
    handle = model.tables[1].register_forward_hook(lambda *_: seen.append(1))
    step(model, ids_of())
    handle.remove()
    assert seen and gathered == []
    for table in model.tables:
        table.weight.requires_grad_(table is not model.tables[0])
    assert len(step(model, ids_of()).tables) == 2 and gathered == []


def test_what_a_graph_reads_is_kept_and_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ids that are copied anew in each pass, the place would be another when the graph is started."""
    memory = pytest.importorskip("dpfest.device.memory")
    known = memory.wholes(HERE, (3, 1, 4))
    monkeypatch.setattr(memory, "_captures", lambda device: True)
    monkeypatch.setattr(memory, "_OF_GRAPHS", kept := [])
    assert memory.wholes(HERE, (3, 1, 4)) is known and kept == [known]
    with pytest.raises(RuntimeError, match="not on the GPU yet"):
        memory.wholes(HERE, (3, 1, 5))
