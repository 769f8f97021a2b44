"""What carries out jobs: processes on this machine (:mod:`pipelines.system.processes`), Ray or Slurm.

An engine is an iterator over jobs as they end. On a cluster, a job is a file that the machines share: it names what is
to be called, and the process that calls it records how it ended beside it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Protocol, TypeVar

from dpfest.errors import UserError
from pipelines.system.records import Record

Job_co = TypeVar("Job_co", covariant=True)


class ClusterError(UserError):
    """A cluster cannot be used as asked; the message says why and what to do."""


class Ended(Protocol):
    """How the process of a job ended."""

    @property
    def failure(self) -> str | None:
        """How it failed, as the end of a sentence; None for success."""


class Jobs(Protocol[Job_co]):
    """Jobs under way: an iterator over them as they end, which can go on after an exception, such as an interrupt.

    Use as a context manager: no job outlives the block.
    """

    def __iter__(self) -> Iterator[tuple[Job_co, Ended]]: ...

    def __next__(self) -> tuple[Job_co, Ended]: ...

    def stop(self) -> None:
        """Start no further job and ask running ones to save and end; called again, end them at once."""

    def __enter__(self) -> Jobs[Job_co]: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True)
class Task:
    """A job of a cluster.

    Attributes:
        name: of the job, in the scheduler's lists.
        file: what the process is called with.
        record: where the process records its end.
        log: to which the process appends its output.
    """

    name: str
    file: Path
    record: Path
    log: Path

    def forget(self) -> None:
        """Remove what an earlier process of the job left."""
        self.record.unlink(missing_ok=True)
        self.log.unlink(missing_ok=True)

    @property
    def status(self) -> str | None:
        """What the process recorded; None if it has not started."""
        record = Record.read(self.record)
        return record.status if record else None


@dataclass(frozen=True)
class Lost:
    """The end of a job: None if its process recorded it, or what became of the process."""

    failure: str | None = None


@dataclass(frozen=True)
class Share:
    """What a job of a cluster may take.

    Attributes:
        cores: of one machine.
        memory: in bytes; None for what the cluster gives unasked.
        gpus: a whole number, or a share of one GPU.
        minutes: after which it is ended; None for the cluster's own limit.
        retries: how often it is started again after its process or its machine was lost.
    """

    cores: int = 1
    memory: int | None = None
    gpus: float = 0.0
    minutes: int | None = None
    retries: int = 3


def function(path: str) -> Callable[..., Any]:
    """Return the function at ``module:name``."""
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def package(name: str, extra: str) -> ModuleType:
    """Import what an engine needs.

    Raises:
        ClusterError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ClusterError(
            f"sweep.engine={extra} needs the package {name}: pip install -e '.[{extra}]', here and on every machine "
            "of the cluster."
        ) from error
