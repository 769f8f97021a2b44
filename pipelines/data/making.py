"""Streams in the preprocess stage: what is missing is foretold, made (several days at once), and what failed said."""

from __future__ import annotations

import dataclasses
import multiprocessing
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Collection, Iterable, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from dpfest.errors import UserError
from pipelines.data.dataset import Dataset
from pipelines.data.days import StreamConfig, make_day, share_day
from pipelines.data.estimate import Forecast, check_disk, together
from pipelines.data.identity import day_hashes
from pipelines.data.source import Progress
from pipelines.data.stream import RECORD_FILE, day_folder, failure_file, write_stream_record
from pipelines.system.progress import Report, duration, progress


@dataclasses.dataclass(frozen=True)
class DaysToMake:
    """The days of a stream that are not there yet, and what making them will take.

    Attributes:
        stream: The stream's folder.
        data: Its configuration.
        hashes: What each missing day is made from.
        forecasts: What each is expected to take.
    """

    stream: Path
    data: StreamConfig
    hashes: dict[int, str]
    forecasts: dict[int, Forecast]

    def foretell(self, at_once: int) -> str:
        """A sentence on what is to come.

        Raises:
            UserError: The disk is too small for it.
        """
        needed = together(self.forecasts.values(), at_once)
        free = check_disk(self.stream, needed)
        took = f"; about {duration(needed.seconds)} with {at_once} at once" if needed.seconds is not None else ""
        rows = f"about {float(f'{needed.rows:.3g}'):,.0f} rows" if needed.rows else "how many rows is unknown"
        return (
            f"{self.data.name}: {days_in_words(len(self.hashes))} to make, {rows}; "
            f"{_gigabytes(needed.disk_bytes + needed.scratch_bytes)} of disk ({_gigabytes(free)} free){took}."
        )


def days_to_make(stream: Path, data: StreamConfig, only: int | None = None) -> DaysToMake:
    """Write the stream's record, take over days that another stream has, and find out what is missing.

    Args:
        stream: The stream's folder.
        data: Its configuration.
        only: The one day that is asked for; None for all.

    Raises:
        UserError: A source is not there, or ``only`` is no day of the stream.
    """
    hashes = day_hashes(data)
    if only is not None and only not in hashes:
        raise UserError(f"preprocess.day={only} is no day of the stream, which has {', '.join(map(str, hashes))}.")
    if not (stream / RECORD_FILE).exists():
        made_with = dataclasses.asdict(data)  # type: ignore[call-overload]
        write_stream_record(stream, data.name, list(hashes), list(hashes.values()), made_with)
    missing = {
        day: day_hash
        for day, day_hash in hashes.items()
        if only in (None, day)
        and not day_folder(stream, day).exists()
        and not share_day(stream, data.name, day, day_hash)
    }
    return DaysToMake(stream, data, missing, data.day_forecasts(list(missing)))


def remove_damaged_days(stream: Path) -> None:
    """Hold every day that is there to its checksums, and remove those that are not what was written."""
    whole = 0
    for folder in sorted(stream.glob("day_*/")):
        try:
            Dataset.open(folder).verify()
            whole += 1
        except UserError as error:
            print(f"{error} It is removed, to be made again.", file=sys.stderr, flush=True)
            shutil.rmtree(folder)
    print(f"{stream}: {days_in_words(whole)} verified.", file=sys.stderr, flush=True)


def make_days(to_make: DaysToMake, at_once: int) -> None:
    """Make days, ``at_once`` at the same time, each in a process of its own where that is more than one.

    Raises:
        UserError: Some could not be made. The others have been: each failed one is named, with why.
    """
    with progress(f"making {to_make.data.name}") as report:
        follow = _Follower(report, to_make.forecasts)
        if at_once == 1:
            _in_turn(to_make, follow)
        else:
            _in_processes(to_make, at_once, follow)
    raise_failed(to_make.stream, to_make.hashes)


def raise_failed(stream: Path, days: Collection[int]) -> None:
    """Say which of these days could not be made, if there are any, and why, by the word that they left.

    Raises:
        UserError: There are some.
    """
    failed = {day: _word(stream, day) for day in days if not day_folder(stream, day).exists()}
    if failed:
        others = "; the others are there" if len(failed) < len(days) else ""
        reasons = "\n".join(f"  day {day}: {reason}" for day, reason in sorted(failed.items()))
        raise UserError(
            f"{len(failed)} of {days_in_words(len(days))} of {stream} could not be made{others}. The same command "
            f"makes what is missing, and that alone.\n{reasons}"
        )


def forget_failures(stream: Path, days: Iterable[int]) -> None:
    """Remove the word that an earlier attempt at these days left."""
    for day in days:
        failure_file(stream, day).unlink(missing_ok=True)


def _word(stream: Path, day: int) -> str:
    try:
        return failure_file(stream, day).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return "it left no word: its process was killed (out of memory?), or never started"


def days_in_words(count: int) -> str:
    """1 day, 2 days."""
    return f"{count} day{'s' * (count != 1)}"


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count > 5e7 else f"{count / 1e6:,.1f} MB"


class _Follower:
    """Turns the progress of days into one of rows: rate, time left, and which days are in the making."""

    def __init__(self, report: Report, forecasts: Mapping[int, Forecast]) -> None:
        self._report = report
        self._rows = {day: max(1.0, forecast.rows) for day, forecast in forecasts.items()}
        self._done = dict.fromkeys(forecasts, 0.0)
        self._started = time.monotonic()

    def of(self, day: int) -> Progress:
        """What is told how much of a day is done."""
        return lambda done, total: self.day_is_at(day, done / max(1, total))

    def day_is_at(self, day: int, share: float) -> None:
        self._done[day] = min(1.0, share)
        done, total = sum(self._rows[day] * part for day, part in self._done.items()), sum(self._rows.values())
        rate = done / max(1e-9, time.monotonic() - self._started)
        days = ", ".join(str(day) for day, part in self._done.items() if 0 < part < 1)
        left = f", {duration((total - done) / rate)} left" if rate else ""
        self._report(int(done), int(total), f"{rate:,.0f} rows/s{left}" + (f"; day {days}" if days else ""))


def _in_turn(to_make: DaysToMake, follow: _Follower) -> None:
    for day in to_make.hashes:
        _attempt(to_make, day, follow.of(day))
        follow.day_is_at(day, 1)


def _attempt(to_make: DaysToMake, day: int, tell: Progress) -> None:
    """Make a day; one that fails leaves word and raises nothing, since the next one has a file of its own."""
    try:
        make_day(to_make.stream, to_make.data, day, to_make.hashes[day], tell)
    except UserError:
        pass
    except Exception:
        traceback.print_exc()


def _in_processes(to_make: DaysToMake, at_once: int, follow: _Follower) -> None:
    # Not forked: Polars has threads by now, which a fork would not take along.
    context = multiprocessing.get_context("spawn")
    forget_failures(to_make.stream, to_make.hashes)
    queue = list(reversed(to_make.hashes))
    under_way: dict[Connection, tuple[int, SpawnProcess]] = {}
    try:
        while queue or under_way:
            while queue and len(under_way) < at_once:
                day = queue.pop()
                mine, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_in_child, args=(theirs, to_make, day), daemon=True)
                process.start()
                theirs.close()
                under_way[mine] = day, process
            for connection in wait(list(under_way)):
                assert isinstance(connection, Connection)
                day, process = under_way[connection]
                try:
                    follow.day_is_at(day, connection.recv())
                except EOFError:
                    process.join()
                    del under_way[connection]
                    follow.day_is_at(day, 1)
    finally:
        for _, process in under_way.values():
            process.terminate()
            process.join()


def _in_child(parent: Connection, to_make: DaysToMake, day: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent passes an interrupt on, as SIGTERM
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the half day is removed
    told = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told > 0.2:
            told = time.monotonic()
            try:
                parent.send(done / max(1, total))
            except BrokenPipeError:
                sys.exit(1)  # the parent was killed: nobody waits for this day

    _attempt(to_make, day, tell)
