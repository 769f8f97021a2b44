"""Jobs of a Slurm cluster, in arrays of at most 1,000, submitted through submitit.

squeue says whether a job has ended (sacct needs a database that not every cluster has); how it ended is what its
process recorded. One that was killed, ran out of time or lost its node is submitted again, and goes on from what it has
saved in the shared folder. Which job carries what is kept in a file, so that a later call takes up jobs that are on
their way. submitit pickles a function of dpfest and a path, in a folder that its owner alone can enter; nothing that a
job writes is unpickled.
"""

from __future__ import annotations

import getpass
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from pipelines.system.engines import ClusterError, Lost, Share, Task, function, package
from pipelines.system.files import OWNER_ONLY, locked, private_folder, write_json

Job = TypeVar("Job")

_LARGEST_ARRAY = 1_000
_ENDS = {
    "TIMEOUT": "ran into its time limit",
    "DEADLINE": "ran into its time limit",
    "OUT_OF_MEMORY": "ran out of memory (sweep.memory)",
    "NODE_FAIL": "lost its node",
    "BOOT_FAIL": "lost its node",
    "PREEMPTED": "was preempted",
    "CANCELLED": "was cancelled",
}
_OVER = frozenset(["COMPLETED", "FAILED", "REVOKED", *_ENDS])
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 20.0
"""Seconds between two looks at the queue: the longer nothing changes, the longer."""
_WARNING_SECONDS = 120
"""So long before its time limit a job is asked to save and end, at most a tenth of it."""


class SlurmJobs(Generic[Job], Iterator[tuple[Job, Lost]]):
    """Jobs of a Slurm cluster; an iterator over them as they end.

    Args:
        entry: what is called with a task's file, as ``module:function``.
        tasks: each job and its task; at least one.
        share: what each may take. Those that take a share of a GPU are packed, as the tasks of one Slurm job.
        partition: None for the default one.

    Raises:
        ClusterError: This machine cannot submit jobs, or the cluster refuses them.
    """

    def __init__(self, entry: str, tasks: Sequence[tuple[Job, Task]], share: Share, partition: str | None) -> None:
        self._submitit: Any = package("submitit", "slurm")
        if missing := [name for name in ("sbatch", "srun", "squeue", "scancel", "scontrol") if not shutil.which(name)]:
            raise ClusterError(
                f"sweep.engine=slurm needs Slurm's commands, and there is no {missing[0]} on this machine: start the "
                "sweep on a login node of the cluster."
            )
        self._entry, self._share = entry, share
        self._folder = private_folder(tasks[0][1].record.parent / "slurm")
        self._executor = self._submitit.SlurmExecutor(self._folder)
        self._executor.update_parameters(**_parameters(share, partition))
        self._largest = _largest_array()
        self._tries: Counter[str] = Counter()
        self._under_way: dict[str, list[tuple[Job, Task]]] = {}
        self._ended: list[tuple[Job, Lost]] = []
        self._stops = 0
        self._changed = time.monotonic()
        self._waiting = list(tasks)
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __next__(self) -> tuple[Job, Lost]:
        while not self._ended:
            if not self._under_way and not self._waiting:
                raise StopIteration
            quiet = time.monotonic() - self._changed
            time.sleep(min(max(_SHORTEST_PAUSE, quiet / 4), _LONGEST_PAUSE if not self._stops else 1.0))
            self._look()
            self._start()
        return self._ended.pop(0)

    def stop(self) -> None:
        """Cancel what was submitted, which asks what runs to save and end; called again, kill it."""
        self._stops += 1
        self._waiting.clear()
        signals = ["--signal=KILL"] if self._stops > 1 else []
        numbers = list(self._under_way)
        for start in range(0, len(numbers), _LARGEST_ARRAY):
            some = numbers[start : start + _LARGEST_ARRAY]
            subprocess.run(["scancel", "--quiet", *signals, *some], check=False)

    def __enter__(self) -> SlurmJobs[Job]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._under_way:
            self.stop()
            while self._under_way:
                time.sleep(_SHORTEST_PAUSE)
                self._look()

    def _start(self) -> None:
        """Submit what waits; what the cluster does not take while other jobs are under way waits on.

        Raises:
            ClusterError: The cluster takes none.
        """
        while self._waiting:
            with _uninterrupted(), self._carried() as carried:
                states = _states()
                if states is None:
                    return  # jobs that are on their way would be submitted twice: wait for an answer
                self._follow(carried, states)
                now = self._waiting[: self._largest * _packed(self._share)]
                packs = [
                    now[place : place + _packed(self._share)] for place in range(0, len(now), _packed(self._share))
                ]
                try:
                    self._submit(packs, carried)
                except self._submitit.core.utils.FailedJobError as error:
                    if self._under_way:
                        return
                    raise ClusterError(f"Slurm does not take the jobs: {_refusal(error)}") from error
                del self._waiting[: len(now)]

    def _follow(self, carried: Mapping[str, str], states: Mapping[str, str]) -> None:
        """Take up jobs that an earlier call submitted, or one beside this, and that are on their way."""
        waiting = []
        for job, task in self._waiting:
            number = carried.get(task.name, "")
            if _is_under_way(number, states):
                self._under_way.setdefault(number, []).append((job, task))
                print(f"{task.name}: Slurm job {number} is on its way already.", file=sys.stderr, flush=True)
            else:
                waiting.append((job, task))
        self._waiting = waiting

    def _submit(self, packs: Sequence[list[tuple[Job, Task]]], carried: dict[str, str]) -> None:
        for _, task in (each for pack in packs for each in pack):
            if not self._tries[task.name]:
                task.forget()
        files = [[str(task.file) for _, task in pack] for pack in packs]
        submitted = self._executor.map_array(_perform, [self._entry] * len(packs), files) if packs else []
        for each, pack in zip(submitted, packs, strict=True):
            self._under_way[each.job_id] = pack
            for _, task in pack:
                carried[task.name] = each.job_id
                self._tries[task.name] += 1

    def _look(self) -> None:
        """Find out which jobs have ended, and how."""
        states = _states()
        if states is None:
            return  # the controller does not answer now; jobs go on
        ended = [number for number in self._under_way if not _is_under_way(number, states)]
        if not ended:
            return
        self._changed = time.monotonic()
        os.listdir(self._folder.parent)  # network file systems then look for new files, too
        for number in ended:
            how = _ENDS.get(states.get(number, ""), "was killed, or could not start")
            for job, task in self._under_way.pop(number):
                self._settle(job, task, number, how)

    def _settle(self, job: Job, task: Task, number: str, how: str) -> None:
        status, tries = task.status, self._tries[task.name]
        if status in ("done", "failed") or (self._stops and status == "interrupted"):
            self._ended.append((job, Lost()))
        elif self._stops:
            if status is not None:
                self._ended.append((job, Lost(how)))
        elif tries <= self._share.retries:
            again = f"Slurm job {number} {how}; it is submitted again"
            print(f"{task.name}: {again}.", file=sys.stderr, flush=True)
            _append(task.log, again)
            task.record.unlink(missing_ok=True)
            self._waiting.append((job, task))
        else:
            log = self._folder / f"{number}_0_log.err"
            self._ended.append((job, Lost(f"{how} in Slurm job {number}, the last of {tries} ({log})")))

    @contextmanager
    def _carried(self) -> Iterator[dict[str, str]]:
        """The job of each task, from a file that other sweeps in the same folder read and write as well."""
        file = self._folder / "jobs.json"
        with locked(file.with_suffix(".lock")):
            try:
                carried = dict(json.loads(file.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError):
                carried = {}
            yield carried
            write_json(file, carried, OWNER_ONLY)


def _perform(entry: str, files: Sequence[str]) -> None:
    """Call an entry in a task of a Slurm job, which one of several takes by its number on the node."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    signal.signal(signal.SIGUSR2, lambda number, frame: signal.raise_signal(signal.SIGTERM))
    rank = int(os.environ.get("SLURM_LOCALID", 0))
    if rank < len(files):
        function(entry)(files[rank])


def _packed(share: Share) -> int:
    """Number of tasks in one Slurm job: as many as share a GPU."""
    return int(1 / share.gpus) if 0 < share.gpus < 1 else 1


def _parameters(share: Share, partition: str | None) -> dict[str, Any]:
    packed = _packed(share)
    parameters: dict[str, Any] = {
        "job_name": "dpfest",
        "partition": partition,
        "time": share.minutes,
        "ntasks_per_node": packed,
        "cpus_per_task": share.cores,
        "array_parallelism": _LARGEST_ARRAY,
        "signal_delay_s": min(_WARNING_SECONDS, 6 * (share.minutes or _WARNING_SECONDS)),
        # A task that fails does not end those beside it.
        "srun_args": [f"--cpus-per-task={share.cores}", "--kill-on-bad-exit=0"],
    }
    if share.memory:
        parameters["mem"] = f"{math.ceil(packed * share.memory / 2**20)}M"
    if share.gpus:
        parameters["gpus_per_node"] = math.ceil(share.gpus)
    return parameters


def _is_under_way(number: str, states: Mapping[str, str]) -> bool:
    return number in states and states[number] not in _OVER


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold signals back: a job that is submitted must be known, or Ctrl-C would not cancel it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _states() -> dict[str, str] | None:
    """Return the state of each of this user's jobs, also of those that ended lately; None without an answer."""
    asked = ["squeue", f"--user={getpass.getuser()}", "--array", "--noheader", "--states=all", "--format=%i %T"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    if answer.returncode:
        return None
    return {number: state for number, _, state in (line.strip().partition(" ") for line in answer.stdout.splitlines())}


def _largest_array() -> int:
    """Return how many elements an array may have.

    Raises:
        ClusterError: The controller does not answer.
    """
    answer = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=False)
    if answer.returncode:
        said = (answer.stderr or answer.stdout).strip().splitlines() or ["no reason given"]
        raise ClusterError(
            f"The Slurm controller does not answer ({said[-1]}): start sweeps on a login node of the cluster, where "
            "`scontrol ping` answers."
        )
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", answer.stdout)
    return min(_LARGEST_ARRAY, max(1, int(found[1]) - 1)) if found else _LARGEST_ARRAY


def _refusal(error: Exception) -> str:
    """Return what sbatch said."""
    said = [line.partition("error:")[2].strip() for line in str(error).splitlines() if "error:" in line]
    partitions = ""
    if any("partition" in line for line in said):
        listed = subprocess.run(["sinfo", "--noheader", "--format=%R"], capture_output=True, text=True, check=False)
        partitions = f" sweep.partition is one of {', '.join(sorted(set(listed.stdout.split())))}."
    return ("; ".join(dict.fromkeys(said)) or str(error).splitlines()[-1]).rstrip(".") + "." + partitions


def _append(log: Path, line: str) -> None:
    with open(log, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, OWNER_ONLY)) as file:
        file.write(f"{line}\n")
