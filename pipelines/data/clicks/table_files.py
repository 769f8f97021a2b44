"""The files of a table of one's own: which they are, their columns, and their rows in bounded memory."""

from __future__ import annotations

import difflib
import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from dpfest.errors import UserError

BATCH_ROWS = 1 << 20
"""Rows that are read at once: whole row groups of the sizes that polars and Arrow write."""
FRAME_ROWS = 1 << 16
"""Rows that are handed on at once: few enough for their arrays to stay in a processor's cache."""

ENDINGS = ".parquet, .arrow, .feather, .ipc, .csv, .tsv, .csv.gz, .csv.zst, .tsv.gz or .tsv.zst"
_ENDING = re.compile(r"\.(?:parquet|arrow|feather|ipc|(?:csv|tsv)(?:\.gz|\.zst)?)$", re.IGNORECASE)

NUMBER, WHOLE, TEXT, BOOLEAN, DATE = "a number", "a whole number", "text", "a boolean", "a date"
CATEGORIES = (TEXT, WHOLE, BOOLEAN, DATE)
"""Kinds of columns that are categorical, or identify units."""
_LIST_OF = {TEXT: "a list of texts", WHOLE: "of whole numbers", BOOLEAN: "of booleans", DATE: "of dates"}
LISTS = tuple(_LIST_OF.values())
"""Kinds of columns that are bags."""
PARTED = (TEXT,)
"""Kinds of columns that a separator parts into bags."""
NUMBERS = (NUMBER, WHOLE, BOOLEAN, TEXT)
"""Kinds of columns that are numeric, or labels; text must be numbers."""


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
        raise UserError(f"There is no file {place}: set data.path to a file, a folder or a pattern of files.")
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


def check_columns(files: Sequence[Path], wanted: Mapping[str, Mapping[str, Sequence[str] | None]]) -> None:
    """Refuse files that lack a column or hold it as another type than they may, or than the first file does.

    Args:
        files: the files.
        wanted: by key of the configuration, the columns it names, each with the kinds that it may be; None for any.

    Raises:
        UserError: names file and column.
    """
    first: dict[str, pl.DataType] = {}
    for path in files:
        types = columns_of(path)
        for key, columns in wanted.items():
            for name, kinds in columns.items():
                if name not in types:
                    raise _missing(path, key, name, list(types))
                if kinds is not None:
                    _check_kind(path, key, name, types[name], kinds)
                if _kind(types[name]) != _kind(first.setdefault(name, types[name])):
                    raise UserError(
                        f"{path}: the column {name} is of type {types[name]}, but in {files[0]} of type {first[name]}: "
                        "write all files with one type."
                    )


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
            for frame in batch.iter_slices(FRAME_ROWS):
                done += frame.height
                yield frame, done / rows
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error, done) from error
    if not done:
        raise UserError(f"{path} holds no row: remove it, or write it again.")


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
    separator = "\t" if ending.startswith(".tsv") else ","
    return pl.scan_csv(path, glob=False, separator=separator, infer_schema=False)


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


def columns_of(path: Path) -> dict[str, pl.DataType]:
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
    cause = str(error).strip().splitlines()[0].rstrip(".")
    return UserError(
        f"{path} is truncated, corrupt or not what its ending says: {read} ({cause}). Write or fetch it again; such a "
        "file is never used in part."
    )


def _missing(path: Path, key: str, name: str, there: Sequence[str]) -> UserError:
    close = difflib.get_close_matches(name, there, n=1)
    known = f"did you mean {close[0]}?" if close else f"it has {', '.join(there[:10])}{', …' * (len(there) > 10)}."
    return UserError(f"{path} has no column {name}, which {key} names; {known}")


def _kind(type_: pl.DataType) -> str | None:
    """Return what kind of values a type holds; None for those that are not read."""
    if type_.is_integer():
        return WHOLE
    if type_.is_numeric():
        return NUMBER
    if isinstance(type_, pl.List):
        return _LIST_OF.get(_kind(pl.Series(dtype=type_.inner).dtype) or "")
    of_others = {pl.String: TEXT, pl.Categorical: TEXT, pl.Enum: TEXT, pl.Boolean: BOOLEAN, pl.Date: DATE}
    return of_others.get(type_.base_type())


def _check_kind(path: Path, key: str, name: str, type_: pl.DataType, kinds: Sequence[str]) -> None:
    kind = _kind(type_)
    if kind in kinds:
        return
    what = f"{path}: the column {name} holds {type_}"
    if type_.is_nested() and kinds is not LISTS:
        several = f"{what}, several values in a row"
        if kinds is PARTED:
            raise UserError(f"{several}, which need no separator: leave it out.")
        if key == "data.categorical" and kind in LISTS:
            bag = f"{{{name}: {{rows: 512, most: 16}}}}"
            raise UserError(f"{several}: say how many of them count at most, as in '{key}={bag}'.")
        raise UserError(f"{several}, which {key} does not take: leave it out.")
    cure = "write it as one of these."
    if kinds is LISTS and kind in CATEGORIES:
        parted = ", or say what stands between values, by separator" if kind == TEXT else ""
        cure = f"for one value in a row, give the rows of its table alone, as in {name}: 512{parted}."
    if kind == NUMBER:  # of a categorical column, or of one of units
        listed = "list it under data.numeric, or " if key == "data.categorical" else ""
        cure = f"{listed}write whole numbers as such (pandas makes them floats where one is missing, unless Int64)."
    raise UserError(f"{what}, and {key} takes {', '.join(kinds[:-1])}{' or ' * (len(kinds) > 1)}{kinds[-1]}: {cure}")
