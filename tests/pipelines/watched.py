"""The real training, which tells of its attempts and of the keys that it draws, and can be held by a test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipelines.train
from dpfest.noise.key import NoiseKey
from dpfest.training.loop import PrivateTraining
from pipelines.config.settings import Config
from pipelines.runs.identity import run_folder

HOME = Path(__file__).resolve().parents[2]
STAGE = "tests.pipelines.watched:make_run"
ATTEMPTS, KEYS, HELD, HOLD, GO_ON = "attempts", "keys", "held", "hold", "go on"


def make_run(config: Config) -> None:
    """Train. Each attempt adds its node to `attempts`, each key that is drawn a line to `keys`. On the node that the
    file `hold` of the folder of runs names (or `any`), a first attempt stays before its third step until there is a
    file `go on`.
    """
    folder, runs = run_folder(config), Path(config.paths.runs)
    folder.mkdir(parents=True, exist_ok=True)
    _tell(folder / ATTEMPTS, node())
    first = len(lines(folder / ATTEMPTS)) == 1
    held = first and (runs / HOLD).exists() and (runs / HOLD).read_text() in (node(), "any")
    step, fresh, taken = PrivateTraining.step, pipelines.train.Run._new_key, [0]

    def stepping(training: PrivateTraining, batch: Any) -> Any:
        if held and taken[0] == 2:
            _tell(folder / HELD, job())
            while not (runs / GO_ON).exists():
                time.sleep(0.05)
        taken[0] += 1
        return step(training, batch)

    def drawing(run: Any) -> NoiseKey:
        _tell(folder / KEYS, "x")
        return fresh(run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateTraining, "step", stepping)
        patch.setattr(pipelines.train.Run, "_new_key", drawing)
        pipelines.train.make_run(config)


def job() -> str:
    """The Slurm job of this process, as scancel takes it; of none, the process."""
    array, place = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{place}" if array else os.environ.get("SLURM_JOB_ID", str(os.getpid()))


def node() -> str:
    """The node of the cluster that this process is on; of no cluster, here."""
    if name := os.environ.get("SLURMD_NODENAME"):
        return name
    ray = sys.modules.get("ray")
    return str(ray.get_runtime_context().get_node_id()) if ray and ray.is_initialized() else "here"


SWEEPING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
sys.path.insert(0, {home!r})
from pipelines.config.compose import Composer
from pipelines.runs.grid import plan
from pipelines.sweep import Stages, run_all
if __name__ == "__main__":
    for outcome in run_all(plan(Composer(), sys.argv[1:]).runs, stages=Stages(train={stage!r})):
        print(outcome.run.config.seed, outcome.status, flush=True)
"""


def sweeping(folder: Path, overrides: list[str]) -> subprocess.Popen[str]:
    """A sweep in a process of its own, which prints seed and outcome of each run."""
    script = folder / "sweeping.py"
    script.write_text(SWEEPING.format(home=str(HOME), stage=STAGE))
    return subprocess.Popen(
        [sys.executable, str(script), *overrides], stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def until(true: Callable[[], object], seconds: float = 300) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def lines(file: Path) -> list[str]:
    """The lines of a file; none of one that is not there."""
    return file.read_text().splitlines() if file.exists() else []


def released(runs: Path) -> dict[str, bytes]:
    """Every byte that runs released, by its place."""
    return {str(file.relative_to(runs)): file.read_bytes() for file in runs.glob("*/*/*/release/*")}


def written(data: Path) -> dict[str, bytes]:
    """Every byte of processed data, by its place."""
    return {str(file.relative_to(data)): file.read_bytes() for file in data.rglob("*") if file.is_file()}


def _tell(file: Path, line: str) -> None:
    with open(file, "a") as told:
        told.write(f"{line}\n")
