"""Rows of clicks that lie on a GPU: batches are gathered there by the numbers of their examples."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipelines.data.rows import RowReader, Rows

_AT_ONCE = 1 << 18  # rows of a copy


class RowsOnGpu:
    """All rows of a reader, in a device's memory.

    Args:
        rows: the rows, without bags.
        device: where they are to lie.
    """

    def __init__(self, rows: RowReader, device: torch.device) -> None:
        shape: Rows = rows.gather(np.empty(0, np.int64))
        self._columns = [
            torch.empty(len(rows), *column.shape[1:], dtype=torch.from_numpy(column).dtype, device=device)
            for column in _columns(shape)
        ]
        first = 0
        for chunk in rows.chunks(_AT_ONCE):
            for place, column in zip(self._columns, _columns(chunk), strict=True):
                place[first : first + len(chunk)] = torch.from_numpy(column)
            first += len(chunk)

    @classmethod
    def of(cls, rows: RowReader, device: torch.device) -> RowsOnGpu | None:
        """Return the rows on a GPU; None on a CPU, with bags, and where they take more than half of what is free."""
        shape: Rows = rows.gather(np.empty(0, np.int64))
        size = len(rows) * sum(column.itemsize * int(np.prod(column.shape[1:])) for column in _columns(shape))
        return None if shape.bags or size > room(device) / 2 else cls(rows, device)

    def batch(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        """Return numbers ``[b, n]``, table rows ``[b, F]`` and labels ``[b]`` of the rows at ``indices``."""
        at = torch.from_numpy(indices).to(self._columns[0].device, non_blocking=True)
        numeric, categorical, labels = (column[at] for column in self._columns)
        return numeric, categorical.long(), labels


def room(device: torch.device) -> int:
    """Return a GPU's free memory in bytes; 0 on a CPU, which reads rows as quickly from where they are."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def _columns(rows: Rows) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
    return rows.numeric, rows.categorical, rows.labels
