"""The paper's click-through-rate model: 26 embeddings and 13 numbers into four hidden layers and one logit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from pipelines.system.ranges import Width, Within
from pipelines.tasks.click_model import ClickModel, ClickModelConfig, mlp


class PctrModel(ClickModel):
    """Ghazi et al., 2023, appendix D.1.1."""

    def build(self, numeric: int, dims: Sequence[int], config: PctrConfig) -> None:
        self.network = mlp(numeric + sum(dims), *config.hidden, 1)

    def logits(self, numeric: Tensor, embedded: Sequence[Tensor]) -> Tensor:
        return self.network(torch.cat([numeric, *embedded], dim=1)).squeeze(1)


@dataclass
class PctrConfig(ClickModelConfig):
    """Shape of the pCTR model.

    Attributes:
        hidden: width of each hidden ReLU layer; the paper has four of 598. Tables have dimension int(2 * V^0.25).
        embedding_scale: standard deviation of the initial embeddings.
    """

    network: ClassVar[type[ClickModel]] = PctrModel

    name: str = "pctr"
    hidden: list[Width] = field(default_factory=lambda: [598, 598, 598, 598])
    embedding_scale: Annotated[float, Within(0, 1e3)] = 0.05

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ValueError("model.hidden=[] must be a list of widths, one a layer")

    def columns(self, vocabulary: int) -> int:
        return embedding_dim(vocabulary)


def embedding_dim(vocabulary: int) -> int:
    """Return the paper's embedding dimension, ``int(2 * V ** 0.25)``."""
    return int(2 * vocabulary**0.25)
