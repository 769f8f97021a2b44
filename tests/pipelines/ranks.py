"""The train stage on several ranks: processes of their own, as torchrun would start them."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from dpfest.ranks.training import RankTraining
from pipelines.config.compose import Composer
from pipelines.config.settings import typed
from pipelines.ranks import make_run
from pipelines.sweep import _PRELOADED
from pipelines.system.processes import Child

_PRELOAD = (*_PRELOADED, "pipelines.ranks")


def train_on_ranks(
    overrides: list[str],
    world: int,
    *,
    signal_at: int | None = None,
    number: signal.Signals = signal.SIGKILL,
    of_last: Sequence[str] = (),
    log: Path | None = None,
) -> list[str | None]:
    """How each rank failed, None where it did not; the last one is sent a signal before the step after so many.

    Args:
        overrides: of every rank.
        world: number of ranks.
        signal_at: steps before the signal; None for no signal.
        number: the signal.
        of_last: overrides of the last rank alone.
        log: receives the first rank's output.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [
        Child(
            _train, [*overrides, *(of_last if rank == world - 1 else ())], rank, world, port,
            signal_at if rank == world - 1 else None, number, preload=_PRELOAD, log=None if rank else log,
        )
        for rank in range(world)
    ]  # fmt: skip
    for child in reversed(children):
        child.join()
        if child.failure and number == signal.SIGKILL:
            for other in children:
                other._process.kill()  # as torchrun does
    return [child.failure for child in children]


def _train(
    parent: Connection, overrides: list[str], rank: int, world: int, port: int, at: int | None, number: signal.Signals
) -> None:
    names = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, GLOO_SOCKET_IFNAME="lo")
    step = RankTraining.step

    def counted(self, batch):  # type: ignore[no-untyped-def]
        if self.steps_done == at:
            os.kill(os.getpid(), number)
        return step(self, batch)

    RankTraining.step = counted  # type: ignore[method-assign]
    make_run(typed(Composer().compose(overrides)))
