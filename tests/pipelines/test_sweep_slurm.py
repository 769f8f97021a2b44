"""Sweeps and days on a real Slurm of two nodes on this machine: `pytest -m cluster`; `and not slow` takes two minutes.

Root is needed to install Slurm where it is missing; elsewhere these tests are skipped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.preprocess import preprocess
from pipelines.runs.grid import PlannedRun, plan
from pipelines.sweep import Stages, run_all
from pipelines.system.engines import ClusterError
from tests.pipelines.slurm_here import slurm, told
from tests.pipelines.watched import ATTEMPTS, GO_ON, HELD, HOLD, KEYS, STAGE, lines, released, sweeping, until, written

pytestmark = pytest.mark.cluster
pytest.importorskip("submitit", reason="submitit is not installed: pip install -e '.[slurm]'")
STAGES = Stages(train=STAGE)
LINE = ["profile=smoke", "train.steps=5", "train.checkpoint_every=1", "privacy.noise_seed=1", "sweep.cores=1"]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with slurm():
        yield


@pytest.fixture(autouse=True)
def both_nodes_take_jobs() -> None:
    for node in ("n1", "n2"):
        told("scontrol", "update", f"NodeName={node}", "State=RESUME")


def line(folder: Path, *overrides: str) -> list[str]:
    return [*LINE, f"paths.runs={folder}/runs", f"paths.data={folder}/data", *overrides]


def planned(folder: Path, *overrides: str) -> list[PlannedRun]:
    return plan(Composer(), line(folder, *overrides)).runs


def held(folder: Path) -> list[str]:
    """The Slurm jobs whose runs are held."""
    return [job for file in folder.glob(f"*/*/*/{HELD}") for job in lines(file)]


def drain(node: str) -> None:
    told("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")


@pytest.mark.parametrize("seeds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_sweep_outlives_a_killed_job_and_a_drained_node(tmp_path: Path, seeds: int) -> None:
    """Runs end as they do here; the killed one goes on from its checkpoint, under the key that it has."""
    grid = ["algorithm=adafest,dpsgd", f"seed=range({seeds})"]
    here = planned(tmp_path / "here", *grid, "sweep.jobs=2")
    assert {outcome.status for outcome in run_all(here, stages=STAGES)} == {"done"}

    runs = planned(tmp_path / "there", *grid, "sweep.engine=slurm")
    folder = Path(runs[0].config.paths.runs)
    folder.mkdir(parents=True)
    (folder / HOLD).write_text("n1")

    def disturb() -> None:
        until(lambda: held(folder))
        killed = held(folder)[0]
        told("scancel", killed)
        drain("n2")
        until(lambda: told("squeue", "--noheader", f"--jobs={killed}", "--format=%T") == "")
        (folder / GO_ON).touch()

    disturbing = threading.Thread(target=disturb, daemon=True)
    disturbing.start()
    outcomes = list(run_all(runs, stages=STAGES))
    disturbing.join(timeout=10)
    assert [outcome.status for outcome in outcomes] == ["done"] * 2 * seeds
    assert "n2" in told("sinfo", "--noheader", "--states=drained", "--format=%N")
    assert sorted(len(lines(run.folder / ATTEMPTS)) for run in runs)[-2:] == [1, 2]
    assert all(len(lines(run.folder / KEYS)) == 1 for run in runs)  # none is paid for twice
    assert released(tmp_path / "there" / "runs") == released(tmp_path / "here" / "runs")


def held_sweep(tmp_path: Path) -> tuple[subprocess.Popen[str], list[str]]:
    """A sweep of three runs in a process of its own, the first two held on the one node that takes jobs."""
    words = line(tmp_path, "seed=range(3)", "sweep.engine=slurm")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / HOLD).write_text("n1")
    drain("n2")
    parent = sweeping(tmp_path, words)
    until(lambda: len(list(tmp_path.glob(f"runs/*/*/*/{HELD}"))) == 2)
    return parent, words


def test_ctrl_c_cancels_what_was_submitted(tmp_path: Path) -> None:
    parent, _ = held_sweep(tmp_path)
    os.kill(parent.pid, signal.SIGINT)
    (tmp_path / "runs" / GO_ON).touch()
    out, _ = parent.communicate(timeout=200)
    assert len(out.splitlines()) == 2 and all("interrupted" in each for each in out.splitlines())
    until(lambda: told("squeue", "--noheader") == "", seconds=20)


def test_the_same_command_takes_up_what_is_on_its_way(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    parent, words = held_sweep(tmp_path)
    parent.kill()
    parent.wait()
    (tmp_path / "runs" / GO_ON).touch()
    runs = plan(Composer(), words).runs
    assert {outcome.status for outcome in run_all(runs, stages=STAGES)} == {"done"}
    assert [len(lines(run.folder / ATTEMPTS)) for run in runs] == [1, 1, 1]
    assert capfd.readouterr().err.count("is on its way already") == 3


def test_runs_share_a_gpu_within_one_job() -> None:
    from pipelines.system.engines import Share
    from pipelines.system.slurm_engine import _parameters

    parameters = _parameters(Share(cores=2, memory=2 << 30, gpus=0.25), "gpu")
    assert (parameters["ntasks_per_node"], parameters["gpus_per_node"], parameters["mem"]) == (4, 1, "8192M")


def test_an_unknown_partition_is_named_beside_those_that_there_are(tmp_path: Path) -> None:
    runs = planned(tmp_path, "sweep.engine=slurm", "sweep.partition=night")
    with pytest.raises(ClusterError, match=r"does not take the jobs.*partition.*sweep\.partition is one of main\.$"):
        list(run_all(runs, stages=STAGES))


@pytest.mark.parametrize("days", [3, pytest.param(24, marks=pytest.mark.slow)])
def test_days_are_the_same_bytes(tmp_path: Path, days: int) -> None:
    def config(folder: str, *more: str) -> Config:
        words = [
            "profile=smoke",
            "data=criteo_synthetic_stream",
            f"data.days={days}",
            f"paths.data={tmp_path / folder}",
        ]
        return typed(Composer().compose([*words, f"paths.runs={tmp_path}/runs", *more]))

    preprocess(config("here"))
    preprocess(config("there", "sweep.engine=slurm"))
    there = written(tmp_path / "there")
    assert there == written(tmp_path / "here") and sum(name.endswith("dataset.json") for name in there) == days
