"""The train stage: from a configuration to a finished run directory, resumable after any kill.

Batches, noise and initial weights are functions of (key, step) and the seed, so a run resumed from its last checkpoint
repeats exactly what it would have done: under a fixed ``privacy.noise_seed`` on the CPU it ends with the same bits as
an uninterrupted run.  A repeated step repeats its noise and its batch, and therefore costs nothing.

The loop is here, what it does with a step and a period in ``run``, what a checkpoint holds in ``record``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.budget import planned, population
from pipelines.config.compose import override_text
from pipelines.config.settings import Config
from pipelines.data.stream import Stream
from pipelines.preprocess import prepared
from pipelines.runs.directory import RunDirectory
from pipelines.runs.identity import WRITING, run_folder, settings_of
from pipelines.runs.schedule import Schedule, schedule
from pipelines.select import Selection
from pipelines.system.memory import keep_freed_memory
from pipelines.system.processes import StopRequest, stop_requests
from pipelines.system.progress import Reporter, progress
from pipelines.system.trackers import package_of
from pipelines.train.run import Run


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
    package_of(config.log)  # before there is a folder
    stream = prepared(config)
    directory = RunDirectory(run_folder(config, number, stream.hash))
    with directory.lock(wait):
        summary = directory.summary()
        if summary is not None:
            directory.clear()  # a kill may have come between the summary and the end
            warn_of_differences(directory, config)
            return RunOutcome(directory.path, summary, skipped=True)
        settings = settings_of(config)
        with directory.recording(settings, stream.hash), stop_requests() as stop:
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
        if run.step:
            report(run.step, run.steps, f"goes on after step {run.step}")
        while True:
            run.train_period(stop, report, reader)
            run.evaluate_period()
            if not run.next_period(stop):
                break
            stop.exit_if_requested()
    return run.release(settings)


def warn_of_differences(directory: RunDirectory, config: Config) -> None:
    """Warn of settings outside of the run hash that differ from those of the finished run."""
    before, now = directory.config(), config.to_dict()
    train = before.get("train") or {}
    pairs = [("device", before.get("device"), now["device"])]
    pairs += [(f"train.{name}", train.get(name), now["train"][name]) for name in WRITING]
    if differing := [f"{key}={override_text(had)}" for key, had, asked in pairs if before and had != asked]:
        print(
            f"{directory.path} was made with {', '.join(differing)}: the present settings would not change its result "
            "and are ignored. Delete that folder to make the run again.",
            file=sys.stderr,
        )
