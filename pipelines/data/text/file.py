"""A file of labelled texts in any format: the columns read, and the handling of malformed rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from dpfest.errors import UserError
from pipelines.data.source import BadLineError, Progress, RefusedRows

Row = TypeVar("Row")
"""A row in the form of its file format."""


@dataclass(frozen=True)
class TextColumns:
    """The columns of an example: one text or two, and the values of the label column (numbered from 0).

    Attributes:
        only: a column and the value that it has in rows to read; other rows (of other languages, say) are skipped.
    """

    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    only: tuple[str, str] | None = None


@dataclass(frozen=True)
class LabelledText:
    """An example: its text or pair of texts, and its label."""

    texts: tuple[str, ...]
    label: int


class TextFile(ABC, Generic[Row]):
    """The examples of one file.

    Args:
        path: the file.
        columns: the columns to read.
        on_bad_row: ``stop`` or ``skip``.

    Attributes:
        unit, first: name of a row of this kind of file, and the number of the first one.
        rejected: malformed rows of the latest reading.
        read: path, size and SHA-256 of the file in the latest reading.
    """

    unit: ClassVar[str]
    first: ClassVar[int]

    def __init__(self, path: Path, columns: TextColumns, on_bad_row: str) -> None:
        self.path, self.columns, self._on_bad_row = path, columns, on_bad_row
        self.rejected = RefusedRows()
        self.read: dict[str, Any] = {}

    def examples(self, progress: Progress) -> Iterator[LabelledText]:
        """Yield all examples in order, reporting bytes to ``progress``.

        Raises:
            UserError: the file is missing, has another format, or has a malformed row under ``stop``.
        """
        self.rejected = RefusedRows()
        for number, row in enumerate(self._rows(progress)):
            try:
                texts, label = self._parse(row)
                if not all(text.strip() for text in texts):
                    raise BadLineError("empty text", "a text is empty")
            except BadLineError as error:
                self._judge(error, number)
                continue
            if texts:
                yield LabelledText(texts, label)

    @abstractmethod
    def _rows(self, progress: Progress) -> Iterator[Row]:
        """Yield the rows of the file; sets ``read`` at the end."""

    @abstractmethod
    def _parse(self, row: Row) -> tuple[tuple[str, ...], int]:
        """Return texts and label of a row, without text if it is to be skipped; raises BadLineError."""

    def _was_read(self, size: int, sha256: str) -> None:
        self.read = {"path": str(self.path.absolute()), "bytes": size, "sha256": sha256}

    def _judge(self, error: BadLineError, number: int) -> None:
        place = f"{self.path}, {self.unit} {number + self.first}: {error}"
        if self._on_bad_row == "stop":
            raise UserError(
                f"{place}. Correct the file, or set data.on_bad_row=skip to leave out and count such {self.unit}s."
            )
        self.rejected.add(error.reason, place)
