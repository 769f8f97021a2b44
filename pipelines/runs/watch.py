"""How the runs of a folder's sweeps are getting on, from what they recorded: for their owner, not for publication.

A sweep writes which runs it is to make, runs record how they end, and their logs hold the latest report of progress.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines.config.calls import RECORDS
from pipelines.runs.grid import PlannedRun
from pipelines.runs.release import RELEASE, SUMMARY
from pipelines.system.files import OWNER_ONLY, private_folder, write_json
from pipelines.system.records import Record

PLAN = "plan.json"
SILENT_SECONDS = 600.0
"""After which a run that reports nothing may be dead."""


@dataclass(frozen=True)
class SweepPlan:
    """What the latest sweep of a folder is to make.

    Attributes:
        runs: folders below ``paths.runs``, as in names/fest/0a1b2c3d4e5f.
        started: seconds since 1970.
    """

    runs: list[str]
    started: float


@dataclass(frozen=True)
class RunNow:
    """A run of a sweep.

    Attributes:
        name: its folder below ``paths.runs``.
        status: ``waiting``, ``running``, ``silent`` (nothing reported for :data:`SILENT_SECONDS`), ``done``, ``failed``
            or ``interrupted``.
        words: the latest report of progress, or the reason of a failure.
    """

    name: str
    status: str
    words: str = ""


@dataclass(frozen=True)
class SweepNow:
    """All runs of a sweep, ``seconds`` after it started."""

    runs: list[RunNow]
    seconds: float

    def of(self, *statuses: str) -> list[RunNow]:
        """Return the runs of some statuses."""
        return [run for run in self.runs if run.status in statuses]

    @property
    def stands_still(self) -> bool:
        """Whether it was interrupted, and none of its runs is running."""
        return bool(self.of("interrupted")) and not self.of("running", "silent")

    @property
    def seconds_left(self) -> float | None:
        """Estimated from the runs that have ended; None before one has."""
        ended = len(self.of("done", "failed", "interrupted"))
        return self.seconds / ended * (len(self.runs) - ended) if ended else None


def write_plan(folder: Path, runs: Sequence[PlannedRun]) -> None:
    """Write which runs a sweep is to make, to the folder of its records."""
    plan = SweepPlan(list(map(str, runs)), time.time())
    private_folder(folder)
    write_json(folder / PLAN, asdict(plan), OWNER_ONLY)


def sweep_now(runs: Path) -> SweepNow | None:
    """Return how the latest sweep into a folder of runs is getting on; None if there was none."""
    records = runs / RECORDS
    try:
        plan = SweepPlan(**json.loads((records / PLAN).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return SweepNow([_now(name, runs, records, plan.started) for name in plan.runs], time.time() - plan.started)


def _now(name: str, runs: Path, records: Path, started: float) -> RunNow:
    if (runs / name / RELEASE / SUMMARY).exists():
        return RunNow(name, "done")
    record = records / f"{Path(name).name}.json"
    found = Record.read(record)
    if found is None or record.stat().st_mtime < started:  # of an earlier sweep
        return RunNow(name, "waiting")
    if found.ended:
        return RunNow(name, found.status, found.reason)
    log = record.with_suffix(".log")
    try:
        lines, written = log.read_text(encoding="utf-8", errors="replace").splitlines(), log.stat().st_mtime
    except OSError:
        lines, written = [], record.stat().st_mtime
    silent = time.time() - written > SILENT_SECONDS
    words = lines[-1].removeprefix(name).removeprefix(": ") if lines else ""
    return RunNow(name, "silent" if silent else "running", words)
