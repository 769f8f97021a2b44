"""What click models share: a table for each feature, the MLP, initial weights by one generator.

A model is a config dataclass, which is its entry in the configuration, and a network on what the tables give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pipelines.tasks.smaller_tables import SmallerTables


class ClickModelConfig:
    """Base of the configurations of click models, which are dataclasses.

    Attributes:
        name: as in ``model=...``.
        network: the model that it configures.
        embedding_scale: standard deviation of the initial embeddings.
    """

    task: ClassVar[str] = "clicks"
    network: ClassVar[type[ClickModel]]
    name: str
    embedding_scale: float

    def identity(self) -> dict[str, Any]:
        """Return what determines the initial model."""
        return asdict(self)  # type: ignore[call-overload]

    def columns(self, vocabulary: int) -> int:
        """Return the dimension of the table of a feature with so many values."""
        raise NotImplementedError

    def make(
        self,
        vocabularies: Sequence[int],
        numeric: int,
        seed: int,
        *,
        smaller: SmallerTables | None = None,
        whole: bool = True,
    ) -> nn.Module:
        """Return the model with its initial weights; see :class:`ClickModel`."""
        return self.network(vocabularies, numeric, self, seed, smaller=smaller, whole=whole)


class ClickModel(nn.Module):
    """Tables, one for each feature and in their order, and a network.

    One table a feature, of whatever dimension: contributions, selections and reductions count its rows.

    Args:
        vocabularies: number of values of each categorical feature.
        numeric: number of numerical features, already transformed.
        config: shape of the model.
        seed: seed of the initial weights.
        smaller: what makes the tables smaller, whose rows then are shared; None for a row for each value.
        whole: False leaves the tables on the meta device, without memory and weights.
    """

    def __init__(
        self,
        vocabularies: Sequence[int],
        numeric: int,
        config: Any,
        seed: int,
        *,
        smaller: SmallerTables | None = None,
        whole: bool = True,
    ) -> None:
        super().__init__()
        shapes = [(size, config.columns(size)) for size in vocabularies]
        if smaller:
            shapes = smaller.shapes(shapes)
        self._rows = [rows if rows < size else None for (rows, _), size in zip(shapes, vocabularies, strict=True)]
        self.tables = nn.ModuleList(nn.Embedding(*shape, device=None if whole else "meta") for shape in shapes)
        self.build(numeric, [dim for _, dim in shapes], config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for layer in self.modules():
                if isinstance(layer, nn.Embedding) and whole:
                    layer.weight.normal_(0.0, config.embedding_scale, generator=generator)
                elif isinstance(layer, nn.Linear):
                    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
                    if layer.bias is not None:
                        layer.bias.zero_()

    def build(self, numeric: int, dims: Sequence[int], config: Any) -> None:
        """Make the layers besides the tables, which have these dimensions."""
        raise NotImplementedError

    def logits(self, numeric: Tensor, embedded: Sequence[Tensor]) -> Tensor:
        """Return logits ``[b]`` of numbers ``[b, n]`` and the row ``[b, dim]`` of each feature."""
        raise NotImplementedError

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Return logits ``[b]`` of numbers ``[b, n]`` and values ``[b, F]`` of the features."""
        values = [
            column if rows is None else column % rows
            for column, rows in zip(categorical.unbind(1), self._rows, strict=True)
        ]
        return self.logits(numeric, [table(column) for table, column in zip(self.tables, values, strict=True)])


def mlp(*widths: int) -> nn.Sequential:
    """Return linear layers between these widths, with ReLU between them."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
