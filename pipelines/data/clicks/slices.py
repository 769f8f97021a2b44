"""Streams whose days are slices of the dates of one table."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from dpfest.errors import UserError
from pipelines.data.clicks.config import ClickConfig
from pipelines.data.clicks.split import DaySplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.estimate import Estimate


@dataclass
class SlicedStreamConfig(ClickConfig):
    """A stream of consecutive slices of dates (or weeks, or years), cut by the date that each line states.

    Attributes:
        days: slices, each of ``dates // days`` dates or one more.
    """

    is_stream: ClassVar[bool] = True
    dates_in_words: ClassVar[str]

    days: int = 24
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: DaySplitConfig = field(default_factory=DaySplitConfig)

    @property
    @abstractmethod
    def dates(self) -> int:
        """Dates of the whole stream."""

    @property
    @abstractmethod
    def lines(self) -> int:
        """Lines of the whole stream, about."""

    def check(self) -> None:
        """Raise UserError where a setting has no meaning."""
        super().check()
        if not 1 <= self.days <= self.dates:
            raise UserError(
                f"data.days must be between 1 and {self.dates}, {self.dates_in_words}, but it is {self.days}."
            )

    def day_numbers(self) -> list[int]:
        """0 to ``days`` - 1."""
        return list(range(self.days))

    def estimates(self, days: list[int]) -> dict[int, Estimate]:
        """What to expect of days."""
        return {day: Estimate(self.lines / self.days) for day in days}

    def expected_examples(self, train_days: int) -> float:
        """As if all days were equally long."""
        return self.lines / self.days * self.split.shares["train"] * train_days
