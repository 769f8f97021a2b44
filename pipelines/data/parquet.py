"""Rows of a Parquet file, a bounded number at a time, and as lines of Criteo's text format.

The lines go through the same parser as a text file's, so that the same rows come out and the same ones are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl

from dpfest.errors import UserError
from pipelines.data.clicks.criteo_lines import FIELDS
from pipelines.data.source import NUMERIC_FEATURES

_BLOCK_ROWS = 65_536
_MAGIC = b"PAR1"


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet by its content, or claims to be by its name."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == _MAGIC or path.suffix == ".parquet"
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error


class ParquetRows:
    """Some columns of one Parquet file.

    Args:
        path: The file.
        columns: What is read, given the file and its schema; raises UserError where that is not there.

    Attributes:
        path: The file.
        bytes_read: The share of the file, in bytes, that the rows given out so far are of it.
        lines: Rows given out so far.
    """

    unit = "row"

    def __init__(self, path: Path, columns: Callable[[Path, pl.Schema], list[pl.Expr]]) -> None:
        self.path = path
        self.bytes_read = 0
        self.lines = 0
        self._columns = columns
        self._sha256 = ""

    @property
    def sha256(self) -> str:
        """SHA-256 of the whole file as it lies on disk, once all of it has been read."""
        return self._sha256

    def blocks(self) -> Iterator[pl.DataFrame]:
        """Blocks of rows.

        Raises:
            UserError: The file is truncated or corrupt, holds no rows, or has other columns.
        """
        try:
            frame = pl.scan_parquet(self.path)
            columns = self._columns(self.path, frame.collect_schema())
            rows = frame.select(pl.len()).collect().item()
            size = self.path.stat().st_size
            # Slices keep memory flat whatever the size of the file's row groups; Polars' own batches do not.
            for start in range(0, rows, _BLOCK_ROWS):
                block = frame.slice(start, _BLOCK_ROWS).select(columns).collect()
                self.lines += block.height
                self.bytes_read = size * self.lines // rows
                yield block
            with self.path.open("rb") as stream:
                self._sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise UserError(
                f"{self.path} is a truncated or corrupt Parquet file: row {self.lines} is the last that can be read "
                f"({str(error).splitlines()[0]}). Fetch it again; such a file is never used in part."
            ) from error
        if self.lines == 0:
            raise UserError(f"{self.path} is empty: it holds no row.")


class ParquetLines(ParquetRows):
    """The rows of one Parquet file of 40 columns in the order of Criteo's fields, whatever their names, as lines.

    The label is a whole number or a truth value, the 13 counts are numbers, the 26 categories text of 8 hexadecimal
    digits; null is a blank.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, _columns)

    def __iter__(self) -> Iterator[bytes]:
        """Blocks of whole lines; raises UserError as :meth:`ParquetRows.blocks`."""
        return map(_as_lines, self.blocks())


def _columns(path: Path, schema: pl.Schema) -> list[pl.Expr]:
    """The columns as a text file would hold them."""
    if len(schema) != FIELDS:
        raise UserError(f"{path} has {len(schema)} columns, but {FIELDS} are wanted: label, 13 counts, 26 categories.")
    columns = []
    for place, (name, kind) in enumerate(schema.items()):
        column = pl.col(name)
        if place > NUMERIC_FEATURES:
            right, wanted = kind in (pl.String, pl.Categorical), "text of 8 hexadecimal digits"
            column = column.cast(pl.String)
        elif kind.is_float():
            right, wanted = place > 0, "a whole number"
            # Tools that have no null among whole numbers write floats; 1.5 stays 1.5, and is refused as in text.
            whole = column.is_nan() | (column == column.round(0)) & (column.abs() < 2.0**63)
            column = (
                pl.when(whole)
                .then(column.fill_nan(None).cast(pl.Int64, strict=False).cast(pl.String))
                .otherwise(column.cast(pl.String))
            )
        else:
            right, wanted = kind.is_integer() or (place == 0 and kind == pl.Boolean), "a whole number"
            column = column.cast(pl.UInt8) if kind == pl.Boolean else column
        if not right:
            raise UserError(f"{path}: column {place + 1} ({name}) is of type {kind}, but {wanted} is wanted.")
        columns.append(column.alias(str(place)))
    return columns


def _as_lines(block: pl.DataFrame) -> bytes:
    text = block.write_csv(separator="\t", include_header=False, quote_style="never").encode()
    if text.count(b"\n") != block.height:  # a category that holds a line feed: refused, but as one row
        text = _as_lines(block.with_columns(pl.col(pl.String).str.replace_all("\n", " ")))
    return text
