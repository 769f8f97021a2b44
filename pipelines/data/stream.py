"""A stream: a folder of days, each of them a dataset of its own, of training rows and a few that are held out.

``stream.json`` says which days belong to it and how they were made; ``day_00``, ``day_01``, … are ordinary dataset
folders (see :mod:`pipelines.data.dataset`). An example lies in one day. Rows are memory-mapped: no day is in memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.data.dataset import Dataset
from pipelines.system.files import write_json

STREAM_SCHEMA = 1
RECORD_FILE = "stream.json"


def day_folder(stream: Path, number: int) -> Path:
    """Where a day of a stream lies; its name sorts by time."""
    return stream / f"day_{number:02d}"


def failure_file(stream: Path, number: int) -> Path:
    """Where the latest attempt at a day leaves word of why it failed; a day that is made has none."""
    return stream / f"day_{number:02d}.failed"


def write_stream_record(
    folder: Path, name: str, numbers: Sequence[int], day_hashes: Sequence[str], made_with: dict[str, Any]
) -> None:
    """Write ``stream.json``, which names the days before they are made, so that one that is missing can be named."""
    days = [{"day": number, "folder": day_folder(folder, number).name} for number in numbers]
    for day, day_hash in zip(days, day_hashes, strict=True):
        day["hash"] = day_hash
    write_json(
        folder / RECORD_FILE, {"schema": STREAM_SCHEMA, "name": name, "days": days, "made_with": dict(made_with)}
    )


@dataclass(frozen=True)
class Stream:
    """An opened stream of D days.

    Attributes:
        folder: Where it is.
        description: The whole of stream.json.
        days: The days in the order of time; each has the splits ``train`` and ``validation``.
    """

    folder: Path
    description: dict[str, Any]
    days: list[Dataset]

    @classmethod
    def open(cls, folder: Path) -> Stream:
        """Open a stream and check that every day is whole.

        Raises:
            UserError: There is none, it was written in another schema, or a day is missing or damaged: it is named,
                with what remakes it, and why it failed where it did.
        """
        folder = Path(folder)
        description = _read_record(folder)
        days = [_open_day(folder, description, int(day["day"])) for day in description["days"]]
        for day in days[1:]:
            if day.vocabulary_sizes != days[0].vocabulary_sizes:
                raise UserError(
                    f"{day.folder} has other vocabulary sizes than {days[0].folder}: delete {folder} and preprocess "
                    "again."
                )
        return cls(folder, description, days)

    @property
    def name(self) -> str:
        """The stream's name, as in ``data=...``."""
        return str(self.description["name"])

    @property
    def day_numbers(self) -> list[int]:
        """Number of each day, rising; not always 0 to D - 1, since a stream may be a part of its source's days."""
        return [int(day["day"]) for day in self.description["days"]]

    @property
    def rows_of_day(self) -> list[int]:
        """Number of rows of each day, in all splits."""
        return [sum(day.rows.values()) for day in self.days]

    @property
    def vocabulary_sizes(self) -> list[int]:
        """Rows of the table of each categorical feature, the same on all days."""
        return self.days[0].vocabulary_sizes

    @property
    def categorical_names(self) -> list[str]:
        """Name of each categorical feature."""
        return self.days[0].categorical_names

    @property
    def numeric_names(self) -> list[str]:
        """Name of each numeric feature."""
        return self.days[0].numeric_names


def split_days(stream: Stream, train_days: int) -> tuple[list[Dataset], list[Dataset]]:
    """The days that are trained on, and those after them, which are held out.

    Raises:
        UserError: none would be held out.
    """
    if train_days >= len(stream.days):
        raise UserError(
            f"stream.train_days={train_days} leaves none of the {len(stream.days)} days of {stream.name} to evaluate "
            f"on: choose at most {len(stream.days) - 1}."
        )
    return stream.days[:train_days], stream.days[train_days:]


def trained_on(data: Dataset | Stream, train_days: int) -> list[Dataset]:
    """The datasets whose training rows a run reads: one, or the first days of a stream."""
    return split_days(data, train_days)[0] if isinstance(data, Stream) else [data]


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD_FILE
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"There is no stream in {folder} (no {RECORD_FILE}): make it with `dpfest preprocess`."
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): delete it and preprocess again.") from error
    found = description.get("schema") if isinstance(description, dict) else None
    if found != STREAM_SCHEMA:
        raise UserError(
            f"{path} has schema {found!r}, but this version reads schema {STREAM_SCHEMA}: delete {folder} and "
            "preprocess again."
        )
    return dict(description)


def _open_day(folder: Path, description: dict[str, Any], number: int) -> Dataset:
    day = day_folder(folder, number)
    again = f"`dpfest preprocess data={description['name']}` with the same settings makes this day, and no other"
    if not day.exists():
        failed = failure_file(folder, number)
        why = f"; the last attempt failed: {failed.read_text(encoding='utf-8').strip()}" if failed.exists() else "."
        raise UserError(f"Day {number} of {folder} is missing ({again}){why}")
    try:
        return Dataset.open(day)
    except UserError as error:
        raise UserError(f"Day {number} of {folder} is damaged. Delete {day}; then {again}. ({error})") from error
