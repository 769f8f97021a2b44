"""A rank's part of an embedding table.

Outside of a step the layer holds the rows of the rank's own shards, on which optimisers step. Within
:func:`reading` it holds copies of the rows that this rank's examples look up, wherever they are owned, and can be
called; so a model needs no change, and :mod:`dpfest.gradients.capture` records it like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, embedding_bag
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpfest.errors import UserError
from dpfest.gradients.embeddings import takes_maximum
from dpfest.gradients.layers import Call
from dpfest.gradients.tables import PLAIN, Table, TableLayout
from dpfest.ranks.layout import Rows, ShardLayout

SHARED_LOOK_UP = (
    "The table {} is looked up for all examples together, which one that lies in several processes cannot be. Expand "
    "the ids to the batch, as positions.expand(len(ids), -1), or give each example a bag."
)
_VIEWS = ("detach", "alias")


class Enough(BaseException):
    """Ends a forward pass that is run to learn its look-ups, once all are known; no model's ``except`` catches it."""


class ShardedLayer(nn.Module):
    """What an embedding layer is whose rows lie in several processes; rows of padding read as zeros.

    Args:
        own: the rank's rows, ``[own rows, dim]``, by shard and then by row.
        rows, dim: size of the whole table.
        options: of the layer.
    """

    weight: Tensor
    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None

    def __init__(self, own: Tensor, rows: int, dim: int, **options: Any) -> None:
        super().__init__(rows, dim, device="meta", **options)
        self.weight = nn.Parameter(own)
        self.weight.whole_shape = (rows, dim)  # type: ignore[attr-defined]
        self._read: Tensor | None = None
        self._hidden: Tensor | None = None
        self._asked: Callable[[ShardedLayer, Call], None] | None = None

    def outputs(self, input: Tensor, *rest: Any, **options: Any) -> Sequence[int]:
        """Return the shape of a call's results, without their dimension."""
        raise NotImplementedError

    def look_up(self, weight: Tensor, place: Tensor, padding: int | None, *rest: Any, **options: Any) -> Tensor:
        """Return a call's results: of the rows ``weight [u, dim]`` at ``place``, among which is the row of padding."""
        raise NotImplementedError

    def forward(self, input: Tensor, *rest: Any, **options: Any) -> Tensor:
        """Return what the layer does; zeros while look-ups are learnt."""
        if self._asked is not None:
            if input.numel():
                low, high = input.aminmax()
                if not 0 <= int(low) <= int(high) < self.num_embeddings:
                    wrong = int(low) if int(low) < 0 else int(high)
                    raise IndexError(f"the id {wrong} is outside of a table of {self.num_embeddings} rows")
            nothing = self.weight.new_zeros(()).expand(*self.outputs(input, *rest, **options), self.embedding_dim)
            self._asked(self, Call((input, *rest), options, nothing))
            return nothing
        if self._read is None:
            raise UserError(
                "The rows of this table lie in several processes: they can be looked up within a step or an "
                "evaluation of dpfest.ranks only."
            )
        input = input.to(self._read.dtype).contiguous()
        place = torch.searchsorted(self._read, input).clamp_max_(max(len(self._read) - 1, 0))
        if input.numel() and not (len(self._read) and torch.equal(self._read[place], input)):
            raise UserError(
                "The forward pass looks up rows that it does not look up when all embeddings are zero: over several "
                "ranks, which rows an example looks up must not depend on embeddings."
            )
        padding = None if self.padding_idx is None else int(torch.searchsorted(self._read, self.padding_idx))
        return self.look_up(self.weight if self._hidden is None else self._hidden, place, padding, *rest, **options)


class ShardedTable(ShardedLayer, nn.Embedding):
    """An ``nn.Embedding`` whose rows lie in several processes."""

    shared_look_up = SHARED_LOOK_UP  # with which recordings refuse one for all examples

    def outputs(self, input: Tensor) -> Sequence[int]:
        """See :class:`ShardedLayer`."""
        return input.shape

    def look_up(self, weight: Tensor, place: Tensor, padding: int | None) -> Tensor:
        """See :class:`ShardedLayer`."""
        return embedding(place, weight, padding, sparse=self.sparse)


class ShardedBag(ShardedLayer, nn.EmbeddingBag):
    """An ``nn.EmbeddingBag`` whose rows lie in several processes: each rank reads the rows of its examples' bags."""

    def outputs(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Sequence[int]:
        """See :class:`ShardedLayer`.

        Raises:
            UserError: the offsets do not divide the ids into bags.
        """
        if offsets is None:
            return input.shape[:1]
        cuts, last = torch.cat([offsets, offsets.new_tensor([len(input)])]), self.include_last_offset
        if int(cuts[0]) or bool((cuts.diff() < 0).any()) or (last and int(cuts[-2]) != len(input)):
            raise UserError(
                f"The offsets of bags must begin with 0, not descend, and stay within the {len(input)} ids"
                f"{', with which the last must end' * last}: they are {offsets.tolist()[:3]}, ... , {int(cuts[-2])}."
            )
        return (len(offsets) - self.include_last_offset,)

    def look_up(
        self,
        weight: Tensor,
        place: Tensor,
        padding: int | None,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """See :class:`ShardedLayer`."""
        return embedding_bag(
            place, weight, None if offsets is None else offsets.to(place.dtype), mode=self.mode, sparse=self.sparse,
            per_sample_weights=per_sample_weights, include_last_offset=self.include_last_offset, padding_idx=padding,
        )  # fmt: skip


PLAIN.update((ShardedTable, ShardedBag))


@contextmanager
def reading(tables: Sequence[ShardedLayer], rows: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """A context in which each table holds the given local rows, sorted ``[u]``, with their values ``[u, dim]``."""
    own = [table.weight.data for table in tables]
    for table, known, value in zip(tables, rows, values, strict=True):
        if table.padding_idx is not None:  # which nobody asks for
            at = int(torch.searchsorted(known, table.padding_idx))
            known = torch.cat([known[:at], known.new_tensor([table.padding_idx]), known[at:]])
            value = torch.cat([value[:at], value.new_zeros(1, value.shape[1]), value[at:]])
        table._read, table.weight.data = known, value
    try:
        yield
    finally:
        for table, before in zip(tables, own, strict=True):
            table._read, table.weight.data = None, before


@contextmanager
def hiding(tables: Sequence[ShardedLayer]) -> Iterator[None]:
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

    def __init__(self, tables: Mapping[str, ShardedLayer]) -> None:
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
def asking(tables: Sequence[ShardedLayer], most: int | None) -> Iterator[list[tuple[ShardedLayer, Call]]]:
    """A context that collects look-ups, as (table, call), and raises :class:`Enough` after ``most`` of them."""
    calls: list[tuple[ShardedLayer, Call]] = []

    def asked(table: ShardedLayer, call: Call) -> None:
        calls.append((table, call))
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
                f"The table {name} cannot lie in several processes, because of {reason}: only a plain nn.Embedding, or "
                "nn.EmbeddingBag of a mean or a sum, can. Train this model in one process."
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
        own = torch.cat(parts)
        if (padding := places.own_slot(number, layer.padding_idx)) is not None:
            own[padding] = 0
        parent, _, at = name.rpartition(".")
        setattr(model.get_submodule(parent), at, _sharded(layer, own).train(layer.training))
    return places


def _sharded(layer: Table, own: Tensor) -> ShardedLayer:
    """Return the layer with own rows in place of its own weight."""
    size, padding = (layer.num_embeddings, layer.embedding_dim), layer.padding_idx
    if isinstance(layer, nn.EmbeddingBag):
        options: dict[str, Any] = {"mode": layer.mode, "include_last_offset": layer.include_last_offset}
        return ShardedBag(own, *size, padding_idx=padding, **options)
    return ShardedTable(own, *size, padding_idx=padding)


def _not_sharded(layer: Any) -> str | None:
    """Return what a :class:`ShardedLayer` would silently leave out, or None."""
    if type(layer) not in (nn.Embedding, nn.EmbeddingBag):
        return f"its type {type(layer).__name__}"
    for option in ("max_norm", "scale_grad_by_freq"):
        value = getattr(layer, option)
        if value is not None and value is not False:
            return f"{option}={value}"
    if takes_maximum(layer):
        return "mode=max"
    weight, padding = layer.weight, layer.padding_idx
    if padding is not None and not weight.is_meta and bool(weight[padding].any()):
        return f"padding_idx={padding}, whose row is not zero"
    hooks = [name.strip("_") for name, value in vars(layer).items() if name.endswith("_hooks") and value]
    return f"its {hooks[0]}" if hooks else None


def _is_table(layer: nn.Module) -> bool:
    return isinstance(layer, Table) and layer.weight.requires_grad


def by_table(places: ShardLayout, rows: Rows) -> tuple[list[Tensor], list[int]]:
    """Split sorted global rows by table: each table's local rows, and where each table begins (and the end)."""
    cuts = np.searchsorted(rows, places.offsets).tolist()
    parts = [rows[low:high] - offset for low, high, offset in zip(cuts, cuts[1:], places.offsets, strict=False)]
    return [torch.from_numpy(part) for part in parts], cuts
