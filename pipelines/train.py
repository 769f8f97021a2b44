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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dpfest.budget import plan, training_steps
from dpfest.engine import NoisedGradient
from dpfest.errors import UserError
from dpfest.noise import NoiseKey
from dpfest.private import PrivateTraining
from pipelines.budget import remembered_calibration
from pipelines.clicks import ClickTask
from pipelines.compose import override_text
from pipelines.config import WITHOUT_EFFECT, Config, run_folder
from pipelines.data.dataset import Dataset
from pipelines.data.writer import DATA_DEPENDENT_NOTE
from pipelines.memory import keep_freed_memory
from pipelines.optimizers import optimizers
from pipelines.preprocess import preprocess
from pipelines.progress import Report, progress
from pipelines.run_directory import RunDirectory
from pipelines.select import selected_rows
from pipelines.signals import StopRequest, stop_requests
from pipelines.summary import summarize


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
    dataset = Dataset.open(preprocess(config))
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
        directory.write_config(config.to_dict())
        directory.write_status("running")
        keep_freed_memory()
        try:
            with stop_requests() as stop:
                summary = _Run(config, dataset, directory).train(stop)
        except (SystemExit, KeyboardInterrupt):
            directory.write_status("stopped", "asked to stop; the same command goes on from the last checkpoint")
            raise
        except BaseException as error:
            with suppress(OSError):  # on a full disk the error itself says more
                directory.write_status("failed", f"{type(error).__name__}: {error}")
            raise
    return RunOutcome(directory.path, summary, skipped=False)


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The settings outside of a run's hash with which it was made, where others are asked now: `device=cpu`."""
    pairs = [("device", before.get("device"), now["device"])]
    train = before.get("train") or {}
    pairs += [(f"train.{name}", train.get(name), now["train"][name]) for name in WITHOUT_EFFECT]
    return [f"{key}={override_text(had)}" for key, had, asked in pairs if before and had != asked]


def device_of(name: str) -> torch.device:
    """The device that ``auto``, ``cpu``, ``cuda`` or ``cuda:1`` stands for.

    Raises:
        UserError: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device={name} cannot be used here ({str(error).splitlines()[0]}); try device=auto."
        ) from error


class _Run:
    """One run in the making."""

    def __init__(self, config: Config, dataset: Dataset, directory: RunDirectory) -> None:
        self.config, self.directory = config, directory
        self.steps = training_steps(dataset.examples, config.train.batch_size, config.train.epochs, config.train.steps)
        self.task = ClickTask(dataset, config.model, config.seed, device_of(config.device))
        self.budget = plan(
            config.algorithm,
            config.privacy,
            examples=dataset.examples,
            batch_size=config.train.batch_size,
            steps=self.steps,
            features=dataset.vocabulary_sizes,
            calibrate=remembered_calibration(config),
        )
        saved = directory.load_state()
        self.training = PrivateTraining(
            self.task.model,
            self.task.losses,
            optimizers(self.task.model, config.optimizer),
            config.algorithm,
            self.budget,
            selected=selected_rows(config, dataset),
            key=self._key(),
        )
        self.layout = self.training.engine.layout
        self.seconds, self.examples_seen = 0.0, 0
        self.rows = torch.zeros(len(self.layout.names), dtype=torch.float64)
        if saved is not None:
            self._restore(saved)
        else:
            # The key must outlive a kill: another key for the same steps would be a second release of them.
            self._save()
        directory.keep_metrics_until(self.step)

    @property
    def step(self) -> int:
        """Steps done."""
        return self.training.steps_done

    def train(self, stop: StopRequest) -> dict[str, Any]:
        """Run the steps that are left, evaluate, and write the summary."""
        every, last_saved = self.config.train, self.step
        title = f"{self.config.data.name}/{self.config.algorithm.name}/{self.directory.path.name}"
        with progress(title, interval=0) as report, ThreadPoolExecutor(1) as reader:
            upcoming = reader.submit(self._read, self.step)
            while self.step < self.steps:
                started = time.perf_counter()
                microbatches = upcoming.result()
                if self.step + 1 < self.steps:
                    upcoming = reader.submit(self._read, self.step + 1)
                gradient = self._advance(microbatches)
                self.seconds += time.perf_counter() - started
                self._log(gradient, report)
                if every.evaluate_every and self.step % every.evaluate_every == 0 and self.step < self.steps:
                    self._metrics("validation", **self.task.evaluate("validation"))
                if self.step - last_saved >= every.checkpoint_every or stop.requested:
                    self._save()
                    last_saved = self.step
                stop.exit_if_requested()
        return self._finish()

    def _read(self, step: int) -> list[Any]:
        return self.task.batches(self.training.indices(step), self.config.train.micro_batch_size)

    def _advance(self, microbatches: list[Any]) -> NoisedGradient:
        gradient = self.training.step(microbatches)
        if gradient.examples and not math.isfinite(gradient.loss):
            raise UserError(
                f"The loss is {gradient.loss} at step {self.step}: lower optimizer.dense.learning_rate or "
                "optimizer.tables.learning_rate."
            )
        self.rows += torch.tensor(gradient.rows_per_table, dtype=torch.float64)
        self.examples_seen += gradient.examples
        return gradient

    def _log(self, gradient: NoisedGradient, report: Report) -> None:
        if self.step % self.config.train.log_every and self.step != self.steps:
            return
        coordinates = self.layout.coordinates_of(gradient.rows_per_table)
        self._metrics(
            "train",
            loss=gradient.loss if gradient.examples else None,
            examples=gradient.examples,
            coordinates=coordinates,
            rows=gradient.rows_per_table,
        )
        words = [f"{self.examples_seen / max(self.seconds, 1e-9):,.0f} examples/s", f"loss {gradient.loss:.4f}"]
        if reduction := self._reduction():
            words.append(f"reduction {reduction:,.1f}x")
        report(self.step, self.steps, "  ".join([*words, self.training.ledger.words()]))

    def _metrics(self, split: str, **values: Any) -> None:
        self.directory.log_metrics({"step": self.step, "split": split, **values})

    def _reduction(self) -> float | None:
        mean = self.layout.coordinates_of((self.rows / max(self.step, 1)).tolist())
        return self.layout.coordinates / mean if mean else None

    def _finish(self) -> dict[str, Any]:
        validation, test = self.task.evaluate("validation"), self.task.evaluate("test")
        self._metrics("validation", **validation)
        summary = summarize(
            self.config,
            self.budget,
            self.training.ledger,
            layout=self.layout,
            table_names=self.task.table_names,
            mean_rows=(self.rows / self.steps).tolist(),
            metric=self.task.metric,
            validation=validation,
            test=test,
            seconds=self.seconds,
            examples_seen=self.examples_seen,
            public_vocabulary=not self.task.dataset.data_dependent_vocabulary,
        )
        ledger = self.training.ledger.to_json()
        if self.task.dataset.data_dependent_vocabulary:
            ledger["statements"].append(DATA_DEPENDENT_NOTE)
        self.directory.write("ledger.json", ledger)
        weights = {name: value.contiguous() for name, value in self.task.model.state_dict().items()}
        self.directory.finish(summary, weights if self.config.train.save_model else None)
        return summary

    def _key(self) -> NoiseKey | None:
        seed = self.config.privacy.noise_seed
        return None if seed is None else NoiseKey.from_seed(seed, self.directory.path.name)

    def _save(self) -> None:
        own = {"rows": self.rows, "examples_seen": self.examples_seen, "seconds": self.seconds}
        self.directory.save_state({"training": self.training.state_dict(), **own})

    def _restore(self, saved: dict[str, Any]) -> None:
        self.examples_seen, self.seconds = saved["examples_seen"], saved["seconds"]
        self.rows.copy_(saved["rows"])
        self.training.load_state_dict(saved["training"])
