"""What all click logs have: a vocabulary, a split, and a reader of each day's rows."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from dpfest.errors import UserError
from pipelines.data.clicks.source import RowSource
from pipelines.data.clicks.split import Split
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.clicks.writer import write_dataset
from pipelines.data.dataset import Dataset
from pipelines.data.rows import CATEGORICAL_FEATURES
from pipelines.data.source import SCRATCH, DataConfig, Progress


class ClickConfig(DataConfig):
    """A dataset of clicks.

    Attributes:
        tables: categorical features, each with an embedding table.
        rows_of_a_day: about, in all splits; None where nothing is known of the source.
        vocabulary: from values to table rows.
        split: from lines to splits; a stream's leaves no day to be tested on.
    """

    task: ClassVar[str] = "clicks"
    tables: ClassVar[int] = CATEGORICAL_FEATURES
    rows_of_a_day: ClassVar[float | None] = None
    vocabulary: VocabularyConfig
    split: Split

    def check(self) -> None:
        """Raise UserError where a setting has no meaning."""
        self.vocabulary.check(self.tables)
        self.split.check()
        if self.is_stream and self.vocabulary.policy != "hash":
            raise UserError(
                f"data.vocabulary.policy={self.vocabulary.policy} has no meaning in a stream: a vocabulary read off "
                "one day would not hold the next day's values, and one read off all days would tell the first what "
                "comes later. Leave it at hash."
            )

    @abstractmethod
    def source(self, day: int, scratch: Path) -> RowSource:
        """The rows of a day; ``scratch`` is a folder that it may make for files of its own, removed afterwards."""

    def write(self, day: int, folder: Path, made_with: dict[str, Any], progress: Progress) -> None:
        source = self.source(day, folder / SCRATCH)
        write_dataset(folder, source, self.name, self.vocabulary, self.split, made_with, progress, self.provenance)

    def features(self) -> list[int] | int:
        return self.vocabulary.sizes or self.tables

    def expected_examples(self, train_days: int) -> float | None:
        if self.rows_of_a_day is None:
            return None
        return self.rows_of_a_day * self.split.shares["train"] * (train_days if self.is_stream else 1)

    def warnings(self, day: Dataset) -> list[str]:
        """An AUC needs a row of each label; a share of 0 is a wish, and needs no warning."""
        warnings = []
        for part in ("validation", "test"):
            share, counts = self.split.shares.get(part), day.description["splits"].get(part)
            if self.is_stream or not share or 0 < counts["positives"] < counts["rows"]:
                continue
            rows, positives = counts["rows"], counts["positives"]
            held = f"too few rows ({rows:,}, of which {positives:,} have label 1)" if rows else "no row"
            warnings.append(
                f"{part} holds {held}: its AUC will be unknown. Use more data, or raise data.split.{part} "
                f"(now {share:g})."
            )
        return warnings
