"""One numbering for the rows of all embedding tables.

The contribution map, the mask, the selection and the noise speak of *rows of the model*, not of tables: table ``t``'s
local row ``r`` is global row ``offsets[t] + r``.  The order is that of ``model.named_modules()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class TableLayout:
    """The embedding tables of a model, in order.

    Args:
        names: name of each table.
        rows: rows (vocabulary size) of each table.
        dims: embedding dimension of each table.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    dims: tuple[int, ...]

    @property
    def offsets(self) -> tuple[int, ...]:
        """First global row of each table, and the total after the last: length ``tables + 1``."""
        return (0, *np.cumsum(self.rows, dtype=np.int64).tolist())

    @property
    def total_rows(self) -> int:
        """Rows over all tables, the paper's ``c``."""
        return sum(self.rows)

    @property
    def coordinates(self) -> int:
        """Embedding parameters over all tables."""
        return sum(rows * dim for rows, dim in zip(self.rows, self.dims, strict=True))

    def split(self, rows: Tensor) -> list[Tensor]:
        """Cut sorted global rows ``[s]`` into each table's sorted local rows."""
        offsets = self.offsets
        bounds = torch.searchsorted(rows, torch.tensor(offsets, device=rows.device)).tolist()
        pieces = zip(bounds[:-1], bounds[1:], offsets[:-1], strict=True)
        return [rows[low:high] - offset for low, high, offset in pieces]

    def coordinates_of(self, rows_per_table: Sequence[float]) -> float:
        """Coordinates of a gradient that has so many non-zero rows in each table."""
        return float(sum(rows * dim for rows, dim in zip(rows_per_table, self.dims, strict=True)))
