"""The flights: their number, their label, and that no feature knows what happened after departure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.data.clicks.nycflights import FLIGHTS, SCHEDULE_COLUMNS, NycflightsConfig
from pipelines.data.clicks.nycflights_features import CATEGORIES, NUMBERS, departure_features
from pipelines.data.clicks.packaged import Package
from pipelines.data.dataset import Dataset
from tests.pipelines.data.conftest import ReadFlights
from tests.pipelines.data.criteo_text import run

AFTER_DEPARTURE = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}


@pytest.fixture(scope="module")
def flights(prepared: Path) -> Dataset:
    return Dataset.open(run(NycflightsConfig(), prepared))


@pytest.mark.slow
def test_every_flight_with_a_known_delay_is_there_and_the_others_are_counted(flights: Dataset) -> None:
    """Slow: writes all flights."""
    assert flights.rows == {"train": 261_978, "validation": 16_613, "test": 48_755}
    assert sum(flights.rows.values()) == 327_346
    assert flights.description["excluded_rows"]["by_reason"] == {"no arrival delay: cancelled or diverted": 9_430}
    positives = sum(split["positives"] for split in flights.description["splits"].values())
    assert positives / 327_346 == pytest.approx(0.2371, abs=5e-5)


@pytest.mark.slow
def test_it_has_the_layout_of_criteo(flights: Dataset) -> None:
    assert len(flights.numeric_names) == 13 and len(flights.vocabulary_sizes) == 26
    assert 207_000 <= sum(flights.vocabulary_sizes) <= 253_000
    assert min(flights.vocabulary_sizes) <= 10 and max(flights.vocabulary_sizes) >= 40_000
    days = flights.description["splits"]["train"]["rows_per_day"]
    assert list(days) == [str(day) for day in range(365)]


def test_numerics_are_finite_and_of_unit_size(flights: Dataset) -> None:
    numeric = np.concatenate([rows.numeric for rows in flights.split("train").chunks(50_000)])
    assert np.isfinite(numeric).all() and np.abs(numeric).max() <= 5
    assert np.abs(numeric.mean(0)).max() < 0.5 and 0.2 < numeric.std(0).min() < numeric.std(0).max() < 1.5


def test_days_rise_through_the_file(flights: Dataset) -> None:
    days = np.concatenate([rows.days for rows in flights.split("test").chunks(50_000)])
    assert (np.diff(days) >= 0).all()


def test_no_column_that_is_read_is_known_only_after_departure() -> None:
    assert not AFTER_DEPARTURE & set(SCHEDULE_COLUMNS)
    used = {column for category in CATEGORIES.values() for column in category.columns} | set(NUMBERS)
    assert not AFTER_DEPARTURE & used


@pytest.mark.slow
@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_features_do_not_move_when_the_outcome_does(
    monkeypatch: pytest.MonkeyPatch, read_flights: ReadFlights, every: int
) -> None:
    """Slow but for every twentieth flight. Delays reversed, other outcomes gone: the same features."""

    def some(self: Package, name: str) -> pl.DataFrame:
        table = read_flights(self, name)
        return table.gather_every(every) if name == FLIGHTS else table

    monkeypatch.setattr(Package, "read", some)
    plain = next(NycflightsConfig().reader().blocks(lambda done, total: None))

    def other_outcomes(self: Package, name: str) -> pl.DataFrame:
        table = some(self, name)
        if name == FLIGHTS:
            happened = pl.col("arr_delay").is_not_null()
            table = table.drop(*(AFTER_DEPARTURE - {"arr_delay"})).with_columns(
                arr_delay=pl.when(happened).then(100 - pl.col("arr_delay"))
            )
        return table

    monkeypatch.setattr(Package, "read", other_outcomes)
    other = next(NycflightsConfig().reader().blocks(lambda done, total: None))
    assert np.array_equal(plain.numeric, other.numeric) and np.array_equal(plain.keys, other.keys)
    assert not np.array_equal(plain.label, other.label)


def test_features_follow_from_the_schedule_the_aircraft_and_the_weather() -> None:
    flights = pl.DataFrame(
        {
            **{"month": [1, 1, 1], "day": [1, 1, 2], "sched_dep_time": [905, 930, 905]},
            **{"sched_arr_time": [5, 1130, 1005], "carrier": ["UA"] * 3, "flight": [1, 2, 1]},
            **{
                "tailnum": ["N1", "N1", "N1"],
                "origin": ["EWR"] * 3,
                "dest": ["IAH"] * 3,
                "distance": [1400] * 3,
            },
            **{"hour": [9, 9, 9], "minute": [5, 30, 5], "time_hour": ["a", "a", "b"], "row": [0, 1, 2]},
        }
    )
    planes = pl.DataFrame({"tailnum": ["N1"], "model": ["737"]})
    weather = pl.DataFrame(
        {
            **{"origin": ["EWR"], "time_hour": ["a"], "temp": [40.0], "humid": [50.0], "wind_dir": [270]},
            **{
                "wind_speed": [10.0],
                "wind_gust": [None],
                "precip": [0.05],
                "visib": [10.0],
                "pressure": [1000.0],
                "dewp": [30.0],
            },
        },
        schema_overrides={"wind_gust": pl.Float64},
    )
    table = departure_features(flights, planes, weather)
    assert table["pressure"].to_list() == [1000, 1000, None]
    assert table["dew_point"].to_list() == [30, 30, None]
    assert table["scheduled_minutes"].to_list() == [900, 120, 60]
    assert table["date"].to_list() == [0, 0, 1]
    assert table["weather"].to_list() == ["4/2/1", "4/2/1", None]
    assert table["model"].to_list() == ["737"] * 3
