"""The configuration of a data set made of a package's table, and of its stream, whose days are slices of it by date."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dpfest.errors import UserError
from pipelines.data.clicks.config import ClickConfig
from pipelines.data.clicks.packaged import PackagedRows, PackagedTable, Slices
from pipelines.data.clicks.source import RowSource
from pipelines.data.clicks.split import DaySplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.estimate import Estimate


class PackagedConfig(ClickConfig):
    """A table as one data set.

    Attributes:
        table: what makes it.
        rows: number of lines that are kept or drawn, of data that have this setting; None for all.
    """

    table: ClassVar[PackagedTable]
    rows: int | None = None

    def __init_subclass__(cls) -> None:
        if "table" in cls.__dict__:
            cls.tables, cls.provenance = len(cls.table.categories), cls.table.provenance

    @property
    def units(self) -> tuple[str, ...]:
        return self.table.units

    @property
    def lines(self) -> int:
        """Approximate number of lines."""
        return self.rows or self.table.lines

    @property
    def dates(self) -> int:
        """Number of dates."""
        return self.table.dates

    def reader(self, number: int | None = None) -> PackagedRows:
        """Return the reader of all lines; of a stream, of one day if it is given."""
        return PackagedRows(self.table, self, Slices(self.dates))

    def identity(self, day: int) -> dict[str, Any]:
        return self.table.identity()

    def source(self, day: int, scratch: Path) -> RowSource:
        return self.reader(day)

    def expected_examples(self, train_days: int) -> float:
        return self.lines * self.split.shares["train"]


@dataclass
class PackagedStreamConfig(PackagedConfig):
    """A table as a stream of consecutive slices of dates, cut by each line's own date.

    Attributes:
        days: number of slices, each of ``dates // days`` dates or one more.
    """

    is_stream: ClassVar[bool] = True

    days: int = 24
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: DaySplitConfig = field(default_factory=DaySplitConfig)

    def reader(self, number: int | None = None) -> PackagedRows:
        return PackagedRows(self.table, self, Slices(self.dates, self.days, number))

    def identity(self, day: int) -> dict[str, Any]:
        return {**super().identity(day), "slice": day, "of": self.days}

    def check(self) -> None:
        super().check()
        if not 1 <= self.days <= self.dates:
            raise UserError(
                f"data.days must be between 1 and {self.dates}, {self.table.dates_in_words}, but it is {self.days}."
            )

    def day_numbers(self) -> list[int]:
        return list(range(self.days))

    def estimates(self, days: list[int]) -> dict[int, Estimate]:
        return {day: Estimate(self.lines / self.days) for day in days}

    def expected_examples(self, train_days: int) -> float:
        """Return the expected number of training rows if all days are equally long."""
        return self.lines / self.days * self.split.shares["train"] * train_days
