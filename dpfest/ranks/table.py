"""A rank's part of an embedding table.

Outside of a step the layer holds the rows of the rank's own shards, on which optimisers step. Within
:func:`reading` it holds copies of the rows that this rank's examples look up, wherever they are owned, and can be
called; so a model needs no change, and :mod:`dpfest.capture` records it like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpfest.errors import UserError
from dpfest.ranks.layout import Rows, ShardLayout
from dpfest.tables import TableLayout

SHARED_LOOK_UP = (
    "The table {} is looked up for all examples together, which one that lies in several processes cannot be. Expand "
    "the ids to the batch, as positions.expand(len(ids), -1)."
)
_VIEWS = ("detach", "alias")


class Enough(BaseException):
    """Ends a forward pass that is run to learn its look-ups, once all are known; no model's ``except`` catches it."""


class ShardedTable(nn.Embedding):
    """An embedding layer whose rows lie in several processes.

    Args:
        rows, dim: size of the whole table.
        own: the rank's rows, ``[own rows, dim]``, by shard and then by row.
    """

    def __init__(self, rows: int, dim: int, own: Tensor) -> None:
        super().__init__(rows, dim, device="meta")
        self.weight = nn.Parameter(own)
        self.weight.whole_shape = (rows, dim)  # type: ignore[attr-defined]
        self._read: Tensor | None = None
        self._hidden: Tensor | None = None
        self._asked: Callable[[ShardedTable, Tensor], None] | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows ``[..., dim]``; zeros while look-ups are learnt."""
        if self._asked is not None:
            if input.numel():
                low, high = input.aminmax()
                if not 0 <= int(low) <= int(high) < self.num_embeddings:
                    wrong = int(low) if int(low) < 0 else int(high)
                    raise IndexError(f"the id {wrong} is outside of a table of {self.num_embeddings} rows")
            self._asked(self, input)
            return self.weight.new_zeros(()).expand(*input.shape, self.embedding_dim)
        if self._read is None:
            raise UserError(
                "The rows of this table lie in several processes: they can be looked up within a step or an "
                "evaluation of dpfest.ranks only."
            )
        input = input.contiguous()
        place = torch.searchsorted(self._read, input).clamp_max_(max(len(self._read) - 1, 0))
        if input.numel() and not (len(self._read) and torch.equal(self._read[place], input.to(self._read.dtype))):
            raise UserError(
                "The forward pass looks up rows that it does not look up when all embeddings are zero: over several "
                "ranks, which rows an example looks up must not depend on embeddings."
            )
        return embedding(place, self.weight if self._hidden is None else self._hidden, sparse=self.sparse)


@contextmanager
def reading(tables: Sequence[ShardedTable], rows: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """A context in which each table holds the given local rows, sorted ``[u]``, with their values ``[u, dim]``."""
    own = [table.weight.data for table in tables]
    for table, known, value in zip(tables, rows, values, strict=True):
        table._read, table.weight.data = known, value
    try:
        yield
    finally:
        for table, before in zip(tables, own, strict=True):
            table._read, table.weight.data = None, before


@contextmanager
def hiding(tables: Sequence[ShardedTable]) -> Iterator[None]:
    """A context, within :func:`reading`, in which rows can be looked up and weights are empty, ``[0, dim]``.

    What else a forward pass computed from them would depend on all examples of this rank, and on the number of ranks,
    and no comparison of parts of the batch would show it.
    """
    for table in tables:
        table._hidden, table.weight.data = table.weight.data, table.weight.data.new_empty(0, table.embedding_dim)
    try:
        yield
    finally:
        for table in tables:
            assert table._hidden is not None
            table.weight.data, table._hidden = table._hidden, None


class OnlyLookUps(TorchDispatchMode):
    """A context, within :func:`hiding`, that names an operation on a table's weight, which is empty there.

    Args:
        tables: by name.
    """

    def __init__(self, tables: Mapping[str, ShardedTable]) -> None:
        super().__init__()
        self._tables = {table.weight.untyped_storage()._cdata: name for name, table in tables.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation unless it reads a table's weight."""
        if func._schema.name.removeprefix("aten::") not in _VIEWS:
            for leaf in tree_leaves((args, kwargs or {})):
                if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided:
                    continue
                if name := self._tables.get(leaf.untyped_storage()._cdata):
                    raise UserError(
                        f"The forward pass reads the table {name} outside of a look-up ({func}): over ranks its rows "
                        "lie in several processes. Look them up."
                    )
        return func(*args, **(kwargs or {}))


@contextmanager
def asking(tables: Sequence[ShardedTable], most: int | None) -> Iterator[list[tuple[ShardedTable, Tensor]]]:
    """A context that collects look-ups, as (table, ids), and raises :class:`Enough` after ``most`` of them."""
    calls: list[tuple[ShardedTable, Tensor]] = []

    def asked(table: ShardedTable, ids: Tensor) -> None:
        calls.append((table, ids))
        if len(calls) == most:
            raise Enough

    for table in tables:
        table._asked = asked
    try:
        yield calls
    finally:
        for table in tables:
            table._asked = None


Initial = Callable[[int, int, int, int], Tensor]
"""Initial weights ``[rows, dim]`` of (table, shard, rows, dim)."""


def shard_tables(
    model: nn.Module, shards: int, world: int = 1, rank: int = 0, initial: Initial | None = None
) -> ShardLayout:
    """Replace every trainable embedding layer of a model by this rank's part of it; return the layout.

    Args:
        model: changed in place; the rest of it must be the same on every rank.
        shards: V.
        world: number of ranks.
        rank: number of this one.
        initial: initial weights, for layers on the meta device, whose whole weights exist nowhere; None to take each
            layer's own.

    Raises:
        UserError: a layer that cannot be sharded, by name; more ranks than shards.
    """
    found = {name: layer for name, layer in model.named_modules(remove_duplicate=False) if _is_table(layer)}
    for name, layer in found.items():
        if reason := _not_sharded(layer):
            raise UserError(
                f"The table {name} cannot lie in several processes, because of {reason}: only a plain nn.Embedding "
                "can. Train this model in one process."
            )
    if len({id(layer.weight) for layer in found.values()}) < len(found):
        raise UserError("Two layers share a table, which cannot lie in several processes. Give each its own.")
    sizes = [(layer.num_embeddings, layer.embedding_dim) for layer in found.values()]
    rows, dims = (tuple(column) for column in zip(*sizes, strict=True)) if sizes else ((), ())
    places = ShardLayout(TableLayout(tuple(found), rows, dims), shards, world, rank)
    for number, (name, layer) in enumerate(found.items()):
        if initial is None:
            weight = layer.weight.detach()
            parts = [weight[torch.from_numpy(places.local_rows(number, shard))] for shard in places.own]
        else:
            parts = [initial(number, shard, int(places.rows[number, shard]), dims[number]) for shard in places.own]
        parent, _, own = name.rpartition(".")
        table = ShardedTable(rows[number], dims[number], torch.cat(parts)).train(layer.training)
        setattr(model.get_submodule(parent), own, table)
    return places


def _not_sharded(layer: nn.Module) -> str | None:
    """Return what a :class:`ShardedTable` would silently leave out, or None."""
    if type(layer) is not nn.Embedding:
        return f"its type {type(layer).__name__}"
    for option in ("padding_idx", "max_norm", "scale_grad_by_freq"):
        value = getattr(layer, option)
        if value is not None and value is not False:
            return f"{option}={value}"
    hooks = [name.strip("_") for name, value in vars(layer).items() if name.endswith("_hooks") and value]
    return f"its {hooks[0]}" if hooks else None


def _is_table(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.weight.requires_grad


def by_table(places: ShardLayout, rows: Rows) -> tuple[list[Tensor], list[int]]:
    """Split sorted global rows by table: each table's local rows, and where each table begins (and the end)."""
    cuts = np.searchsorted(rows, places.offsets).tolist()
    parts = [rows[low:high] - offset for low, high, offset in zip(cuts, cuts[1:], places.offsets, strict=False)]
    return [torch.from_numpy(part) for part in parts], cuts
