"""Making the days of a stream, each whole or not at all; a day that is there is left alone.

A stream's folder is named by the hashes of its days, so that it never changes. Where a source file changes, or other
days are asked for, there is a new folder, and it shares the files of the days that stay (hard links: no row is
written twice).
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any, Protocol

from dpfest.errors import UserError
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.clicks.writer import made_once, write_dataset
from pipelines.data.dataset import Dataset
from pipelines.data.estimate import Forecast
from pipelines.data.identity import SOURCE_CHANGED, content_hash
from pipelines.data.source import Progress, RowSource
from pipelines.data.split import DaySplitConfig
from pipelines.data.stream import day_folder, failure_file


class StreamConfig(Protocol):
    """The configuration of a stream: which days it has, and where the rows of each come from."""

    name: str
    vocabulary: VocabularyConfig
    split: DaySplitConfig

    def day_numbers(self) -> list[int]:
        """Number of each day of the stream, rising."""

    def day_identity(self, day: int) -> dict[str, Any]:
        """What the rows of a day are made from, as JSON.

        Raises:
            UserError: It is not there.
        """

    def day_source(self, day: int, scratch: Path) -> RowSource:
        """The rows of a day; ``scratch`` is a folder that it may make for files of its own, removed afterwards."""

    def day_forecasts(self, days: list[int]) -> dict[int, Forecast]:
        """What making each of these days will take."""


def make_day(stream: Path, data: StreamConfig, day: int, day_hash: str, progress: Progress) -> None:
    """Make one day of a stream.

    Raises:
        UserError: The day's source is missing, malformed or broken. Nothing is left then but word of why.
    """
    failed = failure_file(stream, day)
    try:
        with made_once(day_folder(stream, day)) as partial:
            if partial is not None:
                _write(partial, data, day, day_hash, progress)
    except Exception as error:
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        failed.write_text(f"{reason}\n", encoding="utf-8")
        raise
    failed.unlink(missing_ok=True)


def _write(folder: Path, data: StreamConfig, day: int, day_hash: str, progress: Progress) -> None:
    settings = dataclasses.asdict(data)  # type: ignore[call-overload]
    settings.pop("days")
    scratch = folder / "source"
    made_with = {**settings, "day": day, "hash": day_hash}
    write_dataset(folder, data.day_source(day, scratch), data.name, data.vocabulary, data.split, made_with, progress)
    shutil.rmtree(scratch, ignore_errors=True)
    if content_hash(data, data.day_identity(day)) != day_hash:
        raise UserError(SOURCE_CHANGED.format(name=f"day {day} of {data.name}"))


def share_day(stream: Path, name: str, day: int, day_hash: str) -> bool:
    """Take over the files of the same day of another stream beside this one, if there is one that is whole."""
    for other in sorted(stream.parent.glob(f"{name}-*/{day_folder(stream, day).name}")):
        try:
            if Dataset.open(other).description["made_with"]["hash"] == day_hash:
                with made_once(day_folder(stream, day)) as partial:
                    if partial is not None:
                        for file in other.glob("[!.]*"):
                            os.link(file, partial / file.name)
                failure_file(stream, day).unlink(missing_ok=True)
                return True
        except (UserError, OSError):
            pass  # damaged, just being removed, or on a file system without links: then the day is made
    return False
