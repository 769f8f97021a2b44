"""DLRM: an MLP of the numbers, products of all pairs of vectors, an MLP of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from dpfest.errors import UserError
from pipelines.system.ranges import Width, Within
from pipelines.tasks.click_model import ClickModel, ClickModelConfig, mlp


class DlrmModel(ClickModel):
    """Naumov et al., 2019, "Deep Learning Recommendation Model for Personalization and Recommendation Systems"."""

    pairs: Tensor

    def build(self, numeric: int, dims: Sequence[int], config: DlrmConfig) -> None:
        dim = dims[0]
        vectors = len(dims) + bool(numeric)
        if vectors < 2:
            raise UserError("model=dlrm multiplies pairs of vectors, and these data have one: choose model=pctr.")
        self.bottom = nn.Sequential(mlp(numeric, *config.bottom, dim), nn.ReLU()) if numeric else None
        rows, columns = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("pairs", rows * vectors + columns, persistent=False)
        self.top = mlp((dim if numeric else 0) + len(self.pairs), *config.top, 1)

    def logits(self, numeric: Tensor, embedded: Sequence[Tensor]) -> Tensor:
        of_numbers = [self.bottom(numeric)] if self.bottom else []
        vectors = torch.stack([*of_numbers, *embedded], dim=1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([*of_numbers, products], dim=1)).squeeze(1)


@dataclass
class DlrmConfig(ClickModelConfig):
    """Shape of DLRM; by default that of its authors for Criteo-Kaggle (dlrm_s_criteo_kaggle.sh of their repository).

    Attributes:
        dimension: of every table, and of the vector that the numbers become.
        bottom: width of each ReLU layer of the numbers, before one of ``dimension``.
        top: width of each ReLU layer of the products, before the logit.
        embedding_scale: standard deviation of the initial embeddings.
    """

    network: ClassVar[type[ClickModel]] = DlrmModel

    name: str = "dlrm"
    dimension: Width = 16
    bottom: list[Width] = field(default_factory=lambda: [512, 256, 64])
    top: list[Width] = field(default_factory=lambda: [512, 256])
    embedding_scale: Annotated[float, Within(0, 1e3)] = 0.05

    def columns(self, vocabulary: int) -> int:
        return self.dimension
