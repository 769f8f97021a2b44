"""Which rows each example touched in one embedding table, and its gradient there.

An example's gradient of a table has one row for each *distinct* row that it looked up: a token that stands twice in a
text, or is looked up by two layers that share the table, contributes the sum of its output gradients, and a norm taken
before that sum would be wrong.  Padding is no look-up.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dpfest.errors import UserError
from dpfest.layers import Call

Table = nn.Embedding | nn.EmbeddingBag


class TableBatch:
    """Everything that a micro-batch looked up in one table: the distinct (example, row) pairs.

    Attributes:
        example: int64 ``[p]``, the example of each pair within the micro-batch.
        row: int64 ``[p]``, its local row.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.calls: list[tuple[Table, Call]] = []

    def pair(self, examples: Tensor) -> None:
        """Find the distinct pairs; once, after the forward pass.  ``examples`` is ``arange(b)``."""
        found = [_positions(layer, examples, *call.args, **call.kwargs) for layer, call in self.calls]
        self._source = [(source, coefficient) for _, _, source, coefficient in found]
        self._pair_of_position: Tensor | None = None
        if not found:
            self.example = self.row = examples[:0]
        elif len(found) == 1 and type(self.calls[0][0]) is nn.Embedding and self.calls[0][1].output.dim() == 2:
            self.example, self.row = found[0][:2]  # one id an example: all distinct already
        else:
            example, row = torch.cat([call[0] for call in found]), torch.cat([call[1] for call in found])
            keys, self._pair_of_position = torch.unique(example * self.table.num_embeddings + row, return_inverse=True)
            self.example, self.row = keys // self.table.num_embeddings, keys % self.table.num_embeddings

    def gradients(self) -> Tensor:
        """Each pair's gradient row, ``[p, dim]``; after the backward pass."""
        parts = [] if self.calls else [self.table.weight.detach().new_empty(0, self.table.embedding_dim)]
        for (_, call), (source, coefficient) in zip(self.calls, self._source, strict=True):
            flat = call.gradient.reshape(-1, self.table.embedding_dim)
            flat = flat if source is None else flat[source]
            parts.append(flat if coefficient is None else flat * coefficient.unsqueeze(1))
        if self._pair_of_position is None:
            return parts[0]
        sums = parts[0].new_zeros(len(self.example), self.table.embedding_dim)
        return sums.index_add_(0, self._pair_of_position, torch.cat(parts))


def check_table(name: str, table: Table) -> None:
    """Refuse a table whose gradient is not a sum of what each example alone looked up.

    Raises:
        UserError: ``max_norm``, ``scale_grad_by_freq`` or bags of their maximum.
    """
    if table.max_norm is not None:
        raise UserError(
            f"The table {name} has max_norm={table.max_norm}, which rewrites the rows that a batch touches in the "
            "forward pass, outside the guarantee. Set max_norm=None."
        )
    if table.scale_grad_by_freq:
        raise UserError(
            f"The table {name} has scale_grad_by_freq=True: an example's gradient would depend on the others. "
            "Set it to False."
        )
    if getattr(table, "mode", "sum") == "max":
        raise UserError(f"The table {name} takes the maximum of its bags. Use mode='sum' or mode='mean'.")


def _positions(
    layer: Table, examples: Tensor, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Any = None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Each look-up's (example, local row, row of the flat output gradient or None for its own, coefficient there)."""
    row = input.reshape(-1)
    bag = isinstance(layer, nn.EmbeddingBag)
    if offsets is not None:
        ends = offsets[1:] if layer.include_last_offset else torch.cat([offsets[1:], offsets.new_tensor([len(row)])])
        example = examples.repeat_interleave(ends - offsets[: len(ends)])
    else:
        example = examples.repeat_interleave(len(row) // max(len(examples), 1)) if input.dim() > 1 else examples
    source = example if bag else None
    coefficient = None if per_sample_weights is None else per_sample_weights.detach().reshape(-1)
    if layer.padding_idx is not None:
        kept = torch.nonzero(row != layer.padding_idx).squeeze(1)
        example, row, source = example[kept], row[kept], kept if source is None else source[kept]
        coefficient = None if coefficient is None else coefficient[kept]
    if bag and layer.mode == "mean":
        coefficient = (1 / torch.bincount(example, minlength=len(examples)).to(layer.weight.dtype))[example]
    return example, row, source, coefficient
