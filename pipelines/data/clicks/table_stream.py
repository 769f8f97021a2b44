"""A table of one's own as a stream of days, which a column of it or its files tell apart.

Days are absolute: they begin with a date or number that the settings state, and no line moves to another day because
others come or go. In a stream of files, the order of their names is that of the days.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dpfest.errors import UserError
from pipelines.data.clicks.source import RowSource
from pipelines.data.clicks.split import DaySplitConfig
from pipelines.data.clicks.table import TableConfig
from pipelines.data.clicks.table_days import DayColumn
from pipelines.data.clicks.table_files import TableFiles, files_of
from pipelines.data.clicks.table_frames import Frames
from pipelines.system.ranges import Count

FILE = "file"
"""The ``data.day`` of a stream whose files are its days."""
DAY_HASH = {"day": "the content of a line ends with its date (days since 1970-01-01) or number"}
"""What the hashes of a table without days do not say, of those whose days a column tells apart."""


@dataclass
class TableStreamConfig(TableConfig):
    """A table of your own as a stream, to be trained on day by day.

    Attributes:
        kind: ``table_stream``, as in :class:`TableConfig`.
        day: a column of dates (2024-01-31) or whole numbers, or ``file`` where each file is a day, in the order of
            their names. Required.
        first: the date or number with which the first day begins, public; null if files are days.
        length: how many dates or numbers make a day.
        days: number of days; null for that of the files, if files are days.
    """

    kind: Literal["table_stream"] = "table_stream"  # type: ignore[assignment]
    name: str = "table_stream"
    day: str = "???"
    first: int | str | None = None
    length: Count = 1
    days: Count | None = None
    split: DaySplitConfig = field(default_factory=DaySplitConfig)  # type: ignore[assignment]

    is_stream = True

    def check(self) -> None:
        """Raise UserError for an invalid setting."""
        super().check()
        if self.day == FILE:
            if self.first is not None or self.length != 1:
                raise UserError(
                    "data.first and data.length have no effect under data.day=file, where each file is a day: leave "
                    "them out."
                )
            return
        if self.first is None or self.days is None:
            raise UserError(
                f"data.day={self.day} needs data.first, the date or number with which the stream begins, and "
                "data.days, the number of its days, as in data.first=2024-01-01 data.days=24."
            )
        assert self._column

    def day_numbers(self) -> list[int]:
        """Return 0 to the number of days - 1.

        Raises:
            UserError: there are fewer files than days, or a file lacks a column or holds it as another type.
        """
        if self.day != FILE:
            self.rows(self.frames(), days=self._column)  # refuses columns once rather than on each day
            return list(range(self.days or 0))
        self.rows(self.frames())
        there = len(files_of(self.path))
        if self.days is not None and self.days > there:
            raise UserError(f"data.days={self.days} asks for more days than data.path={self.path} has files, {there}.")
        return list(range(self.days or there))

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows of a day: its file, or all files and which day it is."""
        if self.day != FILE:
            return {**super().identity(day), "day": day, "of": self.days}
        return {**self._file(day).identity(), "hash": self._hash}

    def source(self, day: int, scratch: Path) -> RowSource:
        """Return the reader of a day's rows."""
        if self.day == FILE:
            return self.rows(self._file(day), number=day)
        return self.rows(self.frames(), number=day, days=self._column)

    def _file(self, day: int) -> Frames:
        return TableFiles([files_of(self.path)[day]])

    @property
    def _hash(self) -> dict[str, str]:
        return {**super()._hash, **(DAY_HASH if self.day != FILE else {})}

    @property
    def _column(self) -> DayColumn:
        assert self.first is not None and self.days is not None
        return DayColumn.parse(self.day, self.first, self.length, self.days)
