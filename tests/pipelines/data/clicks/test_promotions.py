"""Promotions: the label, that no feature knows it, the subset and the slices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.data.clicks import journey
from pipelines.data.clicks.packaged import DAY, Package, PackagedRows
from pipelines.data.clicks.promotions import (
    FIELDS,
    LINES,
    PROMOTIONS,
    WEEKS,
    PromotionsConfig,
    PromotionsStreamConfig,
)
from pipelines.data.stream import Stream
from tests.pipelines.data.criteo_text import run

BOUGHT = {"household_id", "basket_id", "quantity", "sales_value", "label"}


def lines(source: PackagedRows) -> pl.DataFrame:
    return pl.concat(source.frames())


def of_a_week(rows: int | None) -> pl.DataFrame:
    return lines(PromotionsStreamConfig(rows=rows, days=WEEKS).reader(22))


def test_a_week_holds_all_of_its_lines_and_the_label_is_a_purchase_there_and_then() -> None:
    week = of_a_week(None)
    assert week.height == 589_575 and set(week["week"]) == {23} and set(week[DAY]) == {22}
    assert week["label"].mean() == pytest.approx(0.0134, abs=0.003)
    receipts = journey.lines(journey.JOURNEY.package).filter(pl.col("week") == 23)
    bought = set(receipts.select("product_id", "store_id").iter_rows())
    for line in week.sample(3_000, seed=0).iter_rows(named=True):
        assert line["label"] == ((line["product_id"], line["store_id"]) in bought)
    key = ["product_id", "store_id", "display_location", "mailer_location"]
    assert week.select(key).is_duplicated().sum() == 0, "the joins must not multiply lines"
    assert week["department"].null_count() == 0


def test_a_subset_is_about_as_large_as_asked_and_is_part_of_every_larger_one() -> None:
    def of(rows: int | None) -> pl.DataFrame:
        return of_a_week(rows).select(FIELDS)

    whole, large, small = of(None), of(2_000_000), of(500_000)
    assert large.height == pytest.approx(whole.height * 2_000_000 / LINES, rel=0.02)
    assert small.height == pytest.approx(whole.height * 500_000 / LINES, rel=0.04)
    assert small.join(large, on=FIELDS, how="anti").is_empty()


def test_no_feature_tells_what_was_bought(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {column for category in PROMOTIONS.categories.values() for column in category.columns}
    assert not BOUGHT & (used | set(PROMOTIONS.numbers))
    plain = next(PromotionsConfig(rows=500_000).reader().blocks(lambda done, total: None))
    scan = Package.scan

    def nothing_bought(self: Package, name: str) -> pl.LazyFrame:
        return scan(self, name).head(0) if "transactions" in name else scan(self, name)

    monkeypatch.setattr(Package, "scan", nothing_bought)
    other = next(PromotionsConfig(rows=500_000).reader().blocks(lambda done, total: None))
    assert np.array_equal(plain.keys, other.keys) and np.array_equal(plain.numeric, other.numeric)
    assert plain.label.sum() > 10 and other.label.sum() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "products"), [(None, 100), pytest.param(20_000, None, marks=pytest.mark.slow)])
def test_slices_are_weeks_that_rise_and_hold_every_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int | None, products: int | None
) -> None:
    """Slow but for few products: reads 21 million lines."""
    if products is not None:
        scan = Package.scan
        everywhere = scan(PROMOTIONS.package, "data/promotions.parquet").filter(pl.col("product_id") % 200 == 0)
        few = everywhere.collect()
        assert few["product_id"].n_unique() > products
        monkeypatch.setattr(
            Package, "scan", lambda self, name: few.lazy() if "promotions" in name else scan(self, name)
        )
    stream = Stream.open(run(PromotionsStreamConfig(rows=rows, days=3), tmp_path))
    whole = lines(PromotionsConfig(rows=rows).reader())
    of_slice = whole.group_by((pl.col("week") - 1) * 3 // WEEKS).len().sort("week")["len"]
    assert stream.rows_of_day == of_slice.to_list() and sum(stream.rows_of_day) == whole.height
    assert whole["week"].is_sorted() and set(whole["week"]) == set(range(1, WEEKS + 1))
