"""What making days will take, told before it starts: rows, disk and time, from the size of the source and a sample."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from dpfest.errors import UserError
from pipelines.data.clicks.vocabulary import VocabularyConfig, hashed_vocabulary
from pipelines.data.dataset import RECORD
from pipelines.data.source import RowSource

_SAMPLE_BLOCKS = 6


@dataclass(frozen=True)
class Forecast:
    """Rows to come; the seconds that they take, where that is known; and bytes of files that are removed again."""

    rows: float
    seconds: float | None = None
    scratch_bytes: float = 0

    def times(self, amount: float) -> Forecast:
        """The forecast of so many times as much."""
        seconds = None if self.seconds is None else self.seconds * amount
        return Forecast(self.rows * amount, seconds, self.scratch_bytes * amount)

    @property
    def disk_bytes(self) -> float:
        """Disk that the rows take."""
        return self.rows * RECORD.itemsize


def together(forecasts: Collection[Forecast], at_once: int) -> Forecast:
    """The forecast of several days, of which ``at_once`` are made at the same time."""
    seconds = [day.seconds for day in forecasts if day.seconds is not None]
    scratch = sorted((day.scratch_bytes for day in forecasts), reverse=True)[:at_once]
    # Reading, parsing and hashing one day keep two cores busy.
    speed_up = min(at_once, max(1, (os.cpu_count() or 1) // 2))
    known = sum(seconds) / speed_up if len(seconds) == len(forecasts) else None
    return Forecast(sum(day.rows for day in forecasts), known, sum(scratch))


def check_disk(folder: Path, forecast: Forecast) -> int:
    """Free bytes where ``folder`` is, or is to be.

    Raises:
        UserError: They are too few for what is to come.
    """
    while not folder.exists():
        folder = folder.parent
    free, needed = shutil.disk_usage(folder).free, forecast.disk_bytes + forecast.scratch_bytes
    if needed > free:
        raise UserError(
            f"About {needed / 1e9:,.1f} GB are needed in {folder.absolute()}, but {free / 1e9:,.1f} GB are free: "
            "choose another disk with paths.data, or take fewer days or rows (data.days, where the data have it)."
        )
    return free


def sampled(source: RowSource, vocabulary: VocabularyConfig) -> Forecast:
    """What one byte of a source comes to, measured on its first blocks; no row where none can be read."""
    buckets = hashed_vocabulary(vocabulary, source.published_sizes)
    rows, bytes_done, times = [0], [0], [time.monotonic()]
    try:
        # What a reader has done of a block, it says when it is asked for the next one.
        for block in source.blocks(lambda done, total: bytes_done.append(done)):
            buckets.rows(block.keys)
            rows.append(rows[-1] + len(block.label))
            times.append(time.monotonic())
            if len(rows) > _SAMPLE_BLOCKS:
                break
    except UserError:
        pass  # the day itself will say what is wrong with it
    last = len(bytes_done) - 1
    # Reading is ahead of the parsing, by as much at each block but the first.
    first = 1 if last > 1 and bytes_done[last] > bytes_done[1] else 0
    if bytes_done[last] == bytes_done[first]:
        return Forecast(0)
    measured = Forecast(rows[last] - rows[first], times[last] - times[first])
    return measured.times(1 / (bytes_done[last] - bytes_done[first]))
