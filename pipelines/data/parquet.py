"""Read rows of a Parquet file in blocks of bounded size."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl

from dpfest.errors import UserError

_BLOCK_ROWS = 65_536
_MAGIC = b"PAR1"


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet by its content or its name."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == _MAGIC or path.suffix == ".parquet"
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error


class ParquetRows:
    """Some columns of one Parquet file.

    Args:
        path: The file.
        columns: Returns the columns to read, given the file and its schema; raises UserError if they are missing.

    Attributes:
        path: The file.
        bytes_read: Bytes of the file that correspond to the rows yielded so far.
        lines: Number of rows yielded so far.
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
        """SHA-256 of the file on disk, available once all of it has been read."""
        return self._sha256

    def blocks(self) -> Iterator[pl.DataFrame]:
        """Yield blocks of rows.

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
