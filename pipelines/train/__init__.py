"""The train stage: from a configuration to a finished run directory, resumable after any kill.

Batches, noise and initial weights are functions of (key, step) and the seed, so a run resumed from its last checkpoint
repeats exactly what it would have done: under a fixed ``privacy.noise_seed`` on the CPU it ends with the same bits as
an uninterrupted run.  A repeated step repeats its noise and its batch, and therefore costs nothing.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from dpfest.errors import UserError
from dpfest.gradients.reading import Batch
from dpfest.noise.key import NoiseKey
from dpfest.training.loop import PrivateTraining, Step
from pipelines.budget import planned, population
from pipelines.config.compose import override_text
from pipelines.config.settings import Config
from pipelines.data.rows import ChunkedRows, CountedRows
from pipelines.data.stream import Stream
from pipelines.preprocess import preprocess
from pipelines.runs.directory import RunDirectory
from pipelines.runs.identity import WITHOUT_EFFECT, run_folder, settings_of
from pipelines.runs.release import released_settings
from pipelines.runs.schedule import Schedule, schedule
from pipelines.runs.summary import summarize
from pipelines.runs.weights import Weights, whole_weights
from pipelines.select import Selection
from pipelines.system.memory import keep_freed_memory
from pipelines.system.processes import StopRequest, stop_requests
from pipelines.system.progress import Reporter, progress
from pipelines.tasks.averaging import TailAverage
from pipelines.tasks.calibration import FIT, Calibration, Platt
from pipelines.tasks.diverged import Diverged
from pipelines.tasks.optimizers import optimizers, set_learning_rates
from pipelines.tasks.task import Task, TaskReader, device_of, task_of


@dataclass(frozen=True)
class RunOutcome:
    """A finished run: its folder, its summary, and whether it was found finished."""

    path: Path
    summary: dict[str, Any]
    skipped: bool


def make_run(config: Config, number: int | None = None, wait: bool = False) -> RunOutcome:
    """Train the run of a configuration; resume it if it was stopped, and skip it if it is finished.

    Args:
        config: the configuration.
        number: of the run within a private search; None for any other run.
        wait: whether to wait for another process that is making the same run, instead of refusing.

    Raises:
        UserError: a setting or the data cannot be used; another process is making the same run.
        SystemExit: SIGINT or SIGTERM stopped it; the state is saved, and the same call resumes it.
    """
    if config.search.asked and number is None:
        raise UserError(
            f"search.distribution={config.search.distribution} makes several runs and releases the best: give it to "
            "dpfest sweep, with a grid."
        )
    stream = Stream.open(preprocess(config))
    directory = RunDirectory(run_folder(config, number))
    with directory.lock(wait):
        summary = directory.summary()
        if summary is not None:
            directory.clear()  # a kill may have come between the summary and the end
            warn_of_differences(directory, config)
            return RunOutcome(directory.path, summary, skipped=True)
        settings = settings_of(config)
        with directory.recording(settings), stop_requests() as stop:
            summary = train(config, settings, prepare(config, stream, number), directory, stop)
    return RunOutcome(directory.path, summary, skipped=False)


def prepare(config: Config, stream: Stream, number: int | None = None) -> Schedule:
    """Return the schedule of a run on processed data, with its privacy plan and row selection; see :func:`make_run`.

    Raises:
        UserError: the data cannot be used, or no noise meets the target.
    """
    plan = planned(config, population(config, stream), stream.vocabulary_sizes)
    selection = Selection(config, stream, number).rows if config.algorithm.selection else None
    return schedule(config, stream, plan, selection)


def train(
    config: Config, settings: Mapping[str, Any], schedule: Schedule, directory: RunDirectory, stop: StopRequest
) -> dict[str, Any]:
    """Take the remaining steps in this process: see :func:`finished`."""
    return finished(Run(config, schedule, directory), settings, stop, progress)


def finished(
    run: Run, settings: Mapping[str, Any], stop: StopRequest, shown: Callable[..., AbstractContextManager[Reporter]]
) -> dict[str, Any]:
    """Take the remaining steps, evaluate the model after each period, and release it.

    Args:
        run: new, or restored from a checkpoint.
        settings: its configuration as plain values, with repositories of the hub pinned to their commit.
        stop: requests a checkpoint and the end of the process.
        shown: shows progress, as :func:`pipelines.system.progress.progress` does.

    Returns:
        The summary.
    """
    keep_freed_memory()
    title = f"{run.config.data.name}/{run.config.algorithm.name}/{run.directory.path.name}"
    with shown(title, interval=0) as report, ThreadPoolExecutor(1) as reader:
        run.train_period(stop, report, reader)
        run.evaluate_period()
        while run.next_period(stop):
            stop.exit_if_requested()
            run.train_period(stop, report, reader)
            run.evaluate_period()
    return run.release(settings)


class Run:
    """The state of a running run: new, or restored from the directory's checkpoint.

    Args:
        config: configuration of the run.
        schedule: the data and the plan.
        directory: receives logs, checkpoints and the release.
    """

    def __init__(self, config: Config, schedule: Schedule, directory: RunDirectory) -> None:
        self.config, self.schedule, self.directory = config, schedule, directory
        self._ends = list(accumulate(period.steps for period in schedule.plan.periods))
        self.steps = self._ends[-1]
        self.task = self._task()
        self.optimizers = optimizers(self.task.model, config.optimizer)
        self.seconds, self.waited = 0.0, 0.0
        self._composed_at, self._composing = 0.0, 0.0
        self._saved = 0  # the step of the last checkpoint
        self.evaluating, self.evaluated = 0.0, 0
        self.evaluations: list[dict[str, Any]] = []
        saved = directory.load_state()
        self.key = self._new_key() if saved is None else NoiseKey.of_state(saved, self._fixed)
        self.period = 0 if saved is None else saved["period"]
        self.training = self._begin()
        self.average = self._averaging()
        self.layout = self.training.engine.layout
        self.size = self.task.embedding_size(self.layout)
        self.rows = torch.zeros(len(self.layout.names), dtype=torch.float64)
        if saved is not None:
            self._restore(saved)
        else:
            # The key must outlive a kill: another key for the same steps would be a second release of them.
            self._save()
        directory.keep_metrics_until(self.step)

    def _task(self) -> Task:
        return task_of(self.config, self.schedule.days[0], device_of(self.config.device))

    @property
    def step(self) -> int:
        """Steps taken, in all periods."""
        return self._ends[self.period] - self.training.period.steps + self.training.steps_done

    def next_period(self, stop: StopRequest) -> bool:
        """Advance to the next period, and save a checkpoint if one is due or requested; False after the last."""
        if self.period + 1 == len(self.schedule.rows):
            return False
        self.period += 1
        self.training = self._begin(after=self.training)
        self.average = self._averaging()
        if stop.requested or self.step - self._saved >= self.config.train.checkpoint_every:
            self._save()
        return True

    def _begin(self, after: Any = None) -> PrivateTraining:
        """Return the training of the current period, which goes on after that of the period before, if any."""
        return PrivateTraining(
            self.task.model,
            self.task.losses,
            self.optimizers,
            self.schedule.plan,
            TaskReader(self.task, self.schedule.rows[self.period], self.config.train.micro_batch_size),
            period=self.period,
            units=self.schedule.units(self.period),
            selected=self.schedule.selected(self.period),
            key=self.key,
            after=after,
        )

    def _averaging(self) -> TailAverage | None:
        share = self.config.optimizer.average
        return None if share is None else TailAverage(self.task.model, self.training.period.steps, share)

    def train_period(self, stop: StopRequest, report: Reporter, reader: Executor) -> None:
        """Take the remaining steps of the current period, reading each batch during the step before."""
        every, end = self.config.train, self._ends[self.period]
        upcoming = reader.submit(self._read, self.training.steps_done)
        while self.step < end:
            started = time.perf_counter()
            batch = upcoming.result()
            self.waited += time.perf_counter() - started
            if self.step + 1 < end:
                upcoming = reader.submit(self._read, self.training.steps_done + 1)
            set_learning_rates(self.optimizers, self.config.optimizer, self.step / self.steps)
            taken = self.training.step(batch)
            if self.average:
                self.average.add(self.training.steps_done)
            self.rows += torch.tensor(taken.release.rows_per_table, dtype=torch.float64)
            self.seconds += time.perf_counter() - started
            self._log(taken, report)
            if self.step % every.log_every == 0 or self.step == end:
                self._refuse_not_finite()
            if every.evaluate_every and self.step % every.evaluate_every == 0 and self.step < end:
                self.training.flush()
                self._metrics("validation", **self._evaluate(self.schedule.validation))
            # After a period's last step the next checkpoint includes the evaluation.
            stopping = stop.requested  # over ranks a question to all of them, which each must ask at every step
            if (self.step - self._saved >= every.checkpoint_every and self.step < end) or stopping:
                self._save()
            stop.exit_if_requested()

    def _read(self, step: int) -> Batch:
        return self.training.read(self.training.request(step))

    def _refuse_not_finite(self) -> None:
        """Stop a run whose weights overflowed.

        Whether it stops is post-processing of released quantities: dense weights, and table rows that were just noised.
        The mean loss of a batch is not released and would reveal an example whose loss overflows.

        Raises:
            Diverged: a dense weight is not finite, or, at a period's end, any weight.
        """
        tables = {id(table.weight) for table in self.training.engine.recorder.tables.values()}
        ended = self.step == self._ends[self.period]  # no noise is pending any more
        for name, weight in self.task.model.named_parameters():
            if weight.requires_grad and (ended or id(weight) not in tables) and not bool(weight.isfinite().all()):
                raise Diverged(
                    f"The weights {name} are not finite after step {self.step}: lower optimizer.dense.learning_rate or "
                    "optimizer.tables.learning_rate."
                )

    def _log(self, taken: Step, report: Reporter) -> None:
        """Log progress to ``private/`` and the terminal (in a sweep, to a log that its owner alone can read), since the
        loss of the raw batch is private."""
        every = min(self.config.train.log_every, max(1, self.steps // 20))  # of a short run, too, a curve
        if self.step % every and self.step != self.steps:
            return
        rows, private = taken.release.rows_per_table, taken.private
        self._metrics(
            "train",
            loss=private.loss if math.isfinite(private.loss) else None,
            examples=private.examples,
            coordinates=self.size.coordinates(rows),
            rows=rows,
        )
        speed = self.step * self.config.train.batch_size / max(self.seconds, 1e-9)
        words = [f"{speed:,.0f} examples/s", f"loss {private.loss:.4f}"]
        if reduction := self._reduction():
            words.append(f"reduction {reduction:,.1f}x")
        report(self.step, self.steps, "  ".join([*words, *self._spent()]))

    def _spent(self) -> list[str]:
        """Return what the ledger says of the steps taken, while composing them costs a twentieth of the run at most."""
        started = time.perf_counter()
        if self.step < self.steps and started - self._composed_at < 20 * self._composing:
            return []
        summary = self.training.ledger.summary()
        self._composed_at = time.perf_counter()
        self._composing = self._composed_at - started
        return [summary]

    def _metrics(self, split: str, **values: Any) -> None:
        self.directory.log_metrics({"step": self.step, "split": split, **values})

    def _reduction(self) -> float | None:
        mean = self.size.coordinates((self.rows / max(self.step, 1)).tolist())
        return self.size.whole / mean if mean else None

    def evaluate_period(self) -> None:
        """Evaluate the model at a period's end: on validation rows, and on held-out rows of the next period's days or,
        after the last period, on test rows."""
        if self.average:
            self.average.replace_weights()
        following = self.schedule.following(self.period)
        last = {"test": self.schedule.test} if following is None else {"following": following}
        fit = FIT if self.config.train.calibrate == "platt" else None
        chosen = self._evaluate(self.schedule.validation, fit)
        platt = Platt(chosen["scale"], chosen["shift"]) if "scale" in chosen else None
        others = {split: self._evaluate(rows, platt) for split, rows in last.items()}
        self.evaluations.append({"validation": chosen, **others})
        for split, values in self.evaluations[-1].items():
            if split != "test":
                self._metrics(split, **values)

    def _evaluate(self, rows: ChunkedRows, calibration: Calibration = None) -> dict[str, Any]:
        started, counted = time.perf_counter(), CountedRows(rows)
        values = self._values(counted, calibration)
        self.evaluating += time.perf_counter() - started
        self.evaluated += counted.count
        return values

    def _values(self, rows: ChunkedRows, calibration: Calibration) -> dict[str, Any]:
        return self.task.evaluate(rows, calibration)

    def release(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Release a run whose steps are all taken; returns the summary."""
        weights = self._weights() if self.config.train.save_model else None
        public = released_settings(settings, self.config.over_ranks)
        summary = summarize(
            self.config,
            self.schedule,
            self.training.ledger,
            size=self.size,
            table_names=self.task.table_names,
            mean_rows=(self.rows / self.steps).tolist(),
            metric=self.task.metric,
            evaluations=self.evaluations,
            settings=public,
            tensors=None if weights is None else weights.described,
        )
        ledger = self.training.ledger.to_json()
        ledger["run"] = ledger["run"] | {"settings": public["algorithm"]}  # without places
        ledger["statements"] += self.schedule.statements
        self.directory.finish(public, ledger, summary, weights, self._timings)
        return summary

    def _weights(self) -> Weights:
        return whole_weights(self.task.model)

    @property
    def _timings(self) -> dict[str, float | None]:
        """Seconds in training steps, seconds of these spent waiting for batches, and examples per second at the
        expected batch size; seconds in evaluations, and the examples that these read."""
        examples = self.steps * self.config.train.batch_size
        return {
            "wall_seconds": self.seconds,
            "waited_for_data_seconds": self.waited,
            "examples_per_second": examples / self.seconds if self.seconds else None,
            "evaluation_seconds": self.evaluating,
            "evaluated_examples": self.evaluated,
        }

    @property
    def _fixed(self) -> bool:
        return self.config.privacy.noise_seed is not None

    def _new_key(self) -> NoiseKey:
        return self.config.privacy.key(self.directory.path.name, device_of(self.config.device))

    def _save(self) -> None:
        self._store()
        self._saved = self.step

    def _store(self) -> None:
        """Write a checkpoint."""
        self.directory.save_state({"training": self.training.state_dict(), **self._progress()})

    def _progress(self) -> dict[str, Any]:
        """Return what a checkpoint holds besides the state of the training."""
        own = {"rows": self.rows, "seconds": self.seconds, "waited": self.waited}
        own |= {"evaluating": self.evaluating, "evaluated": self.evaluated}
        place = {"period": self.period, "evaluations": self.evaluations}
        average = {"average": self.average.state_dict()} if self.average else {}
        return {**self.key.state(), **place, **own, **average}

    def _restore(self, saved: dict[str, Any]) -> None:
        if missing := sorted(self._progress().keys() - saved.keys()):
            raise UserError(
                f"{self.directory.path} cannot resume from its checkpoint, which another version of dpfest wrote: it "
                f"lacks {', '.join(missing)}. Finish the run with that version, or delete that folder and start again, "
                "which spends the budget a second time."
            )
        self.seconds, self.waited = saved["seconds"], saved["waited"]
        self.evaluating, self.evaluated = saved["evaluating"], saved["evaluated"]
        self.evaluations = saved["evaluations"]
        self.rows.copy_(saved["rows"])
        # A step that is taken again must round as it did: sums follow the number of threads.
        torch.set_num_threads(int(saved["training"]["bound_to"]["threads"]))
        try:
            self._resume(saved)
        except UserError as error:
            raise UserError(
                f"{self.directory.path} cannot resume from its checkpoint: {error} From the command line: use the same "
                "train.micro_batch_size, device and installation as before, or delete that folder and start again, "
                "which spends the budget a second time."
            ) from error
        if self.average:
            self.average.load_state_dict(saved["average"])
        self._saved = self.step

    def _resume(self, saved: dict[str, Any]) -> None:
        self.training.load_state_dict(saved["training"])


def warn_of_differences(directory: RunDirectory, config: Config) -> None:
    """Warn of settings outside of the run hash that differ from those of the finished run."""
    before, now = directory.config(), config.to_dict()
    train = before.get("train") or {}
    pairs = [("device", before.get("device"), now["device"])]
    pairs += [(f"train.{name}", train.get(name), now["train"][name]) for name in WITHOUT_EFFECT]
    if differing := [f"{key}={override_text(had)}" for key, had, asked in pairs if before and had != asked]:
        print(
            f"{directory.path} was made with {', '.join(differing)}: the present settings would not change its result "
            "and are ignored. Delete that folder to make the run again.",
            file=sys.stderr,
        )
