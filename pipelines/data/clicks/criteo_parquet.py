"""Rows of a Parquet file as lines of Criteo's text format.

They pass through the parser of text files, which therefore yields the same rows and refuses the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from dpfest.errors import UserError
from pipelines.data.clicks.criteo_lines import FIELDS
from pipelines.data.parquet import ParquetRows
from pipelines.data.rows import NUMERIC_FEATURES


class ParquetLines(ParquetRows):
    """The rows of one Parquet file as lines: 40 columns of any name, in the order of Criteo's fields.

    The label is an integer or Boolean, the 13 counts are numbers, the 26 categories are text of 8 hexadecimal digits;
    null is a blank.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, _columns)

    def __iter__(self) -> Iterator[bytes]:
        """Yield blocks of whole lines; raises UserError as :meth:`ParquetRows.blocks`."""
        return map(_as_lines, self.blocks())


def _columns(path: Path, schema: pl.Schema) -> list[pl.Expr]:
    """Return the columns in the form of a text file."""
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
            # Tools without nullable integers write floats. 1.5 stays 1.5 and is refused, as in text.
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
    if text.count(b"\n") != block.height:  # a category contains a line feed: refuse it as one row
        text = _as_lines(block.with_columns(pl.col(pl.String).str.replace_all("\n", " ")))
    return text
