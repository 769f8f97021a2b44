"""What all tests share: calibrations, which are pure functions of their settings, and imports in new processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path

import pytest

# What is remembered of files, here and in the processes that tests start, is no business of the user's own memory.
os.environ["DPFEST_CACHE"] = tempfile.mkdtemp(prefix="dpfest-tests-")

# Read when torch is first imported. Workers share the cores, and tests of ranks compare sums of one thread each.
os.environ["OMP_NUM_THREADS"] = "1"

# One server forks the processes of all tests, and imports only what the first of them asks for: what any of them needs.
_SERVED = (
    "pipelines.train", "pipelines.train.ranks", "pipelines.bench.step", "pipelines.bench.text", "torch._dynamo",
    "transformers.models.roberta.modeling_roberta", "peft",
)  # fmt: skip
_preload = forkserver.set_forkserver_preload


def _preload_all(modules: Sequence[str]) -> None:
    _preload(list(_SERVED))


forkserver.set_forkserver_preload = _preload_all


@pytest.fixture(scope="session")
def calibrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for noise calibrations, to be linked to as ``<paths.runs>/.calibration``."""
    base = tmp_path_factory.getbasetemp()
    # Of several workers each has a base of its own within that of the session.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "calibrations"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of a benchmark hold one step, where a test does not ask how exact its times are."""
    monkeypatch.setattr("pipelines.bench.measure._TURN_SECONDS", 1e-3)
