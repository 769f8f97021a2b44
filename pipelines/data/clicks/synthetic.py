"""Generated click logs in Criteo's text format, of any length, with a planted model.

Each categorical feature has as many values as the paper's vocabulary has rows, with Zipf frequencies. Clicks follow a
logistic model over all 39 features with a best possible AUC of about 0.8, at a click rate of about one in four. Every
day a share ``drift`` of each feature's frequency ranks is given to new values with new effects. Everything is a
function of the seed.
"""

from __future__ import annotations

import binascii
import gzip
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.clicks.config import ClickConfig
from pipelines.data.clicks.criteo import CATEGORICAL_NAMES, NUMERIC_NAMES, PUBLISHED_SIZES, CriteoFiles
from pipelines.data.clicks.source import RowBlock, RowSource
from pipelines.data.clicks.split import DaySplitConfig, SplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.estimate import Estimate
from pipelines.data.hashing import splitmix64
from pipelines.data.source import OnBadRow, Progress
from pipelines.system.ranges import Count, Days, Seed, Share, Within

GENERATOR_VERSION = 1
CLICK_RATE = 0.25
CATEGORICAL_DEVIATION = 0.22  # of the effect of one categorical feature, in log-odds
NUMERIC_DEVIATION = 0.15
_CHUNK_ROWS = 100_000
_LINE_BYTES = 270  # of a generated line, about
_BLANK_SHARE = 0.1  # of every third categorical feature and of every second count


@dataclass
class GeneratorConfig(ClickConfig):
    """Settings that determine a generated row, given its day and its position within the day.

    Attributes:
        drift: share of each feature's values that new ones replace every day.
        zipf_exponent: the r-th most frequent value has frequency proportional to r to minus this.
        numeric_share: share of the planted signal (variance of the log-odds) that the 13 numbers carry; null for 0.19,
            as if every number had two thirds of the effect of a category.
        seed: seed of all rows.
        on_bad_row: ``stop`` at the first malformed line, or ``skip`` such lines and count them in dataset.json.
    """

    drift: Share = 0.0
    zipf_exponent: Annotated[float, Within(0, 10)] = 1.1
    numeric_share: Share | None = None
    seed: Seed = 0
    on_bad_row: OnBadRow = "stop"
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)

    @property
    def deviations(self) -> tuple[float, float]:
        """Standard deviation of the effect of one categorical and of one numerical feature, in log-odds."""
        if self.numeric_share is None:
            return CATEGORICAL_DEVIATION, NUMERIC_DEVIATION
        categories, numbers = len(CATEGORICAL_NAMES), len(NUMERIC_NAMES)
        variance = categories * CATEGORICAL_DEVIATION**2 + numbers * NUMERIC_DEVIATION**2
        shares = (1 - self.numeric_share) / categories, self.numeric_share / numbers
        return math.sqrt(variance * shares[0]), math.sqrt(variance * shares[1])

    @abstractmethod
    def rows_of_days(self) -> dict[int, int]:
        """Return the number of rows of each day."""


@dataclass
class CriteoSyntheticConfig(GeneratorConfig):
    """Generated rows in Criteo's format.

    Attributes:
        rows: number of rows over all days.
        days: number of days; each is a separate file.
    """

    name: str = "criteo_synthetic"
    rows: Count = 200_000
    days: Days = 1
    split: SplitConfig = field(default_factory=SplitConfig)

    def check(self) -> None:
        """Raise UserError for an invalid setting."""
        super().check()
        if self.days > self.rows:
            raise UserError(f"data.days must be between 1 and data.rows={self.rows}, but it is {self.days}.")

    def rows_of_days(self) -> dict[int, int]:
        """Return the number of rows of each day."""
        return {day: self.rows // self.days + (day < self.rows % self.days) for day in range(self.days)}

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows."""
        return {"generator": GENERATOR_VERSION}

    def source(self, day: int, scratch: Path) -> RowSource:
        """Return the reader of the rows."""
        return GeneratedFiles(scratch, self, self.rows_of_days())

    def expected_examples(self, train_days: int) -> float:
        return self.rows * self.split.train


@dataclass
class CriteoSyntheticStreamConfig(GeneratorConfig):
    """A stream of generated rows in Criteo's format; a day does not depend on the number of days.

    Attributes:
        days: number of days.
        rows_per_day: number of rows of each day.
    """

    is_stream: ClassVar[bool] = True

    name: str = "criteo_synthetic_stream"
    days: Days = 24
    rows_per_day: Count = 20_000
    drift: Share = 0.05
    split: DaySplitConfig = field(default_factory=DaySplitConfig)

    def day_numbers(self) -> list[int]:
        """Return 0 to ``days`` - 1."""
        return list(range(self.days))

    def rows_of_days(self) -> dict[int, int]:
        """Return the number of rows of each day."""
        return dict.fromkeys(self.day_numbers(), self.rows_per_day)

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows of a day."""
        return {"generator": GENERATOR_VERSION, "day": day}

    def source(self, day: int, scratch: Path) -> RowSource:
        """Return the reader of a day's rows."""
        return GeneratedFiles(scratch, self, {day: self.rows_per_day})

    def expected_examples(self, train_days: int) -> float:
        return self.rows_per_day * self.split.shares["train"] * train_days

    def estimates(self, days: list[int]) -> dict[int, Estimate]:
        """Estimate each day: its rows, and the size of its temporary text file."""
        return {day: Estimate(self.rows_per_day, scratch_bytes=_LINE_BYTES * self.rows_per_day) for day in days}


class GeneratedFiles(CriteoFiles):
    """Files in Criteo's format that are generated in ``scratch`` when they are first read.

    Args:
        scratch: A folder for these files alone, which need not exist.
        config: Settings of the generator.
        rows_of_days: Number of rows of each day; day numbers are consecutive.
    """

    def __init__(self, scratch: Path, config: GeneratorConfig, rows_of_days: Mapping[int, int]) -> None:
        super().__init__([], config.on_bad_row, generated=True, first_day=min(rows_of_days))
        self._scratch, self._config, self._rows_of_days = scratch, config, rows_of_days

    def blocks(self, progress: Progress) -> Iterator[RowBlock]:
        """Yield all rows in order; writing the files counts as half of the progress."""
        if not self.paths:
            self._scratch.mkdir(exist_ok=True)
            self.paths = write_criteo_files(
                self._scratch, self._config, self._rows_of_days, lambda done, total: progress(done, 2 * total)
            )
        yield from super().blocks(lambda done, total: progress(total + done, 2 * total))


def write_criteo_files(
    folder: Path,
    config: GeneratorConfig,
    rows_of_days: Mapping[int, int],
    progress: Progress,
    compress: bool = False,
) -> list[Path]:
    """Write ``day_0.txt``, ``day_1.txt``, … (or ``day_0.gz``, …), in bounded memory.

    Args:
        folder: An existing folder.
        config: Settings of the generator.
        rows_of_days: Number of rows of each day.
        progress: Called with (rows written, rows in total).
        compress: Whether to write .gz files.

    Returns:
        The files, in the order of the days.
    """
    popularity = [np.cumsum(_zipf(size, config.zipf_exponent)) for size in PUBLISHED_SIZES]
    paths, written, total = [], 0, sum(rows_of_days.values())
    for day, rows in rows_of_days.items():
        values = [_DayValues(feature, day, config) for feature in range(len(PUBLISHED_SIZES))]
        path = folder / f"day_{day}.{'gz' if compress else 'txt'}"
        paths.append(path)
        with gzip.open(path, "wb", compresslevel=6) if compress else path.open("wb") as stream:
            for chunk, start in enumerate(range(0, rows, _CHUNK_ROWS)):
                generator = np.random.default_rng([config.seed, day, chunk])
                frame = _chunk(min(_CHUNK_ROWS, rows - start), generator, values, popularity, config.deviations)
                frame.write_csv(cast(BinaryIO, stream), separator="\t", include_header=False)
                written += frame.height
                progress(written, total)
    return paths


def _zipf(size: int, exponent: float) -> NDArray[np.float64]:
    weights = np.arange(1, size + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


class _DayValues:
    """The values of one feature on one day: their text and their effect on the log-odds of a click, shape [V]."""

    def __init__(self, feature: int, day: int, config: GeneratorConfig) -> None:
        size = PUBLISHED_SIZES[feature]
        # A frequency rank gets a new value when its phase + drift * day passes an integer.
        place = np.arange(size, dtype=np.uint64)
        stream = splitmix64(np.array([config.seed * 64 + feature], dtype=np.uint64))
        generation = np.floor(_uniform(place ^ stream) + config.drift * day).astype(np.uint64)
        value = splitmix64((place | generation << np.uint64(32)) ^ stream)
        digits = binascii.hexlify((value >> np.uint64(32)).astype(">u4").tobytes())
        self.text = pl.Series(np.frombuffer(digits, "S8")).cast(pl.String)
        # Box and Muller: a standard normal effect that is a function of the value, not of the day.
        radius = np.sqrt(-2 * np.log1p(-_uniform(value)))
        effect = radius * np.cos(2 * np.pi * _uniform(~value))
        weights = _zipf(size, config.zipf_exponent)
        effect -= weights @ effect
        self.effect = effect * config.deviations[0] / max(np.sqrt(weights @ effect**2), 1e-12)


def _uniform(numbers: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Hash each number to [0, 1), same shape."""
    return (splitmix64(numbers) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _chunk(
    rows: int,
    generator: np.random.Generator,
    values: list[_DayValues],
    popularity: list[NDArray[np.float64]],
    deviations: tuple[float, float],
) -> pl.DataFrame:
    """Generate rows as text columns in the order of the file."""
    of_category, of_number = deviations
    log_odds = np.zeros(rows)
    columns: dict[str, pl.Series] = {}
    for number, name in enumerate(NUMERIC_NAMES):
        normal = generator.standard_normal(rows)
        count = np.exp(1 + 0.25 * number + normal).astype(np.int64)
        if number == 1:  # about a tenth of the second counts are negative, as in the real logs
            count -= 2
        blank = generator.random(rows) < (_BLANK_SHARE if number % 2 else 0)
        columns[name] = _with_blanks(pl.Series(name, count), blank)
        log_odds += np.where(blank, 0, of_number * (-1) ** number * normal)
    for feature, name in enumerate(CATEGORICAL_NAMES):
        place = np.searchsorted(popularity[feature], generator.random(rows), side="right")
        place = np.minimum(place, len(popularity[feature]) - 1)
        blank = generator.random(rows) < (_BLANK_SHARE if feature % 3 == 2 else 0)
        columns[name] = _with_blanks(values[feature].text.gather(place), blank).alias(name)
        log_odds += np.where(blank, 0, values[feature].effect[place])
    # E sigmoid(a + s·Z) is about sigmoid(a / sqrt(1 + pi s²/8)): the intercept for the chosen click rate.
    variance = len(NUMERIC_NAMES) * of_number**2 + len(CATEGORICAL_NAMES) * of_category**2
    log_odds += np.log(CLICK_RATE / (1 - CLICK_RATE)) * np.sqrt(1 + np.pi * variance / 8)
    label = generator.random(rows) < 1 / (1 + np.exp(-log_odds))
    return pl.DataFrame({"label": label.astype(np.int8), **columns})


def _with_blanks(series: pl.Series, blank: NDArray[np.bool_]) -> pl.Series:
    return series.to_frame("x").select(pl.when(pl.lit(pl.Series(~blank))).then(pl.col("x"))).to_series()
