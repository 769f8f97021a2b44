"""The interface of a reader of click logs.

A reader yields blocks of rows in one layout: a label, a day, n numbers, and the 64-bit keys of F categorical values
(13 and 26 in Criteo's logs; see :mod:`pipelines.data.hashing`). Splits, vocabularies and files are made from these
blocks in the same way for every format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipelines.data.clicks.bags import Lists
from pipelines.data.source import Progress, RefusedRows


@dataclass(frozen=True)
class RowBlock:
    """n consecutive rows of one source file.

    Each row is a function of its own line and of public tables; no other line changes it.

    Attributes:
        content: Hash of each line's content, see :func:`pipelines.data.hashing.line_content`, shape [n].
        day: Day of each row, shape [n].
        label: 0 or 1, shape [n].
        numeric: Transformed numeric features, shape [n, numbers].
        keys: Keys of the categorical values, shape [n, F].
        units: Identifier of each row's unit, shape [n], by each column that may be the unit of privacy.
        lists: Keys of features with several values in a row, a feature each.
        part: Place of each row's split among those of the dataset, shape [n], where the source says it; None for splits
            by content.
    """

    content: NDArray[np.uint64]
    day: NDArray[np.int32]
    label: NDArray[np.float32]
    numeric: NDArray[np.float32]
    keys: NDArray[np.uint64]
    units: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    lists: Sequence[Lists] = ()
    part: NDArray[np.int64] | None = None

    def keys_of(self, chosen: NDArray[np.bool_]) -> list[NDArray[np.uint64]]:
        """Return the keys of each feature in chosen rows, those of one row once; lists are the last features."""
        return [*self.keys[chosen].T, *(one.distinct_keys(chosen) for one in self.lists)]


class RowSource(Protocol):
    """A source of rows; each call of ``blocks`` reads everything anew.

    Features with several values in a row are the last of its ``categorical_names`` and ``published_sizes``.
    """

    numeric_names: tuple[str, ...]
    categorical_names: tuple[str, ...]
    numeric_transform: str
    published_sizes: tuple[int, ...]

    @property
    def rejected(self) -> RefusedRows:
        """Malformed rows in the latest complete reading."""

    @property
    def excluded(self) -> RefusedRows:
        """Well-formed rows without a label, which are no examples, in the latest complete reading."""

    def files(self) -> list[dict[str, Any]]:
        """Return path, size in bytes and SHA-256 of every file of the latest complete reading."""

    def blocks(self, progress: Progress) -> Iterator[RowBlock]:
        """Yield all rows in order, a bounded number at a time."""
