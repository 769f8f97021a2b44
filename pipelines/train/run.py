"""A run while it is made: steps, evaluations, checkpoints, release."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from itertools import accumulate
from typing import Any

import torch

from dpfest.errors import UserError
from dpfest.gradients.reading import Batch
from dpfest.noise.key import NoiseKey
from dpfest.training.loop import PrivateTraining, Step
from pipelines.config.settings import Config
from pipelines.data.clicks.vocabulary import VOCABULARY
from pipelines.data.rows import ChunkedRows, CountedRows
from pipelines.runs.directory import RunDirectory
from pipelines.runs.release import released_settings
from pipelines.runs.schedule import Schedule
from pipelines.runs.summary import summarize
from pipelines.runs.weights import Weights, whole_weights
from pipelines.system.processes import StopRequest
from pipelines.system.progress import Reporter
from pipelines.tasks.averaging import TailAverage
from pipelines.tasks.calibration import FIT, Calibration, Platt
from pipelines.tasks.diverged import Diverged
from pipelines.tasks.optimizers import learning_rates, optimizers, set_learning_rates
from pipelines.tasks.task import Task, TaskReader, device_of, task_of
from pipelines.train.record import Record


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
        self._composed_at, self._composing = 0.0, 0.0
        self._saved = 0  # the step of the last checkpoint
        saved = directory.load_state()
        if saved is not None and saved.get("vocabulary") != self._vocabulary:
            raise UserError(
                f"{directory.path} was begun on another vocabulary of the same data, which were preprocessed again "
                "since, with new noise: a step repeated on them would be a second release under the same noise. Put "
                "the folder of its data back, or delete that of the run: it starts again, and spends its budget again."
            )
        self.key = self._new_key() if saved is None else NoiseKey.of_state(saved, self._fixed)
        self.record = Record() if saved is None else Record.of_state(saved, directory.path)
        self.training = self._begin()
        self.average = self._averaging()
        self.size = self.task.embedding_size(self.training.engine.layout)
        if saved is not None:
            self._restore(saved)
        else:
            # The key must outlive a kill: another key for the same steps would be a second release of them.
            self._save()
        directory.keep_metrics_until(self.step)

    def _task(self) -> Task:
        return task_of(self.config, self.schedule.days[0], device_of(self.config.device))

    @property
    def _vocabulary(self) -> str | None:
        return self.schedule.days[0].vocabulary_sha256

    @property
    def period(self) -> int:
        """Number of the current period."""
        return self.record.period

    @property
    def step(self) -> int:
        """Steps taken, in all periods."""
        return self._ends[self.period] - self.training.period.steps + self.training.steps_done

    def next_period(self, stop: StopRequest) -> bool:
        """Advance to the next period, and save a checkpoint if one is due or requested; False after the last."""
        if self.period + 1 == len(self.schedule.rows):
            return False
        self.record.period += 1
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
            self.record.waited += time.perf_counter() - started
            if self.step + 1 < end:
                upcoming = reader.submit(self._read, self.training.steps_done + 1)
            set_learning_rates(self.optimizers, self.config.optimizer, self.step / self.steps)
            taken = self.training.step(batch)
            if self.average:
                self.average.add(self.training.steps_done)
            self.record.add_rows(taken.release.rows_per_table)
            self.record.seconds += time.perf_counter() - started
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
            **learning_rates(self.task.model, self.optimizers),
        )
        speed = self.step * self.config.train.batch_size / max(self.record.seconds, 1e-9)
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
        mean = self.size.coordinates(self.record.mean_rows(self.step))
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
        self.record.evaluations.append({"validation": chosen, **others})
        for split, values in self.record.evaluations[-1].items():
            if split != "test":
                self._metrics(split, **values)

    def _evaluate(self, rows: ChunkedRows, calibration: Calibration = None) -> dict[str, Any]:
        started, counted = time.perf_counter(), CountedRows(rows)
        values = self._values(counted, calibration)
        self.record.evaluating += time.perf_counter() - started
        self.record.evaluated += counted.count
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
            mean_rows=self.record.mean_rows(self.steps),
            metric=self.task.metric,
            evaluations=self.record.evaluations,
            settings=public,
            tensors=None if weights is None else weights.described,
        )
        ledger = self.training.ledger.to_json()
        ledger["run"] = ledger["run"] | {"settings": public["algorithm"]}  # without places
        ledger["statements"] += self.schedule.statements
        timings = self.record.timings(self.steps * self.config.train.batch_size)
        vocabulary = self.schedule.days[0].folder / VOCABULARY if self._vocabulary else None
        self.directory.finish(public, ledger, summary, weights, timings, vocabulary)
        return summary

    def _weights(self) -> Weights:
        return whole_weights(self.task.model)

    @property
    def _fixed(self) -> bool:
        return self.config.privacy.noise_seed is not None

    def _new_key(self) -> NoiseKey:
        purpose = self.directory.path.name + (self._vocabulary or "")  # preprocessed again, data have other rows
        return self.config.privacy.key(purpose, device_of(self.config.device))

    def _save(self) -> None:
        self._store()
        self._saved = self.step

    def _store(self) -> None:
        """Write a checkpoint."""
        self.directory.save_state({"training": self.training.state_dict(), **self._progress()})

    def _progress(self) -> dict[str, Any]:
        """Return what a checkpoint holds besides the state of the training."""
        average = {"average": self.average.state_dict()} if self.average else {}
        return {**self.key.state(), **self.record.state(), **average, "vocabulary": self._vocabulary}

    def _restore(self, saved: dict[str, Any]) -> None:
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
