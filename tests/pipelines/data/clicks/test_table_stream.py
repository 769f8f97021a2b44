"""A table of one's own by day, and split by a column: which rows are where, that none moves, and every refusal."""

from __future__ import annotations

import dataclasses
import datetime
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.schema import build
from pipelines.config.settings import typed
from pipelines.data.clicks.bags import BagConfig
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.table import TableConfig
from pipelines.data.clicks.table_stream import TableStreamConfig
from pipelines.data.dataset import Dataset
from pipelines.data.identity import data_hash, day_hashes
from pipelines.data.stream import Stream
from pipelines.runs.release import checked
from pipelines.train import make_run
from tests.pipelines.by_hand import noise_by_hand
from tests.pipelines.data.clicks.test_bags import lists_of
from tests.pipelines.data.clicks.test_table import refused, written
from tests.pipelines.data.criteo_text import run

FIRST, DAYS, ROWS = datetime.date(2024, 1, 30), 6, 480
CATEGORICAL = {"user": 50, "genres": BagConfig(rows=24, most=3)}


def dated(rows: int = ROWS) -> pl.DataFrame:
    """Rows of six days in no order, and a number of each day, in units of 10 from 100."""
    frame = lists_of(rows).with_row_index("row")
    days = [row * 7919 % DAYS for row in range(rows)]
    return frame.with_columns(
        date=pl.Series([FIRST + datetime.timedelta(day) for day in days]),
        hour=pl.Series([100 + 10 * day + row % 10 for row, day in enumerate(days)]),
        part=pl.Series([("train", "test", "validation", "train")[row % 4] for row in range(rows)]),
    )


def of(path: Path, **changes: Any) -> TableStreamConfig:
    given = {"day": "date", "first": "2024-01-30", "days": DAYS, **changes}
    return TableStreamConfig(
        path=str(path), label="clicked", categorical=CATEGORICAL, numeric={"row": "none"}, unit=["household"], **given
    )


def rows_of(day: Dataset) -> dict[str, list[int]]:
    """The rows of each split, by their number in the table."""
    found = {part: [int(row) for one in day.split(part).chunks(ROWS) for row in one.numeric[:, 0]] for part in day.rows}
    return {part: sorted(rows) for part, rows in found.items()}


@pytest.mark.parametrize("name", ["clicks.parquet", "clicks.csv"])
@pytest.mark.parametrize("by", ["date", "hour"])
def test_each_day_holds_its_rows_and_splits_do_not_depend_on_the_format(tmp_path: Path, name: str, by: str) -> None:
    frame, categorical = dated(), {"user": 50}
    if name.endswith("csv"):
        frame = frame.drop("genres", "tags")
    settings = {"day": by, "first": "2024-01-30"} if by == "date" else {"day": by, "first": 100, "length": 10}
    config = dataclasses.replace(of(written(tmp_path, frame, name), **settings), categorical=categorical)
    stream = Stream.open(run(config, tmp_path / "data"))
    assert stream.day_numbers == list(range(DAYS)) and stream.folder.name.startswith("table_stream-")
    splits = [rows_of(day) for day in stream.days]
    for number, parts in enumerate(splits):
        assert sorted(parts["train"] + parts["validation"]) == [r for r in range(ROWS) if r * 7919 % DAYS == number]
        (some,) = stream.days[number].split("train").chunks(ROWS)
        assert set(some.days.tolist()) == {number}
    again = dataclasses.replace(of(written(tmp_path, dated(), "same.parquet"), **settings), categorical=categorical)
    assert [rows_of(day) for day in Stream.open(run(again, tmp_path / "other")).days] == splits


def test_days_are_absolute_no_line_moves_when_others_come_or_go(tmp_path: Path) -> None:
    whole = Stream.open(run(of(written(tmp_path, dated())), tmp_path / "data"))
    fewer = dated().filter((pl.col("row") % 5 != 0) & (pl.col("row") > 40))
    less = Stream.open(run(of(written(tmp_path, fewer, "fewer.parquet")), tmp_path / "data"))
    there = set(fewer["row"].to_list())
    for day, other in zip(whole.days, less.days, strict=True):
        for part, rows in rows_of(day).items():
            assert rows_of(other)[part] == [row for row in rows if row in there]


def test_files_are_days_in_the_order_of_their_names_and_a_new_one_changes_no_other(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    for number, part in enumerate(dated().partition_by("date", maintain_order=True)[:3]):
        written(parts, part, f"{number}.parquet")
    config = of(parts, day="file", first=None, days=None)
    stream = Stream.open(run(config, tmp_path / "data"))
    before = day_hashes(config)
    firsts = [min(rows_of(day)["train"]) for day in stream.days]
    assert len(stream.days) == 3 and firsts == sorted(firsts)
    written(parts, dated().filter(pl.col("date") == FIRST), "9.parquet")
    assert {day: day_hashes(config)[day] for day in range(3)} == before and len(day_hashes(config)) == 4
    assert day_hashes(dataclasses.replace(config, days=2)).keys() == {0, 1}
    said = refused(dataclasses.replace(config, days=7, path=f"{parts}/*.parquet"), tmp_path / "none")
    assert said.endswith("/*.parquet has files, 4.") and said.startswith(
        "data.days=7 asks for more days than data.path="
    )


@pytest.mark.parametrize("algorithm", ["fest algorithm.selection.rows=40", "adafest algorithm.threshold=2", "dpsgd"])
@pytest.mark.parametrize("unit", ["example", "household"])
def test_a_stream_with_bags_is_trained_on_period_by_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, unit: str
) -> None:
    noise_by_hand(monkeypatch, 4.0)
    line = ["data=table_stream", f"data.path={written(tmp_path, dated())}", "data.label=clicked", "data.day=date",
            "data.categorical={user: 50, genres: {rows: 24, most: 3}}", "data.first=2024-01-30", f"data.days={DAYS}",
            "stream.train_days=4", "stream.period=2", "data.unit=[household]", f"privacy.unit={unit}"]  # fmt: skip
    quick = ["model.hidden=[4]", "train.batch_size=40", "train.steps=2", "privacy.epsilon=50", "unit.max_examples=2"]
    places = [f"paths.data={tmp_path}/data", f"paths.runs={tmp_path}/runs"]
    made = make_run(typed(Composer().compose([*line, *quick, *places, *f"algorithm={algorithm}".split()])))
    assert len(made.summary["periods"]) == 2 and checked(made.path).config["data"]["day"] == "date"


def test_a_column_says_the_split(tmp_path: Path) -> None:
    frame = dated()
    table = TableConfig(path=str(written(tmp_path, frame)), label="clicked", categorical=CATEGORICAL,
                        numeric={"row": "none"}, split_by="part")  # fmt: skip
    found = rows_of(Dataset.open(run(table, tmp_path / "data")))
    for part in ("train", "validation", "test"):
        assert found[part] == frame.filter(pl.col("part") == part)["row"].to_list()
    in_csv = dataclasses.replace(
        table, path=str(written(tmp_path, frame.drop("genres", "tags"), "c.csv")), categorical={"user": 50}
    )
    assert rows_of(Dataset.open(run(in_csv, tmp_path / "data"))) == found
    stream = of(
        written(tmp_path, frame.with_columns(part=pl.col("part").replace("test", "validation")), "s.parquet"),
        split_by="part",
    )
    for day in Stream.open(run(stream, tmp_path / "data")).days:
        assert all(row % 4 in (1, 2) for row in rows_of(day)["validation"])
    wrong = dataclasses.replace(stream, path=str(tmp_path / "clicks.parquet"))
    with pytest.raises(UserError, match=r"row 2: part is 'test', and a row's split is train or validation: write one"):
        run(wrong, tmp_path / "data")


def test_where_a_column_is_not_asked_for_no_hash_has_moved(tmp_path: Path) -> None:
    path = written(tmp_path, dated())
    plain = TableConfig(path=str(path), label="clicked", categorical={"user": 50})
    assert data_hash(plain) != data_hash(dataclasses.replace(plain, split_by="part"))
    without = {name: value for name, value in dataclasses.asdict(plain).items() if name != "split_by"}
    assert data_hash(build(TableConfig, without, "data")) == data_hash(plain)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"first": None},
            "data.day=date needs data.first, the date or number with which the stream begins, and data.days",
        ),
        ({"days": None}, "data.day=date needs data.first"),
        ({"first": "january"}, "data.first=january must be a date, as in 2024-01-31, or a whole number"),
        ({"first": "2024-02-30"}, "data.first=2024-02-30 must be a date"),
        ({"day": "file"}, "data.first and data.length have no effect under data.day=file"),
        ({"day": "dat"}, "has no column dat, which data.day names; did you mean date?"),
        ({"day": "hour"}, "the column hour holds Int64, and data.day takes a date or text: write it as one of these."),
        ({"first": 3}, "the column date holds Date, and data.day takes a whole number or text"),
        ({"split_by": "row"}, "the column row holds UInt32, and data.split_by takes text: write it as one of these."),
    ],
)
def test_days_that_are_none_are_refused_once(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    assert said in refused(of(written(tmp_path, dated()), **changes), tmp_path)


def test_shares_without_effect_are_refused(tmp_path: Path) -> None:
    table = TableConfig(path="x.csv", label="clicked", categorical={"user": 5}, split=SplitConfig(0.5, 0.25, 0.25))
    with pytest.raises(
        UserError, match=re.escape("data.split have no effect under data.split_by=part: leave them out")
    ):
        dataclasses.replace(table, split_by="part").check()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "a.parquet",
            None,
            "row 8: date is None, and every row needs a date, as in 2024-01-31: correct or leave it out.",
        ),
        ("a.csv", "31.1.2024", "row 8: date is '31.1.2024', and every row needs a date, as in 2024-01-31"),
        (
            "a.csv",
            "2024-01-29",
            "row 8: date is '2024-01-29', outside of the stream's 6 days of 1 from 2024-01-30 (data.",
        ),
        (
            "a.csv",
            "2024-02-05",
            "outside of the stream's 6 days of 1 from 2024-01-30 (data.days, data.length, data.first)",
        ),
    ],
)
def test_rows_of_no_day_are_refused_by_row(tmp_path: Path, name: str, value: str | None, said: str) -> None:
    frame = dated(60).drop("genres", "tags")
    dates = frame["date"].cast(pl.String).to_list()
    dates[7] = value
    column = pl.Series("date", dates) if name.endswith("csv") else pl.Series("date", dates).str.to_date()
    config = dataclasses.replace(of(written(tmp_path, frame.with_columns(column), name)), categorical={"user": 50})
    with pytest.raises(UserError) as raised:
        run(config, tmp_path / "data")
    assert f"{tmp_path}/{name}, {said}" in str(raised.value) or said in str(raised.value)


def test_a_row_is_named_by_its_place_in_the_file_and_not_in_its_day(tmp_path: Path) -> None:
    frame = dated(60).with_columns(clicked=pl.Series([None if row == 43 else row % 2 for row in range(60)]))
    with pytest.raises(UserError) as raised:
        run(of(written(tmp_path, frame)), tmp_path / "data")
    assert "1 of 6 days" in str(raised.value) and "clicks.parquet, row 44: clicked has no value" in str(raised.value)


def test_splits_of_a_column_that_are_too_small_are_told_how_to_grow(tmp_path: Path, capsys: Any) -> None:
    frame = dated(60).with_columns(part=pl.lit("train"))
    table = TableConfig(path=str(written(tmp_path, frame)), label="clicked", categorical={"user": 5}, split_by="part")
    assert np.array_equal(list(Dataset.open(run(table, tmp_path / "data")).rows.values()), [60, 0, 0])
    assert "Use more data, or name test in more rows of part." in capsys.readouterr().err
