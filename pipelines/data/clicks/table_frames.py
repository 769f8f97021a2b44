"""The frames of a table of one's own, whatever they come from, and the kinds of their columns."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import polars as pl

from dpfest.errors import UserError
from pipelines.data.source import Progress

FRAME_ROWS = 1 << 16
"""Rows that are handed on at once: few enough for their arrays to stay in a processor's cache."""

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

Wanted = Mapping[str, Mapping[str, Sequence[str] | None]]
"""By key of the configuration, the columns that it names, each with the kinds that it may be; None for any."""


class Frame(NamedTuple):
    """Consecutive rows of a table: ``rows``, the place ``where`` they are from, and how many rows of it came before."""

    rows: pl.DataFrame
    where: Path | str
    before: int


def in_frames(rows: pl.DataFrame, where: Path | str) -> Iterator[Frame]:
    """Yield rows that are in memory, at most :data:`FRAME_ROWS` at a time."""
    for before in range(0, rows.height, FRAME_ROWS):
        yield Frame(rows[before : before + FRAME_ROWS], where, before)


class Frames(Protocol):
    """Where the rows of a table come from; each call of ``read`` reads everything anew."""

    def identity(self) -> dict[str, Any]:
        """Return, as JSON, everything that determines the rows.

        Raises:
            UserError: it is missing.
        """

    def files(self) -> list[dict[str, Any]]:
        """Return path, size in bytes and SHA-256 of every file."""

    def check(self, wanted: Wanted) -> None:
        """Refuse columns as far as they are known before rows are read; raises as :class:`ColumnCheck`."""

    def read(self, wanted: Wanted, progress: Progress) -> Iterator[Frame]:
        """Yield the wanted columns of all rows in order, at most :data:`FRAME_ROWS` at a time.

        Raises:
            UserError: rows cannot be read, there are none, or columns are not as wanted.
        """


def columns_of(wanted: Wanted) -> list[str]:
    """Return the names of wanted columns, each once."""
    return list(dict.fromkeys(name for columns in wanted.values() for name in columns))


class ColumnCheck:
    """Refuses parts of a table that lack a column, or hold it as another type than they may, or than the first does."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._first: dict[str, tuple[Path | str, pl.DataType]] = {}

    def __call__(self, where: Path | str, types: Mapping[str, pl.DataType]) -> None:
        """Check the types of the columns of a file or frame.

        Raises:
            UserError: names the place and the column.
        """
        for key, columns in self._wanted.items():
            for name, kinds in columns.items():
                if name not in types:
                    raise _missing(where, key, name, list(types))
                if kinds is not None:
                    _check_kind(where, key, name, types[name], kinds)
                place, first = self._first.setdefault(name, (where, types[name]))
                if _kind(types[name]) != _kind(first):
                    raise UserError(
                        f"{where}: the column {name} is of type {types[name]}, but in {place} of type {first}: write "
                        "all with one type."
                    )


def _missing(where: Path | str, key: str, name: str, there: Sequence[str]) -> UserError:
    close = difflib.get_close_matches(name, there, n=1)
    known = f"did you mean {close[0]}?" if close else f"it has {', '.join(there[:10])}{', …' * (len(there) > 10)}."
    return UserError(f"{where} has no column {name}, which {key} names; {known}")


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


def _check_kind(where: Path | str, key: str, name: str, type_: pl.DataType, kinds: Sequence[str]) -> None:
    kind = _kind(type_)
    if kind in kinds:
        return
    what = f"{where}: the column {name} holds {type_}"
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
