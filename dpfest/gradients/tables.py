"""Global numbering of the rows of all embedding tables.

The contribution map, the mask, the selection and the noise are defined over *rows of the model*, not of tables: table
``t``'s local row ``r`` is global row ``offsets[t] + r``. The order is that of ``model.named_modules()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

Table = nn.Embedding | nn.EmbeddingBag
PLAIN: set[type[nn.Module]] = {nn.Embedding, nn.EmbeddingBag}
"""Types of tables whose look-ups are PyTorch's own; :mod:`dpfest.ranks` adds its own. A subclass may look up in another
way."""


@dataclass(frozen=True)
class TableLayout:
    """The embedding tables of a model, in order: name, rows (vocabulary size) and dimension of each."""

    names: tuple[str, ...]
    rows: tuple[int, ...]
    dims: tuple[int, ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First global row of each table, and the total at the end: length ``tables + 1``."""
        return (0, *np.cumsum(self.rows, dtype=np.int64).tolist())

    @cached_property
    def starts(self) -> Tensor:
        """The offsets as a tensor, int64 ``[tables + 1]``."""
        return torch.tensor(self.offsets)

    @property
    def total_rows(self) -> int:
        """Number of rows over all tables, the paper's ``c``."""
        return sum(self.rows)

    @property
    def coordinates(self) -> int:
        """Number of embedding parameters over all tables."""
        return sum(rows * dim for rows, dim in zip(self.rows, self.dims, strict=True))

    def coordinates_of(self, rows_per_table: Sequence[float]) -> float:
        """Return the number of coordinates of a gradient with so many non-zero rows in each table."""
        return float(sum(rows * dim for rows, dim in zip(rows_per_table, self.dims, strict=True)))


class Survivors:
    """The rows that survive a step: sorted distinct global ``rows [s]``, or None for every row.

    Attributes:
        local: each table's surviving local rows, sorted, or None for all of them.
        bounds: rank of each table's first survivor among all, and the total at the end: length ``tables + 1``.
        shapes: shape of each table's gradient.
    """

    def __init__(self, layout: TableLayout, rows: Tensor | None) -> None:
        self.rows = rows
        if rows is None:
            self.local: list[Tensor | None] = [None] * len(layout.rows)
            self.bounds = list(layout.offsets)
        else:
            starts = layout.starts.to(rows.device)
            self.bounds = torch.searchsorted(rows, starts).tolist()
            counts = torch.tensor(self.bounds).diff().to(rows.device)
            offsets = starts[:-1].repeat_interleave(counts, output_size=len(rows))
            self.local = [*(rows - offsets).tensor_split(self.bounds[1:-1])[: len(layout.rows)]]
        self.shapes = [(high - low, dim) for (low, high), dim in zip(pairwise(self.bounds), layout.dims, strict=True)]

    def find(self, rows: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return which global ``rows [n]`` survive (indices ``[k]``, None for all), and their ranks among survivors."""
        if self.rows is None:
            return None, rows
        if self.rows is rows:
            return None, torch.arange(len(rows), device=rows.device)
        position, survives = locate(self.rows, rows)
        kept = torch.nonzero(survives).squeeze(1)
        return kept, position[kept]


def locate(rows: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of ``wanted`` in sorted distinct ``rows``, and whether each one is present."""
    if len(rows) == 0:
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    position = torch.searchsorted(rows, wanted).clamp_max(len(rows) - 1)
    return position, rows[position] == wanted


def ascending(keys: Tensor, sizes: Sequence[int] = ()) -> Tensor:
    """Return integers ``[n]`` sorted.

    Args:
        keys: the integers.
        sizes: lengths of consecutive parts, together n, of which each lies above the one before; () for one part.
    """
    if keys.device.type != "cpu":
        return keys.sort().values
    # numpy's integer sort is vectorised: up to five times as fast as torch's. Short parts take less than one long one.
    if len(sizes) < 2:
        return torch.from_numpy(np.sort(keys.numpy()))
    array = keys.numpy().copy()
    for part in np.split(array, np.cumsum(sizes[:-1])):
        part.sort()
    return torch.from_numpy(array)


def parameter_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the trainable parameters of a model as (dense, tables), one list for each optimiser."""
    layers = [module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    tables: dict[int, nn.Parameter] = {id(t.weight): t.weight for t in layers if t.weight.requires_grad}  # type: ignore[misc]
    dense = [p for p in model.parameters() if p.requires_grad and id(p) not in tables]
    return dense, list(tables.values())
