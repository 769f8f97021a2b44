"""A table of one's own: values, the same rows from every format, splits by content, units, and every refusal."""

from __future__ import annotations

import dataclasses
import datetime
import gzip
import json
import math
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from dpfest.errors import UserError
from pipelines.config.schema import build
from pipelines.data.clicks import table_files
from pipelines.data.clicks.source import RowBlock
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.table import TableConfig
from pipelines.data.clicks.table_columns import TABLE_HASH, Label
from pipelines.data.dataset import Dataset
from pipelines.data.hashing import BLANK_KEY, bucket, text_key
from pipelines.data.identity import data_hash
from pipelines.data.units import identifiers
from pipelines.preprocess import preprocess
from tests.pipelines.data.criteo_text import run, settings
from tests.pipelines.data.test_hashing import mixed, mixed_text

ROWS = 600
FIELDS = ("content", "day", "label", "numeric", "keys")


def clicks(rows: int = ROWS) -> pl.DataFrame:
    """Every type that a column may have; each of those that may lack a value does."""
    numbers = range(rows)
    return pl.DataFrame(
        {
            "clicked": [i % 3 == 0 for i in numbers],
            "user": [None if i % 11 == 0 else f"user {i % 97} ü" for i in numbers],
            "item": [None if i % 13 == 0 else i * 7919 % 101 - 20 for i in numbers],
            "code": [f"{i % 50:03d}" if i % 2 else str(i % 50) for i in numbers],
            "paid": [None if i % 17 == 0 else i % 5 == 0 for i in numbers],
            "joined": [datetime.date(2024, 1, 1) + datetime.timedelta(i % 40) for i in numbers],
            "price": [None if i % 7 == 0 else i * 0.37 - 40 for i in numbers],
            "age": [None if i % 19 == 0 else 18 + i % 70 for i in numbers],
            "visits": [i % 9 for i in numbers],
            "household_id": [i // 6 for i in numbers],
            "account": [f"a{i // 4}" for i in numbers],
            "rating": [1 + i % 5 for i in numbers],
        },
        schema_overrides={"item": pl.Int32, "visits": pl.Int8},
    )


CONFIG = TableConfig(
    label="clicked",
    categorical={"user": 64, "item": 100, "code": 50, "paid": 4, "joined": 64},
    numeric={"price": "log1p", "age": "standard(40, 15)", "visits": "none"},
    unit=["household_id", "account"],
)


def of(path: Path | str, **changes: Any) -> TableConfig:
    return dataclasses.replace(CONFIG, path=str(path), **changes)


def written(folder: Path, frame: pl.DataFrame, name: str = "clicks.parquet") -> Path:
    """The rows in the format that the name's ending says."""
    path = folder / name
    if path.suffix == ".parquet":
        frame.write_parquet(path, row_group_size=100)
    elif path.suffix in (".arrow", ".feather", ".ipc"):
        frame.write_ipc(path)
    else:
        separator = "\t" if ".tsv" in name else ","
        text = frame.write_csv(separator=separator).encode()
        if path.suffix == ".zst":
            frame.lazy().sink_csv(path, separator=separator, compression="zstd")
        else:
            path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    return path


def block(config: TableConfig) -> RowBlock:
    """All rows as one block."""
    blocks = list(config.source(0, Path()).blocks(lambda done, total: None))
    units = {name: np.concatenate([one.units[name] for one in blocks]) for name in config.unit}
    return RowBlock(*(np.concatenate([getattr(one, field) for one in blocks]) for field in FIELDS), units=units)


def equal(one: RowBlock, other: RowBlock) -> bool:
    return all(np.array_equal(getattr(one, field), getattr(other, field)) for field in FIELDS) and all(
        np.array_equal(one.units[name], other.units[name]) for name in one.units
    )


def key_of(value: Any) -> int:
    """The key of a category, in plain Python."""
    if value is None:
        return BLANK_KEY
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if re.fullmatch(r"0|-?[1-9][0-9]*", text) and -(2**63) <= int(text) < 2**63:
        return mixed(int(text) % 2**64)
    return mixed_text(text.encode())


def test_rows_are_what_the_settings_say(tmp_path: Path) -> None:
    frame = clicks()
    made = block(of(written(tmp_path, frame)))
    assert made.label.tolist() == frame["clicked"].cast(pl.Int8).to_list()
    assert sorted(CONFIG.categorical) == ["code", "item", "joined", "paid", "user"]
    for place, name in enumerate(sorted(CONFIG.categorical)):
        assert made.keys[:, place].tolist() == [key_of(value) for value in frame[name]]
    age, price, visits = made.numeric.T
    assert age.tolist() == [np.float32(0 if x is None else max(-5, min(5, (x - 40) / 15))) for x in frame["age"]]
    expected = [0 if x is None else math.copysign(math.log1p(abs(x)), x) for x in frame["price"]]
    assert price == pytest.approx(expected, abs=1e-6)
    assert visits.tolist() == frame["visits"].to_list()
    assert made.units["household_id"].tolist() == frame["household_id"].to_list()
    hashed = [text_key(text) - 2**64 * (text_key(text) >> 63) for text in frame["account"]]
    assert made.units["account"].tolist() == hashed


TEXTS = [
    "",
    "7",
    "007",
    "-0",
    "0",
    "-7",
    "+7",
    "--7",
    "7.0",
    " 7",
    "٧",
    "true",
    "Zürich",
    "日本",
    "a\0",
    "12345678",
    "1e3",
]
TEXTS += [
    str(2**63 - 1),
    str(2**63),
    str(-(2**63)),
    str(-(2**63) - 1),
    "0" * 30,
    "é" * 32,
    "x" * 63,
    "x" * 64,
    "x" * 65,
]
TEXTS += ["ab" * 500, "2024-01-31"]
LARGE = [0, -1, 7, 2**63 - 1, -(2**63), 2**32]


def corners() -> pl.DataFrame:
    """Values at which formats and types could part ways; a column of texts that repeats each, and one that does not."""
    rows = 3 * 4096
    draw = np.random.default_rng(3)
    some = [None, *TEXTS] * 9
    texts = [some[i] if i < len(some) else f"user {i}" for i in range(rows)]
    numbers = [None, math.nan, -0.0, 0.0, 5e-324, 1.5, -3e38, 2.0**53 + 2]
    return pl.DataFrame(
        {
            "clicked": draw.integers(0, 2, rows),
            "often": [some[i] for i in draw.integers(0, len(some), rows)],
            "once": [texts[i] for i in draw.permutation(rows)],
            "whole": [LARGE[i] if i < len(LARGE) else None for i in draw.integers(0, len(LARGE) + 1, rows)],
            "small": pl.Series(draw.integers(-128, 128, rows), dtype=pl.Int8),
            "paid": [[None, True, False][i] for i in draw.integers(0, 3, rows)],
            "day": [datetime.date(1969, 12, 30) + datetime.timedelta(int(i)) for i in draw.integers(0, 9, rows)],
            "price": [numbers[i] for i in draw.integers(0, len(numbers), rows)],
        }
    )


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.csv", "a.tsv.gz", "a.csv.zst"])
def test_keys_contents_and_records_are_those_of_the_specification(tmp_path: Path, name: str) -> None:
    """Against plain Python, one value at a time, on every row."""
    frame = corners()
    sizes = {"often": 50, "once": 10**6, "whole": 2**31 - 1, "small": 7, "paid": 4, "day": 64}
    path = written(tmp_path, frame, name)
    config = TableConfig(path=str(path), label="clicked", categorical=dict(sizes), numeric={"price": "none"})
    made = block(config)
    columns = sorted(sizes)
    keys = [[key_of(None if value == "" else value) for value in frame[column]] for column in columns]
    assert made.keys.T.tolist() == keys
    price = [0.0 if x is None or math.isnan(x) else x for x in frame["price"]]
    bits = [int(np.float64(x + 0.0).view(np.uint64)) for x in price]
    weights = [mixed(place) | 1 for place in range(1 + len(columns))]
    contents = [
        sum(x * w for x, w in zip(fields, weights, strict=True)) % 2**64 for fields in zip(bits, *keys, strict=True)
    ]
    assert made.content.tolist() == contents
    dataset = Dataset.open(run(config, tmp_path / "data"))
    table = [[mixed(one ^ mixed(place)) % sizes[column] for one in keys[place]] for place, column in enumerate(columns)]
    shares = np.cumsum([0.8, 0.05, 0.15])
    uniform = np.array([(mixed(one ^ mixed(0)) >> 11) / 2**53 for one in contents])
    part_of = np.searchsorted(shares[:-1], uniform, side="right")
    for place, part in enumerate(("train", "validation", "test")):
        (rows,) = dataset.split(part).chunks(len(contents))
        mine = np.flatnonzero(part_of == place)
        assert rows.categorical.tolist() == np.array(table).T[mine].tolist()
        assert rows.numeric.tobytes() == np.float32([price[row] for row in mine]).tobytes()
        assert rows.labels.tolist() == frame["clicked"].to_numpy()[mine].tolist()


def test_a_data_set_holds_them_and_says_how_they_were_made(tmp_path: Path) -> None:
    config = of(written(tmp_path, clicks()))
    dataset = Dataset.open(run(config, tmp_path / "data"))
    assert dataset.folder.name.startswith("table-") and sum(dataset.rows.values()) == ROWS
    assert dataset.categorical_names == sorted(CONFIG.categorical) and dataset.numeric_names == [
        "age",
        "price",
        "visits",
    ]
    assert dataset.vocabulary_sizes == [50, 100, 64, 4, 64] == config.features()
    description = json.loads((dataset.folder / "dataset.json").read_text())
    assert description["vocabulary"]["hash"].items() >= TABLE_HASH.items()
    assert (
        "price log1p" in description["numeric_transform"] and "age standard(40, 15)" in description["numeric_transform"]
    )
    (rows,) = dataset.split("train").chunks(ROWS)
    made = block(config)
    known = {tuple(bucket(made.keys[:, 1], 1, 100)[[row]]) for row in range(ROWS)}
    assert {(row,) for row in rows.categorical[:, 1].tolist()} <= known


@pytest.mark.parametrize(
    "name",
    ["clicks.csv", "clicks.tsv", "clicks.csv.gz", "clicks.tsv.zst", "CLICKS.CSV", "clicks.arrow", "clicks.feather"],
)
def test_every_format_gives_the_same_bytes(tmp_path: Path, name: str) -> None:
    frame = clicks()
    plain, other = of(written(tmp_path, frame)), of(written(tmp_path, frame, name))
    assert equal(block(plain), block(other))
    one, two = (Dataset.open(run(config, tmp_path / "data")) for config in (plain, other))
    assert one.folder != two.folder
    for part in ("train", "validation", "test"):
        assert (one.folder / f"{part}.rows").read_bytes() == (two.folder / f"{part}.rows").read_bytes()


def test_types_of_equal_values_give_the_same_bytes(tmp_path: Path) -> None:
    frame = clicks()
    others = frame.with_columns(
        pl.col("item", "clicked", "household_id", "price").cast(pl.String),
        pl.col("user").cast(pl.Categorical),
        pl.col("account").cast(pl.Enum(frame["account"].unique())),
        pl.col("age").cast(pl.Float64),
        pl.col("visits").cast(pl.UInt64).cast(pl.String).cast(pl.Categorical),
    )
    assert equal(block(of(written(tmp_path, frame))), block(of(written(tmp_path, others, "others.parquet"))))


def test_batches_of_any_size_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: no more than a batch is read at once."""
    paths = [written(tmp_path, clicks(), name) for name in ("a.parquet", "b.arrow", "c.csv", "d.csv.gz")]
    whole = [block(of(path)) for path in paths]
    monkeypatch.setattr(table_files, "BATCH_ROWS", 70)
    monkeypatch.setattr(table_files, "FRAME_ROWS", 33)
    heights: list[int] = []
    batches = table_files._batches

    def counted(*arguments: Any) -> Iterator[pl.DataFrame]:
        for batch in batches(*arguments):
            heights.append(batch.height)
            yield batch

    monkeypatch.setattr(table_files, "_batches", counted)
    for path, before in zip(paths, whole, strict=True):
        assert equal(block(of(path)), before)
        assert max(frame.height for frame, _ in table_files.frames(path, ["user"])) == 33
    assert max(heights) == 70 and sum(heights) == 2 * len(paths) * ROWS


def test_a_folder_and_a_pattern_are_all_their_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    frame = clicks()
    whole = block(of(written(tmp_path, frame)))
    folder = tmp_path / "parts[1]"
    (folder / "deeper").mkdir(parents=True)
    for part, name in enumerate(("a.csv", "b.csv", "c.csv")):
        written(folder, frame[part * 200 : part * 200 + 200], name)
    (folder / "README.txt").write_text("no data")
    written(folder / "deeper", frame[:10], "d.csv")
    assert equal(block(of(folder)), whole)
    (tmp_path / "parts[1]").rename(tmp_path / "parts")
    assert equal(block(of(tmp_path / "parts" / "[a-c].csv")), whole)
    assert len(block(of(tmp_path / "parts" / "**" / "*.csv")).label) == ROWS + 10


def test_progress_ends_at_the_size_of_all_files(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        written(tmp_path, clicks(50), name)
    told: list[tuple[int, int]] = []
    for _ in of(tmp_path).source(0, Path()).blocks(lambda done, total: told.append((done, total))):
        pass
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert told[-1] == (size, size) and all(a[0] < b[0] for a, b in pairwise(told))


def test_splits_follow_the_content_of_a_line_and_not_its_place(tmp_path: Path) -> None:
    frame = clicks()
    made = block(of(written(tmp_path, frame)))
    assert len(np.unique(made.content)) == ROWS
    turned = block(of(written(tmp_path, frame.reverse(), "turned.csv")))
    assert np.array_equal(made.content, turned.content[::-1])
    # A column that is not used is no content; one that is, is: number, category and unit. The label is none.
    free = block(of(written(tmp_path, frame.with_columns(rating=pl.lit(1)), "free.parquet")))
    assert np.array_equal(made.content, free.content)
    for column in ("clicked", "visits", "item", "household_id"):
        changed = frame.with_columns(pl.col(column).cast(pl.Int64) + 1 if column != "clicked" else ~pl.col(column))
        other = block(of(written(tmp_path, changed, f"{column}.parquet")))
        same = frame["item"].is_null().to_numpy() if column == "item" else np.full(ROWS, column == "clicked")
        assert np.array_equal(made.content == other.content, same)


def test_rows_that_differ_in_their_label_alone_share_a_split_and_few_different_rows_are_warned_of(
    tmp_path: Path,
) -> None:
    """Divided by label, a shop's clicks would be trained on and its other rows tested: an AUC far below a half."""
    generator = np.random.default_rng(5)
    shop = generator.integers(0, 40, 4_000)
    frame = pl.DataFrame({"shop": shop, "clicked": generator.random(4_000) < shop / 40})
    made = block(TableConfig(path=str(written(tmp_path, frame)), label="clicked", categorical={"shop": 64}))
    assert len(np.unique(made.content)) == 40
    data = TableConfig(path=str(written(tmp_path, frame)), label="clicked", categorical={"shop": 64})
    (warning,) = data.warnings(Dataset.open(run(data, tmp_path / "data")))
    assert re.match(r"of [\d,]+ training rows only \d\d differ in what the model sees.* data\.split_by", warning)
    parts = frame.with_columns(part=pl.Series(generator.choice(["train", "validation", "test"], 4_000)))
    divided = TableConfig(
        path=str(written(tmp_path, parts, "parts.csv")), label="clicked", categorical={"shop": 64}, split_by="part"
    )
    assert divided.warnings(Dataset.open(run(divided, tmp_path / "divided"))) == []
    assert (
        of(written(tmp_path, clicks())).warnings(Dataset.open(run(of(written(tmp_path, clicks())), tmp_path / "d")))
        == []
    )


def test_equal_rows_that_all_fall_out_of_training_are_said_to(tmp_path: Path) -> None:
    frame = pl.DataFrame({"shop": [3] * 50, "clicked": [0, 1] * 25})
    place = str(written(tmp_path, frame))
    split = SplitConfig(train=0.001, validation=0.499, test=0.5)
    data = TableConfig(path=place, label="clicked", categorical={"shop": 64}, split=split)
    with pytest.raises(UserError, match="no row to train on: 0 rows were malformed, and 50 are in other splits, which"):
        run(data, tmp_path / "data")


def test_the_order_of_the_settings_has_no_effect_and_all_else_makes_another_data_set(tmp_path: Path) -> None:
    path = written(tmp_path, clicks())
    turned = {name: CONFIG.categorical[name] for name in reversed(CONFIG.categorical)}
    assert equal(block(of(path)), block(of(path, categorical=turned)))
    assert data_hash(of(path)) == data_hash(of(path, categorical=turned))
    hashes = [data_hash(of(path))] + [
        data_hash(of(path, **change))
        for change in (
            {"label": "rating > 3"},
            {"categorical": {**CONFIG.categorical, "user": 65}},
            {"numeric": {**CONFIG.numeric, "age": "standard(40, 16)"}},
            {"unit": ["account"]},
            {"name": "mine"},
        )
    ]
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere" / path.name)
    assert data_hash(of(moved)) == hashes[0]
    hashes.append(data_hash(of(written(tmp_path, clicks().with_columns(pl.lit(1.0).alias("price"))))))
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize(
    ("label", "holds"),
    [
        ("rating > 3", lambda x: x > 3),
        ("rating>=3", lambda x: x >= 3),
        ("rating < 2.5", lambda x: x < 2.5),
        ("rating <= -1e3", lambda x: False),
        ("rating == 4", lambda x: x == 4),
        ("rating != 4", lambda x: x != 4),
    ],
)
def test_a_label_may_compare_a_column_with_a_number(tmp_path: Path, label: str, holds: Callable[[int], bool]) -> None:
    frame = clicks()
    for name in ("clicks.parquet", "clicks.csv"):
        made = block(of(written(tmp_path, frame, name), label=label))
        assert made.label.tolist() == [float(holds(value)) for value in frame["rating"]]


@pytest.mark.parametrize(
    "label", ["rating > 3 or True", "rating > user", "rating >> 3", "> 3", "", "__import__('os') > "]
)
def test_no_other_expression_is_a_label(label: str) -> None:
    with pytest.raises(
        UserError, match=re.escape(f"data.label={label.strip()} must be the name of a column, or compare")
    ):
        Label.parse(label)


def test_units_of_training_rows(tmp_path: Path) -> None:
    frame = clicks()
    for name in ("clicks.parquet", "clicks.csv"):
        config = of(written(tmp_path, frame, name))
        asked = settings(config, tmp_path / "data")
        for column in config.units:
            asked.privacy.unit = column
            day = Dataset.open(preprocess(asked))
            (units,) = identifiers([day], column)
            assert len(units) == day.examples
            whole = block(config).units[column]
            assert set(units.tolist()) <= set(whole.tolist()) and len(np.unique(whole)) == frame[column].n_unique()


def test_a_vocabulary_of_the_rows_is_marked_as_such(tmp_path: Path) -> None:
    path = written(tmp_path, clicks())
    config = build(TableConfig, {**dataclasses.asdict(of(path)), "vocabulary": {"policy": "all"}}, "data")
    dataset = Dataset.open(run(config, tmp_path / "data"))
    assert dataset.description["vocabulary"]["data_dependent_vocabulary"] is True
    assert (
        config.features() == 5 and dataset.vocabulary_sizes[-1] == 1 + len(clicks()["user"].drop_nulls().unique()) + 1
    )


def test_without_numbers_a_table_of_categories_is_enough(tmp_path: Path) -> None:
    dataset = Dataset.open(run(of(written(tmp_path, clicks()), numeric={}, unit=[]), tmp_path / "data"))
    assert dataset.numeric_names == [] and sum(dataset.rows.values()) == ROWS


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"categorical": {}}, "data.categorical must name a column and the rows of its embedding table"),
        ({"categorical": {"clicked": 2}}, "data.categorical names clicked, which the label is made of"),
        ({"label": "age > 30"}, "data.numeric names age, which the label is made of"),
        ({"numeric": {"age": "log"}}, "data.numeric.age=log must be log1p, none or standard(MEAN, STD)"),
        ({"numeric": {"age": "standard(40)"}}, "data.numeric.age=standard(40) must be"),
        ({"numeric": {"age": "standard(40, 0)"}}, "STD above 0"),
        ({"numeric": {"age": "standard(1e999, 1)"}}, "data.numeric.age=standard(1e999, 1) must be"),
        ({"label": "a = b"}, "data.label=a = b must be the name of a column, or compare one with a number"),
        ({"unit": ["user/id"]}, "data.unit names the column user/id, of which a file's name is made"),
        ({"unit": ["example"]}, "data.unit names the column example"),
        ({"name": "../mine"}, "data.name=../mine names a folder of runs"),
        ({"vocabulary": {"sizes": [1] * 5}}, "data.vocabulary.sizes has no effect on data=table"),
    ],
)
def test_settings_are_refused_before_a_file_is_opened(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    config = build(TableConfig, {**dataclasses.asdict(of(tmp_path / "none.csv")), **changes}, "data")
    with pytest.raises(UserError, match=re.escape(said)):
        run(config, tmp_path / "data")
    assert not list(tmp_path.iterdir())


def refused(config: TableConfig, folder: Path) -> str:
    """The sentence with which a table is refused; nothing is kept."""
    with pytest.raises(UserError) as raised:
        run(config, folder / "data")
    assert not list((folder / "data").glob("*")) and "\n" not in str(raised.value)
    return str(raised.value)


def test_rows_of_one_label_are_named_and_words_for_labels_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(of(written(tmp_path, clicks().with_columns(clicked=pl.lit(True)))), tmp_path / "data")
    assert re.search(r"warning: all \d+ training rows have label 1: there is nothing to learn", capsys.readouterr().err)
    words = written(tmp_path, clicks().with_columns(clicked=pl.lit("yes")), "words.csv")
    said = refused(of(words), tmp_path / "words")
    assert "clicked is 'yes', which is no number: write a label as 1 or 0, or true or false" in said


def test_files_that_are_not_there_or_no_table_are_refused(tmp_path: Path) -> None:
    assert refused(of(tmp_path / "no.csv"), tmp_path).startswith(
        f"There is no file {tmp_path}/no.csv: give a file, a folder or a pattern"
    )
    assert "is a pattern that no file fits" in refused(of(tmp_path / "*.csv"), tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "clicks.xlsx").write_bytes(b"")
    said = refused(of(folder), tmp_path)
    assert "is a folder without a file that ends in .parquet, .arrow" in said and "(it holds clicks.xlsx)" in said
    assert f"{folder}/clicks.xlsx ends in none of .parquet" in refused(of(folder / "clicks.xlsx"), tmp_path)
    assert f"{folder}/clicks.xlsx ends in none of .parquet" in refused(of(folder / "*"), tmp_path)
    for name in ("a.csv", "a.parquet"):
        written(folder, clicks(20), name)
    said = refused(of(folder), tmp_path)
    assert "names a.csv and a.parquet, whose rows could be the same twice: give a pattern of one ending" in said


def test_columns_that_are_missing_or_differ_are_refused(tmp_path: Path) -> None:
    frame = clicks(20)
    path = written(tmp_path, frame)
    said = refused(of(path, categorical={"usr": 5}), tmp_path)
    assert said == f"{path} has no column usr, which data.categorical names; did you mean user?"
    assert "has no column zzz, which data.label names; it has clicked, user" in refused(of(path, label="zzz"), tmp_path)
    assert "data.numeric names" in refused(of(path, numeric={"Price": "none"}), tmp_path)
    folder = tmp_path / "parts"
    folder.mkdir()
    written(folder, frame, "a.parquet")
    written(folder, frame.with_columns(pl.col("item").cast(pl.String)), "b.parquet")
    said = refused(of(folder), tmp_path)
    assert said == (
        f"{folder}/b.parquet: the column item is of type String, but in {folder}/a.parquet of type Int32: write all "
        "with one type."
    )
    written(folder, frame.drop("user"), "b.parquet")
    assert f"{folder}/b.parquet has no column user" in refused(of(folder), tmp_path)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            pl.Series([1.5, 2.5]),
            "Float64, and data.categorical takes text, a whole number, a boolean or a date: list it under "
            "data.numeric, or write whole numbers as such",
        ),
        (
            pl.Series([[1], [2, 3]]),
            "List(Int64), several values in a row",
        ),
        (pl.Series([datetime.datetime(2024, 1, 1)] * 2), "Datetime"),
    ],
)
def test_types_that_are_no_categories_are_refused_by_name(tmp_path: Path, values: pl.Series, said: str) -> None:
    path = written(tmp_path, clicks(2).with_columns(values.alias("x")))
    assert f"{path}: the column x holds {said}" in refused(of(path, categorical={"x": 5}), tmp_path)
    assert f"{path}: the column x holds " in refused(of(path, unit=["x"]), tmp_path)
    if values.dtype != pl.Float64:
        assert f"{path}: the column x holds " in refused(of(path, numeric={"x": "none"}), tmp_path)


@pytest.mark.parametrize("name", ["clicks.parquet", "clicks.csv"])
def test_values_that_cannot_be_used_are_refused_by_file_row_and_column(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "BATCH_ROWS", 50)
    monkeypatch.setattr(table_files, "FRAME_ROWS", 20)

    def with_value(column: str, value: Any, row: int = 123) -> Path:
        frame = clicks(200)
        text = frame[column].cast(pl.String)
        text[row] = value
        return written(tmp_path, frame.with_columns(text), name)

    def says(column: str, value: Any, **changes: Any) -> str:
        path = with_value(column, value)
        said = refused(of(path, **changes), tmp_path)
        assert said.startswith(f"{path}, row 124: {column} ")
        return said

    assert "clicked is '2', but a label is 0 or 1" in (said := says("clicked", "2"))
    assert said.endswith('write one of them, or compare a number, as in data.label="clicked > 0".')
    assert "clicked is 'yes', which is no number" in says("clicked", "yes")
    assert "clicked has no value, and every row needs a label" in says("clicked", None)
    assert "rating has no value" in says("rating", None, label="rating > 3")
    assert "price is 'cheap', which is no number: correct it, or leave it empty" in says("price", "cheap")
    assert "price is 'inf', too large a number" in says("price", "inf")
    assert "visits is '1e300', too large a number" in says("visits", "1e300")
    assert "account has no value, and a unit of privacy needs one in every row" in says("account", None)


def test_files_that_are_empty_or_damaged_are_refused(tmp_path: Path) -> None:
    frame = clicks(200)
    empty = tmp_path / "empty.csv"
    empty.write_bytes(b"")
    assert refused(of(empty), tmp_path) == f"{empty} is empty: it needs a line of column names, and rows."
    for name in ("none.csv", "none.parquet", "none.arrow"):
        path = written(tmp_path, frame[:0], name)
        assert refused(of(path), tmp_path) == f"{path} holds no row of values: leave it out, or write it again."
    for name in ("clicks.parquet", "clicks.arrow", "clicks.csv.gz"):
        path = written(tmp_path, frame, name)
        path.write_bytes(path.read_bytes()[:-200])
        assert f"{path} is truncated, corrupt or not what its ending says" in refused(of(path), tmp_path)
    path = tmp_path / "clicks.csv"
    path.write_text(frame.write_csv() + "1,2,3,4,5,6,7,8,9,10,11,12,13,14\n")
    assert "is truncated, corrupt or not what its ending says" in refused(of(path), tmp_path)
    path.write_bytes(frame.write_csv().encode("latin-1"))
    assert "invalid utf-8" in refused(of(path), tmp_path)


@pytest.mark.parametrize("name", ["odd.csv", "odd.tsv.gz"])
@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('clicked,shop\n1,a\n0,"b\nb"\n1,c,d\n', "line 5 has 3 values where the header has 2"),
        ('clicked,shop\n1,a\n0,"b\n1,c\n', "line 3 has a quote that does not end, or stands within a value"),
    ],
)
def test_a_line_that_is_odd_is_named(tmp_path: Path, name: str, lines: str, said: str) -> None:
    path, text = tmp_path / name, lines.replace(",", "\t" if ".tsv" in name else ",").encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    config = TableConfig(path=str(path), label="clicked", categorical={"shop": 10})
    assert f"corrupt or not what its ending says: no row was read ({said})" in refused(config, tmp_path)
