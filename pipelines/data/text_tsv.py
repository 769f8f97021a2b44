"""Labelled texts in the TSV files of GLUE and XNLI: a line of column names, then one example a line, never quoted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.data.criteo_lines import BadLineError
from pipelines.data.source import Progress, RefusedRows


@dataclass(frozen=True)
class TsvFormat:
    """Which columns hold an example: one text or two, and what the label column may say (labels count from 0).

    Attributes:
        only: a column and what it must say of a line that is read; others are of another language, say.
    """

    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    only: tuple[str, str] | None = None


@dataclass(frozen=True)
class LabelledText:
    """An example: the number of its line after the column names, from 0; its text or pair of texts; its label."""

    row: int
    texts: tuple[str, ...]
    label: int


class TsvFile:
    """The examples of one file.

    Args:
        path: the file.
        columns: what is read of it.
        on_bad_row: ``stop`` or ``skip``.

    Attributes:
        rejected: malformed lines met by the latest reading.
        read: path, size and SHA-256 of the file as it was read last.
    """

    def __init__(self, path: Path, columns: TsvFormat, on_bad_row: str) -> None:
        self.path, self._format, self._on_bad_row = path, columns, on_bad_row
        self.rejected = RefusedRows()
        self.read: dict[str, Any] = {}

    def examples(self, progress: Progress) -> Iterator[LabelledText]:
        """All examples in order; ``progress`` is told of bytes.

        Raises:
            UserError: the file is not there, is not of the format, or has a malformed line under ``stop``.
        """
        self.rejected, digest, done = RefusedRows(), hashlib.sha256(), 0
        try:
            total = self.path.stat().st_size
            with self.path.open("rb") as lines:
                header = next(lines, b"")
                names, places = self._places(header)
                digest.update(header)
                done += len(header)
                for row, line in enumerate(lines):
                    digest.update(line)
                    done += len(line)
                    try:
                        texts, label = self._parse(line.removesuffix(b"\n").removesuffix(b"\r"), names, places)
                    except BadLineError as error:
                        self._judge(error, row)
                        continue
                    if texts:
                        yield LabelledText(row, texts, label)
                    if row % 1000 == 0:
                        progress(done, total)
        except OSError as error:
            raise UserError(f"{self.path} cannot be read ({error.strerror}).") from error
        self.read = {"path": str(self.path.absolute()), "bytes": done, "sha256": digest.hexdigest()}
        progress(total, total)

    def _places(self, header: bytes) -> tuple[int, list[int]]:
        """How many columns there are, and where the texts and the label stand."""
        names = header.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n").split("\t")
        only = self._format.only
        wanted = (*self._format.texts, self._format.label, *(only[:1] if only else ()))
        if missing := [name for name in wanted if name not in names]:
            raise UserError(
                f"{self.path}, line 1: no column {missing[0]} among {', '.join(names[:8])}; it must be the "
                f"official file, whose first line names {', '.join(wanted)} between tabs."
            )
        return len(names), [names.index(name) for name in wanted]

    def _parse(self, line: bytes, columns: int, places: list[int]) -> tuple[tuple[str, ...], int]:
        """Texts and label of a line; no text of one that is not to be read."""
        try:
            fields = line.decode("utf-8").split("\t")
        except UnicodeDecodeError as error:
            raise BadLineError("invalid UTF-8", f"invalid UTF-8 at byte {error.start + 1} of the line") from error
        if len(fields) != columns:
            raise BadLineError("wrong number of fields", f"{len(fields)} fields between tabs, {columns} wanted")
        labels, only = self._format.labels, self._format.only
        *texts, label = (fields[place] for place in places[: len(self._format.texts) + 1])
        if only and fields[places[-1]] != only[1]:
            return (), 0
        if label not in labels:
            shown = label if len(label) <= 40 else label[:40] + "…"
            raise BadLineError("unknown label", f"label {shown!r}, one of {', '.join(labels)} wanted")
        if not all(text.strip() for text in texts):
            raise BadLineError("empty text", "a text is empty")
        return tuple(texts), labels.index(label)

    def _judge(self, error: BadLineError, row: int) -> None:
        place = f"{self.path}, line {row + 2}: {error}"
        if self._on_bad_row == "stop":
            raise UserError(f"{place}. Mend the file, or have such lines left out and counted: data.on_bad_row=skip.")
        self.rejected.add(error.reason, place)
