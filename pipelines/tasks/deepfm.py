"""DeepFM: a factorisation machine and an MLP on the same embeddings, added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from pipelines.system.ranges import Width, Within
from pipelines.tasks.click_model import ClickModel, ClickModelConfig, mlp


class DeepfmModel(ClickModel):
    """Guo et al., 2017, "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction".

    The first column of a feature's table holds the first-order weights of its values, the others their vectors. In a
    table of its own each weight would be a second row of the same examples: DP-AdaFEST would count every example twice
    per feature, at √2 times the noise, and a selection could train one of the two without the other.

    Numbers have no vectors: they enter the first order and the MLP as they are. There is no dropout, in place of which
    private training has its noise.
    """

    def build(self, numeric: int, dims: Sequence[int], config: DeepfmConfig) -> None:
        self.first_order = nn.Linear(numeric, 1, bias=False) if numeric else None
        width = numeric + sum(dims) - len(dims)
        self.deep = mlp(width, *config.hidden, 1) if width else None

    def logits(self, numeric: Tensor, embedded: Sequence[Tensor]) -> Tensor:
        rows = torch.stack(list(embedded), dim=1)
        weights, vectors = rows[:, :, 0], rows[:, :, 1:]
        second_order = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        logits = weights.sum(1) + second_order
        if self.first_order:
            logits = logits + self.first_order(numeric).squeeze(1)
        if self.deep:
            logits = logits + self.deep(torch.cat([numeric, vectors.flatten(1)], dim=1)).squeeze(1)
        return logits


@dataclass
class DeepfmConfig(ClickModelConfig):
    """Shape of DeepFM; by default that of its authors.

    Attributes:
        dimension: of the vectors, beside which a table has a column of first-order weights.
        hidden: width of each hidden ReLU layer.
        embedding_scale: standard deviation of the initial embeddings and first-order weights.
    """

    network: ClassVar[type[ClickModel]] = DeepfmModel

    name: str = "deepfm"
    dimension: Width = 10
    hidden: list[Width] = field(default_factory=lambda: [400, 400, 400])
    embedding_scale: Annotated[float, Within(0, 1e3)] = 0.05

    def columns(self, vocabulary: int) -> int:
        return 1 + self.dimension
