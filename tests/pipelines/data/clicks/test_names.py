"""First names: the draw of people from the counts, the label, and the slices of the years."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dpfest.errors import UserError
from pipelines.data.clicks import names
from pipelines.data.clicks.names import LAST_YEAR, NAMES, NamesConfig, NamesStreamConfig, counts, drawn
from pipelines.data.clicks.packaged import Package, PackagedRows, Slices
from pipelines.data.clicks.source import RowBlock
from pipelines.data.dataset import Dataset
from pipelines.data.stream import Stream
from tests.pipelines.data.criteo_text import run

FIELDS = [field for field in RowBlock.__annotations__ if field not in ("units", "lists", "part")]


def rows(source: PackagedRows) -> RowBlock:
    blocks = list(source.blocks(lambda done, total: None))
    return RowBlock(*(np.concatenate([getattr(block, field) for block in blocks]) for field in FIELDS))


def test_people_are_drawn_in_proportion_to_the_counts() -> None:
    frames = list(NamesConfig(rows=200_000).reader().frames())
    people = pl.concat(frames)
    counted = counts(NAMES.package, 1940, Slices(NAMES.dates))
    assert counted["n"].sum() == 279_034_205 and counted["year"].min() == 1940
    share = counted.group_by("year", "sex").agg(expected=pl.col("n").sum() / counted["n"].sum() * people.height)
    met = people.group_by("year", "sex").len().join(share, on=["year", "sex"])
    assert met.height == 2 * (LAST_YEAR - 1940 + 1)
    chi_squared = ((met["len"] - met["expected"]) ** 2 / met["expected"]).sum()
    assert 100 < chi_squared < 220  # 155 degrees of freedom
    james = counted.filter((pl.col("name") == "James") & (pl.col("sex") == "M"))["n"].sum() / counted["n"].sum()
    met_james = people.filter((pl.col("name") == "James") & (pl.col("sex") == "M")).height
    assert met_james == pytest.approx(james * people.height, abs=4 * (james * people.height) ** 0.5)


def test_every_place_can_be_drawn_and_none_beyond() -> None:
    place = drawn(np.arange(1000, dtype=np.uint64), 0, 10)
    assert set(place.tolist()) == set(range(10))
    assert (place != drawn(np.arange(1000, dtype=np.uint64), 1, 10)).mean() > 0.8


def test_more_people_leave_the_first_ones_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    few, more = rows(NamesConfig(rows=3_000).reader()), rows(NamesConfig(rows=5_000).reader())
    for field in FIELDS:
        assert np.array_equal(getattr(few, field), getattr(more, field)[:3_000])
    monkeypatch.setattr(names, "BLOCK_ROWS", 700)
    in_blocks = rows(NamesConfig(rows=3_000).reader())
    for field in FIELDS:
        assert np.array_equal(getattr(few, field), getattr(in_blocks, field))


def test_namesakes_of_one_year_are_split_each_on_its_own() -> None:
    people = rows(NamesConfig(rows=100_000).reader())
    assert len(np.unique(people.content)) == 100_000
    _, times = np.unique(np.column_stack([people.keys, people.day, people.label]), axis=0, return_counts=True)
    assert times.max() > 20


def test_no_feature_tells_the_sex(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sexes of all people exchanged: the features stay."""
    here = rows(NamesConfig(rows=2_000).reader())
    read, exchange = Package.read, pl.col("sex").replace_strict({"F": "M", "M": "F"})
    monkeypatch.setattr(Package, "read", lambda *file: read(*file).with_columns(sex=exchange))
    there = rows(NamesConfig(rows=2_000).reader())
    assert np.array_equal(here.keys, there.keys) and np.array_equal(here.numeric, there.numeric)
    assert np.array_equal(here.label, 1 - there.label)


def test_a_dataset_of_people(tmp_path: Path) -> None:
    dataset = Dataset.open(run(NamesConfig(rows=50_000), tmp_path))
    assert sum(dataset.rows.values()) == 50_000
    positives = sum(split["positives"] for split in dataset.description["splits"].values())
    assert positives / 50_000 == pytest.approx(0.4843, abs=0.01)
    numeric = np.concatenate([rows.numeric for rows in dataset.split("train").chunks(50_000)])
    assert np.abs(numeric.mean(0)).max() < 0.2 and 0.8 < numeric.std(0).min() < numeric.std(0).max() < 1.2


@pytest.mark.parametrize(("first_year", "days"), [(1940, 1), (2010, 8), pytest.param(1940, 7, marks=pytest.mark.slow)])
def test_slices_are_years_that_rise_and_hold_every_person_once(tmp_path: Path, first_year: int, days: int) -> None:
    config = NamesStreamConfig(rows=5_000, first_year=first_year, days=days)
    stream = Stream.open(run(config, tmp_path))
    assert sum(sum(day.rows.values()) for day in stream.days) == 5_000
    slices = [pl.concat(config.reader(day).frames()) for day in range(days)]
    assert sum(slice.height for slice in slices) == pl.concat(slices)["person"].n_unique() == 5_000
    years = [set(slice["year"]) for slice in slices]
    assert all(max(before) < min(after) for before, after in itertools.pairwise(years))


def test_a_stream_has_no_more_days_than_years(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.days must be between 1 and 18, the years of birth"):
        run(NamesStreamConfig(first_year=2000), tmp_path)


def test_names_of_a_stream_drift() -> None:
    early, late = (set(pl.concat(NamesStreamConfig(rows=50_000).reader(day).frames())["name"]) for day in (0, 23))
    assert len(late - early) > len(late) / 2
