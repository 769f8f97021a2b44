"""Labelled texts in the Parquet files of the Hugging Face hub; the label is the number of the class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from dpfest.errors import UserError
from pipelines.data.parquet import ParquetRows
from pipelines.data.source import BadLineError, Progress
from pipelines.data.text.file import TextFile


class ParquetFile(TextFile[tuple[Any, ...]]):
    """The examples of one Parquet file; classes are numbered in the order of ``columns.labels``."""

    unit, first = ParquetRows.unit, 1

    def _rows(self, progress: Progress) -> Iterator[tuple[Any, ...]]:
        reader, total = ParquetRows(self.path, self._find), self.path.stat().st_size
        for block in reader.blocks():
            yield from block.iter_rows()
            progress(reader.bytes_read, total)
        self._was_read(total, reader.sha256)

    def _find(self, path: Path, schema: pl.Schema) -> list[pl.Expr]:
        """Return the columns of the texts, then that of the label."""
        wanted = (*self.columns.texts, self.columns.label)
        for name in wanted:
            if name not in schema:
                raise UserError(
                    f"{path}: no column {name} among {', '.join(list(schema)[:8])}; there must be {', '.join(wanted)}."
                )
            kind, label = schema[name], name == self.columns.label
            if not (kind.is_integer() if label else kind == pl.String):
                what = "the number of the class" if label else "text"
                raise UserError(f"{path}: column {name} is of type {kind}, but {what} is wanted.")
        return [pl.col(name) for name in wanted]

    def _parse(self, row: tuple[Any, ...]) -> tuple[tuple[str, ...], int]:
        *texts, label = row
        if None in texts:
            raise BadLineError("empty text", "a text is null")
        if label is None or not 0 <= label < len(self.columns.labels):
            shown = "null" if label is None else label
            classes = ", ".join(map(str, range(len(self.columns.labels))))
            raise BadLineError("unknown label", f"label {shown}, one of {classes} wanted")
        return tuple(texts), label
