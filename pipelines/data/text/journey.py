"""Purchases of The Complete Journey as texts: was the product that a text describes bought at a discount?

The lines and labels of ``data=journey``. A text is the retailer's public description of the line's product, such as
"grocery, soup, ramen noodles/ramen cups, 3 oz, national": department, category, type, package size and kind of brand.
Household, store and time are left out, so that the words are all there is to learn from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import polars as pl

from dpfest.errors import UserError
from pipelines.data.clicks import journey as receipts
from pipelines.data.clicks.journey import JOURNEY, LINES, PROVENANCE
from pipelines.data.clicks.packaged import content_fields
from pipelines.data.hashing import HASH_SPECIFICATION, content_uniforms, line_content
from pipelines.data.provenance import Provenance
from pipelines.data.text.config import PretrainedTextConfig
from pipelines.data.text.file import TextColumns, TextFile
from pipelines.data.text.tsv import TsvFile
from pipelines.system.ranges import Share, Within

DESCRIPTION = ("department", "product_category", "product_type", "package_size", "brand")
UNKNOWN = "unknown product"  # of lines whose product is not described in the register


_ORDER, _OURS = "train, then validation, then test", "test, then validation, then train"
SPLIT = f"{HASH_SPECIFICATION['split'].replace(_ORDER, _OURS)}; content: label, {', '.join(JOURNEY.fields)}"


@dataclass
class JourneyTextConfig(PretrainedTextConfig):
    """The 1,469,307 lines of The Complete Journey as texts.

    A line's content, which includes household and time, determines its split: equal texts occur in all splits.

    Attributes:
        validation, test: shares of the lines on which settings are chosen, and which are only reported.
    """

    columns: ClassVar[TextColumns] = TextColumns(("text",), "label", ("0", "1"))
    hash_specification: ClassVar[Mapping[str, str]] = {**HASH_SPECIFICATION, "split": SPLIT}
    provenance: ClassVar[Provenance] = PROVENANCE

    name: str = "journey_text"
    max_length: Annotated[int, Within(4, 100_000)] = 48
    validation: Share = 0.01
    test: Share = 0.02

    def check(self) -> None:
        """Raise UserError for an invalid setting."""
        if self.test == 0 or self.validation + self.test >= 1:
            raise UserError(
                "data.test must be above 0, and data.validation + data.test below 1, but they are "
                f"{self.test} and {self.validation}."
            )

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows."""
        recipe = {"files": JOURNEY.identity()["files"], "description": list(DESCRIPTION), "split": SPLIT}
        return {**recipe, **super().identity(day)}

    def expected_examples(self, train_days: int) -> float:
        return LINES * (1 - self.validation - self.test)

    def files(self, scratch: Path) -> Mapping[str, TextFile[Any]]:
        """See :meth:`~pipelines.data.text.config.TextConfig.files`; written into ``scratch``."""
        scratch.mkdir(exist_ok=True)
        lines = receipts.lines(JOURNEY.package)
        uniforms = content_uniforms(line_content(content_fields(lines, ("label", *JOURNEY.fields))), self.split_seed)
        rows = texts(lines).with_columns(pl.col("label").cast(pl.Int8))
        ends = {"test": self.test, "validation": self.test + self.validation, "train": 1.0}
        files, start = {}, 0.0
        for part, end in ends.items():
            path = scratch / f"{part}.tsv"
            mine = pl.Series((uniforms >= start) & (uniforms < end))
            rows.filter(mine).write_csv(path, separator="\t", quote_style="never")
            files[part], start = TsvFile(path, self.columns, "stop"), end
        return files


def texts(lines: pl.DataFrame) -> pl.DataFrame:
    """Return ``text`` and ``label`` of lines that hold the columns of the register of products."""
    words = pl.concat_str([pl.col(name) for name in DESCRIPTION], separator=", ", ignore_nulls=True).str.to_lowercase()
    return lines.select(pl.when(words == "").then(pl.lit(UNKNOWN)).otherwise(words).alias("text"), "label")
