"""Rows as training reads them: fixed-width records of clicks or texts on disk, possibly in several files.

Only the requested rows are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

NUMERIC_FEATURES = 13
CATEGORICAL_FEATURES = 26
"""Numbers of features of Criteo's logs."""


NO_ROW = -1
"""What fills up a bag in a record, after its last row."""


def click_record(numeric: int, categorical: int, bags: Sequence[int] = ()) -> np.dtype[Any]:
    """Return the record type of a click with these numbers of features, and bags of at most so many rows."""
    return np.dtype(
        [
            *[("label", "<f4"), ("day", "<i4"), ("numeric", "<f4", (numeric,)), ("categorical", "<i4", (categorical,))],
            *((f"bag_{number}", "<i4", (most,)) for number, most in enumerate(bags)),
        ]
    )


RECORD = click_record(NUMERIC_FEATURES, CATEGORICAL_FEATURES)
"""The record type of Criteo's logs."""


def text_record(max_length: int) -> np.dtype[Any]:
    """Return the record type of a text of at most ``max_length`` tokens."""
    return np.dtype([("label", "<i4"), ("length", "<i4"), ("ids", "<i4", (max_length,))])


def fields_of(record: np.dtype[Any]) -> list[dict[str, Any]]:
    """Return the fields of a record type as dataset.json lists them: name, little-endian type and shape."""
    assert record.fields is not None
    described = []
    for name, (kind, *_) in record.fields.items():
        described.append({"name": name, "dtype": kind.base.str, "shape": list(kind.shape)})
    return described


@dataclass(frozen=True)
class Rows:
    """b clicks: labels (0 or 1) and days of shape [b], numeric features [b, n], table rows [b, F].

    Bags are of shape [b, most], a feature each: distinct table rows, then :data:`NO_ROW`.
    """

    labels: NDArray[np.float32]
    days: NDArray[np.int32]
    numeric: NDArray[np.float32]
    categorical: NDArray[np.int32]
    bags: tuple[NDArray[np.int32], ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, records: NDArray[Any]) -> Rows:
        """Copy the fields, each contiguous and writable."""
        # np.ascontiguousarray does not copy a single row, which would expose the read-only file.
        label, day, numeric, categorical, *bags = (np.array(records[name]) for name in records.dtype.names or ())
        return cls(label, day, numeric, categorical, tuple(bags))

    def where(self, mask: NDArray[np.bool_] | NDArray[np.int64]) -> Rows:
        """Return the rows at which ``mask``, of shape [b], is true, or those at these places."""
        bags = tuple(bag[mask] for bag in self.bags)
        return Rows(self.labels[mask], self.days[mask], self.numeric[mask], self.categorical[mask], bags)

    def counted(self, feature: int, most: int) -> NDArray[np.int32]:
        """Return the table rows of a feature in every example, concatenated; of a bag its first ``most``.

        Bags are the last features. Another feature has one row in an example, so that ``most`` has no effect.
        """
        singles = self.categorical.shape[1]
        if feature < singles:
            return self.categorical[:, feature]
        bag = self.bags[feature - singles][:, :most]
        return bag[bag != NO_ROW]

    def values(self) -> list[NDArray[np.int64]]:
        """Return what a model sees of each row, as columns of whole numbers ``[b]``; bags in their order."""
        numeric = self.numeric.astype(np.float64).view(np.int64)
        return [
            *numeric.T,
            *self.categorical.T.astype(np.int64),
            *(c for bag in self.bags for c in bag.T.astype(np.int64)),
        ]

    def flat_bags(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Return of each bag feature the table rows of all examples [m], and where each example's begin [b]."""
        flat = []
        for bag in self.bags:
            held = bag != NO_ROW
            lengths = held.sum(1)
            flat.append((bag[held].astype(np.int64), np.cumsum(lengths) - lengths))
        return flat


@dataclass(frozen=True)
class TextRows:
    """b texts: labels (0, 1, …) and lengths of shape [b], token ids of shape [b, max_length].

    Ids beyond a text's length are padding.
    """

    labels: NDArray[np.int32]
    lengths: NDArray[np.int32]
    ids: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, records: NDArray[Any]) -> TextRows:
        """Copy the three fields, each contiguous and writable."""
        return cls(*(np.array(records[name]) for name in ("label", "length", "ids")))

    def counted(self, feature: int, most: int) -> NDArray[np.int32]:
        """Return the first ``most`` distinct tokens of every text, concatenated; a text is one feature."""
        example, place = np.nonzero(np.arange(self.ids.shape[1]) < self.lengths[:, None])
        tokens = self.ids[example, place]
        first = first_distinct(example, tokens)
        per_text = np.bincount(example[first], minlength=len(self))
        rank = np.arange(len(first)) - np.repeat(np.cumsum(per_text) - per_text, per_text)
        return tokens[first[rank < most]]


class RowFile:
    """The records of one split on disk, read as :class:`Rows`, or as :class:`TextRows` if the records are texts.

    Both are Any to the type checker: a dataset's task knows which of them it reads.
    """

    def __init__(self, path: Path, rows: int, record: np.dtype[Any]) -> None:
        self._rows: type[Any] = TextRows if "ids" in (record.names or ()) else Rows
        # An empty file cannot be mapped.
        self._records = np.memmap(path, dtype=record, mode="r", shape=(rows,)) if rows else np.empty(0, record)

    def __len__(self) -> int:
        return len(self._records)

    def gather(self, indices: NDArray[np.integer[Any]]) -> Any:
        """Return the rows at ``indices`` (shape [b], 0..len-1), in that order; increasing order reads the disk fastest.

        Raises:
            IndexError: An index is len(self) or more.
        """
        return self._rows.of(self._records[indices])

    def chunks(self, size: int) -> Iterator[Any]:
        """Yield all rows in order, ``size`` at a time (the last chunk may be shorter)."""
        for start in range(0, len(self), size):
            yield self._rows.of(self._records[start : start + size])


class ChunkedRows(Protocol):
    """Rows that can be read in order: :class:`Rows` or :class:`TextRows`."""

    def chunks(self, size: int) -> Iterator[Any]:
        """Yield all rows in order, at most ``size`` at a time."""


class RowReader(ChunkedRows, Protocol):
    """Rows that can also be gathered by index, such as :class:`RowFile`."""

    def __len__(self) -> int: ...

    def gather(self, indices: NDArray[np.int64]) -> Any:
        """Return the rows at ``indices``, shape [b], in that order."""


class JoinedRows:
    """The rows of several files, concatenated.

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
        order = np.argsort(indices, kind="stable")
        indices = indices[order]
        cuts = np.searchsorted(indices, self._starts[1:-1])
        parts = zip(self._files, np.split(indices, cuts), self._starts[:-1], strict=True)
        rows = concatenated([file.gather(part - start) for file, part, start in parts if len(part)] or [self._none()])
        return rows if (np.diff(order) == 1).all() else rows.where(np.argsort(order))

    def chunks(self, size: int) -> Iterator[Rows]:
        for file in self._files:
            yield from file.chunks(size)

    def _none(self) -> Rows:
        return self._files[0].gather(np.empty(0, np.int64))


class PartOfRows:
    """The subset of rows that a predicate selects, in order.

    Args:
        rows: all rows.
        chosen: maps n rows to bool [n]. It must depend on each row's content and not on its number: otherwise removing
            one row would move others into or out of the subset.
    """

    def __init__(self, rows: ChunkedRows, chosen: Callable[[Rows], NDArray[np.bool_]]) -> None:
        self._rows, self._chosen = rows, chosen

    def chunks(self, size: int) -> Iterator[Rows]:
        """Yield the rows in order, at most ``size`` at a time."""
        for rows in self._rows.chunks(size):
            if len(picked := rows.where(self._chosen(rows))):
                yield picked


class CountedRows:
    """The rows of another reader, with the number of rows read so far in ``count``."""

    def __init__(self, rows: ChunkedRows) -> None:
        self._rows, self.count = rows, 0

    def chunks(self, size: int) -> Iterator[Any]:
        """See :class:`ChunkedRows`."""
        for rows in self._rows.chunks(size):
            self.count += len(rows)
            yield rows


def first_distinct(example: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the places at which a value occurs for the first time in its example, increasing.

    Args:
        example: of each value, shape [m].
        values: integers, shape [m].
    """
    order = np.lexsort((values, example))  # stable: of equal ones, the first comes first
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(example[order]) != 0) | (values[order][1:] != values[order][:-1])
    return np.sort(order[new])


def concatenated(parts: Sequence[Rows]) -> Rows:
    """Concatenate the rows of all parts."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*((part.labels, part.days, part.numeric, part.categorical) for part in parts), strict=True)
    labels, days, numeric, categorical = map(np.concatenate, columns)
    bags = zip(*(part.bags for part in parts), strict=True)
    return Rows(labels, days, numeric, categorical, tuple(map(np.concatenate, bags)))
