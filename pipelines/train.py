"""The train stage: from a configuration to a finished run directory, however often it is killed on the way.

Batches, noise and initial weights are functions of (key, step) and the seed, so a run that is resumed from its last
checkpoint does again exactly what it would have done: under a fixed ``privacy.noise_seed`` on the CPU it ends with
the same bits as one that was never killed.  A repeated step repeats its noise and its batch, and so costs nothing.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from dpfest.errors import UserError
from dpfest.ledger import Ledger
from dpfest.noise import NoiseKey
from dpfest.reading import Batch
from dpfest.training import PrivateTraining, Step
from pipelines.config.compose import override_text
from pipelines.config.settings import Config
from pipelines.data.stream import trained_on
from pipelines.preprocess import preprocess
from pipelines.runs.directory import RunDirectory
from pipelines.runs.identity import WITHOUT_EFFECT, run_folder
from pipelines.runs.release import described, released_settings
from pipelines.runs.schedule import Course, course
from pipelines.runs.summary import summarize
from pipelines.system.hub import pinned
from pipelines.system.memory import keep_freed_memory
from pipelines.system.progress import Report, progress
from pipelines.system.signals import StopRequest, stop_requests
from pipelines.tasks.optimizers import optimizers
from pipelines.tasks.task import TaskReader, device_of, task_of


@dataclass(frozen=True)
class RunOutcome:
    """A run that is done: its folder, its summary, and whether it had been done before."""

    path: Path
    summary: dict[str, Any]
    skipped: bool


def train(config: Config) -> RunOutcome:
    """Make the run that the configuration describes, go on with it, or find it done.

    Raises:
        UserError: a setting or the data cannot be used; another process is making the same run.
        SystemExit: SIGINT or SIGTERM asked it to stop; the state is saved and the same call goes on from there.
    """
    folder = preprocess(config)
    directory = RunDirectory(run_folder(config))
    with directory.lock(wait=config.sweep.records is not None):
        summary = directory.summary()
        if summary is not None:
            directory.clear()  # a kill may have come between the summary and the end
            if differing := _differing(directory.config(), config.to_dict()):
                print(
                    f"{directory.path} was made with {', '.join(differing)}: what was asked now would not change its "
                    "result, and is not applied. Delete that folder to make the run again.",
                    file=sys.stderr,
                )
            return RunOutcome(directory.path, summary, skipped=True)
        asked = _asked(config)
        directory.write_config(asked)
        directory.write_status("running")
        keep_freed_memory()
        try:
            with stop_requests() as stop:
                summary = _Run(config, asked, course(config, folder), directory).train(stop)
        except (SystemExit, KeyboardInterrupt):
            directory.write_status("stopped")
            raise
        except BaseException as error:
            with suppress(OSError):  # on a full disk the error itself says more
                directory.fail(error)
            raise
    return RunOutcome(directory.path, summary, skipped=False)


def _asked(config: Config) -> dict[str, Any]:
    """All settings, what came from the hub named by its commit."""
    sources = {"data": pinned(asdict(config.data), "dataset"), "model": pinned(asdict(config.model), "model")}
    return config.to_dict() | sources


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The settings outside of a run's hash with which it was made, where others are asked now: `device=cpu`."""
    pairs = [("device", before.get("device"), now["device"])]
    train = before.get("train") or {}
    pairs += [(f"train.{name}", train.get(name), now["train"][name]) for name in WITHOUT_EFFECT]
    return [f"{key}={override_text(had)}" for key, had, asked in pairs if before and had != asked]


class _Run:
    """One run in the making."""

    def __init__(self, config: Config, asked: Mapping[str, Any], course: Course, directory: RunDirectory) -> None:
        self.config, self.asked, self.course, self.directory = config, asked, course, directory
        self._ends = list(accumulate(period.steps for period in course.plan.periods))
        self.steps = self._ends[-1]
        self.task = task_of(config, course.data, device_of(config.device))
        self.optimizers = optimizers(self.task.model, config.optimizer)
        self.seconds, self.waited = 0.0, 0.0
        self.evaluations: list[dict[str, Any]] = []
        saved = directory.load_state()
        if saved is not None:
            for dataset in trained_on(course.data, config.stream.train_days):
                dataset.verify_training_rows()
        self.key = self._key() if saved is None else NoiseKey(bytes(saved["key"].tolist()), self._fixed)
        self.number = 0 if saved is None else saved["period"]
        self.training = self._begin(course.plan.ledger(self.number))
        self.layout = self.training.engine.layout
        self.size = self.task.embedding_size(self.layout)
        self.rows = torch.zeros(len(self.layout.names), dtype=torch.float64)
        if saved is not None:
            self._restore(saved)
        else:
            # The key must outlive a kill: another key for the same steps would be a second release of them.
            self._save()
        directory.keep_metrics_until(self.step)

    @property
    def step(self) -> int:
        """Steps done, in all periods."""
        return self._ends[self.number] - self.training.period.steps + self.training.steps_done

    def train(self, stop: StopRequest) -> dict[str, Any]:
        """Run the steps that are left, evaluate, and write the summary."""
        title = f"{self.config.data.name}/{self.config.algorithm.name}/{self.directory.path.name}"
        with progress(title, interval=0) as report, ThreadPoolExecutor(1) as reader:
            self._train_period(stop, report, reader)
            self._evaluate_period()
            while self.number + 1 < len(self.course.rows):
                self.number += 1
                self.training = self._begin(self.training.ledger)
                self._save()
                stop.exit_if_requested()
                self._train_period(stop, report, reader)
                self._evaluate_period()
        return self._finish()

    def _begin(self, ledger: Ledger) -> PrivateTraining:
        """The training of the present period, on the weights and optimisers as they are."""
        return PrivateTraining(
            self.task.model,
            self.task.losses,
            self.optimizers,
            self.course.plan,
            TaskReader(self.task, self.course.rows[self.number], self.config.train.micro_batch_size),
            period=self.number,
            selected=self.course.selected(self.number),
            key=self.key,
            ledger=ledger,
        )

    def _train_period(self, stop: StopRequest, report: Report, reader: Executor) -> None:
        every, last_saved, end = self.config.train, self.step, self._ends[self.number]
        upcoming = reader.submit(self._read, self.training.steps_done)
        while self.step < end:
            started = time.perf_counter()
            batch = upcoming.result()
            self.waited += time.perf_counter() - started
            if self.step + 1 < end:
                upcoming = reader.submit(self._read, self.training.steps_done + 1)
            made = self.training.step(batch)
            self.rows += torch.tensor(made.release.rows_per_table, dtype=torch.float64)
            self.seconds += time.perf_counter() - started
            self._log(made, report)
            if self.step % every.log_every == 0 or self.step == end:
                self._refuse_not_finite()
            if every.evaluate_every and self.step % every.evaluate_every == 0 and self.step < end:
                self.training.flush()
                self._metrics("validation", **self.task.evaluate(self.course.validation))
            # What follows a period's last step is soon saved with what the evaluation says.
            if (self.step - last_saved >= every.checkpoint_every and self.step < end) or stop.requested:
                self._save()
                last_saved = self.step
            stop.exit_if_requested()

    def _read(self, step: int) -> Batch:
        return self.training.read(self.training.request(step))

    def _refuse_not_finite(self) -> None:
        """Stop a run whose weights overflowed.

        Whether it stops is post-processing of what is released: the dense weights, and the tables' rows that were just
        noised. The mean loss of a batch is neither: it would tell of an example that overflows.

        Raises:
            UserError: a dense weight is not finite, or, at a period's end, any weight.
        """
        tables = {id(table.weight) for table in self.training.engine.recorder.tables.values()}
        ended = self.step == self._ends[self.number]  # no noise is pending any more
        for name, weight in self.task.model.named_parameters():
            if weight.requires_grad and (ended or id(weight) not in tables) and not bool(weight.isfinite().all()):
                raise UserError(
                    f"The weights {name} are not finite after step {self.step}: lower optimizer.dense.learning_rate or "
                    "optimizer.tables.learning_rate."
                )

    def _log(self, made: Step, report: Report) -> None:
        """Write down and say how training goes, the loss of a raw batch among it: for the user's own eyes, since it
        goes to ``private/`` and to the terminal (of a sweep, to a log that is the owner's)."""
        if self.step % self.config.train.log_every and self.step != self.steps:
            return
        rows, seen = made.release.rows_per_table, made.private
        self._metrics(
            "train",
            loss=seen.loss if math.isfinite(seen.loss) else None,
            examples=seen.examples,
            coordinates=self.size.coordinates(rows),
            rows=rows,
        )
        speed = self.step * self.config.train.batch_size / max(self.seconds, 1e-9)
        words = [f"{speed:,.0f} examples/s", f"loss {seen.loss:.4f}"]
        if reduction := self._reduction():
            words.append(f"reduction {reduction:,.1f}x")
        report(self.step, self.steps, "  ".join([*words, self.training.ledger.summary()]))

    def _metrics(self, split: str, **values: Any) -> None:
        self.directory.log_metrics({"step": self.step, "split": split, **values})

    def _reduction(self) -> float | None:
        mean = self.size.coordinates((self.rows / max(self.step, 1)).tolist())
        return self.size.whole / mean if mean else None

    def _evaluate_period(self) -> None:
        """Judge the model at a period's end: on the held-out rows of the days that it is to be trained on next, and of
        the held-out days on the rows that choose settings; on those that are only reported, at the very end."""
        following = self.course.following(self.number)
        last = {"test": self.course.test} if following is None else {"following": following}
        found = {"validation": self.course.validation, **last}
        self.evaluations.append({split: self.task.evaluate(rows) for split, rows in found.items()})
        for split, values in self.evaluations[-1].items():
            if split != "test":
                self._metrics(split, **values)

    def _finish(self) -> dict[str, Any]:
        weights = None
        if self.config.train.save_model:
            weights = {name: value.contiguous() for name, value in self.task.model.state_dict().items()}
        settings = released_settings(self.asked)
        summary = summarize(
            self.config,
            self.course,
            self.training.ledger,
            size=self.size,
            table_names=self.task.table_names,
            mean_rows=(self.rows / self.steps).tolist(),
            metric=self.task.metric,
            evaluations=self.evaluations,
            settings=settings,
            tensors=None if weights is None else described(weights),
        )
        ledger = self.training.ledger.to_json()
        ledger["run"] = ledger["run"] | {"settings": settings["algorithm"]}  # without places
        ledger["statements"] += self.course.statements
        self.directory.finish(settings, ledger, summary, weights, self._timings)
        return summary

    @property
    def _timings(self) -> dict[str, float | None]:
        """Seconds in training steps, those of them in which a step waited for its batch, and examples a second, by the
        expected batch size."""
        examples = self.steps * self.config.train.batch_size
        return {
            "wall_seconds": self.seconds,
            "waited_for_data_seconds": self.waited,
            "examples_per_second": examples / self.seconds if self.seconds else None,
        }

    @property
    def _fixed(self) -> bool:
        return self.config.privacy.noise_seed is not None

    def _key(self) -> NoiseKey:
        seed = self.config.privacy.noise_seed
        return NoiseKey.fresh() if seed is None else NoiseKey.from_seed(seed, self.directory.path.name)

    def _save(self) -> None:
        own = {"rows": self.rows, "seconds": self.seconds, "waited": self.waited}
        place = {"period": self.number, "evaluations": self.evaluations}
        key = torch.tensor(list(self.key.secret), dtype=torch.uint8)
        self.directory.save_state({"training": self.training.state_dict(), "key": key, **place, **own})

    def _restore(self, saved: dict[str, Any]) -> None:
        self.seconds, self.waited = saved["seconds"], saved["waited"]
        self.evaluations = saved["evaluations"]
        self.rows.copy_(saved["rows"])
        # A step that is taken again must round as it did: sums follow the number of threads.
        torch.set_num_threads(int(saved["training"]["bound_to"]["threads"]))
        try:
            self.training.load_state_dict(saved["training"])
        except UserError as error:
            raise UserError(
                f"{self.directory.path} cannot go on from its checkpoint: {error} From the command line: give the same "
                "train.micro_batch_size, device and installation as before, or delete that folder and spend anew."
            ) from error
