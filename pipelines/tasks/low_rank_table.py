"""LoRA on the embedding table, the baseline that the paper compares DP-AdaFEST with.

The table is frozen; row i learns the update ``a_i B``, where the factor A ``[rows, r]`` is an embedding table and B
``[r, dim]`` a linear layer, both trained by plain DP-SGD.  The algorithm is defined here and not in
:mod:`dpfest.algorithms.rules` because it changes which model is trained, not which rows survive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from dpfest.algorithms.rules import DPSGD
from dpfest.gradients.tables import TableLayout


@dataclass(frozen=True)
class LoraEmbedding(DPSGD):
    """DP-SGD on two low-rank factors in place of the embedding (Hu et al., 2022; Ghazi et al., 2023, section 4.3).

    Attributes:
        rank: r, the rank of the factors; a step noises ``r * (rows + dim)`` coordinates instead of ``rows * dim``.
    """

    name: str = "lora_embedding"
    rank: int = 16


@dataclass(frozen=True)
class EmbeddingSize:
    """The quantities from which the size of an embedding gradient follows.

    Attributes:
        layout: the trained tables.
        whole: number of embedding parameters under DP-SGD, of which they are smaller forms; else their own.
        beside: coordinates that every step noises in addition to the tables' surviving rows.
    """

    layout: TableLayout
    whole: int
    beside: int = 0

    def coordinates(self, rows_per_table: Sequence[float]) -> float:
        """Return the coordinates of a gradient with these numbers of non-zero rows per table."""
        return self.layout.coordinates_of(rows_per_table) + self.beside


class LowRankTable(nn.Module):
    """A frozen table plus a learnt low-rank update, initially zero; a look-up returns ``[..., dim]``.

    Args:
        table: the embedding to freeze.
        rank: rank of the factors.
    """

    def __init__(self, table: nn.Embedding, rank: int) -> None:
        super().__init__()
        self.table = table.requires_grad_(False)
        self.first = nn.Embedding(table.num_embeddings, rank, table.padding_idx)
        self.second = nn.Linear(rank, table.embedding_dim, bias=False)
        nn.init.zeros_(self.first.weight)
        # E[B B^T] = 1: the first step moves a row as far, on average, as it would move the table itself.
        nn.init.normal_(self.second.weight, std=rank**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up the rows of ``ids``."""
        return self.table(ids) + self.second(self.first(ids))

    def size(self, layout: TableLayout) -> EmbeddingSize:
        """Return the size of the factors' gradient."""
        return EmbeddingSize(layout, self.table.weight.numel(), self.second.weight.numel())
