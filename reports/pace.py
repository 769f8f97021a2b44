"""Estimated time of the remaining runs, from the speed of those finished on this machine.

A run's time consists of steps, evaluations and the rest (start-up, reading, writing). Each part is estimated
separately, since their proportions depend on the length of the run and on the data.

Times of runs are private (they depend on the batches drawn): they are for the terminal, and enter no figure, table or
page.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from reports.bench import Section
from reports.runs import Run

CLICK_MODEL = "pctr"
"""The model that `dpfest bench step` times."""
EVALUATION = "evaluation"
"""What `dpfest bench step` calls the evaluation of a batch."""

_ANY = ""
_LIKELY = 10.0
"""Files whose times imply more than this multiple of the training and evaluation time were copied or touched."""


class RunLength(NamedTuple):
    """What the time of a planned run depends on; `steps`, and the number of examples `evaluated`, are None if
    unknown."""

    data: str
    model: str
    algorithm: str
    steps: int | None
    evaluated: float | None = None


class Pace:
    """Estimates the seconds of a run from finished runs on the same data, else from any runs of the same model; else,
    for the click model, from `dpfest bench step`.

    Finished runs shared the machine with concurrent ones, so `jobs` of them end in the time of one. The benchmark has
    the machine to itself: concurrent runs are assumed to take as long as sequential ones.
    """

    def __init__(self, runs: Sequence[Run], step: Section | None = None) -> None:
        self._steps: dict[tuple[str, ...], list[float]] = {}
        self._examples: dict[tuple[str, ...], list[float]] = {}
        self._evaluations: dict[tuple[str, ...], list[float]] = {}
        self._rest: dict[tuple[str, ...], list[float]] = {}
        for run in runs:
            whole = seconds(run)
            if whole is None or run.timings is None or not run.steps:
                continue
            evaluation, evaluated = run.timings.evaluation or 0.0, run.timings.evaluated
            for data in (run.dataset, _ANY):
                _add(self._steps, (data, run.model, run.algorithm), run.timings.training / run.steps)
                _add(self._evaluations, (data, run.model), evaluation)
                _add(self._rest, (data, run.model), whole - run.timings.training - evaluation)
                if evaluated:
                    _add(self._examples, (data, run.model), evaluation / evaluated)
        timed = [record for record in step.records if record["table_rows"]] if step else []
        smallest = min((record["table_rows"] for record in timed), default=None)
        self._bench = {
            record["competitor"]: record
            for record in timed
            if record["table_rows"] == smallest and record["median_seconds"]
        }

    def step(self, run: RunLength) -> float | None:
        """Return the seconds of a step; None if unknown."""
        paces = _nearest(self._steps, run.data, run.model, run.algorithm)
        return statistics.fmean(paces) if paces else self._benchmarked(run, run.algorithm)

    def run(self, run: RunLength) -> float | None:
        """Return the seconds of the whole run; None if unknown."""
        step = self.step(run)
        return None if step is None or run.steps is None else run.steps * step + self._beside(run)

    def left(self, planned: Sequence[RunLength], done: Mapping[str, int], jobs: int) -> float | None:
        """Return the seconds until all planned runs are done, `jobs` at once; None if one of their paces is unknown."""
        total = 0.0
        for run in self._waiting(planned, done):
            taken = self.run(run)
            if taken is None:
                return None
            total += taken / jobs if _nearest(self._steps, run.data, run.model, run.algorithm) else taken
        return total

    def _beside(self, run: RunLength) -> float:
        """Return the seconds of a run outside of steps."""
        rest = _nearest(self._rest, run.data, run.model)
        if not rest:
            batch = self._benchmarked(run, EVALUATION)
            return 0.0 if batch is None else batch * (run.evaluated or 0.0) / self._bench[EVALUATION]["batch_size"]
        examples = _nearest(self._examples, run.data, run.model)
        if examples and run.evaluated is not None:
            evaluation = run.evaluated * statistics.fmean(examples)
        else:
            evaluation = statistics.fmean(_nearest(self._evaluations, run.data, run.model))
        return evaluation + statistics.fmean(rest)

    def _benchmarked(self, run: RunLength, competitor: str) -> float | None:
        record = self._bench.get(competitor) if run.model == CLICK_MODEL else None
        return None if record is None else record["median_seconds"]

    @staticmethod
    def _waiting(planned: Sequence[RunLength], done: Mapping[str, int]) -> Iterator[RunLength]:
        """Yield the planned runs that are not done, counted by algorithm."""
        finished = Counter(done)
        for run in planned:
            if finished[run.algorithm] > 0:
                finished[run.algorithm] -= 1
            else:
                yield run


def seconds(run: Run) -> float | None:
    """Return the duration of a run by the times of its files; if they imply less than its training and evaluation took,
    or far more, the latter."""
    if run.timings is None:
        return None
    counted = run.timings.training + (run.timings.evaluation or 0.0)
    try:
        release, asked = run.path / "release" / "summary.json", run.path / "private" / "config.yaml"
        own = release.stat().st_mtime - asked.stat().st_mtime
    except OSError:
        return counted
    return own if counted <= own <= _LIKELY * counted + 60 else counted


def _add(paces: dict[tuple[str, ...], list[float]], key: tuple[str, ...], value: float) -> None:
    paces.setdefault(key, []).append(value)


def _nearest(paces: Mapping[tuple[str, ...], list[float]], data: str, *rest: str) -> list[float]:
    """Return the values of runs on these data, else of runs on any data; empty if there are none."""
    return paces.get((data, *rest)) or paces.get((_ANY, *rest), [])
