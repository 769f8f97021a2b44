"""Estimated time of the remaining runs, from the speed of those that are done here.

Times of runs are private (they depend on the batches that were drawn): they are for the terminal, and enter no figure,
table or page.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reports.bench import Section
from reports.runs import Run

CLICK_MODEL = "pctr"
"""The model that `dpfest bench step` times."""

_ANY = ""
_LIKELY = 10.0
"""Files that tell more than so many times the training time were copied or touched."""


class RunLength(NamedTuple):
    """What the time of a planned run depends on; `steps` is None where they are not known."""

    data: str
    model: str
    algorithm: str
    steps: int | None


class Pace:
    """Seconds per step of each algorithm: from finished runs on the same data, else from any of the same model; else,
    for the click model, from `dpfest bench step`."""

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

    def step(self, run: RunLength) -> float | None:
        """Seconds of a step of it; None where nothing tells."""
        for data in (run.data, _ANY):
            if paces := self._steps.get((data, run.model, run.algorithm)):
                return statistics.fmean(paces)
        return self._bench.get(run.algorithm) if run.model == CLICK_MODEL else None

    def left(self, planned: Sequence[RunLength], done: Mapping[str, int], jobs: int) -> float | None:
        """Seconds until all planned runs are done, `jobs` at once; None where the pace of one of them is not known."""
        waiting, total = Counter(done), 0.0
        for run in planned:
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
