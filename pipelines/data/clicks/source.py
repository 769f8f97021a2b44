"""What a reader of click logs offers, whatever its files look like.

A reader yields blocks of rows in one layout: a label, a day, n numbers, and the 64-bit keys of F
categorical values (Criteo's logs: 13 and 26; see
:mod:`pipelines.data.hashing`). Splits, vocabularies and files are made from the
blocks, alike for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipelines.data.source import Progress, RefusedRows


@dataclass(frozen=True)
class RowBlock:
    """Some consecutive rows of one source file, n of them.

    Each row follows from its own line and from public tables; no other line changes it.

    Attributes:
        content: What each line says, see :func:`pipelines.data.hashing.line_content`, shape [n].
        day: Day of each row, shape [n].
        label: 0 or 1, shape [n].
        numeric: Transformed numeric features, shape [n, numbers].
        keys: Keys of the categorical values, shape [n, F].
    """

    content: NDArray[np.uint64]
    day: NDArray[np.int32]
    label: NDArray[np.float32]
    numeric: NDArray[np.float32]
    keys: NDArray[np.uint64]


class RowSource(Protocol):
    """A readable source of rows; ``blocks`` may be called again to read everything once more."""

    numeric_names: tuple[str, ...]
    categorical_names: tuple[str, ...]
    numeric_transform: str
    published_sizes: tuple[int, ...]

    @property
    def rejected(self) -> RefusedRows:
        """Malformed rows met by the latest complete reading."""

    @property
    def excluded(self) -> RefusedRows:
        """Well-formed rows that are no examples (they have no label), in the latest complete reading."""

    def files(self) -> list[dict[str, Any]]:
        """Path, size in bytes and SHA-256 of every file of the latest complete reading."""

    def blocks(self, progress: Progress) -> Iterator[RowBlock]:
        """All rows in order, a bounded number at a time."""
