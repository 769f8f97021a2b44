"""The files of a table of one's own: which they are, their columns, and their rows in bounded memory."""

from __future__ import annotations

import csv
import glob
import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from dpfest.errors import UserError
from pipelines.data.clicks.table_frames import FRAME_ROWS, ColumnCheck, Frame, Wanted, columns_of
from pipelines.data.source import Progress
from pipelines.system.checksum import fingerprint

BATCH_ROWS = 1 << 20
"""Rows that are read at once: whole row groups of the sizes that polars and Arrow write."""

ENDINGS = ".parquet, .arrow, .feather, .ipc, .csv, .tsv, .csv.gz, .csv.zst, .tsv.gz or .tsv.zst"
_ENDING = re.compile(r"\.(?:parquet|arrow|feather|ipc|(?:csv|tsv)(?:\.gz|\.zst)?)$", re.IGNORECASE)


def files_of(place: str) -> list[Path]:
    """Return the files of a table, sorted by name.

    Args:
        place: a file, a folder, of which all files with a known ending count, or a pattern such as ``clicks/*.csv``.

    Raises:
        UserError: there is no such file, or their endings are unknown or differ.
    """
    path = Path(place)
    if path.is_dir():
        files = sorted(one for one in path.iterdir() if _ENDING.search(one.name) and one.is_file())
        if not files:
            held = ", ".join(sorted(one.name for one in path.iterdir())[:5]) or "nothing"
            raise UserError(f"data.path={place} is a folder without a file that ends in {ENDINGS} (it holds {held}).")
    elif path.is_file():
        files = [path]
    elif not glob.has_magic(place):
        raise UserError(f"There is no file {place}: give a file, a folder or a pattern of files (data.path).")
    elif not (files := sorted(Path(one) for one in glob.glob(place, recursive=True) if Path(one).is_file())):
        raise UserError(f"data.path={place} is a pattern that no file fits: quote it for the shell, and correct it.")
    endings = [_ending(file) for file in files]
    if len(set(endings)) > 1:
        other = files[next(place for place, ending in enumerate(endings) if ending != endings[0])]
        raise UserError(
            f"data.path={place} names {files[0].name} and {other.name}, whose rows could be the same twice: give a "
            f"pattern of one ending, such as *{endings[0]}."
        )
    return files


class TableFiles:
    """Files of a table as :class:`~pipelines.data.clicks.table_frames.Frames`, in the order of their rows."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._paths = files

    def identity(self) -> dict[str, Any]:
        return {"files": [fingerprint(path) for path in self._paths]}

    def files(self) -> list[dict[str, Any]]:
        prints = ((path, fingerprint(path)) for path in self._paths)
        return [{"path": str(path.absolute()), "bytes": it["bytes"], "sha256": it["sha256"]} for path, it in prints]

    def check(self, wanted: Wanted) -> None:
        check = ColumnCheck(wanted)
        for path in self._paths:
            check(path, types_of(path))

    def read(self, wanted: Wanted, progress: Progress) -> Iterator[Frame]:
        sizes = [path.stat().st_size for path in self._paths]
        for file, path in enumerate(self._paths):
            done = 0
            for frame, share in frames(path, columns_of(wanted)):
                yield Frame(frame, path, done)
                done += frame.height
                progress(int(sum(sizes[:file]) + share * sizes[file]), sum(sizes))


def frames(path: Path, columns: Sequence[str]) -> Iterator[tuple[pl.DataFrame, float]]:
    """Yield some columns of a file in frames of at most :data:`FRAME_ROWS` rows, each with the share of the file that
    is read by then; one or two million rows are in memory.

    The columns of CSV and TSV are text: a type guessed from other rows would let these change what a row becomes.

    Raises:
        UserError: the file cannot be read to its end, or holds no row.
    """
    done = 0
    try:
        table = _scan(path)
        rows = table.select(pl.len()).collect().item()
        for batch in _batches(table.select(columns), rows, path):
            for frame in _slices(batch):
                done += frame.height
                yield frame, done / rows
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error, done) from error
    if not done:
        raise UserError(f"{path} holds no row of values: leave it out, or write it again.")


def _slices(batch: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the rows of a batch; where its chunks of memory are large, none from two, of which columns are copied."""
    chunks = {tuple(column.chunk_lengths()) for column in batch.get_columns()}
    lengths = chunks.pop() if len(chunks) == 1 else ()
    start = 0
    for length in lengths if len(lengths) * FRAME_ROWS <= batch.height else (batch.height,):
        yield from batch.slice(start, length).iter_slices(FRAME_ROWS)
        start += length


def _batches(table: pl.LazyFrame, rows: int, path: Path) -> Iterator[pl.DataFrame]:
    if is_text(path):  # of which a slice would read all rows before it
        # All columns are parsed, else a line with a field too many would pass, its values in the wrong columns.
        every = pl.QueryOptFlags(projection_pushdown=False)
        yield from table.collect_batches(chunk_size=BATCH_ROWS, lazy=True, optimizations=every)
    else:  # slices keep memory flat whatever the size of the file's row groups; batches do not
        for start in range(0, rows, BATCH_ROWS):
            yield table.slice(start, BATCH_ROWS).collect()


def _scan(path: Path) -> pl.LazyFrame:
    ending = _ending(path)
    if ending == ".parquet":
        return pl.scan_parquet(path, glob=False, hive_partitioning=False)
    if not is_text(path):
        return pl.scan_ipc(path, glob=False, hive_partitioning=False)
    return pl.scan_csv(path, glob=False, separator=_separator(path), infer_schema=False)


def _separator(path: Path) -> str:
    return "\t" if _ending(path).startswith(".tsv") else ","


def _ending(path: Path) -> str:
    if not (match := _ENDING.search(path.name)):
        raise UserError(f"{path} ends in none of {ENDINGS}: rename it, or write it in one of these formats.")
    return match[0].lower()


def is_text(path: Path) -> bool:
    """Whether a file is CSV or TSV, whose columns are all text."""
    return _ending(path).startswith((".csv", ".tsv"))


def rows_of(path: Path) -> int:
    """Return the number of rows of a file; of a text file this reads all of it.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        return int(_scan(path).select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error


def types_of(path: Path) -> dict[str, pl.DataType]:
    """Return the columns of a file with their types, in their order.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        return dict(_scan(path).collect_schema())
    except pl.exceptions.NoDataError as error:
        raise UserError(f"{path} is empty: it needs a line of column names, and rows.") from error
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception, rows: int = 0) -> UserError:
    read = f"row {rows:,} is the last that was read" if rows else "no row was read"
    cause = _odd_line(path) or str(error).strip().splitlines()[0].rstrip(".")
    return UserError(
        f"{path} is truncated, corrupt or not what its ending says: {read} ({cause}). Write or fetch it again; such a "
        "file is never used in part."
    )


def _odd_line(path: Path) -> str:
    """Return what is wrong with the first line of a text that has more values than its header, or a quote that does not
    end; nothing if no line has, or the file cannot be read here."""
    if not is_text(path) or path.suffix.lower() == ".zst":
        return ""
    start = 1
    try:
        with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rt", newline="", encoding="utf-8") as text:
            lines = csv.reader(text, delimiter=_separator(path), strict=True)
            header = len(next(lines))
            start = lines.line_num + 1
            for values in lines:
                if len(values) > header:
                    return f"line {start:,} has {len(values)} values where the header has {header}"
                start = lines.line_num + 1
    except csv.Error:
        return f"line {start:,} has a quote that does not end, or stands within a value"
    except (OSError, EOFError, UnicodeError, StopIteration):
        pass
    return ""
