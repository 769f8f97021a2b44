"""LoRA on the embedding table, the baseline that the paper compares DP-AdaFEST with.

The table is frozen and what a row learns is ``a_row B``: the factor A ``[rows, r]`` is a table of its own, B
``[r, dim]`` a linear layer, and both are trained by plain DP-SGD.  The algorithm lives here and not with the others:
it is not about which rows survive, but about which model is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from dpfest.algorithms import DPSGD
from dpfest.tables import TableLayout


@dataclass(frozen=True)
class LoraEmbedding(DPSGD):
    """DP-SGD on two factors of low rank in the embedding's stead (Hu et al., 2022; Ghazi et al., 2023, section 4.3).

    Attributes:
        rank: r of the factors; a step noises ``r * (rows + dim)`` coordinates instead of ``rows * dim``.
    """

    name: str = "lora_embedding"
    rank: int = 16


@dataclass(frozen=True)
class EmbeddingSize:
    """What the size of an embedding gradient is reckoned by.

    Attributes:
        layout: the tables that are trained.
        whole: embedding parameters that these stand for; where nothing stands for others, all of the tables.
        beside: coordinates that every step noises beside the tables' surviving rows.
    """

    layout: TableLayout
    whole: int
    beside: int = 0

    def coordinates(self, rows_per_table: Sequence[float]) -> float:
        """Coordinates of the gradient with so many non-zero rows in each table."""
        return self.layout.coordinates_of(rows_per_table) + self.beside


class LowRankTable(nn.Module):
    """A frozen table and what is learnt beside it, at first nothing; a look-up gives ``[..., dim]``.

    Args:
        table: the embedding as it came.
        rank: of the factors.
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
        """The rows of ``ids``."""
        return self.table(ids) + self.second(self.first(ids))

    def size(self, layout: TableLayout) -> EmbeddingSize:
        """By which the gradient of the factors is reckoned."""
        return EmbeddingSize(layout, self.table.weight.numel(), self.second.weight.numel())
