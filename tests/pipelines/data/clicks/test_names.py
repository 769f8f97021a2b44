"""First names: the draw of people from the counts, the label, and the slices of the years."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dpfest.errors import UserError
from pipelines.data.clicks import names
from pipelines.data.clicks.names import LAST_YEAR, Names, NamesConfig, NamesStreamConfig, drawn
from pipelines.data.clicks.source import RowBlock
from pipelines.data.dataset import Dataset
from pipelines.data.stream import Stream
from tests.pipelines.data.criteo_text import run

FIELDS = [field for field in RowBlock.__annotations__ if field not in ("units", "lists", "part")]


def rows(source: Names) -> RowBlock:
    blocks = list(source.blocks(lambda done, total: None))
    return RowBlock(*(np.concatenate([getattr(block, field) for block in blocks]) for field in FIELDS))


def test_people_are_drawn_in_proportion_to_the_counts() -> None:
    frames = list(Names(200_000, 1940, 0).frames(lambda done, total: None))
    people = pl.concat(frames)
    counts = Names(1, 1940, 0).counts()
    assert counts["n"].sum() == 279_034_205 and counts["year"].min() == 1940
    share = counts.group_by("year", "sex").agg(expected=pl.col("n").sum() / counts["n"].sum() * people.height)
    met = people.group_by("year", "sex").len().join(share, on=["year", "sex"])
    assert met.height == 2 * (LAST_YEAR - 1940 + 1)
    chi_squared = ((met["len"] - met["expected"]) ** 2 / met["expected"]).sum()
    assert 100 < chi_squared < 220  # 155 degrees of freedom
    james = counts.filter((pl.col("name") == "James") & (pl.col("sex") == "M"))["n"].sum() / counts["n"].sum()
    met_james = people.filter((pl.col("name") == "James") & (pl.col("sex") == "M")).height
    assert met_james == pytest.approx(james * people.height, abs=4 * (james * people.height) ** 0.5)


def test_every_place_can_be_drawn_and_none_beyond() -> None:
    place = drawn(np.arange(1000, dtype=np.uint64), 0, 10)
    assert set(place.tolist()) == set(range(10))
    assert (place != drawn(np.arange(1000, dtype=np.uint64), 1, 10)).mean() > 0.8


def test_more_people_leave_the_first_ones_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    few, more = rows(Names(3_000, 1940, 0)), rows(Names(5_000, 1940, 0))
    for field in FIELDS:
        assert np.array_equal(getattr(few, field), getattr(more, field)[:3_000])
    monkeypatch.setattr(names, "BLOCK_ROWS", 700)
    in_blocks = rows(Names(3_000, 1940, 0))
    for field in FIELDS:
        assert np.array_equal(getattr(few, field), getattr(in_blocks, field))


def test_namesakes_of_one_year_are_split_each_on_its_own() -> None:
    people = rows(Names(100_000, 1940, 0))
    assert len(np.unique(people.content)) == 100_000
    _, times = np.unique(np.column_stack([people.keys, people.day, people.label]), axis=0, return_counts=True)
    assert times.max() > 20


def test_no_feature_tells_the_sex() -> None:
    """The sexes of all people exchanged: the features stay."""
    plain = Names(2_000, 1940, 0)
    other = Names(2_000, 1940, 0)
    read = other.read
    exchange = pl.col("sex").replace_strict({"F": "M", "M": "F"})
    other.read = lambda *file: read(*file).with_columns(sex=exchange)  # type: ignore[method-assign]
    here, there = rows(plain), rows(other)
    assert np.array_equal(here.keys, there.keys) and np.array_equal(here.numeric, there.numeric)
    assert np.array_equal(here.label, 1 - there.label)


def test_a_dataset_of_people(tmp_path: Path) -> None:
    dataset = Dataset.open(run(NamesConfig(rows=50_000), tmp_path))
    assert sum(dataset.rows.values()) == 50_000
    positives = sum(split["positives"] for split in dataset.description["splits"].values())
    assert positives / 50_000 == pytest.approx(0.4843, abs=0.01)
    numeric = np.concatenate([rows.numeric for rows in dataset.split("train").chunks(50_000)])
    assert np.abs(numeric.mean(0)).max() < 0.2 and 0.8 < numeric.std(0).min() < numeric.std(0).max() < 1.2


@pytest.mark.parametrize(("first_year", "days"), [(1940, 1), (1940, 7), (2010, 8)])
def test_slices_are_years_that_rise_and_hold_every_person_once(tmp_path: Path, first_year: int, days: int) -> None:
    stream = Stream.open(run(NamesStreamConfig(rows=5_000, first_year=first_year, days=days), tmp_path))
    assert sum(sum(day.rows.values()) for day in stream.days) == 5_000
    slices = [pl.concat(Names(5_000, first_year, 0, days, day).frames(lambda done, total: None)) for day in range(days)]
    assert sum(slice.height for slice in slices) == pl.concat(slices)["person"].n_unique() == 5_000
    years = [set(slice["year"]) for slice in slices]
    assert all(max(before) < min(after) for before, after in itertools.pairwise(years))


def test_a_stream_has_no_more_days_than_years(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.days must be between 1 and 18, the years of birth"):
        run(NamesStreamConfig(first_year=2000), tmp_path)


def test_names_of_a_stream_drift() -> None:
    early, late = (
        set(pl.concat(Names(50_000, 1940, 0, 24, day).frames(lambda done, total: None))["name"]) for day in (0, 23)
    )
    assert len(late - early) > len(late) / 2
