"""The paper's click-through-rate model: 26 embeddings and 13 numbers into four hidden layers and one logit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from pipelines.system.ranges import Width, Within
from pipelines.tasks.smaller_tables import SmallerTables


@dataclass
class PctrConfig:
    """Shape of the pCTR model.

    Attributes:
        hidden: width of each hidden ReLU layer; the paper has four of 598. Tables have dimension int(2 * V^0.25).
        embedding_scale: standard deviation of the initial embeddings.
    """

    task: ClassVar[str] = "clicks"

    name: str = "pctr"
    hidden: list[Width] = field(default_factory=lambda: [598, 598, 598, 598])
    embedding_scale: Annotated[float, Within(0, 1e3)] = 0.05

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ValueError("model.hidden=[] must be a list of widths, one a layer")

    def identity(self) -> dict[str, Any]:
        """Return what determines the initial model."""
        return asdict(self)


Bag = tuple[Tensor, Tensor]
"""Of a feature with several values in a row, the table rows of all examples ``[m]``, and where each's begin ``[b]``."""


def embedding_dim(vocabulary: int) -> int:
    """Return the paper's embedding dimension, ``int(2 * V ** 0.25)``."""
    return int(2 * vocabulary**0.25)


class PctrModel(nn.Module):
    """Ghazi et al., 2023, appendix D.1.1.

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
        config: PctrConfig,
        seed: int,
        *,
        smaller: SmallerTables | None = None,
        whole: bool = True,
        bags: Sequence[str] = (),
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shapes = [(size, embedding_dim(size)) for size in vocabularies]
        if smaller:
            shapes = smaller.shapes(shapes)
        self._rows = [rows if rows < size else None for (rows, _), size in zip(shapes, vocabularies, strict=True)]
        device, singles = None if whole else "meta", len(shapes) - len(bags)
        tables: list[nn.Embedding | nn.EmbeddingBag] = [
            nn.Embedding(*shape, device=device) for shape in shapes[:singles]
        ]
        tables += [
            nn.EmbeddingBag(*shape, mode=mode, device=device)
            for shape, mode in zip(shapes[singles:], bags, strict=True)
        ]
        self.tables = nn.ModuleList(tables)
        width = numeric + sum(dim for _, dim in shapes)
        layers: list[nn.Module] = []
        for hidden in config.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        self.network = nn.Sequential(*layers, nn.Linear(width, 1))
        with torch.no_grad():
            for table in tables if whole else ():
                table.weight.normal_(0.0, config.embedding_scale, generator=generator)
            for layer in self.network:
                if isinstance(layer, nn.Linear):
                    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
                    layer.bias.zero_()

    def forward(self, numeric: Tensor, categorical: Tensor, bags: Sequence[Bag] = ()) -> Tensor:
        """Return logits ``[b]`` of numbers ``[b, 13]``, bucket ids ``[b, 26]`` and bags."""
        looked_up = [(column,) for column in categorical.unbind(1)] + [tuple(bag) for bag in bags]
        embedded = [
            table(ids if rows is None else ids % rows, *offsets)
            for table, rows, (ids, *offsets) in zip(self.tables, self._rows, looked_up, strict=True)
        ]
        return self.network(torch.cat([numeric, *embedded], dim=1)).squeeze(1)
