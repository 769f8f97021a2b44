"""What is proposed for each kind of column, from every format, and the file that is written."""

from __future__ import annotations

import datetime

import numpy as np
import polars as pl
import pytest
import yaml as reader

from dpfest.errors import UserError
from pipelines.config.schema import build
from pipelines.data.clicks import proposal
from pipelines.data.clicks.proposal import CATEGORICAL, LABEL, NUMERIC, OUT, Proposal, propose
from pipelines.data.clicks.table import TableConfig
from pipelines.data.clicks.table_columns import transform

ROWS = 1000


def table() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    day = datetime.datetime(2024, 1, 1)
    return pl.DataFrame(
        {
            "clicked": rng.integers(0, 2, ROWS),
            "request": rng.permutation(ROWS) + 5_000_000,
            "user_id": rng.integers(0, 300, ROWS),
            "item": [f"item {i}" for i in rng.integers(0, 60, ROWS)],
            "zip_code": [f"0{i}" for i in rng.integers(100, 140, ROWS)],
            "size class": rng.integers(1, 5, ROWS),
            "visits": rng.integers(0, 5, ROWS),
            "price": np.exp(rng.normal(2, 2, ROWS)),
            "age": rng.normal(41, 12, ROWS).round(),
            "share": rng.random(ROWS),
            "always": ["x"] * ROWS,
            "review": [
                "words that somebody wrote, about the product, at length"[: 50 - i % 3] + str(i) for i in range(ROWS)
            ],
            "at": [day + datetime.timedelta(seconds=int(s)) for s in rng.integers(0, 9999, ROWS)],
            "tags": [[f"t{i}" for i in rng.integers(0, 20, n)] for n in rng.integers(0, 5, ROWS)],
            "mixed": [{"a": 1}] * ROWS,
            "picture": [bytes([i % 7]) for i in range(ROWS)],
            "on": [(day + datetime.timedelta(days=int(d))).date() for d in rng.integers(0, 90, ROWS)],
        }
    )


EXPECTED = {
    "clicked": (LABEL, "clicked"),
    "request": (OUT, ""),
    "user_id": (CATEGORICAL, "512"),
    "item": (CATEGORICAL, "256"),
    "zip_code": (CATEGORICAL, "256"),
    "size class": (CATEGORICAL, "16"),
    "visits": (NUMERIC, "standard(2, 1)"),
    "price": (NUMERIC, "log1p"),
    "age": (NUMERIC, "standard(40, 10)"),
    "share": (NUMERIC, "none"),
    "always": (OUT, ""),
    "review": (OUT, ""),
    "at": (OUT, ""),
    "tags": (CATEGORICAL, "{rows: 128, most: 4}"),
    "mixed": (OUT, ""),
    "picture": (OUT, ""),
    "on": (OUT, ""),
}


def _roles(found: Proposal) -> dict[str, tuple[str, str]]:
    return {choice.column: (choice.role, choice.setting) for choice in found.choices}


def test_each_kind_of_column_has_its_role() -> None:
    found = propose(table(), ROWS)
    assert _roles(found) == EXPECTED
    assert found.units == ["user_id"]
    assert all(choice.why for choice in found.choices)


def test_text_that_writes_numbers_is_proposed_as_these() -> None:
    """As CSV and TSV are read; 0123 is a text."""
    flat = table().drop("tags", "mixed", "picture")
    texts = pl.read_csv(flat.write_csv(datetime_format="%Y-%m-%dT%H:%M:%S").encode(), infer_schema=False)
    expected = {name: role for name, role in EXPECTED.items() if name in flat.columns}
    assert _roles(propose(texts, ROWS, typed=False)) == expected


def test_the_file_means_what_was_proposed() -> None:
    """Whatever a column is called; its transforms are those that a table takes."""
    odd = {"zip_code": "yes", "item": "a: b # c", "price": "it's", "age": "- x"}
    found = propose(table().rename(odd), ROWS)
    made = reader.safe_load(proposal.yaml(found, "clicks", "parts/*.parquet"))
    assert made.pop("defaults") == ["table", "_self_"]
    config = build(TableConfig, made | {"kind": "table"}, "data")
    assert (config.categorical["tags"].rows, config.categorical["tags"].most) == (128, 4)
    assert config.categorical["yes"] == 256 and config.categorical["a: b # c"] == 256 and config.unit == ["user_id"]
    assert config.numeric["it's"] == "log1p" and config.numeric["- x"] == "standard(40, 10)"
    config.check()
    for name, text in config.numeric.items():
        transform(name, text)


def test_a_part_of_the_rows_makes_larger_tables() -> None:
    """Of values met once, there are more among the rows that were not read."""
    once = pl.DataFrame({"clicked": [0, 1] * 300, "sku": [str(i) if i < 300 else "most" for i in range(600)]})
    assert _roles(propose(once, 600))["sku"] == (CATEGORICAL, "512")
    assert _roles(propose(once, 10**6))["sku"] == (CATEGORICAL, "1024")


@pytest.mark.parametrize(
    ("texts", "setting"),
    [
        (["red|blue", "red|green|blue", "green", "blue|green"], '{rows: 16, most: 4, separator: "|"}'),
        (["red;blue", "blue;red", "red;", ""], '{rows: 16, most: 2, separator: ";"}'),
        (["a|1", "b|2", "c|3", "d|4"], "16"),  # as many values as texts: these are names
        (["red", "blue", "red|blue", "green"], "16"),
    ],
)
def test_texts_that_list_values_become_bags(texts: list[str], setting: str) -> None:
    listed = pl.DataFrame({"clicked": [0, 1] * 300, "colours": texts * 150})
    found = propose(listed, listed.height)
    assert _roles(found)["colours"] == (CATEGORICAL, setting)
    made = reader.safe_load(proposal.yaml(found, "clicks", "a.csv"))
    del made["defaults"]
    build(TableConfig, made | {"kind": "table"}, "data").check()


def test_whole_ratings_become_labels_by_their_middle_and_others_by_nobodys_guess() -> None:
    """The middle of five stars is public; that of measured numbers is a function of two rows."""
    rated = pl.DataFrame({"rating": [1, 2, 3, 4, 5] * 20, "film": [f"film {i}" for i in range(5)] * 20})
    assert propose(rated, rated.height).label == "rating > 3"
    with pytest.raises(UserError, match="No column holds 0 and 1"):
        propose(rated.with_columns(rating=pl.col("rating") + 0.123), rated.height)


@pytest.mark.parametrize(
    ("clicks", "held"),
    [([0, 1, None], "0, 1 and 333 missing ones"), ([-1, 1], "-1, 1"), ([1], "1"), ([0, 1, 2, 3], "4 values")],
)
def test_a_column_named_as_a_label_is_never_passed_over(clicks: list[int | None], held: str) -> None:
    """It would become a feature, from which a model reads the label off."""
    odd = table().with_columns(pl.Series("clicked", (clicks * ROWS)[:ROWS]), score=pl.Series([1, 0] * (ROWS // 2)))
    with pytest.raises(UserError, match=rf"clicked holds {held}: leave out .* name the label with --label"):
        propose(odd, ROWS)


def test_a_label_may_be_text_that_a_table_reads() -> None:
    assert propose(table().with_columns(pl.col("clicked").cast(pl.String)), ROWS).label == "clicked"


def test_a_name_may_have_spaces_and_a_unit_needs_rows_that_share_it() -> None:
    assert propose(table().rename({"user_id": "user id"}), ROWS).units == ["user id"]
    assert propose(table().with_columns(user_id=pl.int_range(pl.len())), ROWS).units == []


def test_missing_values_keep_a_column_from_being_a_unit_or_a_label() -> None:
    holes = table().with_columns(pl.when(pl.int_range(pl.len()) > 0).then("user_id"), bought=pl.lit(None, pl.Int64))
    found = propose(holes, ROWS)
    assert found.units == [] and _roles(found)["user_id"][0] == CATEGORICAL and _roles(found)["bought"][0] == OUT
