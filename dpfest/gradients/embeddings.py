"""Embedding look-ups: which rows each example touched, in all tables at once, and its gradient there.

An example's gradient of a table has one row for each *distinct* row that it looked up: a token that occurs twice in a
text, or is looked up by two layers that share the table, contributes the sum of its output gradients, and a norm taken
before that sum would be wrong. Padding is not a look-up. A unit of several examples (:mod:`dpfest.gradients.units`)
counts as one example that makes all of their look-ups.

One sort of (global row, position) orders the look-ups of all tables; maps, norms and sums then work on runs of that
order, not table by table or row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from dpfest import devices, kernels
from dpfest.errors import UserError
from dpfest.gradients.layers import Call
from dpfest.gradients.tables import Survivors, Table, TableLayout, ascending
from dpfest.gradients.units import Groups


class EveryRow(NamedTuple):
    """A table whose weight is used outside of look-ups: as if every example looked all of its rows up."""

    weight: Tensor
    padding_idx: int | None


Layer = Table | EveryRow
OTHER_ROWS = (
    "The forward pass looks up other rows than it does when all embeddings are zero: over several ranks, which rows an "
    "example looks up must not depend on embeddings."
)
_Parts = tuple[Tensor, Tensor, Tensor, Tensor | None]


class Lookups:
    """The distinct (example, global row) pairs of a micro-batch, sorted by row and then by example.

    Args:
        layout: global numbering of the rows.
        calls: for each table, the layers that looked up in it, each with its call, after the forward pass.
        examples: ``arange(b)``.
        groups: the examples' units, of which the pairs are then; None for examples.

    Attributes:
        rows: sorted distinct touched rows, int64 ``[u]``.
        row_of: position in ``rows`` of each pair's row, ``[p]``.
        example: example of each pair, ``[p]``.
    """

    def __init__(
        self,
        layout: TableLayout,
        calls: Sequence[Sequence[tuple[Layer, Call]]],
        examples: Tensor,
        groups: Groups | None = None,
    ) -> None:
        self.layout, self._examples = layout, examples
        of_example, row, source, coefficient = self._find(calls)
        example = of_example if groups is None else groups.of.index_select(0, of_example)
        merged = groups is not None or any(len(uses) > 1 or any(_many(*use) for use in uses) for uses in calls)
        group = kernels.group_lookups if kernels.serve(row) else _grouped
        self._order, starts, self.example, self.rows, self.row_of, self._counts = group(
            row, example, self._sizes, merged
        )
        self._runs = starts if merged else None  # where each pair begins; None if each look-up is a pair
        self._source = source.index_select(0, self._order)
        self._coefficient = None if coefficient is None else coefficient.index_select(0, self._order)

    def _find(self, calls: Sequence[Sequence[tuple[Layer, Call]]]) -> _Parts:
        """Return the look-ups of these calls, by table and then by example, and take their gradients from now on."""
        layout, examples, self._calls = self.layout, self._examples, calls
        parts: list[_Parts] = []
        self._sizes, self._first = [], [0]  # look-ups per table; a table's first row in the concatenated gradients
        for table, calls_of_table in enumerate(calls):
            lists, first = [], self._first[-1]
            for layer, call in calls_of_table:
                example, row, source, coefficient = _positions(layer, examples, *call.args, **call.kwargs)
                lists.append((example, row + layout.offsets[table], source + first, coefficient))
                first += len(row) if takes_maximum(layer) else call.output.numel() // layout.dims[table]
            self._first.append(first)
            self._sizes.append(sum(len(one[0]) for one in lists))
            parts += [_by_example(lists)] if len(lists) > 1 else lists
        empty = examples[:0]
        return _joined(parts or [(empty, empty, empty, None)])

    def take_calls(self, calls: Sequence[Sequence[tuple[Layer, Call]]]) -> None:
        """Take the calls of another forward pass for those that the look-ups were found in.

        Raises:
            UserError: they look other rows up, or for other examples.
        """
        *before, _ = self._find(self._calls)
        *after, coefficient = self._find(calls)
        if not all(map(torch.equal, before, after)):
            raise UserError(OTHER_ROWS)
        self._coefficient = None if coefficient is None else coefficient.index_select(0, self._order)

    def take_gradients(self) -> None:
        """Collect each pair's gradient row; call after the backward pass has filled the calls."""
        self._gradients = []
        for table, calls in enumerate(self._calls):
            dim = self.layout.dims[table]
            parts = [_gradient_rows(layer, call, dim).to(layer.weight.dtype) for layer, call in calls]
            parts = parts or [torch.empty(0, dim, device=self.rows.device)]
            joined = torch.cat(parts) if len(parts) > 1 else parts[0]
            # Of columns of a wider gradient, torch's norms and sums take four times as long.
            self._gradients.append(joined if kernels.serve(joined) and joined.stride(1) == 1 else joined.contiguous())
        if self._runs is not None:
            self._sum_runs(self._runs)

    def _sum_runs(self, runs: Tensor) -> None:
        """Sum the gradients of look-ups that form one pair; afterwards every pair has its own gradient row."""
        ends = np.cumsum([0, *self._sizes])
        cuts = torch.searchsorted(runs, torch.from_numpy(ends).to(runs.device)).tolist()
        for table, gradient in enumerate(self._gradients):
            pairs, lookups = slice(cuts[table], cuts[table + 1]), slice(ends[table], ends[table + 1])
            self._gradients[table] = _sums(
                gradient,
                self._source[lookups] - self._first[table],
                runs[pairs] - ends[table],
                None if self._coefficient is None else self._coefficient[lookups],
            )
        self._first, self._source = cuts, torch.arange(len(runs), device=runs.device)

    def masked(self, survivors: Survivors) -> MaskedLookups | CompiledMask:
        """Return the pairs whose row survives; call after :meth:`take_gradients`."""
        return (CompiledMask if kernels.serve(*self._gradients) else MaskedLookups)(self, survivors)

    def drop(self, broken: Tensor) -> None:
        """Set the gradients of the broken examples, bool ``[b]``, to zero, whatever they contain."""
        rows = self._source[broken[self.example]]
        for table, gradient in enumerate(self._gradients):
            local = rows[(rows >= self._first[table]) & (rows < self._first[table + 1])] - self._first[table]
            self._gradients[table] = gradient.index_fill(0, local, 0)


def look_up(
    layout: TableLayout, calls: Sequence[Sequence[tuple[Layer, Call]]], examples: Tensor, groups: Groups | None
) -> Lookups:
    """Return the :class:`Lookups` of these calls, or, where the kernels of a GPU serve them, what does the same."""
    parts = devices.serving(examples)
    found = parts.look_up(layout, calls, len(examples), groups) if parts else None
    if parts and found is None:  # PyTorch's own look-up refuses them by itself
        refuse_lacking_ids(layout, calls)
    return found or Lookups(layout, calls, examples, groups)


def refuse_lacking_ids(layout: TableLayout, calls: Sequence[Sequence[tuple[Layer, Call]]]) -> None:
    """Refuse look-ups of rows that their tables lack."""
    for name, rows, uses in zip(layout.names, layout.rows, calls, strict=True):
        for _, call in uses:
            if error := lacking_id(name, rows, call.input):
                raise error


def lacking_id(name: str, rows: int, ids: Tensor) -> UserError | None:
    """Return an error that names an id that a table of so many rows lacks; None if it has all of them."""
    low, high = (int(ids.min()), int(ids.max())) if ids.numel() else (0, 0)
    if 0 <= low <= high < rows:
        return None
    wrong = low if low < 0 else high
    return UserError(f"The id {wrong} is looked up in {name}, a table of {rows} rows: ids are 0 to {rows - 1}.")


class MaskedLookups:
    """The pairs whose rows survive; all others count as zero."""

    def __init__(self, lookups: Lookups, survivors: Survivors) -> None:
        self._lookups = lookups
        rows, counts = lookups.rows, lookups._counts
        kept, self._position = survivors.find(rows)
        self._bounds = survivors.bounds
        self.example, self._source = lookups.example, lookups._source
        if kept is not None and len(kept) < len(rows):
            alive = torch.zeros_like(rows, dtype=torch.bool).index_fill_(0, kept, True)
            pairs = torch.nonzero(alive.index_select(0, lookups.row_of)).squeeze(1)
            rows, counts = rows[kept], counts[kept]
            self.example, self._source = self.example.index_select(0, pairs), self._source.index_select(0, pairs)
        ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        self._runs = ends[:-1]
        row_cuts = torch.searchsorted(rows, lookups.layout.starts.to(rows.device))
        self._cuts = list(zip(*torch.stack([row_cuts, ends[row_cuts]]).tolist(), strict=True))

    def add_squared_norms(self, squared_norms: Tensor) -> None:
        """Add each example's squared norm over the surviving rows to ``squared_norms [b]``."""
        norms = [torch.linalg.vector_norm(gradient, dim=1) for gradient in self._lookups._gradients]
        if norms:
            squared = torch.cat([norm.to(squared_norms.dtype) for norm in norms]).square()
            squared_norms.index_add_(0, self.example, squared.index_select(0, self._source))

    def add_weighted_sums(self, weight: Tensor | None, tables: Sequence[Tensor]) -> None:
        """Add ``sum_i weight_i * gradient_i`` to each table's surviving rows ``[s, dim]``; ``weight`` as for layers."""
        lookups = self._lookups
        weights = None if weight is None else weight.index_select(0, self.example)
        for table, out in enumerate(tables):
            (low, first), (high, last) = self._cuts[table], self._cuts[table + 1]
            if high > low:
                sums = _sums(
                    lookups._gradients[table].to(out.dtype),
                    self._source[first:last] - lookups._first[table],
                    self._runs[low:high] - first,
                    None if weights is None else weights[first:last],
                )
                out.index_add_(0, self._position[low:high] - self._bounds[table], sums)


class CompiledMask:
    """What :class:`MaskedLookups` is, with one compiled loop over all tables for the norms, and one for the sums."""

    def __init__(self, lookups: Lookups, survivors: Survivors) -> None:
        if survivors.rows is None:
            position: Tensor | None = lookups.rows
        elif survivors.rows is lookups.rows:
            position = None
        else:
            position = kernels.locate(lookups.rows, survivors.rows)
        ends = lookups._first[1:] if lookups._runs is not None else np.cumsum(lookups._sizes).tolist()
        self._lookups = lookups
        self._pairs = kernels.Pairs(
            ends=ends,
            firsts=lookups._first,
            bounds=survivors.bounds,
            example=lookups.example,
            source=lookups._source,
            row_of=lookups.row_of,
            position=position,
        )

    def add_squared_norms(self, squared_norms: Tensor) -> None:
        """See :class:`MaskedLookups`."""
        if self._lookups._gradients:
            self._pairs.add_squared_norms(self._lookups._gradients, squared_norms)

    def add_weighted_sums(self, weight: Tensor | None, tables: Sequence[Tensor]) -> None:
        """See :class:`MaskedLookups`."""
        if self._lookups._gradients:
            self._pairs.add_weighted_sums(self._lookups._gradients, weight, tables)


def _grouped(row: Tensor, example: Tensor, sizes: Sequence[int], merged: bool) -> tuple[Tensor, ...]:
    """Sort look-ups by row and then by position, and find the distinct (row, example) pairs.

    Args:
        row: of each look-up, in consecutive parts, one a table, each above the one before, int64 ``[n]``.
        example: of each look-up, ``[n]``, ascending among those of one row.
        sizes: lengths of the parts.
        merged: whether look-ups of one pair are one; False if no two are of one pair.

    Returns:
        Position of each look-up in the sorted order ``[n]``; first of each pair's in it ``[p]``, and its example
        ``[p]``; sorted distinct rows ``[u]``, the place of each pair's row among them ``[p]``, and the number of pairs
        of each ``[u]``.
    """
    bits = len(row).bit_length()
    keys = ascending((row << bits) | torch.arange(len(row), device=row.device), sizes)
    order, row = keys & ((1 << bits) - 1), keys >> bits
    example, starts = example.index_select(0, order), torch.arange(len(row), device=row.device)
    if merged:
        new = torch.ones_like(row, dtype=torch.bool)
        new[1:] = (row[1:] != row[:-1]) | (example[1:] != example[:-1])
        starts = torch.nonzero(new).squeeze(1)
        row, example = row[starts], example[starts]
    return order, starts, example, *torch.unique_consecutive(row, return_inverse=True, return_counts=True)


def _positions(
    layer: Layer, examples: Tensor, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Any = None
) -> _Parts:
    """Return each look-up's example, local row, row of the flat output gradient, and coefficient (None for 1)."""
    row = input.reshape(-1).long()
    bag = layer if isinstance(layer, nn.EmbeddingBag) else None
    last = bag is not None and bag.include_last_offset
    if offsets is not None and last:
        row = row[: int(offsets[-1])]
    if offsets is not None:
        ends = offsets[1:] if last else torch.cat([offsets[1:], offsets.new_tensor([len(row)])])
        example = examples.repeat_interleave(ends - offsets[: len(ends)])
    else:
        example = examples.repeat_interleave(len(row) // max(len(examples), 1)) if input.dim() > 1 else examples
    source = example if bag is not None else torch.arange(len(row), device=row.device) if input.dim() > 1 else examples
    coefficient = None if per_sample_weights is None else per_sample_weights.detach().reshape(-1)[: len(row)]
    if layer.padding_idx is not None:
        kept = torch.nonzero(row != layer.padding_idx).squeeze(1)
        example, row, source = example[kept], row[kept], source[kept]
        coefficient = None if coefficient is None else coefficient[kept]
    if bag is not None and bag.mode == "mean":
        coefficient = (1 / torch.bincount(example, minlength=len(examples)).to(layer.weight.dtype))[example]
    if takes_maximum(layer):  # a row once a bag, each with a gradient of its own
        example, row = torch.stack([example, row]).unique(dim=1)
        source = torch.arange(len(row), device=row.device)
    return example, row, source, coefficient


def takes_maximum(layer: Any) -> bool:
    """Return whether a layer is a bag that takes the maximum."""
    return isinstance(layer, nn.EmbeddingBag) and layer.mode == "max"


def chosen_rows(
    layer: nn.EmbeddingBag, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Any = None
) -> Tensor:
    """Return the row ``[b, dim]`` that each coordinate of each bag's maximum is from; an empty bag has none."""
    last = input.dim() == 1 and layer.include_last_offset
    if offsets is None:
        offsets = torch.arange(len(input), device=input.device) * input.shape[1]
    with torch.no_grad():
        weight, ids = layer.weight.detach(), input.reshape(-1)
        return torch.embedding_bag(weight, ids, offsets, False, 2, False, None, last, layer.padding_idx)[3]


def _gradient_rows(layer: Layer, call: Call, dim: int) -> Tensor:
    """Return the rows of a call's gradient ``[n, dim]``: of each output, or of each row of a bag's maximum."""
    gradient = call.gradient.reshape(-1, dim)
    if not takes_maximum(layer):
        return gradient
    assert call.chosen is not None
    examples = torch.arange(len(gradient), device=gradient.device)
    example, row, *_ = _positions(layer, examples, *call.args, **call.kwargs)
    return gradient.index_select(0, example) * (call.chosen.index_select(0, example) == row.unsqueeze(1))


def _many(layer: Layer, call: Call) -> bool:
    """Return whether an example may look up several rows in one call."""
    return isinstance(layer, nn.EmbeddingBag) or call.output.dim() > 2


def _joined(parts: Sequence[_Parts]) -> _Parts:
    """Concatenate several lists of look-ups."""
    if len(parts) == 1:
        return parts[0]
    example, row, source = (torch.cat(same) for same in zip(*(part[:3] for part in parts), strict=True))
    if all(part[3] is None for part in parts):
        return example, row, source, None
    coefficients = [torch.ones_like(part[0], dtype=torch.float32) if part[3] is None else part[3] for part in parts]
    return example, row, source, torch.cat(coefficients)


def _by_example(lists: Sequence[_Parts]) -> _Parts:
    """Merge several calls' look-ups into one list, grouped by example."""
    example, row, source, coefficient = _joined(lists)
    order = torch.sort(example, stable=True).indices
    return example[order], row[order], source[order], None if coefficient is None else coefficient[order]


def _sums(gradient: Tensor, source: Tensor, runs: Tensor, weight: Tensor | None) -> Tensor:
    """Return weighted sums of the rows ``gradient[source]`` over runs that start at ``runs``, ``[len(runs), dim]``."""
    if not len(runs):
        return gradient.new_zeros(0, gradient.shape[1])
    weight = None if weight is None else weight.to(gradient.dtype)
    return embedding_bag(source, gradient, runs, mode="sum", per_sample_weights=weight)
