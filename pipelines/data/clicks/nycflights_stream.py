"""The flights of 2013 as a stream: consecutive slices of the year, whose drift is the real one.

Seasons, holidays, new routes and aircraft bring categories that no earlier slice held. Features and vocabularies are
those of ``nycflights``. Slices are cut by date, so that a flight's slice follows from its own line.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.clicks.config import ClickConfig
from pipelines.data.clicks.nycflights import Nycflights
from pipelines.data.clicks.source import RowSource
from pipelines.data.clicks.split import DaySplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.estimate import Estimate

LABELLED_FLIGHTS = 327_346
DATES = 365


@dataclass
class NycflightsStreamConfig(ClickConfig):
    """All 327,346 flights whose arrival delay is known, in order of scheduled departure.

    Attributes:
        days: Slices that the year is cut into, of 365 // days or one more dates each.
    """

    is_stream: ClassVar[bool] = True
    rows_of_a_day: ClassVar[float] = LABELLED_FLIGHTS / 24

    name: str = "nycflights_stream"
    days: int = 24
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: DaySplitConfig = field(default_factory=DaySplitConfig)

    def check(self) -> None:
        """Raise UserError where a setting has no meaning."""
        super().check()
        if not 1 <= self.days <= DATES:
            raise UserError(f"data.days must be between 1 and 365, the dates of 2013, but it is {self.days}.")

    def day_numbers(self) -> list[int]:
        """0 to ``days`` - 1."""
        return list(range(self.days))

    def identity(self, day: int) -> dict[str, Any]:
        """What the rows of a day are made from."""
        return {**Nycflights().identity(), "slice": day, "of": self.days}

    def source(self, day: int, scratch: Path) -> RowSource:
        """The rows of a day."""
        return NycflightsSlice(day, self.days)

    def estimates(self, days: list[int]) -> dict[int, Estimate]:
        """What to expect of days."""
        return {day: Estimate(LABELLED_FLIGHTS / self.days) for day in days}


class NycflightsSlice(Nycflights):
    """The flights of one slice of the year, ``number`` of ``slices``, from 0."""

    def __init__(self, number: int, slices: int) -> None:
        super().__init__()
        self.number, self.slices = number, slices

    def flights(self) -> pl.DataFrame:
        """Every flight of the slice, by its date."""
        return _year(self.folder).filter(pl.col("date") * self.slices // DATES == self.number)

    def day_of(self, flights: pl.DataFrame) -> NDArray[np.int32]:
        """Day of each flight: the slice's number."""
        return np.full(flights.height, self.number, np.int32)


@functools.cache
def _year(folder: Path) -> pl.DataFrame:
    """All flights of the year in order of scheduled departure; kept, because each slice of it is asked for in turn."""
    return Nycflights().flights().sort("date", "departure_minute", "row")
