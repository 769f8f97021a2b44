"""Write the days of a dataset or stream, each atomically; existing days are kept.

A folder is named by the hashes of its days and never changes. A changed source file, or another choice of days, gives a
new folder, which shares the files of unchanged days through hard links.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from dpfest.errors import UserError
from pipelines.data.dataset import Dataset
from pipelines.data.estimate import Estimate, check_disk, together
from pipelines.data.identity import content_hash
from pipelines.data.source import SCRATCH, DataConfig, Progress
from pipelines.data.stream import RECORD_FILE, day_folder, failure_file, write_stream_record
from pipelines.system.engines import Ended, Lost
from pipelines.system.files import made_once
from pipelines.system.hub import pinned
from pipelines.system.memory import keep_freed_memory
from pipelines.system.processes import Child, Pool
from pipelines.system.progress import Reporter, duration, progress
from pipelines.system.records import reason_of


@dataclasses.dataclass(frozen=True)
class DaysToMake:
    """The missing days of a dataset or stream.

    Attributes:
        folder: Folder of the dataset or stream.
        data: Its configuration.
        hashes: Content hash of each missing day.
    """

    folder: Path
    data: DataConfig
    hashes: dict[int, str]

    def place(self, day: int) -> Path:
        """Return the folder of a day."""
        return day_folder(self.folder, day) if self.data.is_stream else self.folder

    @functools.cached_property
    def estimates(self) -> dict[int, Estimate]:
        """Estimated rows, time and disk of each day."""
        return self.data.estimates(list(self.hashes))

    def summary(self, at_once: int) -> str:
        """Describe the work to do in a sentence.

        Raises:
            UserError: The disk is too small.
        """
        needed = together(self.estimates.values(), at_once)
        free = check_disk(self.folder, needed)
        took = f"; about {duration(needed.seconds)} with {at_once} at once" if needed.seconds is not None else ""
        rows = f"about {float(f'{needed.rows:.3g}'):,.0f} rows" if needed.rows else "how many rows is unknown"
        return (
            f"{self.data.name}: {days_in_words(len(self.hashes))} to make, {rows}; "
            f"{_gigabytes(needed.disk_bytes + needed.scratch_bytes)} of disk ({_gigabytes(free)} free){took}."
        )


def days_to_make(folder: Path, data: DataConfig, hashes: dict[int, str]) -> DaysToMake:
    """Determine the missing days; for a stream, write its record and link days that another stream has.

    Args:
        folder: Folder of the dataset or stream.
        data: Its configuration.
        hashes: Content hash of each day.
    """
    if data.is_stream and not (folder / RECORD_FILE).exists():
        write_stream_record(folder, data.name, hashes, dataclasses.asdict(data))  # type: ignore[call-overload]
    asked = DaysToMake(folder, data, hashes)
    missing = {
        day: each for day, each in asked.hashes.items() if not asked.place(day).exists() and not _shared(asked, day)
    }
    return dataclasses.replace(asked, hashes=missing)


def _shared(asked: DaysToMake, day: int) -> bool:
    """Link the files of the same day from another stream in the same folder, if an intact one exists."""
    place = asked.place(day)
    for other in sorted(asked.folder.parent.glob(f"{asked.data.name}-*/{place.name}")):
        try:
            if Dataset.open(other).description["made_with"]["hash"] == asked.hashes[day]:
                with made_once(place) as partial:
                    if partial is not None:
                        for file in other.glob("[!.]*"):
                            os.link(file, partial / file.name)
                failure_file(asked.folder, day).unlink(missing_ok=True)
                return True
        except (UserError, OSError):
            pass  # damaged, just being removed, or on a file system without links: write the day instead
    return False


def remove_damaged_days(folder: Path) -> None:
    """Compare every existing day with its checksums and remove damaged ones."""
    days = [folder] if (folder / "dataset.json").exists() else sorted(folder.glob("day_*/"))
    whole = 0
    for day in days:
        try:
            Dataset.open(day).verify(anew=True)
            whole += 1
        except UserError as error:
            print(f"{error} It is removed and written again.", file=sys.stderr, flush=True)
            shutil.rmtree(day)
    if days:
        print(f"{folder}: {days_in_words(whole)} verified.", file=sys.stderr, flush=True)


Told = Callable[[int, float], None]
"""Called with a day that is being written, and the share of it that is."""
Start = Callable[[DaysToMake, Told], AbstractContextManager[Iterable[tuple[int, Ended]]]]
"""Starts to write days and yields each as it ends: :func:`here`, :func:`in_processes`, or jobs of a cluster."""


def make_dataset(to_make: DaysToMake) -> None:
    """Write the one day of what is no stream.

    Raises:
        UserError: Its source is missing, malformed, truncated or changing. Nothing is kept then.
    """
    with progress(f"making {to_make.data.name}") as report:
        _make(to_make, 0, report)


def make_days(to_make: DaysToMake, start: Start) -> None:
    """Have the days of a stream written.

    Raises:
        UserError: Some failed; the message gives the reason of each. The others are written.
    """
    for day in to_make.hashes:
        failure_file(to_make.folder, day).unlink(missing_ok=True)
    with progress(f"making {to_make.data.name}") as report:
        follower = _Follower(report, to_make.estimates)
        with start(to_make, follower.day_is_at) as days:
            for day, ended in days:
                follower.day_is_at(day, 1)
                if isinstance(ended, Lost) and ended.failure and not to_make.place(day).exists():
                    _record(to_make.folder, day, f"its job {ended.failure}")
    _refuse_failed(to_make.folder, to_make.hashes)


@contextmanager
def here(to_make: DaysToMake, told: Told) -> Iterator[Iterable[tuple[int, Ended]]]:
    """Write one day after another in this process."""

    def write(day: int) -> tuple[int, Ended]:
        _attempt(to_make, day, lambda done, total: told(day, done / max(1, total)))
        return day, Lost()

    yield map(write, to_make.hashes)


def in_processes(at_once: int) -> Start:
    """Write so many days at a time, each in a process of its own on this machine."""
    return lambda to_make, told: Pool(to_make.hashes, at_once, lambda day: Child(_in_child, to_make, day), told)


def _make(to_make: DaysToMake, day: int, progress: Progress) -> None:
    """Write one day.

    Raises:
        UserError: Its source is missing, malformed, truncated or changing. Nothing is kept then.
    """
    data, made_from = to_make.data, to_make.hashes[day]
    made_with = pinned(dataclasses.asdict(data), "dataset")  # type: ignore[call-overload]
    if data.is_stream:
        made_with.pop("days")
        made_with |= {"day": day, "hash": made_from}
    with made_once(to_make.place(day)) as partial:
        if partial is not None:
            keep_freed_memory()
            data.write(day, partial, made_with, progress)
            shutil.rmtree(partial / SCRATCH, ignore_errors=True)
            if content_hash(data, data.identity(day)) != made_from:
                raise UserError(
                    f"The source of {to_make.place(day)} changed while it was read: wait until it is completely "
                    "written, then preprocess again."
                )


def _attempt(to_make: DaysToMake, day: int, progress: Progress) -> None:
    """Write a day of a stream, recording the reason of a failure instead of raising: other days do not depend on it."""
    try:
        _make(to_make, day, progress)
    except Exception as error:
        _record(to_make.folder, day, reason_of(error))
        if not isinstance(error, UserError):
            traceback.print_exc()
    else:
        failure_file(to_make.folder, day).unlink(missing_ok=True)


def _in_child(parent: Connection, to_make: DaysToMake, day: int) -> None:
    reported = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal reported
        if time.monotonic() - reported > 0.2:
            reported = time.monotonic()
            try:
                parent.send(done / max(1, total))
            except BrokenPipeError:
                sys.exit(1)  # the parent process was killed

    _attempt(to_make, day, tell)


def _refuse_failed(stream: Path, days: Collection[int]) -> None:
    """Report failed days with their recorded reasons.

    Raises:
        UserError: A day is missing.
    """
    failed = {day: _recorded(stream, day) for day in days if not day_folder(stream, day).exists()}
    if failed:
        others = "; the others are there" if len(failed) < len(days) else ""
        reasons = "\n".join(f"  day {day}: {reason}" for day, reason in sorted(failed.items()))
        raise UserError(
            f"{len(failed)} of {days_in_words(len(days))} of {stream} could not be made{others}. The same command "
            f"makes only the missing ones.\n{reasons}"
        )


def _record(stream: Path, day: int, reason: str) -> None:
    failure_file(stream, day).write_text(f"{reason}\n", encoding="utf-8")


def _recorded(stream: Path, day: int) -> str:
    try:
        return failure_file(stream, day).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return "it recorded no reason: its process was killed (out of memory?), or never started"


def days_in_words(count: int) -> str:
    """Format a number of days: 1 day, 2 days."""
    return f"{count} day{'s' * (count != 1)}"


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count > 5e7 else f"{count / 1e6:,.1f} MB"


class _Follower:
    """Reports the progress of days in rows: rate, remaining time, and the days being written."""

    def __init__(self, report: Reporter, estimates: Mapping[int, Estimate]) -> None:
        self._report = report
        self._rows = {day: max(1.0, estimate.rows) for day, estimate in estimates.items()}
        self._done = dict.fromkeys(estimates, 0.0)
        self._started = time.monotonic()

    def day_is_at(self, day: int, share: float) -> None:
        self._done[day] = min(1.0, share)
        done, total = sum(self._rows[day] * part for day, part in self._done.items()), sum(self._rows.values())
        rate = done / max(1e-9, time.monotonic() - self._started)
        days = ", ".join(str(day) for day, part in self._done.items() if 0 < part < 1)
        remaining = f", {duration((total - done) / rate)} left" if rate else ""
        self._report(int(done), int(total), f"{rate:,.0f} rows/s{remaining}" + (f"; day {days}" if days else ""))
