"""A sweep through a Hydra launcher: here one that a plugin brings, as joblib's and submitit's do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import HOME, Command

PLUGIN = '''
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.config_store import ConfigStore


@dataclass
class Conf:
    _target_: str = "hydra_plugins.told_launcher.ToldLauncher"


class ToldLauncher(BasicLauncher):
    """Runs jobs one by one, and tells how many it was given."""

    def launch(self, job_overrides, initial_job_idx):
        with open("launched", "a") as file:
            print(len(job_overrides), file=file)
        return super().launch(job_overrides, initial_job_idx)


ConfigStore.instance().store(group="hydra/launcher", name="told", node=Conf, provider="told")
'''


SMALL = [f"data.vocabulary.sizes={[20] * 26}", "data.rows=300", "train.batch_size=200", "train.steps=2"]


def test_each_run_of_a_grid_is_a_job_of_the_launcher_and_its_end_is_recorded(
    dpfest_here: Command, tmp_path: Path
) -> None:
    """Hydra's own launcher, which runs jobs one by one in this process: a run that fails stops no other."""
    line = ["sweep", "profile=smoke", *SMALL, "algorithm=nonprivate", "hydra/launcher=basic"]
    line += ["optimizer.dense.name=adamm,adam"]
    ended = dpfest_here(*line)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "2 to do." in ended.stdout and "1 done, 1 failed." in ended.stdout
    assert re.findall(r"^\[[12]/2\] (\w+) ", ended.stdout, flags=re.M) == ["failed", "done"]
    assert "adamm" in ended.stdout.splitlines()[-2]
    assert len(list(tmp_path.glob("runs/criteo_synthetic/nonprivate/*/release/summary.json"))) == 1
    again = dpfest_here(*line)
    assert again.returncode == 1 and "1 done, 1 to do." in again.stdout, "what is done is no job again"
    assert re.findall(r"^\[\d/1\] (\w+) ", again.stdout, flags=re.M) == ["failed"]


@pytest.mark.slow
def test_a_grid_goes_through_hydras_launcher(dpfest: Command, tmp_path: Path) -> None:
    """Slow: four processes of the command."""
    plugin = tmp_path / "plugins" / "hydra_plugins" / "told_launcher"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text(PLUGIN)
    path = {"PYTHONPATH": f"{HOME}:{tmp_path / 'plugins'}"}
    line = ["sweep", "profile=smoke", "algorithm=nonprivate", "hydra/launcher=told"]

    ended = dpfest(*line, "seed=0,1", **path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / "launched").read_text() == "2\n"
    assert "2 done." in ended.stdout
    assert "0 to do." in dpfest(*line, "seed=0,1", **path).stdout
    assert (tmp_path / "launched").read_text() == "2\n"

    failed = dpfest(*line, "seed=0", "optimizer.dense.name=adamm", **path)
    assert failed.returncode == 1
    assert "1 failed." in failed.stdout
    assert "adamm" in failed.stdout.splitlines()[-2]
