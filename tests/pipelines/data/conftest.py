"""What tests of data share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from pipelines.data.clicks.packaged import Package
from tests.once import Once

ReadFlights = Callable[[Package, str], pl.DataFrame]


@pytest.fixture(scope="session")
def read_flights(once: Once) -> ReadFlights:
    """The reader of the flights' files, of which each, seconds of unpacking and parsing, is read once a session."""
    read = Package.read

    def again(self: Package, name: str) -> pl.DataFrame:
        folder = once(f"nycflights-{Path(name).name}", lambda folder: read(self, name).write_ipc(folder / "table"))
        return pl.read_ipc(folder / "table")

    return again
