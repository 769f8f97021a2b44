"""Which rows each example touched, and its gradient there.

An example's gradient of a table has one row for each *distinct* row that it looked up: a token that stands twice in a
text contributes the sum of its two output gradients, and a norm taken before that sum would be wrong.  Padding is
no look-up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass
class Lookup:
    """One call of an ``nn.Embedding``: ids ``[b]`` or ``[b, ...]``; the output gradient has one more dimension."""

    layer: nn.Embedding
    ids: Tensor

    def positions(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """(example ``[n]``, local row ``[n]``, which flat positions those are, or None where it is all of them)."""
        examples = torch.arange(len(self.ids), device=self.ids.device)
        rows = self.ids.reshape(-1)
        if self.ids.dim() > 1:
            examples = examples.repeat_interleave(self.ids[0].numel()) if len(self.ids) else examples[:0]
        if self.layer.padding_idx is None:
            return examples, rows, None
        kept = torch.nonzero(rows != self.layer.padding_idx).squeeze(1)
        return examples[kept], rows[kept], kept


@dataclass
class TableBatch:
    """Everything a micro-batch looked up in one table: the distinct (example, row) pairs.

    Attributes:
        example: int64 ``[p]``, the example of each pair within the micro-batch.
        row: int64 ``[p]``, its local row.
    """

    table: nn.Embedding
    lookups: list[Lookup] = field(default_factory=list)

    def pair(self) -> None:
        """Find the distinct pairs; call once, after the forward pass."""
        found = [lookup.positions() for lookup in self.lookups]
        self._kept = [kept for _, _, kept in found]
        self._pair_of_position: Tensor | None = None
        if len(self.lookups) == 1 and self.lookups[0].ids.dim() == 1:  # one id an example: all distinct already
            self.example, self.row, _ = found[0]
            return
        if not found:
            self.example = self.row = torch.empty(0, dtype=torch.int64, device=self.table.weight.device)
            return
        example = torch.cat([example for example, _, _ in found])
        row = torch.cat([row for _, row, _ in found])
        keys, self._pair_of_position = torch.unique(example * self.table.num_embeddings + row, return_inverse=True)
        self.example, self.row = keys // self.table.num_embeddings, keys % self.table.num_embeddings

    def gradients(self, output_gradients: list[Tensor]) -> Tensor:
        """Each pair's gradient row, ``[p, dim]``, from the output gradient of each look-up."""
        dim = self.table.embedding_dim
        flat = [gradient.reshape(-1, dim) for gradient in output_gradients]
        flat = [g if kept is None else g[kept] for g, kept in zip(flat, self._kept, strict=True)]
        if self._pair_of_position is None:
            return flat[0] if flat else self.table.weight.new_empty(0, dim)
        sums = flat[0].new_zeros(len(self.example), dim)
        return sums.index_add_(0, self._pair_of_position, torch.cat(flat))
