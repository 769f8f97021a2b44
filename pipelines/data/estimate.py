"""Estimates of the rows, disk and time of days before they are written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from dpfest.errors import UserError
from pipelines.data.rows import RECORD


@dataclass(frozen=True)
class Estimate:
    """Estimated rows, seconds (None if unknown), and bytes of temporary files."""

    rows: float
    seconds: float | None = None
    scratch_bytes: float = 0

    def times(self, amount: float) -> Estimate:
        """Return the estimate scaled by a factor."""
        seconds = None if self.seconds is None else self.seconds * amount
        return Estimate(self.rows * amount, seconds, self.scratch_bytes * amount)

    @property
    def disk_bytes(self) -> float:
        """Bytes of the rows on disk."""
        return self.rows * RECORD.itemsize


def together(estimates: Collection[Estimate], at_once: int) -> Estimate:
    """Combine the estimates of several days, of which ``at_once`` are written concurrently."""
    seconds = [day.seconds for day in estimates if day.seconds is not None]
    scratch = sorted((day.scratch_bytes for day in estimates), reverse=True)[:at_once]
    # Reading, parsing and hashing one day keep two cores busy.
    speed_up = min(at_once, max(1, (os.cpu_count() or 1) // 2))
    known = sum(seconds) / speed_up if len(seconds) == len(estimates) else None
    return Estimate(sum(day.rows for day in estimates), known, sum(scratch))


def check_disk(folder: Path, estimate: Estimate) -> int:
    """Return the free bytes of the disk of ``folder``, which need not exist.

    Raises:
        UserError: They are fewer than the estimate.
    """
    while not folder.exists():
        folder = folder.parent
    free, needed = shutil.disk_usage(folder).free, estimate.disk_bytes + estimate.scratch_bytes
    if needed > free:
        raise UserError(
            f"About {needed / 1e9:,.1f} GB are needed in {folder.absolute()}, but {free / 1e9:,.1f} GB are free: "
            "choose another disk with paths.data, or take fewer days or rows (data.days, where the data have it)."
        )
    return free
