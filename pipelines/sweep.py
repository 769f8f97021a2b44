"""Train many runs, several at once, and report which failed and why.

Every run has its own process, so that a crash or lack of memory affects no other run, and a log under
`<paths.runs>/.sweep/`, readable by its owner alone, since it contains losses and errors. Finished runs are not started
again; failed ones are, by the next sweep.
"""

from __future__ import annotations

import importlib
import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.config.settings import Config
from pipelines.runs.grid import PlannedRun
from pipelines.runs.identity import run_folder
from pipelines.runs.release import RELEASE, SUMMARY
from pipelines.system.files import OWNER_ONLY, private_folder, write_json
from pipelines.system.processes import Child, Pool, cores, sigterm_interrupts

# Imported once, in the server that every run's process is forked from; none of them starts a thread on import.
# torch's optimisers import torch._dynamo on first use: a second a run.
_PRELOADED = ["torch", "torch._dynamo", "scipy.stats", "dp_accounting.pld", "hydra"]


@dataclass(frozen=True)
class Stages:
    """The stages of a run, as module:function, each called with the run's Config."""

    preprocess: str = "pipelines.preprocess:preprocess"
    train: str = "pipelines.train:make_run"


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


def records_folder(config: Config) -> Path:
    """Return the folder of the outcomes and logs of a sweep's jobs."""
    return Path(config.paths.runs).resolve() / ".sweep"


def recorded(config: Config, stages: Stages = Stages()) -> None:
    """Train one configuration and record the outcome in `config.sweep.records`.

    A failure is recorded and not raised, so that it does not affect neighbouring runs.
    """
    folder = run_folder(config)
    started = time.monotonic()
    status, reason = "interrupted", ""
    try:
        _load(stages.train)(config)  # raises SystemExit where it was asked to stop
        status = "done"
    except Exception as error:
        status, reason = "failed", _reason(error)
        if not isinstance(error, UserError):
            traceback.print_exc()
    finally:
        if config.sweep.records:
            record = {"status": status, "reason": reason, "seconds": time.monotonic() - started}
            write_json(private_folder(Path(config.sweep.records)) / f"{folder.name}.json", record, OWNER_ONLY)


def run_all(
    runs: Sequence[PlannedRun], jobs: int, fail_fast: bool = False, stages: Stages = Stages()
) -> Iterator[Outcome]:
    """Run each in its own process, `jobs` at a time; yields outcomes as runs end.

    Datasets are preprocessed first, once each. After KeyboardInterrupt or SIGTERM, and after a failure under
    `fail_fast`, no further run starts, running ones are asked to save and stop, and their outcomes are yielded.
    """
    threads = max(1, cores() // jobs)
    with sigterm_interrupts():
        failed_data = _make_datasets(runs, stages)
        for run in runs:
            if reason := failed_data.get(_data_key(run)):
                yield Outcome(run, "failed", reason)
                if fail_fast:
                    return
        todo = [run for run in runs if _data_key(run) not in failed_data]
        with Pool(todo, jobs, lambda run: _start(run, threads, stages)) as pool:
            while True:
                try:
                    run, child = next(pool)
                    outcome = _outcome(run, child)
                    if fail_fast and outcome.status == "failed":
                        pool.stop()
                    yield outcome
                except KeyboardInterrupt:
                    pool.stop()
                except StopIteration:
                    return


def outcomes(runs: Sequence[PlannedRun]) -> list[Outcome]:
    """Return the recorded outcomes of runs that a Hydra launcher carried out."""
    ended = []
    for run in runs:
        record = _read(_record(run))
        status = record.get("status") or ("done" if is_done(run.folder) else "failed")
        reason = record.get("reason") or ("" if record else "it recorded nothing: see the launcher's own log")
        ended.append(Outcome(run, status, reason, record.get("seconds", 0.0)))
    return ended


def log_file(run: PlannedRun) -> Path:
    """Return the path of a run's log."""
    return records_folder(run.config) / f"{run.folder.name}.log"


def forget(runs: Sequence[PlannedRun]) -> None:
    """Remove the recorded outcomes of an earlier sweep."""
    for run in runs:
        _record(run).unlink(missing_ok=True)


def _record(run: PlannedRun) -> Path:
    return records_folder(run.config) / f"{run.folder.name}.json"


def _start(run: PlannedRun, threads: int, stages: Stages) -> Child:
    _record(run).unlink(missing_ok=True)
    config = replace(run.config, sweep=replace(run.config.sweep, records=str(records_folder(run.config))))
    return _child(_run_in_child, config, stages, log=log_file(run), threads=threads)


def _child(function: Callable[..., None], config: Config, stages: Stages, log: Path, threads: int) -> Child:
    # No daemon: preprocessing may start processes of its own.
    return Child(function, config, stages, log=log, threads=threads, preload=_PRELOADED, daemon=False)


def _run_in_child(parent: Connection, config: Config, stages: Stages) -> None:
    recorded(config, stages)


def _prepare_in_child(parent: Connection, config: Config, stages: Stages) -> None:
    try:
        _load(stages.preprocess)(config)
    except Exception as error:
        traceback.print_exc()
        parent.send(_reason(error))


def _make_datasets(runs: Sequence[PlannedRun], stages: Stages) -> dict[str, str]:
    """Preprocess each dataset once, before its runs start; returns the reason of each failure."""
    failed: dict[str, str] = {}

    def log(run: PlannedRun) -> Path:
        return records_folder(run.config) / "preprocess.log"

    def start(run: PlannedRun) -> Child:
        return _child(_prepare_in_child, run.config, stages, log(run), threads=cores())

    def heard(run: PlannedRun, reason: str) -> None:
        failed[_data_key(run)] = reason

    with Pool({_data_key(run): run for run in runs}.values(), 1, start, heard) as pool:
        for run, child in pool:
            if child.failure:
                failed[_data_key(run)] = f"preprocessing {child.failure}; see {log(run)}"
    return failed


def _data_key(run: PlannedRun) -> str:
    return repr((run.config.data, run.config.paths.data))


def _outcome(run: PlannedRun, child: Child) -> Outcome:
    if record := _read(_record(run)):
        return Outcome(run, record["status"], record["reason"], record["seconds"])
    return Outcome(run, "failed", f"it {child.failure or 'ended with exit status 0'}; see {log_file(run)}")


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _load(path: str) -> Callable[[Config], Any]:
    module, _, name = path.partition(":")
    function: Callable[[Config], Any] = getattr(importlib.import_module(module), name)
    return function
