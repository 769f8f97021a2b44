"""The flights of 2013 as a stream: consecutive slices of the year, whose drift is the real one.

Seasons, holidays, new routes and aircraft bring categories that no earlier slice held. Features and vocabularies are
those of ``nycflights``. Slices are cut by date, so that a flight's slice follows from its own line.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.data.clicks.nycflights import PROVENANCE, Nycflights
from pipelines.data.clicks.slices import SlicedStreamConfig
from pipelines.data.clicks.source import RowSource
from pipelines.data.provenance import Provenance

LABELLED_FLIGHTS = 327_346
DATES = 365


@dataclass
class NycflightsStreamConfig(SlicedStreamConfig):
    """All 327,346 flights whose arrival delay is known, in order of scheduled departure."""

    provenance: ClassVar[Provenance] = PROVENANCE
    dates_in_words: ClassVar[str] = "the dates of 2013"

    name: str = "nycflights_stream"

    @property
    def dates(self) -> int:
        """Dates of 2013."""
        return DATES

    @property
    def lines(self) -> int:
        """Flights of all days."""
        return LABELLED_FLIGHTS

    def identity(self, day: int) -> dict[str, Any]:
        """What the rows of a day are made from."""
        return {**Nycflights().identity(), "slice": day, "of": self.days}

    def source(self, day: int, scratch: Path) -> RowSource:
        """The rows of a day."""
        return NycflightsSlice(day, self.days)


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
