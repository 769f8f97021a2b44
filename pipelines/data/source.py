"""The interface of a dataset's configuration: a stream of days, of one day by default."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dpfest.errors import UserError
from pipelines.data.dataset import Dataset
from pipelines.data.estimate import Estimate
from pipelines.data.provenance import Provenance
from pipelines.system.hub import HubConfig

Progress = Callable[[int, int], None]
"""Called with (work done, work in all), both in bytes of the source."""


SCRATCH = "source"
"""Within the folder of a dataset that is being made, the folder for generated files, which need not exist."""


class DataConfig(ABC):
    """The configuration of a dataset, a dataclass: which days it has, and how the rows of each are made.

    Attributes:
        task: what is learnt from it, `clicks` or `text`.
        is_stream: whether it is trained on day by day. Other data have one day, number 0.
        hub: what may be fetched from the Hugging Face hub: nothing, unless the whole configuration says so.
        provenance: of real data that come with the project; None for others.
        name: as in ``data=...``.
    """

    task: ClassVar[str]
    is_stream: ClassVar[bool] = False
    hub: ClassVar[HubConfig] = HubConfig()
    provenance: ClassVar[Provenance | None] = None
    name: str

    @abstractmethod
    def check(self) -> None:
        """Raise UserError where a setting has no meaning."""

    def day_numbers(self) -> list[int]:
        """Number of each day, rising."""
        return [0]

    @abstractmethod
    def identity(self, day: int) -> dict[str, Any]:
        """What the rows of a day are made from, as JSON.

        Raises:
            UserError: It is not there.
        """

    @abstractmethod
    def write(self, day: int, folder: Path, made_with: dict[str, Any], progress: Progress) -> None:
        """Fill an empty folder with the dataset of a day, ``made_with`` among what its dataset.json records.

        Raises:
            UserError: The source is malformed, or holds no row to train on.
        """

    def estimates(self, days: list[int]) -> dict[int, Estimate]:
        """What making each of these days will take."""
        return dict.fromkeys(days, Estimate(0))

    @abstractmethod
    def features(self) -> list[int] | int:
        """Rows of each embedding table where the settings say them, else the number of tables."""

    @abstractmethod
    def expected_examples(self, train_days: int) -> float | None:
        """Training examples, told before anything is made; None where nothing is known of the source.

        Args:
            train_days: of a stream, the days that are trained on.
        """

    def warnings(self, day: Dataset) -> list[str]:
        """What a user should know of a day that has been made."""
        return []


@dataclass
class RefusedRows:
    """Rows of the source that are not in the dataset, counted by reason, the first few named by place."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    def add(self, reason: str, example: str | None = None, count: int = 1) -> None:
        """Count rows that were left out for ``reason``; ``example`` names one (the first ten are kept)."""
        self.counts[reason] = self.counts.get(reason, 0) + count
        if example is not None and len(self.examples) < 10:
            self.examples.append(example)

    def merge(self, others: RefusedRows) -> None:
        """Count those of another file, too."""
        for reason, count in others.counts.items():
            self.add(reason, count=count)
        self.examples = [*self.examples, *others.examples][:10]

    def as_json(self) -> dict[str, Any]:
        """Total, counts by reason, and the examples, for dataset.json."""
        return {"total": sum(self.counts.values()), "by_reason": self.counts, "first": self.examples}


class BadLineError(ValueError):
    """Why a line is no example: ``reason`` is its kind, the text says which field and what it held."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def check_on_bad_row(choice: str) -> None:
    """Raise UserError unless it says what to do with malformed rows."""
    if choice not in ("stop", "skip"):
        raise UserError(f"data.on_bad_row must be stop or skip, not {choice!r}.")
