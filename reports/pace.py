"""How long the runs that are left will take, at the pace of those that are done here."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.bench import Section
from reports.runs import Run

_LIKELY = 10.0
"""A run is not believed to have taken more than so many times its training: its files were copied or touched."""


@dataclass(frozen=True)
class PlannedRuns:
    """What an experiment plans: of each run its data, its algorithm and its steps (None where they are not known)."""

    runs: Sequence[tuple[str, str, int | None]]

    def by_algorithm(self) -> dict[str, int]:
        """How many runs each algorithm has."""
        return dict(Counter(algorithm for _, algorithm, _ in self.runs))


class Pace:
    """Seconds a step of each rule: of finished runs on the same data, else on any; else of `dpfest bench step`."""

    def __init__(self, runs: Sequence[Run], step: Section | None = None) -> None:
        self._steps: dict[tuple[str | None, str], list[float]] = {}
        for run in runs:
            if run.steps and (taken := seconds(run)) is not None:
                for data in (run.dataset, None):
                    self._steps.setdefault((data, run.algorithm), []).append(taken / run.steps)
        timed = step.records if step else []
        smallest = min((record["table_rows"] for record in timed if record["table_rows"]), default=None)
        self._bench = {
            record["competitor"]: record["median_seconds"]
            for record in timed
            if record["table_rows"] == smallest and record["median_seconds"]
        }

    def step(self, data: str, algorithm: str) -> float | None:
        """Seconds; None where nothing tells."""
        for known in ((data, algorithm), (None, algorithm)):
            if known in self._steps:
                return statistics.fmean(self._steps[known])
        return self._bench.get(algorithm)

    def left(self, planned: PlannedRuns, done: Mapping[str, int], jobs: int) -> float | None:
        """Seconds until all planned runs are done, `jobs` at once; None where the pace of one of them is not known."""
        waiting, total = Counter(done), 0.0
        for data, algorithm, steps in planned.runs:
            if waiting[algorithm] > 0:
                waiting[algorithm] -= 1
                continue
            pace = self.step(data, algorithm)
            if pace is None or steps is None:
                return None
            total += steps * pace
        return total / jobs


def seconds(run: Run) -> float | None:
    """What a run took from its start to its end, reading and evaluation included, by the times of its files; where they
    tell less than its training took or far more, its training alone."""
    if run.wall_seconds is None:
        return None
    try:
        own = (run.path / "summary.json").stat().st_mtime - (run.path / "config.yaml").stat().st_mtime
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
