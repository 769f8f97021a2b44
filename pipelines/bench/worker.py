"""A competitor in its own process, so that its memory can be measured and limited."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from pipelines.bench.measure import Turn
from pipelines.system.memory import keep_freed_memory
from pipelines.system.processes import Child

_PEAK_STEPS, _PEAK_SECONDS = 3, 2.0


@dataclass(frozen=True)
class Peak:
    """Peak memory in bytes, and the part of it in excess of that before the first step."""

    total: int
    working: int


class WorkerError(Exception):
    """A competitor failed; the text gives the reason."""


class Worker:
    """A competitor in its own process; a call takes a turn there.

    Args:
        make: makes its turns there: a module-level function, or a partial of one.
        shared: makes the argument of ``make``; None for no argument.
        memory: limit of the process's data segment in bytes; None for no limit.

    Raises:
        WorkerError: the competitor cannot be created, or fails in a turn.
    """

    def __init__(
        self, make: Callable[..., Turn], shared: Callable[[], Any] | None = None, memory: int | None = None
    ) -> None:
        # A server that has imported torch once forks processes quickly, without this process's memory.
        function = make.func if isinstance(make, partial) else make
        preload = [__name__, function.__module__, "torch._dynamo"]  # the last is imported by torch.optim
        self._child = Child(_serve, make, shared, threads=torch.get_num_threads(), memory=memory, preload=preload)
        try:
            self._answer()
        except WorkerError:
            self.close()
            raise

    def __call__(self, turn: int) -> float:
        """Take a turn and return its result."""
        return self._asked(_taken, turn)

    def peak(self, device: torch.device) -> Peak:
        """Measure the memory of a few steps."""
        return self._asked(_peak, device)

    @property
    def note(self) -> str | None:
        """The ``note`` of what was made, if it has one."""
        return self._asked(_attribute, "note")

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._child.connection.send(None)
        self._child.join()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._child.stop()  # it may be in the middle of a turn
        self.close()

    def _asked(self, function: Callable[[Turn, Any], Any], argument: Any) -> Any:
        """Return what a function of the competitor and an argument returns there."""
        with contextlib.suppress(BrokenPipeError):  # its last message can still be read
            self._child.connection.send((function, argument))
        return self._answer()

    def _answer(self) -> Any:
        try:
            fine, answer = self._child.connection.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerError("its process was killed (out of memory?)") from None
        if not fine:
            raise WorkerError(answer)
        return answer


def available_bytes() -> int:
    """Return the memory that a process can still allocate without swapping."""
    return _line("/proc/meminfo", "MemAvailable") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _serve(connection: Connection, make: Callable[..., Turn], shared: Callable[[], Any] | None) -> None:
    keep_freed_memory()
    try:
        turn = make() if shared is None else make(shared())
        connection.send((True, None))
        while (question := connection.recv()) is not None:
            function, argument = question
            connection.send((True, function(turn, argument)))
    except Exception as error:
        first = str(error).strip().splitlines()
        connection.send((False, f"{type(error).__name__}: {first[0]}" if first else type(error).__name__))


def _taken(turn: Turn, number: int) -> float:
    return turn(number)


def _attribute(turn: Turn, name: str) -> Any:
    return getattr(turn, name, None)


def _peak(turn: Turn, device: torch.device) -> Peak:
    before = _allocated(device, "VmRSS")
    with contextlib.suppress(OSError):  # reset the peak of its creation
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    started = time.perf_counter()
    for number in range(_PEAK_STEPS):
        turn(number)
        if time.perf_counter() - started > _PEAK_SECONDS:
            break
    total = _allocated(device, "VmHWM")
    return Peak(total, max(0, total - before))


def _allocated(device: torch.device, kind: str) -> int:
    if device.type == "cuda":
        measure = torch.cuda.max_memory_allocated if kind == "VmHWM" else torch.cuda.memory_allocated
        return measure(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return _line("/proc/self/status", kind) or most


def _line(path: str, name: str) -> int | None:
    """Return in bytes a kB value of a Linux status file; None on other systems."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration):
        return None
