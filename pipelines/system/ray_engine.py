"""Jobs as tasks of a Ray cluster.

Ray places them by cores, memory and shares of GPUs, and starts a task again whose process or node is lost: it then goes
on from what it has saved in the shared folder. Each task has a process of its own. Only the path of a job's file passes
through Ray, whose messages are not encrypted unless the cluster is told to.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, TypeVar

from pipelines.system.engines import ClusterError, Lost, Share, Task, function, package

Job = TypeVar("Job")

_PATIENCE = 5.0
"""Seconds in which a cluster's address must answer."""


class RayJobs(Generic[Job], Iterator[tuple[Job, Lost]]):
    """Tasks of a Ray cluster; an iterator over jobs as they end.

    Args:
        entry: what is called with a task's file, as ``module:function``.
        tasks: each job and its task.
        share: what each may take.
        address: of the cluster; None for ``RAY_ADDRESS``, else for the cluster that this machine belongs to.

    Raises:
        ClusterError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, entry: str, tasks: Sequence[tuple[Job, Task]], share: Share, address: str | None) -> None:
        self._ray: Any = package("ray", "ray")
        self._share, self._stops = share, 0
        self._own = not self._ray.is_initialized()
        if self._own:
            _connect(self._ray, address or os.environ.get("RAY_ADDRESS") or "auto")
        self._warn_if_too_large()
        # A process a task: threads, random numbers and memory of one do not reach the next.
        resources = {"num_cpus": share.cores, "num_gpus": share.gpus, "memory": share.memory}
        remote = self._ray.remote(max_calls=1, max_retries=share.retries, **resources)(_perform)
        for _, task in tasks:
            task.forget()
        self._under_way = {
            remote.options(name=task.name).remote(entry, str(task.file)): (job, task) for job, task in tasks
        }

    def __next__(self) -> tuple[Job, Lost]:
        while self._under_way:
            (ended,), _ = self._ray.wait(list(self._under_way), num_returns=1)
            lost = self._lost(ended)
            job, task = self._under_way.pop(ended)
            if not self._stops or task.status is not None:
                return job, lost
        raise StopIteration

    def stop(self) -> None:
        """Cancel what waits and interrupt what runs; called again, kill it."""
        self._stops += 1
        for reference in self._under_way:
            self._ray.cancel(reference, force=self._stops > 1)

    def __enter__(self) -> RayJobs[Job]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self._under_way:
                self.stop()
                self._ray.wait(list(self._under_way), num_returns=len(self._under_way))
        finally:
            if self._own:
                self._ray.shutdown()

    def _lost(self, reference: Any) -> Lost:
        errors = self._ray.exceptions
        try:
            self._ray.get(reference)
        except errors.TaskCancelledError:
            return Lost("was cancelled")
        except errors.RayTaskError as error:
            return Lost(f"could not be started on its node ({_first_line(error.cause)})")
        except errors.RayError as error:
            tries = self._share.retries + 1
            return Lost(f"was lost with its process or node, {tries} times ({type(error).__name__})")
        return Lost()

    def _warn_if_too_large(self) -> None:
        """Say that no node suffices: Ray would wait for one without a word, as it must where nodes can join."""
        wanted = {"CPU": self._share.cores, "GPU": self._share.gpus, "memory": self._share.memory or 0}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
            asked = f"sweep.cores={self._share.cores} sweep.gpus={self._share.gpus:g}"
            if self._share.memory:
                asked += f" sweep.memory={self._share.memory / 1e9:g}"
            print(f"warning: no node of the Ray cluster has {asked} now; waiting for one.", file=sys.stderr, flush=True)


def _perform(entry: str, file: str) -> None:
    """Call an entry in Ray's worker, whose SIGTERM then ends it like an exception."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    own = {number: os.dup(number) for number in (1, 2)}
    try:
        function(entry)(file)
    finally:
        for number, kept in own.items():
            os.dup2(kept, number)  # what Ray has to say of the worker's end is none of the job's


def _connect(ray: Any, address: str) -> None:
    """Join a cluster.

    Raises:
        ClusterError: It cannot be reached, or runs other versions of Ray or Python.
    """
    where = "no Ray cluster" if address == "auto" else f"no Ray cluster at sweep.address={address}"
    cure = "start one with `ray start --head`, or give sweep.address=HOST:PORT of one that runs."
    if address != "auto" and not _answers(address):
        raise ClusterError(f"{where} answers within {_PATIENCE:g} seconds: {cure}")
    try:
        with _signals_kept():
            ray.init(address=address, log_to_driver=False, configure_logging=False, namespace="dpfest")
    except (ConnectionError, ValueError) as error:
        raise ClusterError(f"{where} can be reached ({_first_line(error)}): {cure}") from error
    except RuntimeError as error:
        raise ClusterError(f"The Ray cluster cannot be used: {_first_line(error)}") from error


def _answers(address: str) -> bool:
    host, _, port = address.rpartition("//")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), _PATIENCE).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore what SIGTERM does, which Ray changes."""
    kept = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, kept)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
