"""A stream: days in temporal order, each a dataset of its own. An ordinary dataset is a stream of one day.

The folder of an ordinary dataset is that of its day (see :mod:`pipelines.data.dataset`). A stream of several days has
``stream.json``, which lists its days and their configuration, and the folders ``day_00``, ``day_01``, …
An example belongs to one day. Rows are memory-mapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.data.dataset import Dataset, read_description, sealed_text
from pipelines.system.files import write_atomically

STREAM_SCHEMA = 2
RECORD_FILE = "stream.json"


def day_folder(stream: Path, number: int) -> Path:
    """Return the folder of a day of a stream; names sort by time."""
    return stream / f"day_{number:02d}"


def failure_file(stream: Path, number: int) -> Path:
    """Return the file in which the latest attempt at a day records its failure; a written day has none."""
    return stream / f"day_{number:02d}.failed"


def write_stream_record(folder: Path, name: str, hashes: Mapping[int, str], made_with: dict[str, Any]) -> None:
    """Write ``stream.json``, which lists the days before they are written, so that missing ones can be reported."""
    days = [{"day": day, "folder": day_folder(folder, day).name, "hash": hashes[day]} for day in hashes]
    text = sealed_text({"schema": STREAM_SCHEMA, "name": name, "days": days, "made_with": made_with})
    write_atomically(folder / RECORD_FILE, lambda partial: partial.write_text(text, encoding="utf-8"))


@dataclass(frozen=True)
class Stream:
    """An opened stream of D days.

    Attributes:
        folder: Its folder.
        days: The days in temporal order. The day of an ordinary dataset has the splits ``train``, ``validation`` and
            ``test``; days of a stream have ``train`` and ``validation``.
        day_numbers: Number of each day, increasing; not always 0 to D - 1, since a stream may contain only some of its
            source's days.
        hashes: Content hash of each day.
        is_stream: Whether training proceeds day by day.
    """

    folder: Path
    days: list[Dataset]
    day_numbers: list[int]
    hashes: list[str]
    is_stream: bool

    @classmethod
    def open(cls, folder: Path) -> Stream:
        """Open a dataset or stream and check that every day is complete.

        Raises:
            UserError: It does not exist, has another schema, or a day is missing or damaged; the message names the day,
                the command that remakes it, and the reason of an earlier failure.
        """
        folder = Path(folder)
        if not (folder / RECORD_FILE).exists() and not any(folder.glob("day_*")):
            return cls(folder, [Dataset.open(folder)], [0], [folder.name.rpartition("-")[2]], is_stream=False)
        missing = f"There is no stream in {folder} (no {RECORD_FILE}): make it with `dpfest preprocess`."
        description = read_description(folder / RECORD_FILE, STREAM_SCHEMA, missing, damaged="it")
        numbers = [int(day["day"]) for day in description["days"]]
        days = [_open_day(folder, description["name"], number) for number in numbers]
        for day in days[1:]:
            if day.vocabulary_sizes != days[0].vocabulary_sizes:
                raise UserError(
                    f"{day.folder} has other vocabulary sizes than {days[0].folder}: delete {folder} and preprocess "
                    "again."
                )
        return cls(folder, days, numbers, [str(day["hash"]) for day in description["days"]], is_stream=True)

    @property
    def hash(self) -> str:
        """:func:`pipelines.data.identity.data_hash`, which names the folder."""
        return self.folder.name.rpartition("-")[2]

    @property
    def rows_of_day(self) -> list[int]:
        """Number of rows of each day, over all splits."""
        return [sum(day.rows.values()) for day in self.days]

    @property
    def vocabulary_sizes(self) -> list[int]:
        """Table rows of each categorical feature, equal on all days."""
        return self.days[0].vocabulary_sizes

    def split_days(self, train_days: int) -> tuple[list[Dataset], list[Dataset]]:
        """Return the first ``train_days`` days, for training, and the held-out days after them; an ordinary dataset has
        its held-out rows in its one day.

        Raises:
            UserError: no day of a stream is left to hold out.
        """
        if not self.is_stream:
            return self.days, []
        if train_days >= len(self.days):
            raise UserError(
                f"stream.train_days={train_days} leaves none of the {len(self.days)} days of {self.days[0].name} to "
                f"evaluate on: choose at most {len(self.days) - 1}."
            )
        return self.days[:train_days], self.days[train_days:]

    def examples(self, train_days: int) -> int | list[int]:
        """Return the number of training examples, of a stream for each training day; raises as `split_days`."""
        examples = [day.examples for day in self.split_days(train_days)[0]]
        return examples if self.is_stream else examples[0]


def _open_day(folder: Path, name: str, number: int) -> Dataset:
    day = day_folder(folder, number)
    again = f"`dpfest preprocess data={name}` with the same settings makes only this day"
    if not day.exists():
        failed = failure_file(folder, number)
        why = f"; the last attempt failed: {failed.read_text(encoding='utf-8').strip()}" if failed.exists() else "."
        raise UserError(f"Day {number} of {folder} is missing ({again}){why}")
    try:
        return Dataset.open(day)
    except UserError as error:
        raise UserError(f"Day {number} of {folder} is damaged. Delete {day}; then {again}. ({error})") from error
