"""Lists in a table of one's own: the bags that they become, from every format, what is cut, and every refusal."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from dpfest.errors import UserError
from pipelines.config.schema import build
from pipelines.data.clicks.bags import BagConfig, Lists
from pipelines.data.clicks.source import RowBlock
from pipelines.data.clicks.table import TableConfig
from pipelines.data.clicks.table_columns import BAG_HASH
from pipelines.data.dataset import Dataset
from pipelines.data.hashing import BLANK_KEY, bucket
from pipelines.data.identity import data_hash
from pipelines.data.rows import NO_ROW, JoinedRows, first_distinct
from pipelines.data.stream import Stream
from pipelines.data.units import histogram
from pipelines.preprocess import preprocess
from tests.pipelines.data.clicks.test_table import FIELDS, key_of, refused, written
from tests.pipelines.data.criteo_text import run, settings
from tests.pipelines.data.test_hashing import mixed

ROWS, MOST = 300, 3
GENRES = BagConfig(rows=40, most=MOST)
CONFIG = TableConfig(
    label="clicked",
    categorical={"tags": BagConfig(rows=9, most=2, combiner="sum"), "user": 50, "genres": GENRES},
    numeric={"price": "none"},
    unit=["household"],
)


def lists_of(rows: int = ROWS) -> pl.DataFrame:
    """Lists of every length up to 7, repeats, empty and missing ones, and missing values in them."""
    numbers = range(rows)
    genres = [None if i % 23 == 0 else [f"g{i * (j + 1) % 31}" for j in range(i % 8)] for i in numbers]
    tags = [[None if (i + j) % 9 == 0 else (i + j) % 5 - 1 for j in range(i % 4)] for i in numbers]
    return pl.DataFrame(
        {
            "clicked": [i % 3 == 0 for i in numbers],
            "user": [i % 60 for i in numbers],
            "price": [i / 7 for i in numbers],
            "genres": genres,
            "tags": tags,
            "household": [i // 4 for i in numbers],
        }
    )


def of(path: Path, **changes: Any) -> TableConfig:
    return dataclasses.replace(CONFIG, path=str(path), **changes)


def block(config: TableConfig) -> RowBlock:
    """All rows, which are one block."""
    (only,) = config.source(0, Path()).blocks(lambda done, total: None)
    return only


def first_rows(values: list[Any] | None, feature: int, size: int, most: int) -> list[int]:
    """The bag of a list, in plain Python."""
    rows = [int(bucket(np.array([key_of(value)], np.uint64), feature, size)[0]) for value in values or []]
    return list(dict.fromkeys(rows))[:most]


def test_a_bag_holds_the_first_distinct_rows_of_a_list_and_what_is_cut_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every split's rows, found by their price; bags are the last features, in the order of their names."""
    frame = lists_of()
    dataset = Dataset.open(run(of(written(tmp_path, frame)), tmp_path / "data"))
    assert dataset.categorical_names == ["user", "genres", "tags"] and dataset.vocabulary_sizes == [50, 40, 9]
    assert dataset.bag_combiners == ["mean", "sum"] and dataset.rows_per_example == [1, MOST, 2]
    row_of, seen = {np.float32(price): number for number, price in enumerate(frame["price"])}, 0
    for part in dataset.rows:
        (rows,) = dataset.split(part).chunks(ROWS)
        for place, price in enumerate(rows.numeric[:, 0]):
            line = frame.row(row_of[price], named=True)
            for bag, name, feature, size, most in (
                (rows.bags[0], "genres", 1, 40, MOST),
                (rows.bags[1], "tags", 2, 9, 2),
            ):
                wanted = first_rows(line[name], feature, size, most)
                assert bag[place].tolist() == wanted + [NO_ROW] * (most - len(wanted))
            seen += 1
    assert seen == ROWS
    cut = sum(len(first_rows(genres, 1, 40, 99)) > MOST for genres in frame["genres"].to_list())
    features = dataset.description["categorical_features"]
    assert features[1] == {"name": "genres", "vocabulary_size": 40, "most": MOST, "combiner": "mean", "cut_rows": cut}
    assert features[0] == {"name": "user", "vocabulary_size": 50}
    assert f"genres: {cut} of 300 rows hold more than 3 distinct rows of its table; the" in capsys.readouterr().err
    assert dataset.description["vocabulary"]["hash"]["bag"] == BAG_HASH["bag"]


def test_the_flat_form_that_models_read_is_the_bags(tmp_path: Path) -> None:
    dataset = Dataset.open(run(of(written(tmp_path, lists_of())), tmp_path / "data"))
    rows = JoinedRows([dataset.split(part) for part in dataset.rows]).gather(np.array([250, 3, 3, 120, 7]))
    assert rows.labels.shape == (5,) and len(rows.flat_bags()) == 2
    for bag, (ids, offsets) in zip(rows.bags, rows.flat_bags(), strict=True):
        ends = [*offsets[1:], len(ids)]
        assert [ids[a:b].tolist() for a, b in zip(offsets, ends, strict=True)] == [
            [row for row in one if row != NO_ROW] for one in bag.tolist()
        ]
        assert ids.dtype == offsets.dtype == np.int64
    assert len(rows.where(np.array([1, 2])).bags[0]) == 2


def test_content_covers_values_order_and_length_and_hashes_as_is_said() -> None:
    keys = np.array([key_of(value) for value in (1, 2, 2, 1, 1, 2, 2)], np.uint64)
    content = Lists(keys, np.array([2, 2, 0, 3])).content()
    assert len(set(content.tolist())) == 4
    hashed = mixed(2)
    for value in (1, 2):
        hashed = mixed(hashed ^ key_of(value))
    assert int(content[0]) == hashed and int(content[2]) == mixed(0)
    assert Lists(keys[:0], np.array([0])).content().tolist() == [mixed(0)]


def test_first_distinct_keeps_the_order_within_an_example() -> None:
    example, values = np.array([0, 0, 0, 1, 1, 4]), np.array([5, 2, 5, 5, 5, 2])
    assert first_distinct(example, values).tolist() == [0, 1, 3, 5]
    assert first_distinct(example[:0], values[:0]).tolist() == []


def test_texts_with_a_separator_give_the_same_rows_as_lists(tmp_path: Path) -> None:
    """Of any format; an empty text is an empty bag, as an empty and a missing list are."""
    frame = lists_of()
    wanted = block(of(written(tmp_path, frame)))
    text = frame.with_columns(
        genres=pl.col("genres").list.join("|"),
        tags=pl.col("tags").list.eval(pl.element().cast(pl.String).fill_null("")).list.join("|"),
    ).filter(pl.col("tags") != "")  # a list of one missing value, and none, are one text
    parted = {**CONFIG.categorical, **{name: dataclasses.replace(CONFIG.categorical[name], separator="|")  # type: ignore[type-var]
                                       for name in ("genres", "tags")}}  # fmt: skip
    kept = np.isin(frame["price"].to_numpy(), text["price"].to_numpy())
    for name in ("clicks.csv", "clicks.tsv.gz", "texts.parquet"):
        made = block(of(written(tmp_path, text, name), categorical=parted))
        assert np.array_equal(made.content, wanted.content[kept]) and np.array_equal(made.keys, wanted.keys[kept])
        for got, lists in zip(made.lists, wanted.lists, strict=True):
            assert np.array_equal(got.lengths, lists.lengths[kept])
            assert np.array_equal(got.keys, lists.keys[kept[lists.row]])


def test_a_missing_value_in_a_list_is_the_category_of_missing_values(tmp_path: Path) -> None:
    frame = lists_of(3).with_columns(genres=pl.Series([["a", None], None, []], dtype=pl.List(pl.String)))
    (genres, _) = block(of(written(tmp_path, frame))).lists
    assert genres.keys.tolist() == [key_of("a"), BLANK_KEY] and genres.lengths.tolist() == [2, 0, 0]


def test_other_lines_and_the_order_of_settings_change_no_row(tmp_path: Path) -> None:
    frame = lists_of()
    whole, some = block(of(written(tmp_path, frame))), block(of(written(tmp_path, frame[::2], "some.parquet")))
    assert np.array_equal(whole.content[::2], some.content)
    assert np.array_equal(whole.lists[0].lengths[::2], some.lists[0].lengths)
    turned = {name: CONFIG.categorical[name] for name in reversed(CONFIG.categorical)}
    again = block(of(tmp_path / "clicks.parquet", categorical=turned))
    assert all(np.array_equal(getattr(whole, name), getattr(again, name)) for name in FIELDS)
    assert all(np.array_equal(one.keys, two.keys) for one, two in zip(whole.lists, again.lists, strict=True))


def test_every_setting_of_a_bag_is_another_data_set_and_none_moves_those_without(tmp_path: Path) -> None:
    path = written(tmp_path, lists_of())
    hashes = {data_hash(of(path))}
    for change in ({"rows": 41}, {"most": 4}, {"combiner": "sum"}, {"separator": "|"}):
        hashes.add(
            data_hash(of(path, categorical={**CONFIG.categorical, "genres": dataclasses.replace(GENRES, **change)}))
        )
    assert len(hashes) == 5
    plain = of(path, categorical={"user": 50})
    assert "bag" not in plain.hash_specification and "bag" not in plain.identity(0)["hash"]


def test_histograms_count_a_row_of_a_bag_once_in_an_example_and_once_in_a_unit(tmp_path: Path) -> None:
    data = of(written(tmp_path, lists_of()))
    asked = settings(data, tmp_path / "data")
    asked.privacy.unit = "household"
    day = Dataset.open(preprocess(asked))
    (rows,) = day.split("train").chunks(ROWS)
    genres = day.histogram()[1]
    assert genres.tolist() == [int((rows.bags[0] == row).any(1).sum()) for row in range(40)]
    units = np.load(day.folder / "train.household.npy")
    by_unit = histogram([day], [units], [99, 99, 99])[1]
    held = [{row for bag in rows.bags[0][units == unit] for row in bag.tolist()} for unit in np.unique(units)]
    assert by_unit.tolist() == [sum(row in one for one in held) for row in range(40)]
    bounded = histogram([day], [units], [99, 2, 99])
    assert bounded[1].sum() == sum(min(2, len(one - {NO_ROW})) for one in held) < by_unit.sum()
    assert Stream.open(day.folder).vocabulary_sizes == [50, 40, 9]


@pytest.mark.parametrize("policy", ["all", "threshold"])
def test_a_vocabulary_of_the_rows_counts_a_value_once_in_a_row(tmp_path: Path, policy: str) -> None:
    """Each list names its value twice, in 4 rows of 8 (a) or 6 (b): at a count of 5 the first has no row."""
    lists = [["a", "a"]] * 4 + [["b", "b", None]] * 6
    frame = lists_of(10).with_columns(genres=pl.Series(lists, dtype=pl.List(pl.String)))
    config = of(written(tmp_path, frame), categorical={"genres": GENRES, "user": 50})
    config = build(TableConfig, {**dataclasses.asdict(config), "vocabulary": {"policy": policy, "min_count": 5},
                                 "split": {"train": 1.0, "validation": 0.0, "test": 0.0}}, "data")  # fmt: skip
    dataset = Dataset.open(run(config, tmp_path / "data"))
    assert dataset.vocabulary_sizes[1] == 1 + (3 if policy == "all" else 2)
    (rows,) = dataset.split("train").chunks(10)
    if policy == "threshold":
        assert rows.bags[0][0].tolist() == [0, NO_ROW, NO_ROW] and 0 not in rows.bags[0][5]


@pytest.mark.parametrize(
    ("values", "bag", "said"),
    [
        (pl.Series([[1.5], [2.0]]), GENRES, "List(Float64), and data.categorical takes a list of texts"),
        (pl.Series([[[1]], [[2]]]), GENRES, "List(List(Int64)), and data.categorical takes a list of texts"),
        (
            pl.Series(["a|b", "c"]),
            GENRES,
            "String, and data.categorical takes a list of texts, of whole numbers, of boo",
        ),
        (pl.Series([1, 2]), GENRES, "for one value in a row, give the rows of its table alone, as in x: 512."),
        (
            pl.Series([["a"], []]),
            BagConfig(9, 2, separator="|"),
            "List(String), several values in a row, which need no separator: leave it out.",
        ),
        (
            pl.Series([["a"], []]),
            40,
            "say how many of them count at most, as in 'data.categorical={x: {rows: 512, most",
        ),
    ],
)
def test_columns_that_are_no_bags_are_refused_by_name(tmp_path: Path, values: pl.Series, bag: Any, said: str) -> None:
    path = written(tmp_path, lists_of(2).with_columns(values.alias("x")))
    wrong = refused(of(path, categorical={"x": bag}), tmp_path)
    assert wrong.startswith(f"{path}: the column x holds ") and said in wrong
    assert wrong.endswith(", or say what stands between values, by separator.") == (values.dtype == pl.String)
    for other in ({"numeric": {"x": "none"}}, {"unit": ["x"]}):
        if values.dtype == pl.List:
            assert "does not take: leave it out" in refused(of(path, **other), tmp_path)


def test_files_with_lists_of_other_types_are_refused(tmp_path: Path) -> None:
    for name, values in (("a.parquet", [["x"]]), ("b.parquet", [[1]])):
        written(tmp_path, lists_of(4).tail(1).with_columns(genres=pl.Series(values)), name)
    said = refused(of(tmp_path / "*.parquet"), tmp_path)
    assert "b.parquet: the column genres is of type List(Int64), but in" in said


@pytest.mark.parametrize(
    ("bag", "said"),
    [
        (
            {"rows": 512},
            "data.categorical.genres.most must be set: add data.categorical.genres.most=... to the command.",
        ),
        ({"rows": 512, "most": 0}, "data.categorical.genres.most must be a whole number from 1 to 1,024, not 0."),
        ({"rows": 512, "most": 2, "mode": "sum"}, "there is no key data.categorical.genres.mode"),
        ({"rows": 512, "most": 2, "combiner": "max"}, "combiner must be one of mean, sum, not 'max'."),
        ({"rows": 512, "most": 2, "separator": ""}, "data.categorical.genres.separator='' is empty"),
        ([512, 2], "data.categorical.genres must be a whole number"),
    ],
)
def test_settings_of_a_bag_are_refused_by_key(bag: Any, said: str) -> None:
    with pytest.raises(UserError) as raised:
        build(TableConfig, {"path": "x.parquet", "label": "clicked", "categorical": {"genres": bag}}, "data")
    assert said in str(raised.value)


def test_made_with_says_how_in_plain_values(tmp_path: Path) -> None:
    folder = run(of(written(tmp_path, lists_of())), tmp_path / "data")
    made = json.loads((folder / "dataset.json").read_text())["made_with"]["categorical"]
    assert made["genres"] == {"rows": 40, "most": 3, "combiner": "mean", "separator": None} and made["user"] == 50


def test_the_baskets_of_the_document_are_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = re.findall(
        r"```python\n(.*?)```", (Path(__file__).parents[4] / "docs" / "DATA.md").read_text("utf-8"), flags=re.S
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "DATA.md", "exec"), {})
    products = BagConfig(rows=32768, most=32)
    categorical = {"household": 4096, "products": products}
    table = TableConfig(path="baskets.parquet", label="coupon", categorical=categorical)
    dataset = Dataset.open(run(table, tmp_path / "data"))
    assert sum(dataset.rows.values()) == 155_848
    assert 9_250 <= dataset.description["categorical_features"][1]["cut_rows"] <= 9_350
