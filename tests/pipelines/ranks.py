"""The train stage on several ranks: processes of their own, as torchrun would start them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pipelines.train.shards
from dpfest.ranks.training import RankTraining
from pipelines.config.compose import Composer
from pipelines.config.settings import typed
from pipelines.runs.directory import RunDirectory
from pipelines.sweep import _PRELOADED
from pipelines.system.processes import Child
from pipelines.train.ranks import make_run

_PRELOAD = (*_PRELOADED, "pipelines.train.ranks")

SAVING: dict[str, tuple[Any, str]] = {
    "a shard": (pipelines.train.shards, "_write_through"),
    "the state": (RunDirectory, "save_state"),
    "removing the last checkpoint": (shutil, "rmtree"),
}
"""What a checkpoint over ranks does, in this order."""


def train_on_ranks(
    overrides: list[str],
    world: int,
    *,
    signal_at: int | None = None,
    number: signal.Signals = signal.SIGKILL,
    killed_in: Sequence[Any] = (),
    of_last: Sequence[str] = (),
    log: Path | None = None,
) -> list[str | None]:
    """How each rank failed, None where it did not; the last one is sent a signal before the step after so many.

    Args:
        overrides: of every rank.
        world: number of ranks.
        signal_at: steps before the signal; None for no signal.
        number: the signal.
        killed_in: a part of saving (see SAVING), and after how many of its calls the next one kills the last rank.
        of_last: overrides of the last rank alone.
        log: receives the first rank's output; that of rank 1 goes to a file of this name and -1, and so on.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(world):
        ends = (signal_at, number, killed_in) if rank == world - 1 else (None, number, ())
        words = [*overrides, *(of_last if rank == world - 1 else ())]
        log_of = log and (log.with_name(f"{log.name}-{rank}") if rank else log)
        children.append(Child(_train, words, rank, world, port, *ends, preload=_PRELOAD, log=log_of))
    for child in reversed(children):
        child.join()
        if child.failure and number == signal.SIGKILL:
            for other in children:
                other._process.kill()  # as torchrun does
    return [child.failure for child in children]


def _train(
    parent: Connection,
    overrides: list[str],
    rank: int,
    world: int,
    port: int,
    at: int | None,
    number: signal.Signals,
    killed_in: Sequence[Any],
) -> None:
    names = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, GLOO_SOCKET_IFNAME="lo")
    step = RankTraining.step

    def counted(self, batch):  # type: ignore[no-untyped-def]
        if self.steps_done == at:
            os.kill(os.getpid(), number)
        return step(self, batch)

    RankTraining.step = counted  # type: ignore[method-assign]
    if killed_in:
        part, calls = killed_in
        _die_in(*SAVING[part], calls)
    make_run(typed(Composer().compose(overrides)))


def _die_in(owner: Any, name: str, calls: int) -> None:
    """End this process without a word in a call that follows so many."""
    own, done = getattr(owner, name), [0]

    def deadly(*arguments: Any) -> Any:
        if done[0] == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        done[0] += 1
        return own(*arguments)

    setattr(owner, name, deadly)
