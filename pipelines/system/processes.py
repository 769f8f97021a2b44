"""Run functions in separate processes, so that a crash or lack of memory in one affects no other.

Each process is forked from a server that shares neither threads nor memory with this one. The terminal's signals do not
reach it: this process forwards an interrupt once, as SIGTERM. SIGTERM ends a process like an exception, so that
incomplete output is removed, or, under a :class:`StopRequest`, at the next safe point.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

from pipelines.system.files import OWNER_ONLY, private_folder

Job = TypeVar("Job")
_ECHO = 0.5  # seconds


def cores() -> int:
    """Return the number of cores that this process may use; taskset, Slurm and containers restrict it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Child:
    """A process that calls a function, with a pipe between the two.

    Args:
        function: a module-level function, called with the child's end of the pipe and the arguments.
        arguments: its further arguments, pickled.
        log: file for standard output and error, readable by the owner alone; None to inherit those of this process.
        threads: torch threads; None not to import torch.
        memory: limit of its data segment in bytes; None for no limit.
        preload: modules that the server imports before it forks, if this child is the first to need the server.
        daemon: whether it ends with this process; a daemon may start no processes.
    """

    def __init__(
        self,
        function: Callable[..., None],
        *arguments: Any,
        log: Path | None = None,
        threads: int | None = None,
        memory: int | None = None,
        preload: Sequence[str] = (),
        daemon: bool = True,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(preload))
        self.connection, theirs = context.Pipe()
        own = (theirs, function, arguments, log, threads, memory)
        self._process = context.Process(target=_main, args=own, daemon=daemon)
        with _ignored(signal.SIGINT):  # by the server, which a terminal's Ctrl-C would reach while it imports
            forkserver.ensure_running()
        self._process.start()
        theirs.close()

    def stop(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def join(self) -> None:
        """Wait until the process has ended."""
        self._process.join()
        self.connection.close()

    @property
    def failure(self) -> str | None:
        """How the ended process failed, as the end of a sentence; None for success."""
        status = self._process.exitcode
        if not status:
            return None
        if status == -signal.SIGKILL:
            return "was killed (out of memory?)"
        return f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


class Pool(Generic[Job], Iterator[tuple[Job, Child]]):
    """Runs jobs in processes of their own, at most `at_once` at a time; an iterator over jobs as they end.

    Iteration can continue after an exception, such as an interrupt. No job outlives the `with` block.

    Args:
        jobs: in the order in which to start them.
        at_once: number of concurrent processes.
        start: starts a job's process.
        heard: called with a job and each message of its process.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        at_once: int,
        start: Callable[[Job], Child],
        heard: Callable[[Job, Any], None] = lambda job, message: None,
    ) -> None:
        self._waiting, self._at_once, self._start, self._heard = list(jobs), at_once, start, heard
        self._under_way: dict[Connection, tuple[Job, Child]] = {}

    def __next__(self) -> tuple[Job, Child]:
        while True:
            while self._waiting and len(self._under_way) < self._at_once:
                job = self._waiting.pop(0)
                child = self._start(job)
                self._under_way[child.connection] = job, child
            if not self._under_way:
                raise StopIteration
            for connection in wait(list(self._under_way)):
                assert isinstance(connection, Connection)
                job, child = self._under_way[connection]
                try:
                    self._heard(job, connection.recv())
                except (EOFError, ConnectionResetError):
                    del self._under_way[connection]
                    child.join()
                    return job, child

    def stop(self) -> None:
        """Start no further job and ask running ones to end."""
        self._waiting.clear()
        for _, child in self._under_way.values():
            child.stop()

    def __enter__(self) -> Pool[Job]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        for _, child in self._under_way.values():
            child.join()


class StopRequest:
    """Whether the process was asked to stop; a second request stops it at once.

    One that follows within half a second is the first one's echo: some supervisors signal a process and then its group,
    and torchrun passes on both.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._since = 0.0

    @property
    def signal(self) -> int | None:
        """The first signal, or None."""
        return self._signal

    @property
    def requested(self) -> bool:
        """True from the first signal on."""
        return self._signal is not None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Signal handler."""
        if self._signal is not None:
            if time.monotonic() - self._since > _ECHO:
                raise SystemExit(128 + number)
            return
        self._signal, self._since = number, time.monotonic()
        print(
            "Stopping after this step; the same command goes on from there. Once more to stop at once.",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    def exit_if_requested(self) -> None:
        """Raise SystemExit with the shell's code for the signal, if there was one."""
        if self._signal is not None:
            raise SystemExit(128 + self._signal)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn SIGINT, SIGTERM and SIGHUP (a closed terminal) into a :class:`StopRequest` while the block runs.

    Outside of the main thread, where Python delivers no signals, it is never requested.  An ignored SIGHUP,
    as under nohup, stays ignored.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.receive) for number in (signal.SIGINT, *_ends())}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Make SIGTERM, and SIGHUP of a closed terminal, raise KeyboardInterrupt while the block runs."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _ends()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _ignored(number: signal.Signals) -> Iterator[None]:
    """Ignore a signal, in the main thread, and so in the processes that are started meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def output_to(log: Path, anew: bool = True) -> None:
    """Send standard output and error of this process to a file, readable by its owner alone, from now on.

    Args:
        log: the file.
        anew: whether to drop what is in it.
    """
    private_folder(log.parent)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if anew else os.O_APPEND), OWNER_ONLY)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(output, number)
    os.close(output)


def _ends() -> list[signal.Signals]:
    """Return the signals that ask a process to end, without those that are ignored, as SIGHUP is under nohup."""
    return [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]


def _main(
    connection: Connection,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    log: Path | None,
    threads: int | None,
    memory: int | None,
) -> None:
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if log is not None:
        output_to(log)
    if memory is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    with contextlib.closing(connection):
        function(connection, *arguments)
