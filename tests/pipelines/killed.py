"""A training that is killed at a step of its own choice, so that no test depends on how fast another process is."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

import pytest

from dpfest.training.loop import PrivateTraining
from pipelines.config.compose import Composer
from pipelines.config.settings import typed
from pipelines.sweep import _PRELOADED
from pipelines.system.processes import Child
from pipelines.train import make_run


def train_until_killed(overrides: list[str], steps: int) -> None:
    """Train in a process of its own, which SIGKILL ends once it has taken so many steps: nothing of it runs on."""
    child = Child(_train, overrides, steps, preload=_PRELOADED)
    child.join()
    assert child.failure == "was killed (out of memory?)"


def _train(parent: Connection, overrides: list[str], steps: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        signal_at(patch, steps, signal.SIGKILL)
        make_run(typed(Composer().compose(overrides)))


def signal_at(patch: pytest.MonkeyPatch, steps: int, number: signal.Signals) -> None:
    """Have training send its own process a signal before the step that follows so many."""
    step, taken = PrivateTraining.step, [0]

    def signalled(self: PrivateTraining, batch: Any) -> Any:
        if taken[0] == steps:
            os.kill(os.getpid(), number)
        taken[0] += 1
        return step(self, batch)

    patch.setattr(PrivateTraining, "step", signalled)
