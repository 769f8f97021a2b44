"""What is said where a cluster cannot be used, without one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dpfest.errors import UserError
from pipelines.config.calls import perform
from pipelines.config.compose import Composer
from pipelines.config.settings import typed
from pipelines.runs.grid import plan
from pipelines.sweep import run_all
from tests.cli.conftest import Command

SMOKE = ["profile=smoke", "seed=0,1"]


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("slurm", "submitit")])
@pytest.mark.parametrize("command", ["sweep", "preprocess"])
def test_a_missing_package_is_a_sentence_with_its_pip_line(
    dpfest_here: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, engine: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    ended = dpfest_here(command, "profile=smoke", f"sweep.engine={engine}")
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1, ended.stderr
    assert f"needs the package {package}: pip install -e '.[{engine}]'" in ended.stderr


def test_slurm_needs_a_login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install -e '.[slurm]'")
    monkeypatch.setenv("PATH", str(tmp_path))
    runs = plan(Composer(), [*SMOKE, "sweep.engine=slurm", f"paths.runs={tmp_path}", f"paths.data={tmp_path}"]).runs
    with pytest.raises(UserError, match="there is no sbatch on this machine: start the sweep on a login node"):
        list(run_all(runs))


def test_a_sweep_starts_its_runs_itself_and_once(dpfest_here: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = dpfest_here("sweep", "profile=smoke", "hydra/launcher=basic")
    assert ended.returncode == 2 and "in place of hydra/launcher give sweep.jobs or sweep.engine" in ended.stderr
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    ended = dpfest_here("sweep", "profile=smoke")
    assert ended.returncode == 2 and "give `dpfest sweep` without torchrun" in ended.stderr


def test_a_machine_that_does_not_share_the_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*0a1b\.call .* all machines of the cluster must share"):
        perform(str(tmp_path / "0a1b.call"))


def test_gpus_are_whole_or_a_share_of_one() -> None:
    assert typed(Composer().compose(["sweep.gpus=0.25"])).sweep.gpus == 0.25
    with pytest.raises(UserError, match=r"sweep\.gpus=1\.5 must be a whole number, or a share of one GPU"):
        typed(Composer().compose(["sweep.gpus=1.5"]))
