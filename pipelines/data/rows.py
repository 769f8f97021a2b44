"""Rows of several files as one, and a part of them; nothing is held in memory but the rows that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipelines.data.dataset import Rows


class ChunkedRows(Protocol):
    """Rows that can be read in order: :class:`Rows`, or another kind that the dataset's task knows."""

    def chunks(self, size: int) -> Iterator[Any]:
        """All rows in order, at most ``size`` at a time."""


class RowReader(ChunkedRows, Protocol):
    """Rows that can be gathered, too; :class:`pipelines.data.dataset.RowFile` is one."""

    def __len__(self) -> int: ...

    def gather(self, indices: NDArray[np.int64]) -> Any:
        """The rows at ``indices`` (shape [b]), which rise."""


class JoinedRows:
    """The rows of several files end to end.

    Args:
        files: at least one.
    """

    def __init__(self, files: Sequence[RowReader]) -> None:
        self._files = files
        self._starts = np.cumsum([0, *map(len, files)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def gather(self, indices: NDArray[np.int64]) -> Rows:
        """See :class:`RowReader`.

        Raises:
            IndexError: An index is len(self) or more.
        """
        cuts = np.searchsorted(indices, self._starts[1:-1])
        parts = zip(self._files, np.split(indices, cuts), self._starts[:-1], strict=True)
        return concatenated([file.gather(part - start) for file, part, start in parts if len(part)] or [self._none()])

    def chunks(self, size: int) -> Iterator[Rows]:
        """See :class:`ChunkedRows`."""
        for file in self._files:
            yield from file.chunks(size)

    def _none(self) -> Rows:
        return self._files[0].gather(np.empty(0, np.int64))


class PartOfRows:
    """Those rows that ``chosen`` picks (from n rows to bool [n]), to be read in order.

    Args:
        rows: all of them.
        chosen: a function of what each row holds, not of its number: else one row less would move the others.
    """

    def __init__(self, rows: ChunkedRows, chosen: Callable[[Rows], NDArray[np.bool_]]) -> None:
        self._rows, self._chosen = rows, chosen

    def chunks(self, size: int) -> Iterator[Rows]:
        """The rows in order, at most ``size`` at a time."""
        for rows in self._rows.chunks(size):
            if len(picked := rows.where(self._chosen(rows))):
                yield picked


def concatenated(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, in their order."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*((part.labels, part.days, part.numeric, part.categorical) for part in parts), strict=True)
    return Rows(*map(np.concatenate, columns))
