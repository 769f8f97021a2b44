"""The flights of 2013 as a stream: consecutive slices of the year, with real drift.

Seasons, holidays, new routes and aircraft bring categories that no earlier slice contains. Features and vocabularies
are those of ``nycflights``. Slices are cut by date, so a flight's slice is a function of its own line.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.data.clicks.nycflights import PROVENANCE, Nycflights
from pipelines.data.clicks.slices import SlicedStreamConfig
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
        """Number of dates of 2013."""
        return DATES

    @property
    def lines(self) -> int:
        """Number of flights over all days."""
        return LABELLED_FLIGHTS

    def reader(self, number: int | None = None) -> Nycflights:
        """See :class:`SlicedStreamConfig`."""
        return Nycflights() if number is None else NycflightsSlice(number, self.days)


class NycflightsSlice(Nycflights):
    """The flights of one slice of the year, ``number`` of ``slices``, from 0."""

    def __init__(self, number: int, slices: int) -> None:
        super().__init__()
        self.number, self.slices = number, slices

    def flights(self) -> pl.DataFrame:
        """Return every flight of the slice, by date."""
        return _year(self.folder).filter(pl.col("date") * self.slices // DATES == self.number)

    def day_of(self, flights: pl.DataFrame) -> NDArray[np.int32]:
        """Return the day of each flight: the slice's number."""
        return np.full(flights.height, self.number, np.int32)


@functools.cache
def _year(folder: Path) -> pl.DataFrame:
    """Return all flights of the year by scheduled departure; cached, since every slice needs them."""
    return Nycflights().flights().sort("date", "departure_minute", "row")
