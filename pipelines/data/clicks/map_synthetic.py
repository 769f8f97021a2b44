"""Generated clicks with a planted model of chosen skew and chosen weight of rare values: the data of
``experiment=map``.

Four categorical features have ``table_rows`` values each (``uneven`` ones: as many in the mean), with Zipf
frequencies. Every value has an effect on the log-odds of a click, and one numeric feature has a weak effect. Two
``crosses`` of these features, as people add them to click models, have none. Values are hashed into tables of as many
rows, so some share a row, as in real click logs. Rows are generated in memory: 200,000 take less than a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from pipelines.data.clicks.config import ClickConfig
from pipelines.data.clicks.source import RowBlock, RowSource
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.hashing import line_content
from pipelines.data.source import Progress, RefusedRows
from pipelines.system.ranges import Count, Seed, Share, Within

GENERATOR_VERSION = 1
TABLES = 4
CLICK_RATE = 0.25
CROSSED = ((0, 1), (2, 3))
DEVIATION = 0.8  # of the effect of one feature, in log-odds
NUMBER_EFFECT = 0.3
HEAD = 0.5  # of all occurrences: the most frequent values, up to here, are the head
_BLOCK_ROWS = 100_000


@dataclass
class MapSplitConfig(SplitConfig):
    """A split with larger validation and test shares than usual, since generated rows cost nothing."""

    train: Share = 0.6
    validation: Share = 0.2
    test: Share = 0.2


@dataclass
class MapSyntheticConfig(ClickConfig):
    """Generated clicks on four tables, with a planted model.

    Attributes:
        rows: number of rows over all splits.
        table_rows: number of values of each feature, and of rows of its embedding table.
        zipf_exponent: the r-th most frequent value has frequency proportional to r to minus this.
        tail_signal: share of the planted signal (mean square of a feature's effect on the log-odds, over rows) that
            rare values carry. Rare values are all but the most frequent ones that make up half of all occurrences; at
            0.5 a rare value's effect is on average as large as a frequent one's.
        seed: seed of all rows.
        uneven: rows of the largest table over those of the smallest, the others between in equal ratios; null for
            tables of one size.
        crosses: share of the rows of all tables that belong to crosses of the first two and the last two features;
            null for no crosses.
    """

    name: str = "map_synthetic"
    rows: Count = 200_000
    table_rows: Count = 8_192
    zipf_exponent: Annotated[float, Within(0, 10)] = 1.1
    tail_signal: Share = 0.5
    seed: Seed = 0
    uneven: Annotated[float, Within(1, 1e6)] | None = None
    crosses: Annotated[float, Within(0, 0.99, above=True)] | None = None
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: MapSplitConfig = field(default_factory=MapSplitConfig)

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows."""
        return {"generator": GENERATOR_VERSION}

    def source(self, day: int, scratch: Path) -> RowSource:
        """Return the reader of the rows."""
        return PlantedRows(self)

    def check(self) -> None:
        """Raise UserError for an invalid setting."""
        self.vocabulary.check(len(self.sizes))
        self.split.check()

    def features(self) -> list[int]:
        """Return the rows of each table."""
        return self.vocabulary.sizes or self.sizes

    @property
    def values(self) -> list[int]:
        """Number of values of each feature that has an effect."""
        weights = (self.uneven or 1.0) ** (np.arange(TABLES) / (TABLES - 1))
        return [max(1, round(self.table_rows * TABLES * weight)) for weight in weights / weights.sum()]

    @property
    def sizes(self) -> list[int]:
        """Rows of each table: one for each value, and those of the crosses."""
        if self.crosses is None:
            return self.values
        of_crosses = self.crosses / (1 - self.crosses) * sum(self.values)
        return [*self.values, *[max(1, round(of_crosses / len(CROSSED)))] * len(CROSSED)]

    def expected_examples(self, train_days: int) -> float:
        """Return the expected number of training rows."""
        return self.rows * self.split.train


class PlantedRows:
    """The rows by their number; the first n do not depend on ``rows``.

    A row's split follows from its number alone, so datasets with the same number of rows have the same number of
    examples.
    """

    numeric_names: tuple[str, ...] = ("number",)
    numeric_transform = "standard normal"

    def __init__(self, config: MapSyntheticConfig) -> None:
        self.published_sizes = tuple(config.sizes)
        crosses = [f"feature_{one}_{other}" for one, other in CROSSED] if config.crosses is not None else []
        self.categorical_names = (*(f"feature_{number}" for number in range(TABLES)), *crosses)
        self.rejected = RefusedRows()
        self.excluded = RefusedRows()
        self._config = config

    def files(self) -> list[dict[str, Any]]:
        """Return no files: nothing is read."""
        return []

    def blocks(self, progress: Progress) -> Iterator[RowBlock]:
        """Yield all rows in order."""
        config = self._config
        shares = [zipf_shares(values, config.zipf_exponent) for values in config.values]
        effects = [
            planted_effects(share, config.tail_signal, config.seed, feature) for feature, share in enumerate(shares)
        ]
        variance = NUMBER_EFFECT**2 + TABLES * DEVIATION**2
        # E sigmoid(a + s·Z) is about sigmoid(a / sqrt(1 + pi s²/8)): the intercept for the chosen click rate.
        intercept = np.log(CLICK_RATE / (1 - CLICK_RATE)) * np.sqrt(1 + np.pi * variance / 8)
        intercept -= sum(share @ effect for share, effect in zip(shares, effects, strict=True))
        cumulative = [np.cumsum(share) for share in shares]
        for block, start in enumerate(range(0, config.rows, _BLOCK_ROWS)):
            rows = min(_BLOCK_ROWS, config.rows - start)
            generator = np.random.default_rng([config.seed, TABLES, block])
            # Draw whole blocks, so that a shorter last block starts with the same rows.
            number = generator.standard_normal(_BLOCK_ROWS)[:rows]
            uniform = generator.random((_BLOCK_ROWS, TABLES))[:rows]
            drawn = [
                np.minimum(np.searchsorted(each, uniform[:, feature], side="right"), len(each) - 1)
                for feature, each in enumerate(cumulative)
            ]
            values = np.stack(drawn, axis=1)
            log_odds = intercept + NUMBER_EFFECT * number
            log_odds += sum(effect[values[:, feature]] for feature, effect in enumerate(effects))
            clicked = generator.random(_BLOCK_ROWS)[:rows] < 1 / (1 + np.exp(-log_odds))
            yield RowBlock(
                content=line_content([np.arange(start, start + rows)]),
                day=np.zeros(rows, np.int32),
                label=clicked.astype(np.float32),
                numeric=number[:, None].astype(np.float32),
                keys=self._keys(values).astype(np.uint64),
            )
            progress(start + rows, config.rows)

    def _keys(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the values with those of the crosses, a number for each pair."""
        if self._config.crosses is None:
            return values
        crosses = [values[:, one] * self._config.values[other] + values[:, other] for one, other in CROSSED]
        return np.column_stack([values, *crosses])


def zipf_shares(values: int, exponent: float) -> NDArray[np.float64]:
    """Return each value's share of all occurrences, the most frequent first, shape [values]."""
    weights = np.arange(1, values + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def is_rare(share: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which values are rare: more frequent ones already make up half of all occurrences; shape [values]."""
    return np.cumsum(share) - share >= HEAD


def planted_effects(share: NDArray[np.float64], tail_signal: float, seed: int, feature: int) -> NDArray[np.float64]:
    """Return the effect of each value on the log-odds, shape [values]. Its mean square over rows is DEVIATION squared;
    rare values contribute the share ``tail_signal``."""
    effect = np.random.default_rng([seed, feature]).standard_normal(len(share))
    rare = is_rare(share)
    for group, part in ((rare, tail_signal), (~rare, 1 - tail_signal)):
        mean_square = float(share[group] @ effect[group] ** 2)
        effect[group] *= DEVIATION * np.sqrt(part / mean_square) if mean_square > 0 else 0.0
    return effect
