"""Settings and methods that all click logs share: a vocabulary, a split, and a reader of each day's rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.clicks.bags import NO_BAGS, BagConfig
from pipelines.data.clicks.source import RowSource
from pipelines.data.clicks.split import Split, split_of
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.clicks.writer import write_dataset
from pipelines.data.dataset import Dataset
from pipelines.data.hashing import HASH_SPECIFICATION
from pipelines.data.rows import CATEGORICAL_FEATURES
from pipelines.data.source import SCRATCH, DataConfig, Progress


class ClickConfig(DataConfig):
    """A dataset of clicks.

    Attributes:
        tables: categorical features, each with an embedding table.
        rows_of_a_day: approximate number of rows of a day, over all splits; None if the source's size is unknown.
        vocabulary: maps values to table rows.
        split: assigns lines to splits; that of a stream has no test split.
        hash_specification: how values become rows and lines splits, recorded in dataset.json.
    """

    task: ClassVar[str] = "clicks"
    tables: ClassVar[int] = CATEGORICAL_FEATURES
    rows_of_a_day: ClassVar[float | None] = None
    hash_specification: ClassVar[Mapping[str, str]] = HASH_SPECIFICATION
    vocabulary: VocabularyConfig
    split: Split

    @property
    def bags(self) -> Mapping[str, BagConfig]:
        """Features with several values in a row, the last of all features, in this order."""
        return NO_BAGS

    def check(self) -> None:
        """Raise UserError for an invalid setting."""
        self.vocabulary.check(self.tables, len(self.bags))
        self.split.check()
        if self.is_stream and self.vocabulary.policy != "hash":
            raise UserError(
                f"data.vocabulary.policy={self.vocabulary.policy} cannot be used in a stream: a vocabulary of one day "
                "would lack the next day's values, and one of all days would reveal later days to the first. Leave it "
                "at hash."
            )

    @abstractmethod
    def source(self, day: int, scratch: Path) -> RowSource:
        """Return the reader of a day's rows.

        Args:
            day: its number.
            scratch: a folder that the reader may create for temporary files; it is removed afterwards.
        """

    def to_score(self, scratch: Path, labelled: bool) -> Iterator[RowSource]:
        """Yield readers of all rows in order, of whatever split, for a trained model to score.

        Args:
            scratch: as of :meth:`source`.
            labelled: whether labels are asked for; where they are not, a table may lack them.
        """
        return (self.source(day, scratch) for day in self.day_numbers())

    def write(self, day: int, folder: Path, made_with: dict[str, Any], progress: Progress) -> None:
        source = self.source(day, folder / SCRATCH)
        write_dataset(
            folder,
            source,
            self.name,
            self.vocabulary,
            self.split,
            made_with,
            progress,
            self.provenance,
            self.hash_specification,
            self.bags,
        )

    def units_of_rows(self, day: int, column: str, written: Dataset) -> NDArray[np.int64]:
        source = self.source(day, written.folder / SCRATCH)
        blocks = source.blocks(lambda done, total: None)
        found = np.concatenate([block.units[column][split_of(block, self.split) == 0] for block in blocks])
        now, then = ([one["sha256"] for one in files] for files in (source.files(), written.description["sources"]))
        if now != then or len(found) != written.examples:
            raise UserError(
                f"The source of {written.folder} has other rows now than were written, {len(found):,} and "
                f"{written.examples:,} to train on: delete {written.folder} and preprocess again."
            )
        return found

    def features(self) -> list[int] | int:
        return self.vocabulary.sizes or self.tables

    def expected_examples(self, train_days: int) -> float | None:
        if self.rows_of_a_day is None:
            return None
        return self.rows_of_a_day * self.split.shares["train"] * (train_days if self.is_stream else 1)

    def warnings(self, day: Dataset) -> list[str]:
        """Warn of splits on which no AUC is defined, unless their share is 0."""
        warnings = []
        for part in ("validation", "test"):
            share, counts = self.split.shares.get(part), day.description["splits"].get(part)
            if self.is_stream or not share or 0 < counts["positives"] < counts["rows"]:
                continue
            rows, positives = counts["rows"], counts["positives"]
            held = f"too few rows ({rows:,}, all with label {int(positives > 0)})" if rows else "no row"
            warnings.append(f"{part} holds {held}: its AUC will be unknown. Use more data, or {self.more_rows(part)}.")
        if self.vocabulary.policy == "private" and max(day.vocabulary_sizes) == 1:
            warnings.append(
                "no value passed the vocabulary's noised counts, so that all of a feature share one row: there are too "
                "few training rows for this data.vocabulary.noise_multiplier."
            )
        train = day.description["splits"].get("train")
        if not self.is_stream and train and train["rows"] and train["positives"] in (0, train["rows"]):
            label = int(train["positives"] > 0)
            warnings.append(
                f"all {train['rows']:,} training rows have label {label}: there is nothing to learn from them."
            )
        return warnings

    def more_rows(self, part: str) -> str:
        """Return what gives a split more rows."""
        return f"raise data.split.{part} (now {self.split.shares[part]:g})"
