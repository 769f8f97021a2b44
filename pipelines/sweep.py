"""Train many runs, several at once, here or on a cluster, and report which failed and why.

Every run has its own process, so that a crash or lack of memory affects no other run, and a log under
`<paths.runs>/.sweep/`, readable by its owner alone, since it contains losses and errors. Finished runs are not started
again; failed ones are, by the next sweep. A run locks its folder, so that two sweeps do not make it twice.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from dpfest.errors import UserError
from pipelines.config.calls import Call, cluster_jobs, records_folder
from pipelines.config.settings import Config
from pipelines.runs.grid import PlannedRun
from pipelines.runs.release import RELEASE, SUMMARY
from pipelines.runs.watch import write_plan
from pipelines.system.engines import ClusterError, Ended, Jobs, function
from pipelines.system.processes import Child, Pool, cores, sigterm_interrupts
from pipelines.system.records import Record

# Imported once, in the server that every run's process is forked from; none of them starts a thread on import.
# torch's optimisers import torch._dynamo on first use: a second a run.
_PRELOADED = ("pipelines.train", "torch._dynamo")
_OF_TASK = {
    "clicks": ("pipelines.tasks.clicks",),
    "text": ("pipelines.tasks.texts", "transformers.models.roberta.modeling_roberta", "peft"),
}


@dataclass(frozen=True)
class Stages:
    """The stages of a run, as module:function, each called with the run's Config."""

    preprocess: str = "pipelines.preprocess:preprocess"
    train: str = "pipelines.sweep:train_run"


def train_run(config: Config, number: int | None = None) -> None:
    """Make one run; wait while another sweep makes it. Arguments and errors as of :func:`pipelines.train.make_run`."""
    from pipelines.train import make_run

    make_run(config, number, wait=True)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: done, failed or interrupted, and the reason."""

    run: PlannedRun
    status: str
    reason: str = ""
    seconds: float = 0.0


def is_done(folder: Path) -> bool:
    """Whether the run in this folder is finished, that is, has a summary. An unreadable one counts as unfinished:
    `train` then reports the damage."""
    try:
        return isinstance(json.loads((folder / RELEASE / SUMMARY).read_text()), dict)
    except (OSError, ValueError):
        return False


def run_all(runs: Sequence[PlannedRun], fail_fast: bool = False, stages: Stages = Stages()) -> Iterator[Outcome]:
    """Run each in its own process, where `sweep.engine` of the first says; yields outcomes as runs end.

    Datasets are preprocessed first, once each. After KeyboardInterrupt or SIGTERM, and after a failure under
    `fail_fast`, no further run starts, running ones are asked to save and stop, and their outcomes are yielded.

    Raises:
        ClusterError: the cluster cannot be used.
    """
    if not runs:
        return
    with sigterm_interrupts():
        failed_data = _make_datasets(runs, stages)
        for run in runs:
            if reason := failed_data.get(_data_key(run)):
                yield Outcome(run, "failed", reason)
                if fail_fast:
                    return
        todo = [run for run in runs if _data_key(run) not in failed_data]
        if not todo:
            return
        write_plan(records_folder(todo[0].config), todo)
        with _started(todo, stages) as jobs:
            while True:
                try:
                    run, ended = next(jobs)
                    outcome = _outcome(run, ended)
                    if fail_fast and outcome.status == "failed":
                        jobs.stop()
                    yield outcome
                except KeyboardInterrupt:
                    jobs.stop()
                except StopIteration:
                    return


def _started(runs: Sequence[PlannedRun], stages: Stages) -> Jobs[PlannedRun]:
    """Start runs on the engine of the first one's configuration."""
    settings = runs[0].config.sweep
    if settings.engine != "local":
        return cluster_jobs(settings, runs, lambda run: _call(run, stages))
    threads, jobs = settings.cores or max(1, cores() // settings.jobs), min(settings.jobs, len(runs))
    if jobs > 1 and jobs * threads > cores():
        print(
            f"warning: {jobs} runs at once (sweep.jobs) with {threads} threads each (sweep.cores) on {cores()} cores "
            "wait for one another, and can take several times as long: leave sweep.cores out, or set it to "
            f"{max(1, cores() // jobs)}.",
            file=sys.stderr,
        )
    return Pool(runs, settings.jobs, lambda run: _child(_call(run, stages), threads, preloaded(runs)))


def log_file(run: PlannedRun) -> Path:
    """Return the path of a run's log."""
    return _record(run).with_suffix(".log")


def _record(run: PlannedRun) -> Path:
    return records_folder(run.config) / f"{run.folder.name}.json"


def _ended(run: PlannedRun) -> Record | None:
    """Return what a run recorded of its end; None if it was killed, or has not started."""
    record = Record.read(_record(run))
    return record if record and record.ended else None


def _call(run: PlannedRun, stages: Stages) -> Call:
    arguments = {} if run.number is None else {"number": run.number}
    return Call(stages.train, run.config, _record(run), arguments)


def preloaded(runs: Sequence[PlannedRun]) -> list[str]:
    """Return the modules that the server imports from which these runs are forked: it starts with the first of them."""
    tasks = dict.fromkeys(run.config.data.task for run in runs)
    return [*_PRELOADED, *(module for task in tasks for module in _OF_TASK[task])]


def _child(call: Call, threads: int, preload: Sequence[str]) -> Child:
    assert call.record is not None
    call.record.unlink(missing_ok=True)
    log = call.record.with_suffix(".log")
    # No daemon: preprocessing may start processes of its own.
    return Child(_in_child, call, log=log, threads=threads, preload=preload, daemon=False)


def _in_child(parent: Connection, call: Call) -> None:
    call()


def _make_datasets(runs: Sequence[PlannedRun], stages: Stages) -> dict[str, str]:
    """Preprocess each dataset once, before its runs start; returns the reason of each failure."""
    one_each = list({_data_key(run): run for run in runs}.values())
    failed: dict[str, str] = {}
    if runs[0].config.sweep.engine != "local":
        for run in one_each:
            try:
                function(stages.preprocess)(run.config)  # which hands its work to the cluster
            except ClusterError:
                raise
            except UserError as error:
                failed[_data_key(run)] = str(error)
        return failed

    def call(run: PlannedRun) -> Call:
        return Call(stages.preprocess, run.config, records_folder(run.config) / "preprocess.json")

    with Pool(one_each, 1, lambda run: _child(call(run), cores(), preloaded(runs))) as pool:
        for run, child in pool:
            place = records_folder(run.config) / "preprocess.json"
            record = Record.read(place)
            if record is None or not record.ended:
                failed[_data_key(run)] = f"preprocessing {child.failure}; see {place.with_suffix('.log')}"
            elif record.status == "failed":
                failed[_data_key(run)] = record.reason
    return failed


def _data_key(run: PlannedRun) -> str:
    return repr((run.config.data, run.config.paths.data))


def _outcome(run: PlannedRun, ended: Ended) -> Outcome:
    if record := _ended(run):
        return Outcome(run, record.status, record.reason, record.seconds)
    return Outcome(run, "failed", f"it {ended.failure or 'ended with exit status 0'}; see {log_file(run)}")
