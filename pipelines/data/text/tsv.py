"""Labelled texts in the TSV files of GLUE and XNLI: a line of column names, then one unquoted example per line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from dpfest.errors import UserError
from pipelines.data.source import BadLineError, Progress
from pipelines.data.text.file import TextFile


class TsvFile(TextFile[bytes]):
    """The examples of one TSV file."""

    unit, first = "line", 2

    def _rows(self, progress: Progress) -> Iterator[bytes]:
        digest, done = hashlib.sha256(), 0
        try:
            total = self.path.stat().st_size
            with self.path.open("rb") as lines:
                header = next(lines, b"")
                self._width, self._places = self._find(header)
                digest.update(header)
                done += len(header)
                for row, line in enumerate(lines):
                    digest.update(line)
                    done += len(line)
                    yield line.removesuffix(b"\n").removesuffix(b"\r")
                    if row % 1000 == 0:
                        progress(done, total)
        except OSError as error:
            raise UserError(f"{self.path} cannot be read ({error.strerror}).") from error
        self._was_read(done, digest.hexdigest())
        progress(total, total)

    def _find(self, header: bytes) -> tuple[int, list[int]]:
        """Return the number of columns and the positions of texts and label."""
        names = header.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n").split("\t")
        only = self.columns.only
        wanted = (*self.columns.texts, self.columns.label, *(only[:1] if only else ()))
        if missing := [name for name in wanted if name not in names]:
            raise UserError(
                f"{self.path}, line 1: no column {missing[0]} among {', '.join(names[:8])}; use the official file, "
                f"whose first line names {', '.join(wanted)}, separated by tabs."
            )
        return len(names), [names.index(name) for name in wanted]

    def _parse(self, row: bytes) -> tuple[tuple[str, ...], int]:
        try:
            fields = row.decode("utf-8").split("\t")
        except UnicodeDecodeError as error:
            raise BadLineError("invalid UTF-8", f"invalid UTF-8 at byte {error.start + 1} of the line") from error
        if len(fields) != self._width:
            raise BadLineError("wrong number of fields", f"{len(fields)} fields between tabs, {self._width} wanted")
        labels, only = self.columns.labels, self.columns.only
        *texts, label = (fields[place] for place in self._places[: len(self.columns.texts) + 1])
        if only and fields[self._places[-1]] != only[1]:
            return (), 0
        if label not in labels:
            shown = label if len(label) <= 40 else label[:40] + "…"
            raise BadLineError("unknown label", f"label {shown!r}, one of {', '.join(labels)} wanted")
        return tuple(texts), labels.index(label)
