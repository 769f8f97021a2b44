"""What a dataset's reader must offer, whatever its files look like.

A reader yields blocks of rows in one layout: a label, a day, 13 numbers, and the 64-bit keys of 26
categorical values (see :mod:`pipelines.data.hashing`). Splits, vocabularies and files are made from the
blocks, alike for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

NUMERIC_FEATURES = 13
CATEGORICAL_FEATURES = 26

Progress = Callable[[int, int], None]
"""Called with (work done, work in all), both in bytes of the source."""


@dataclass(frozen=True)
class RowBlock:
    """Some consecutive rows of one source file, n of them.

    Each row follows from its own line and from public tables; no other line changes it.

    Attributes:
        content: What each line says, see :func:`pipelines.data.hashing.line_content`, shape [n].
        day: Day of each row, shape [n].
        label: 0 or 1, shape [n].
        numeric: Transformed numeric features, shape [n, 13].
        keys: Keys of the categorical values, shape [n, 26].
    """

    content: NDArray[np.uint64]
    day: NDArray[np.int32]
    label: NDArray[np.float32]
    numeric: NDArray[np.float32]
    keys: NDArray[np.uint64]


@dataclass
class RefusedRows:
    """Rows of the source that are not in the dataset, counted by reason, the first few named by place."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    def add(self, reason: str, example: str | None = None, count: int = 1) -> None:
        """Count rows that were left out for ``reason``; ``example`` names one (the first ten are kept)."""
        self.counts[reason] = self.counts.get(reason, 0) + count
        if example is not None and len(self.examples) < 10:
            self.examples.append(example)

    def merge(self, others: RefusedRows) -> None:
        """Count those of another file, too."""
        for reason, count in others.counts.items():
            self.add(reason, count=count)
        self.examples = [*self.examples, *others.examples][:10]

    def as_json(self) -> dict[str, Any]:
        """Total, counts by reason, and the examples, for dataset.json."""
        return {"total": sum(self.counts.values()), "by_reason": self.counts, "first": self.examples}


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
