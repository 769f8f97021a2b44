"""Streams whose days are slices of one table, cut by date."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from dpfest.errors import UserError
from pipelines.data.clicks.config import ClickConfig
from pipelines.data.clicks.source import RowSource
from pipelines.data.clicks.split import DaySplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.estimate import Estimate


class SlicedRows(RowSource, Protocol):
    """A reader of all lines or of one slice; its identity is that of all lines."""

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the rows."""


@dataclass
class SlicedStreamConfig(ClickConfig):
    """A stream of consecutive slices of dates (or weeks, or years), cut by each line's own date.

    Attributes:
        days: number of slices, each of ``dates // days`` dates or one more.
    """

    is_stream: ClassVar[bool] = True
    dates_in_words: ClassVar[str]

    days: int = 24
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: DaySplitConfig = field(default_factory=DaySplitConfig)

    @property
    @abstractmethod
    def dates(self) -> int:
        """Number of dates of the whole stream."""

    @property
    @abstractmethod
    def lines(self) -> int:
        """Approximate number of lines of the whole stream."""

    @abstractmethod
    def reader(self, number: int | None = None) -> SlicedRows:
        """Return the reader of one slice, from 0; None for all lines."""

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows of a day."""
        return {**self.reader().identity(), "slice": day, "of": self.days}

    def source(self, day: int, scratch: Path) -> RowSource:
        """Return the reader of a day's rows."""
        return self.reader(day)

    def check(self) -> None:
        """Raise UserError for an invalid setting."""
        super().check()
        if not 1 <= self.days <= self.dates:
            raise UserError(
                f"data.days must be between 1 and {self.dates}, {self.dates_in_words}, but it is {self.days}."
            )

    def day_numbers(self) -> list[int]:
        """Return 0 to ``days`` - 1."""
        return list(range(self.days))

    def estimates(self, days: list[int]) -> dict[int, Estimate]:
        """Estimate the rows of each of these days."""
        return {day: Estimate(self.lines / self.days) for day in days}

    def expected_examples(self, train_days: int) -> float:
        """Return the expected number of training rows if all days are equally long."""
        return self.lines / self.days * self.split.shares["train"] * train_days
