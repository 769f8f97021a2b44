"""How long the runs that are left will take, at the pace of those that are done here.

Times of runs are private (they depend on the batches that were drawn): they are for the terminal, and enter no figure,
table or page.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reports.bench import Section
from reports.runs import Run

CLICK_MODEL = "pctr"
"""The model that `dpfest bench step` times."""

_ANY = ""
_LIKELY = 10.0
"""A run is not believed to have taken more than so many times its training: its files were copied or touched."""


class PlannedRun(NamedTuple):
    """A run that an experiment plans; its steps are None where they are not known."""

    data: str
    model: str
    algorithm: str
    steps: int | None


@dataclass(frozen=True)
class PlannedRuns:
    """All runs that an experiment plans."""

    runs: Sequence[PlannedRun]

    def by_algorithm(self) -> dict[str, int]:
        """How many runs each algorithm has."""
        return dict(Counter(run.algorithm for run in self.runs))


class Pace:
    """Seconds a step of each rule: of finished runs on the same data, else of any of the same model; else, of the click
    model, what `dpfest bench step` measured."""

    def __init__(self, runs: Sequence[Run], step: Section | None = None) -> None:
        self._steps: dict[tuple[str, str, str], list[float]] = {}
        for run in runs:
            if run.steps and (taken := seconds(run)) is not None:
                for data in (run.dataset, _ANY):
                    self._steps.setdefault((data, run.model, run.algorithm), []).append(taken / run.steps)
        timed = [record for record in step.records if record["table_rows"]] if step else []
        smallest = min((record["table_rows"] for record in timed), default=None)
        self._bench = {
            record["competitor"]: record["median_seconds"]
            for record in timed
            if record["table_rows"] == smallest and record["median_seconds"]
        }

    def step(self, run: PlannedRun) -> float | None:
        """Seconds of a step of it; None where nothing tells."""
        for data in (run.data, _ANY):
            if found := self._steps.get((data, run.model, run.algorithm)):
                return statistics.fmean(found)
        return self._bench.get(run.algorithm) if run.model == CLICK_MODEL else None

    def left(self, planned: PlannedRuns, done: Mapping[str, int], jobs: int) -> float | None:
        """Seconds until all planned runs are done, `jobs` at once; None where the pace of one of them is not known."""
        waiting, total = Counter(done), 0.0
        for run in planned.runs:
            if waiting[run.algorithm] > 0:
                waiting[run.algorithm] -= 1
                continue
            pace = self.step(run)
            if pace is None or run.steps is None:
                return None
            total += run.steps * pace
        return total / jobs


def seconds(run: Run) -> float | None:
    """What a run took from its start to its end, reading and evaluation included, by the times of its files; where they
    tell less than its training took or far more, its training alone."""
    if run.wall_seconds is None:
        return None
    try:
        release, asked = run.path / "release" / "summary.json", run.path / "private" / "config.yaml"
        own = release.stat().st_mtime - asked.stat().st_mtime
    except OSError:
        return run.wall_seconds
    return own if run.wall_seconds <= own <= _LIKELY * run.wall_seconds + 60 else run.wall_seconds


def duration(seconds: float | None) -> str:
    """In words: about 40 s, 12 min, 3.5 h, 9 days."""
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
