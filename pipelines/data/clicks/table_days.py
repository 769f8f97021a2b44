"""The days of a table of one's own, and its splits, as columns of it tell: of each row on its own."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.clicks.table_columns import refuse_first
from pipelines.data.clicks.table_frames import DATE, TEXT, WHOLE

_EPOCH = datetime.date(1970, 1, 1)


@dataclass(frozen=True)
class DayColumn:
    """A column of dates or whole numbers that says which day of a stream a row belongs to.

    Attributes:
        column: its name.
        first: date or number with which the first day begins.
        length: dates or numbers of a day.
        days: number of days.
    """

    column: str
    first: datetime.date | int
    length: int
    days: int

    @classmethod
    def parse(cls, column: str, first: int | str, length: int, days: int) -> DayColumn:
        """Return the column that settings describe.

        Raises:
            UserError: ``first`` is neither a date nor a whole number.
        """
        try:
            begin = datetime.date.fromisoformat(str(first)) if "-" in str(first)[1:] else int(first)
        except ValueError as error:
            raise UserError(
                f"data.first={first} must be a date, as in 2024-01-31, or a whole number: what the first day begins "
                f"with in the column {column}."
            ) from error
        return cls(column, begin, length, days)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of columns that it may be."""
        return (WHOLE if isinstance(self.first, int) else DATE, TEXT)

    def numbers(self, column: pl.Series) -> NDArray[np.int64]:
        """Return the number of each row, of a date that of days since 1970-01-01, shape [n].

        Raises:
            BadValueError: a value is missing, is none, or lies in no day of the stream.
        """
        if isinstance(self.first, int):
            what, values, first = "a whole number", column.cast(pl.Int64, strict=False), self.first
        else:
            what, first = "a date, as in 2024-01-31", (self.first - _EPOCH).days
            texts = column.dtype != pl.Date
            dates = column.cast(pl.String).str.to_date("%Y-%m-%d", strict=False) if texts else column
            values = dates.cast(pl.Int32).cast(pl.Int64)
        refuse_first(
            values.is_null().to_numpy(), column, f"is {{}}, and every row needs {what}: correct or leave it out"
        )
        numbers = values.to_numpy()
        outside = (numbers < first) | (numbers >= first + self.length * self.days)
        stream = f"{self.days} days of {self.length} from {self.first} (data.days, data.length, data.first)"
        refuse_first(
            outside, column, f"is {{}}, outside of the stream's {stream}: change these, or leave such rows out"
        )
        return numbers

    def days_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the day of each row, 0..days-1, shape [n]."""
        first = self.first if isinstance(self.first, int) else (self.first - _EPOCH).days
        return (numbers - first) // self.length


def parts_of(column: pl.Series, parts: Sequence[str]) -> NDArray[np.int64]:
    """Return the place in ``parts`` of each row's split, which the column names, shape [n].

    Raises:
        BadValueError: a value names none of them.
    """
    text = column.cast(pl.String)
    places = text.replace_strict({part: place for place, part in enumerate(parts)}, default=None, return_dtype=pl.Int64)
    names = f"{', '.join(parts[:-1])} or {parts[-1]}"
    refuse_first(places.is_null().to_numpy(), column, f"is {{}}, and a row's split is {names}: write one of these")
    return places.to_numpy()
