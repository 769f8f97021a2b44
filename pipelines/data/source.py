"""The interface of a dataset's configuration: a stream of days, by default of one day."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.dataset import Dataset
from pipelines.data.estimate import Estimate
from pipelines.data.provenance import Provenance
from pipelines.system.hub import HubConfig

Progress = Callable[[int, int], None]
"""Called with (done, total), both in bytes of the source."""

OnBadRow = Literal["stop", "skip"]
"""At a malformed row: stop, or skip such rows and count them in dataset.json."""

SCRATCH = "source"
"""Folder of generated files within that of a dataset being written; it need not exist."""


class DataConfig(ABC):
    """The configuration of a dataset, a dataclass: its days and how the rows of each are written.

    Attributes:
        task: the learning task, `clicks` or `text`.
        is_stream: whether training proceeds day by day. Other data have one day, number 0.
        hub: whether files may be downloaded from the Hugging Face hub; set from the whole configuration.
        provenance: origin of real data that come with the project; None for others.
        name: as in ``data=...``.
    """

    task: ClassVar[str]
    is_stream: ClassVar[bool] = False
    hub: ClassVar[HubConfig] = HubConfig()
    provenance: ClassVar[Provenance | None] = None
    name: str

    @property
    def units(self) -> tuple[str, ...]:
        """Columns of the source that may be the unit of privacy: whose values say which rows belong together."""
        return ()

    @abstractmethod
    def check(self) -> None:
        """Raise UserError for an invalid setting."""

    def day_numbers(self) -> list[int]:
        """Return the number of each day, increasing."""
        return [0]

    @abstractmethod
    def identity(self, day: int) -> dict[str, Any]:
        """Return, as JSON, everything that determines the rows of a day.

        Raises:
            UserError: The source is missing.
        """

    @abstractmethod
    def write(self, day: int, folder: Path, made_with: dict[str, Any], progress: Progress) -> None:
        """Write the dataset of a day into an empty folder, and record ``made_with`` in its dataset.json.

        Raises:
            UserError: The source is malformed or has no training row.
        """

    def units_of_rows(self, day: int, column: str, written: Dataset) -> NDArray[np.int64]:
        """Return an identifier of the unit of each training row of a day, in the order of the rows.

        Args:
            day: its number.
            column: one of :attr:`units`.
            written: the day's rows.

        Raises:
            UserError: the source is missing, or holds other rows than were written.
        """
        raise UserError(f"data={self.name} has no units.")

    def estimates(self, days: list[int]) -> dict[int, Estimate]:
        """Estimate rows, time and disk of each of these days."""
        return dict.fromkeys(days, Estimate(0))

    @abstractmethod
    def features(self) -> list[int] | int:
        """Return the rows of each embedding table if the settings determine them, else the number of tables."""

    @abstractmethod
    def expected_examples(self, train_days: int) -> float | None:
        """Estimate the number of training examples before preprocessing; None if the source's size is unknown.

        Args:
            train_days: number of training days of a stream.
        """

    def warnings(self, day: Dataset) -> list[str]:
        """Return warnings about a written day."""
        return []


@dataclass
class RefusedRows:
    """Rows of the source that are not in the dataset, counted by reason, with the location of the first few."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    def add(self, reason: str, example: str | None = None, count: int = 1) -> None:
        """Count rows excluded for ``reason``; ``example`` locates one (the first ten are kept)."""
        self.counts[reason] = self.counts.get(reason, 0) + count
        if example is not None and len(self.examples) < 10:
            self.examples.append(example)

    def merge(self, others: RefusedRows) -> None:
        """Add the counts of another file."""
        for reason, count in others.counts.items():
            self.add(reason, count=count)
        self.examples = [*self.examples, *others.examples][:10]

    def as_json(self) -> dict[str, Any]:
        """Return total, counts by reason, and examples, for dataset.json."""
        return {"total": sum(self.counts.values()), "by_reason": self.counts, "first": self.examples}


class BadLineError(ValueError):
    """A malformed line: ``reason`` is the kind of error, the text names the field and its value."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
