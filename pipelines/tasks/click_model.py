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

from dpfest.nn import Tables
from pipelines.tasks.smaller_tables import SmallerTables

Bag = tuple[Tensor, Tensor]
"""Of a feature with several values in a row, the table rows of all examples ``[m]``, and where each's begin ``[b]``."""


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
        bags: Sequence[str] = (),
    ) -> nn.Module:
        """Return the model with its initial weights; see :class:`ClickModel`."""
        return self.network(vocabularies, numeric, self, seed, smaller=smaller, whole=whole, bags=bags)


class ClickModel(nn.Module):
    """Tables, one for each feature and in their order, and a network.

    One table a feature, of whatever dimension: contributions, selections and reductions count its rows.

    Args:
        vocabularies: number of values of each categorical feature, those of bags last.
        numeric: number of numerical features, already transformed.
        config: shape of the model.
        seed: seed of the initial weights.
        smaller: what makes the tables smaller, whose rows then are shared; None for a row for each value.
        whole: False leaves the tables on the meta device, without memory and weights.
        bags: ``mean`` or ``sum`` for each feature with several values in a row.
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
        bags: Sequence[str] = (),
    ) -> None:
        super().__init__()
        shapes = [(size, config.columns(size)) for size in vocabularies]
        if smaller:
            shapes = smaller.shapes(shapes)
        self._rows = [rows if rows < size else None for (rows, _), size in zip(shapes, vocabularies, strict=True)]
        self.bags = list(bags)
        device, singles = None if whole else "meta", len(shapes) - len(bags)
        self.tables = Tables(nn.Embedding(*shape, device=device) for shape in shapes[:singles])
        for shape, mode in zip(shapes[singles:], bags, strict=True):
            self.tables.append(self.bag_table(*shape, mode, device))
        self.build(numeric, [dim for _, dim in shapes], config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for layer in self.modules():
                if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and whole:
                    layer.weight.normal_(0.0, config.embedding_scale, generator=generator)
                elif isinstance(layer, nn.Linear):
                    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
                    if layer.bias is not None:
                        layer.bias.zero_()

    def build(self, numeric: int, dims: Sequence[int], config: Any) -> None:
        """Make the layers besides the tables, which have these dimensions."""
        raise NotImplementedError

    def bag_table(self, rows: int, dim: int, mode: str, device: str | None) -> nn.Module:
        """Return the table of a feature with several values in a row."""
        return nn.EmbeddingBag(rows, dim, mode=mode, device=device)

    def embed_bag(self, number: int, table: Any, ids: Tensor, starts: Tensor) -> Tensor:
        """Return the embedding ``[b, dim]`` of bag feature ``number``, whose rows in its table begin at ``starts``."""
        return table(ids, starts)

    def logits(self, numeric: Tensor, embedded: Sequence[Tensor]) -> Tensor:
        """Return logits ``[b]`` of numbers ``[b, n]`` and the row ``[b, dim]`` of each feature."""
        raise NotImplementedError

    def forward(self, numeric: Tensor, categorical: Tensor, bags: Sequence[Bag] = ()) -> Tensor:
        """Return logits ``[b]`` of numbers ``[b, n]``, values ``[b, F]`` of the features, and bags."""
        columns, singles = categorical.unbind(1), len(self.tables) - len(self.bags)
        held = [
            ids if rows is None else ids % rows
            for ids, rows in zip([*columns, *(b[0] for b in bags)], self._rows, strict=True)
        ]
        embedded = self.tables[:singles](held[:singles])
        for number, (table, ids, (_, starts)) in enumerate(
            zip(self.tables[singles:], held[singles:], bags, strict=True)
        ):
            embedded.append(self.embed_bag(number, table, ids, starts))
        return self.logits(numeric, embedded)


def mlp(*widths: int) -> nn.Sequential:
    """Return linear layers between these widths, with ReLU between them."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
