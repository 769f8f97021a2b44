"""Estimated time of the remaining runs, from the speed of those that are done here.

A run takes its steps, its evaluations and the rest: start, reading, writing. Each is estimated by itself, since runs of
other lengths and other data share them in other proportions.

Times of runs are private (they depend on the batches that were drawn): they are for the terminal, and enter no figure,
table or page.
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
"""Files that tell more than so many times the training and evaluation time were copied or touched."""


class RunLength(NamedTuple):
    """What the time of a planned run depends on; `steps`, and the examples that it is `evaluated` on, are None where
    they are not known."""

    data: str
    model: str
    algorithm: str
    steps: int | None
    evaluated: float | None = None


class Pace:
    """Seconds of a run: from finished runs on the same data, else from any of the same model; else, for the click
    model, from `dpfest bench step`.

    Runs share the machine with those beside them, and `jobs` of them end in the time of one. The benchmark has the
    machine to itself: there, as many runs take as long one after another as at once.
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
        """Seconds of a step of it; None where nothing tells."""
        paces = _nearest(self._steps, run.data, run.model, run.algorithm)
        return statistics.fmean(paces) if paces else self._benchmarked(run, run.algorithm)

    def run(self, run: RunLength) -> float | None:
        """Seconds of the whole run; None where nothing tells."""
        step = self.step(run)
        return None if step is None or run.steps is None else run.steps * step + self._beside(run)

    def left(self, planned: Sequence[RunLength], done: Mapping[str, int], jobs: int) -> float | None:
        """Seconds until all planned runs are done, `jobs` at once; None where the pace of one of them is not known."""
        total = 0.0
        for run in self._waiting(planned, done):
            taken = self.run(run)
            if taken is None:
                return None
            total += taken / jobs if _nearest(self._steps, run.data, run.model, run.algorithm) else taken
        return total

    def _beside(self, run: RunLength) -> float:
        """Seconds of it that are no steps."""
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
        """Those planned runs that are not done, counted by algorithm."""
        finished = Counter(done)
        for run in planned:
            if finished[run.algorithm] > 0:
                finished[run.algorithm] -= 1
            else:
                yield run


def seconds(run: Run) -> float | None:
    """What a run took from its start to its end by the times of its files; where they tell less than its training and
    evaluation took or far more, these alone."""
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
    """What is known of runs on these data, else of runs on any; empty where nothing is."""
    return paces.get((data, *rest)) or paces.get((_ANY, *rest), [])
