"""Streams: days that are datasets, made once, remade alone, and named where they are missing or damaged."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dpfest.errors import UserError
from pipelines.config.schema import build
from pipelines.config.settings import SCHEMAS, schema
from pipelines.data.clicks import nycflights
from pipelines.data.clicks.nycflights import FLIGHTS, NYCFLIGHTS, NycflightsConfig, NycflightsStreamConfig
from pipelines.data.clicks.packaged import Package
from pipelines.data.clicks.source import RowSource
from pipelines.data.clicks.split import DaySplitConfig
from pipelines.data.clicks.synthetic import CriteoSyntheticStreamConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.rows import RECORD
from pipelines.data.stream import Stream
from pipelines.preprocess import preprocess
from tests.pipelines.data.conftest import ReadFlights
from tests.pipelines.data.criteo_text import run, settings

SMALL = CriteoSyntheticStreamConfig(days=4, rows_per_day=300)


def _records(folder: Path) -> np.ndarray:
    return np.fromfile(folder, RECORD)


def _times(stream: Path) -> dict[str, int]:
    return {day.name: (day / "train.rows").stat().st_mtime_ns for day in stream.glob("day_*")}


@pytest.fixture(scope="module", params=[20, pytest.param(1, marks=pytest.mark.slow)], ids=["a twentieth", "all"])
def flights(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, read_flights: ReadFlights
) -> Iterator[Path]:
    """A folder for every twentieth flight in the order of time, which the package then seems to have, or for all."""

    def some(self: Package, name: str) -> pl.DataFrame:
        table = read_flights(self, name)
        return table.gather_every(request.param) if name == FLIGHTS else table

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Package, "read", some)
        nycflights._in_order_of_departure.cache_clear()
        yield tmp_path_factory.mktemp("flights")
    nycflights._in_order_of_departure.cache_clear()


def test_the_flights_are_cut_into_24_slices_and_none_is_lost(flights: Path) -> None:
    """Slow but for few of them: writes all flights."""
    stream = Stream.open(run(NycflightsStreamConfig(), flights))
    year = nycflights.flights(NYCFLIGHTS.package)["arr_delay"]
    known, unknown = len(year) - year.null_count(), year.null_count()
    assert (known, unknown) == (327_346, 9_430) or known + unknown == -(-(327_346 + 9_430) // 20)
    assert len(stream.days) == 24 and sum(stream.rows_of_day) == known
    assert 0.88 * known < 24 * min(stream.rows_of_day) < 24 * max(stream.rows_of_day) < 1.1 * known  # 15 or 16 dates
    assert sum(day.description["excluded_rows"]["total"] for day in stream.days) == unknown
    whole = run(NycflightsConfig(), flights)
    rows = [np.concatenate([_records(day.folder / f"{part}.rows") for part in day.rows]) for day in stream.days]
    for number, day in enumerate(rows):
        assert (day["day"] == number).all()
    of_stream, of_year = (
        np.concatenate([part[["label", "numeric", "categorical"]].copy() for part in parts])
        for parts in (rows, [_records(whole / f"{split}.rows") for split in ("train", "validation", "test")])
    )
    assert sorted(row.tobytes() for row in of_stream) == sorted(row.tobytes() for row in of_year)


def test_the_flights_are_in_the_order_of_time_and_drift(flights: Path) -> None:
    """Slow but for few of them: writes all flights."""
    stream = Stream.open(run(NycflightsStreamConfig(), flights))
    assert stream.days[0].categorical_names.index("date") == 15
    dates = [set(day.split("train").gather(np.arange(day.examples)).categorical[:, 15]) for day in stream.days]
    # A date lies in one slice; about 80 of 365 dates share one of 730 rows with another by their hash.
    shared = sum(len(dates[a] & dates[b]) for a in range(24) for b in range(a + 1, 24))
    assert shared < 150 and max(map(len, dates)) <= 16 and sum(map(len, dates)) <= 365
    rates = [day.description["splits"]["train"]["positives"] / day.examples for day in stream.days]
    assert max(rates) > 2 * min(rates)


def test_a_day_holds_rows_out_and_has_a_histogram_of_the_others(tmp_path: Path) -> None:
    stream = Stream.open(run(SMALL, tmp_path))
    assert stream.rows_of_day == [300] * 4 and stream.day_numbers == [0, 1, 2, 3]
    for day in stream.days:
        assert list(day.rows) == ["train", "validation"] and day.vocabulary_sizes == stream.vocabulary_sizes
        # A twentieth of 300, give or take four binomial standard deviations: 1 seed in 10,000 would pass them.
        assert 0 < day.rows["validation"] < 15 + 4 * (300 * 0.05 * 0.95) ** 0.5
        assert [int(counts.sum()) for counts in day.histogram()] == [day.examples] * 26
        assert (day.folder / "histogram.npy").exists()
    days = [day.split("train").gather(np.arange(day.examples)).days for day in stream.days]
    assert [set(numbers.tolist()) for numbers in days] == [{0}, {1}, {2}, {3}]


def _overlap(folder: Path, drift: float) -> float:
    """Share of the rows of the last day whose value of feature 6 (1,172 values) was met on the first day."""
    config = CriteoSyntheticStreamConfig(days=8, rows_per_day=3_000, drift=drift, zipf_exponent=0.5)
    stream = Stream.open(run(config, folder))
    first, last = (stream.days[day].histogram()[6] for day in (0, 7))
    return float(last[first > 0].sum() / last.sum())


def test_drift_changes_what_the_days_hold_and_no_drift_does_not(tmp_path: Path) -> None:
    steady, drifting = _overlap(tmp_path, 0.0), _overlap(tmp_path, 0.1)
    # 3,000 of 1,172 values: nearly all are met; of the drifting ones, 7 days later 0.7 are others, which share rows
    # of the same table with old ones.
    assert steady > 0.9 and drifting < steady - 0.05


def test_a_day_does_not_depend_on_how_many_there_are(tmp_path: Path) -> None:
    long, short = run(SMALL, tmp_path / "a"), run(replace(SMALL, days=2), tmp_path / "b")
    assert long.name != short.name
    for day in ("day_00", "day_01"):
        assert (long / day / "train.rows").read_bytes() == (short / day / "train.rows").read_bytes()


def test_only_a_day_that_is_gone_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(SMALL, tmp_path)
    before, rows = _times(folder), (folder / "day_02" / "train.rows").read_bytes()
    shutil.rmtree(folder / "day_02")
    with pytest.raises(UserError, match=r"Day 2 of .* is missing \(`dpfest preprocess data=criteo_synthetic_stream`"):
        Stream.open(folder)
    capsys.readouterr()
    assert run(SMALL, tmp_path) == folder
    assert "(1 of 4 days made): 1,200 rows in 4 days" in capsys.readouterr().err
    after = _times(folder)
    assert after.pop("day_02") != before.pop("day_02") and after == before
    assert (folder / "day_02" / "train.rows").read_bytes() == rows


def test_more_days_share_the_files_of_those_that_are_there(tmp_path: Path) -> None:
    short = run(replace(SMALL, days=3), tmp_path)
    long = run(SMALL, tmp_path)
    for day in ("day_00", "day_01", "day_02"):
        assert (long / day / "train.rows").samefile(short / day / "train.rows")
    shutil.rmtree(short)
    assert Stream.open(long).rows_of_day == [300] * 4
    # A day that was damaged is not passed on.
    (long / "day_01" / "train.rows").write_bytes(b"")
    assert Stream.open(run(replace(SMALL, days=2), tmp_path)).rows_of_day == [300] * 2


class Killed(CriteoSyntheticStreamConfig):
    """A stream of whose days the second takes its process with it."""

    def source(self, day: int, scratch: Path) -> RowSource:
        if day == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().source(day, scratch)


def test_a_process_that_is_killed_takes_no_other_day_with_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"1 of 4 days of .*\n  day 1: it recorded no reason: its process was killed"):
        run(Killed(days=4, rows_per_day=300), tmp_path, jobs=2)
    (folder,) = tmp_path.iterdir()
    assert sorted(found.name for found in folder.glob("day_*")) == ["day_00", "day_02", "day_03"]
    assert run(SMALL, tmp_path) == folder
    assert sorted(found.name for found in folder.iterdir() if found.is_dir()) == [f"day_0{day}" for day in range(4)]


def test_a_damaged_day_is_named_with_what_remakes_it(tmp_path: Path) -> None:
    folder = run(SMALL, tmp_path)
    (folder / "day_03" / "train.rows").write_bytes(b"12")
    said = rf"Day 3 of .* is damaged\. Delete {folder}/day_03; then `dpfest preprocess .*makes only this day"
    with pytest.raises(UserError, match=said):
        Stream.open(folder)
    with pytest.raises(UserError, match=said):
        run(SMALL, tmp_path)
    shutil.rmtree(folder / "day_03")
    assert len(Stream.open(run(SMALL, tmp_path)).days) == 4


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "stream.json").unlink(), "There is no stream in"),
        (lambda folder: (folder / "stream.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "stream.json").write_text('{"schema": 99}'), "has schema 99"),
    ],
)
def test_what_is_no_stream_is_not_opened(tmp_path: Path, spoil, said: str) -> None:  # type: ignore[no-untyped-def]
    folder = run(replace(SMALL, days=1), tmp_path)
    spoil(folder)
    with pytest.raises(UserError, match=said):
        Stream.open(folder)


def test_too_small_a_disk_is_told_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"About [\d,.]+ GB are needed .* but [\d,.]+ GB are free"):
        run(replace(SMALL, rows_per_day=10**13), tmp_path)
    assert not list(tmp_path.glob("*/*day_*"))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (replace(SMALL, split=DaySplitConfig(held_out=0)), "data.split.held_out must be above 0 and below 1"),
        (NycflightsStreamConfig(days=400), "data.days must be between 1 and 365"),
        (replace(SMALL, vocabulary=VocabularyConfig(policy="threshold")), "cannot be used in a stream"),
        (replace(SMALL, vocabulary=VocabularyConfig(policy="all")), "cannot be used in a stream"),
    ],
)
def test_settings_that_do_not_fit_a_stream_are_refused(tmp_path: Path, config: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(config, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"days": 0}, "data.days must be a whole number from 1"),
        ({"rows_per_day": 0}, "data.rows_per_day must be a whole number from 1"),
        ({"drift": -1.0}, "data.drift must be a number from 0 to 1"),
    ],
)
def test_settings_out_of_range_are_refused_by_their_key(values: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        build(CriteoSyntheticStreamConfig, values, "data")


def test_a_data_configuration_says_whether_it_is_a_stream() -> None:
    streams = {name for name in SCHEMAS["data"] if schema("data", name).is_stream}
    assert streams == {
        "journey_stream",
        "promotions_stream",
        "names_stream",
        "nycflights_stream",
        "criteo_1tb",
        "criteo_synthetic_stream",
        "table_stream",
    }


def test_a_damaged_day_is_found_by_its_checksum_and_made_again(tmp_path: Path) -> None:
    stream = run(SMALL, tmp_path)
    rows = stream / "day_01" / "train.rows"
    whole, before = rows.read_bytes(), _times(stream)
    rows.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    with pytest.raises(UserError, match=r"train\.rows is damaged: its sha256 is"):
        Stream.open(stream).days[1].verify()
    preprocess(settings(SMALL, tmp_path, verify=True))
    after = _times(stream)
    assert rows.read_bytes() == whole
    assert [day for day in sorted(before) if before[day] != after[day]] == ["day_01"]
