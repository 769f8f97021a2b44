"""Runs many trainings, several at once, and says at the end which failed and why.

Every run has a process of its own, so that one that crashes or runs out of memory takes no other with it, and a log
under `<paths.runs>/.sweep/`, which is for its owner alone: it tells losses and errors. A run that is done is not
started again; a failed one is, next time.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.config.settings import Config
from pipelines.runs.grid import PlannedRun
from pipelines.runs.identity import run_folder
from pipelines.runs.release import RELEASE, SUMMARY
from pipelines.system.files import OWNER_ONLY, private_folder, write_json

# Imported once, in the server that every run's process is forked from; none of them starts a thread on import.
# torch's optimisers import torch._dynamo on first use: a second a run.
_PRELOADED = ["torch", "torch._dynamo", "scipy.stats", "dp_accounting.pld", "hydra"]


@dataclass(frozen=True)
class Stages:
    """What a run consists of, as module:function, each called with the run's Config."""

    preprocess: str = "pipelines.preprocess:preprocess"
    train: str = "pipelines.train:train"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: done, failed or interrupted, and why."""

    run: PlannedRun
    status: str
    reason: str = ""
    seconds: float = 0.0


def is_done(folder: Path) -> bool:
    """Whether the run in this folder ended well: a summary is there exactly then. One that cannot be read is left
    to `train`, which says what to do."""
    try:
        return isinstance(json.loads((folder / RELEASE / SUMMARY).read_text()), dict)
    except (OSError, ValueError):
        return False


def records_folder(config: Config) -> Path:
    """Where the jobs of a sweep leave word and logs."""
    return Path(config.paths.runs).resolve() / ".sweep"


def recorded(config: Config, stages: Stages = Stages()) -> None:
    """Train one configuration and leave word of how it ended in `config.sweep.records`.

    A failure is word, too, and not raised: a neighbouring run would suffer from it.
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
            word = {"status": status, "reason": reason, "seconds": time.monotonic() - started}
            write_json(private_folder(Path(config.sweep.records)) / f"{folder.name}.json", word, OWNER_ONLY)


def run_all(
    runs: Sequence[PlannedRun], jobs: int, fail_fast: bool = False, stages: Stages = Stages()
) -> Iterator[Outcome]:
    """Run each in a process of its own, `jobs` at once; yields an outcome as each ends.

    Datasets are made first, once each. On KeyboardInterrupt or SIGTERM, and after a failure under
    `fail_fast`, no run is started any more, those under way are asked to save and stop, and their outcomes
    are yielded.
    """
    queue = list(reversed(runs))
    under_way: dict[BaseProcess, PlannedRun] = {}
    threads = max(1, (os.cpu_count() or 1) // jobs)
    stopping = False
    with _sigterm_interrupts():
        failed_data = _make_datasets(runs, stages)
        try:
            while (queue and not stopping) or under_way:
                try:
                    while queue and len(under_way) < jobs and not stopping:
                        run = queue.pop()
                        if reason := failed_data.get(_data_key(run)):
                            yield Outcome(run, "failed", reason)
                            stopping = fail_fast
                            continue
                        under_way[_start(run, threads, stages)] = run
                    wait([process.sentinel for process in under_way], timeout=1.0)
                    for process in [process for process in under_way if not process.is_alive()]:
                        outcome = _outcome(under_way.pop(process), process)
                        if fail_fast and outcome.status == "failed" and not stopping:
                            stopping = _stop(under_way)
                        yield outcome
                except KeyboardInterrupt:
                    stopping = _stop(under_way)
        finally:
            # Whoever took the outcomes has gone: nothing runs on behind its back.
            _stop(under_way)
            for process in under_way:
                process.join()


def outcomes(runs: Sequence[PlannedRun]) -> list[Outcome]:
    """How runs ended that a Hydra launcher carried, by the word that they left."""
    found = []
    for run in runs:
        word = _read(_record(run))
        status = word.get("status") or ("done" if is_done(run.folder) else "failed")
        reason = word.get("reason") or ("" if word else "it left no word: see the launcher's own log")
        found.append(Outcome(run, status, reason, word.get("seconds", 0.0)))
    return found


def log_file(run: PlannedRun) -> Path:
    """What a run printed."""
    return records_folder(run.config) / f"{run.folder.name}.log"


def forget(runs: Sequence[PlannedRun]) -> None:
    """Remove the word that an earlier sweep's jobs left."""
    for run in runs:
        _record(run).unlink(missing_ok=True)


def _record(run: PlannedRun) -> Path:
    return records_folder(run.config) / f"{run.folder.name}.json"


def _start(run: PlannedRun, threads: int, stages: Stages) -> BaseProcess:
    _record(run).unlink(missing_ok=True)
    config = replace(run.config, sweep=replace(run.config.sweep, records=str(records_folder(run.config))))
    return _process(_run_in_child, (config, stages), log_file(run), threads)


def _process(function: Callable[..., None], arguments: tuple[Any, ...], log: Path, threads: int) -> BaseProcess:
    private_folder(log.parent)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=_child, args=(function, arguments, str(log), threads))
    process.start()
    return process


def _child(function: Callable[..., None], arguments: tuple[Any, ...], log: str, threads: int) -> None:
    # Out of the terminal's reach: the parent passes an interrupt on once, as SIGTERM.
    os.setpgrp()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_ONLY)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    import torch

    torch.set_num_threads(threads)
    function(*arguments)


def _run_in_child(config: Config, stages: Stages) -> None:
    recorded(config, stages)


def _prepare_in_child(config: Config, stages: Stages, word: str) -> None:
    try:
        _load(stages.preprocess)(config)
    except Exception as error:
        traceback.print_exc()
        write_json(Path(word), {"reason": _reason(error)}, OWNER_ONLY)


def _make_datasets(runs: Sequence[PlannedRun], stages: Stages) -> dict[str, str]:
    """Make each dataset once, before runs ask for it together; returns the reason for each that failed."""
    failed = {}
    for key, run in {_data_key(run): run for run in runs}.items():
        folder = records_folder(run.config)
        word = folder / "preprocess.json"
        word.unlink(missing_ok=True)
        process = _process(
            _prepare_in_child, (run.config, stages, str(word)), folder / "preprocess.log", os.cpu_count() or 1
        )
        try:
            process.join()
        except KeyboardInterrupt:
            process.terminate()
            process.join()
            raise
        if process.exitcode:
            failed[key] = f"preprocessing {_ended(process.exitcode)}; see {folder / 'preprocess.log'}"
        elif word.exists():
            failed[key] = _read(word)["reason"]
    return failed


def _data_key(run: PlannedRun) -> str:
    return repr((run.config.data, run.config.paths.data))


def _outcome(run: PlannedRun, process: BaseProcess) -> Outcome:
    word = _read(_record(run))
    if word:
        return Outcome(run, word["status"], word["reason"], word["seconds"])
    return Outcome(run, "failed", f"it {_ended(process.exitcode or 0)}; see {log_file(run)}")


def _ended(status: int) -> str:
    if status == -signal.SIGKILL:
        return "was killed (out of memory?)"
    return f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


def _stop(under_way: dict[BaseProcess, PlannedRun]) -> bool:
    for process in under_way:
        process.terminate()
    return True


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
