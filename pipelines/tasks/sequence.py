"""A click model that reads lists in their order: self-attention over what they hold, an MLP of its end and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from dpfest.errors import UserError
from pipelines.system.ranges import Count, Width, Within
from pipelines.tasks.attention import CausalAttention, waves
from pipelines.tasks.click_model import ClickModel, ClickModelConfig, mlp


class SequenceModel(ClickModel):
    """After Kang and McAuley, 2018, "Self-Attentive Sequential Recommendation" (SASRec), as a part of a click model.

    Each list goes through blocks of causal self-attention of its own; the state at its last value is its embedding,
    zeros for an empty list. Positions are sines and cosines (Vaswani et al., 2017), normalisation comes first in a
    block, and there is no dropout, in place of which private training has its noise. A list's table pads with its last
    row, which no look-up counts: a value that falls on it shares the row before.
    """

    positions: Tensor

    def build(self, numeric: int, dims: Sequence[int], config: SequenceConfig) -> None:
        if not self.bags:
            raise UserError(
                "model=sequence reads columns of lists, and these data have none: name one under data.categorical, as "
                "in {genres: {rows: 512, most: 16}}, or choose model=pctr."
            )
        self.length = config.length
        self.encoders = nn.ModuleList(CausalAttention(config.dimension, config.heads, config.blocks) for _ in self.bags)
        self.network = mlp(numeric + sum(dims), *config.hidden, 1)
        self.register_buffer("positions", waves(config.length, config.dimension), persistent=False)

    def bag_table(self, rows: int, dim: int, mode: str, device: str | None) -> nn.Module:
        return nn.Embedding(rows, dim, padding_idx=rows - 1, device=device)

    def embed_bag(self, number: int, table: Any, ids: Tensor, starts: Tensor) -> Tensor:
        padding = table.num_embeddings - 1
        held = torch.diff(starts, append=starts.new_tensor([len(ids)]))
        lengths = held.clamp(max=self.length)
        place = torch.arange(self.length, device=ids.device)
        real = place < lengths[:, None]
        at = torch.where(real, (starts + held - lengths)[:, None] + place, len(ids))
        values = torch.cat([ids.clamp(max=max(padding - 1, 0)), ids.new_tensor([padding])])[at]
        state = (table(values) + self.positions.to(table.weight.dtype)) * real[..., None]
        state = self.encoders[number](state, real)
        last = state[torch.arange(len(starts), device=ids.device), (lengths - 1).clamp(min=0)]
        return last * (lengths > 0)[:, None]

    def logits(self, numeric: Tensor, embedded: Sequence[Tensor]) -> Tensor:
        return self.network(torch.cat([numeric, *embedded], dim=1)).squeeze(1)


@dataclass
class SequenceConfig(ClickModelConfig):
    """Shape of the model of lists; dimension, blocks and heads by default those of SASRec.

    Attributes:
        dimension: of every table; a multiple of ``heads``.
        length: values of a list that are read, its last ones.
        blocks: of self-attention.
        heads: of self-attention.
        hidden: width of each hidden ReLU layer after it.
        embedding_scale: standard deviation of the initial embeddings.
    """

    network: ClassVar[type[ClickModel]] = SequenceModel

    name: str = "sequence"
    dimension: Width = 50
    length: Count = 50
    blocks: Count = 2
    heads: Count = 1
    hidden: list[Width] = field(default_factory=lambda: [128, 128])
    embedding_scale: Annotated[float, Within(0, 1e3)] = 0.05

    def __post_init__(self) -> None:
        if self.dimension % self.heads:
            raise ValueError(f"model.dimension={self.dimension} must be a multiple of model.heads={self.heads}")

    def columns(self, vocabulary: int) -> int:
        return self.dimension
