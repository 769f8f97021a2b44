"""Sweeps: which runs a line means, and what happens to runs that end well, badly, or not at all."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import yaml

import conf
from dpfest.errors import UserError
from pipelines.config.compose import Composer, override_text
from pipelines.config.settings import typed
from pipelines.runs.grid import Plan, plan, products
from pipelines.sweep import Outcome, Stages, is_done, log_file, preloaded, run_all

HOME = Path(__file__).resolve().parents[2]

# A training that does what its seed says, in no time.
FAKE = """
import json, os, signal, sys, time
from pathlib import Path
from dpfest.errors import UserError
from pipelines.runs.identity import run_folder

def preprocess(config):
    with open(Path(config.paths.runs) / "preprocessed", "a") as file:
        file.write(config.data.name + "\\n")
    if config.data.name == "criteo_synthetic":
        raise UserError("there is no such file.")

def train(config):
    folder = run_folder(config)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "starts", "a") as file:
        file.write("x")
    print("training", config.seed, flush=True)
    if config.seed == 100 and not Path(config.paths.runs, "mended").exists():
        raise UserError("the clipping norm is unheard of.")
    if config.seed == 101:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.seed == 102:
        raise ZeroDivisionError("oops")
    if config.seed >= 200:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        time.sleep(60)
    (folder / "release").mkdir()
    (folder / "release" / "summary.json").write_text("{}")
"""


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stages:
    (tmp_path / "fake_stages.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Stages("fake_stages:preprocess", "fake_stages:train")


def planned(tmp_path: Path, *overrides: str) -> Plan:
    return plan(Composer(), [f"paths.runs={tmp_path}", *overrides])


def ended(tmp_path: Path, stages: Stages, *overrides: str, fail_fast: bool = False) -> dict[int, Outcome]:
    runs = planned(tmp_path, *overrides).runs
    todo = [run for run in runs if not is_done(run.folder)]
    outcomes = run_all(todo, fail_fast, stages)
    return {outcome.run.config.seed: outcome for outcome in outcomes}


def test_hydras_multirun_syntax_means_hydras_product(tmp_path: Path) -> None:
    line = ["algorithm=dpsgd,adafest", "privacy.epsilon=1,3", "seed=range(3)"]
    runs = planned(tmp_path, *line).runs
    assert len(runs) == 12
    assert {(r.config.algorithm.name, r.config.privacy.epsilon, r.config.seed) for r in runs} == {
        (name, epsilon, seed) for name in ("dpsgd", "adafest") for epsilon in (1.0, 3.0) for seed in range(3)
    }
    assert len({run.folder for run in runs}) == 12


def test_a_glob_means_the_choices_that_it_fits(tmp_path: Path) -> None:
    assert planned(tmp_path, "algorithm=glob(ada*)").by_algorithm() == {"adafest": 1, "adafest_plus": 1}
    own = planned(tmp_path, "experiment=comparison", "profile=smoke", "algorithm=glob(*, exclude=ada*)")
    once = dict.fromkeys(("nonprivate", "frozen", "dpsgd", "threshold", "smaller_tables", "exponential"), 1)
    assert own.by_algorithm() == once | {"fest": 2}  # with one k, and with k/p a table


def test_a_folder_with_odd_characters_is_planned_and_planned_again(tmp_path: Path) -> None:
    folder = tmp_path / "a b=(c)"
    (run,) = plan(Composer(), [f"paths.runs={override_text(str(folder))}"]).runs
    assert run.folder.is_relative_to(folder)
    assert [other.folder for other in plan(Composer(), run.overrides).runs] == [run.folder]


def test_the_same_run_is_planned_once(tmp_path: Path) -> None:
    assert len(planned(tmp_path, "privacy.epsilon=1,1.0", "train.log_every=1,2").runs) == 1


def test_an_override_of_a_run_makes_that_run(tmp_path: Path) -> None:
    for run in planned(tmp_path, "experiment=comparison", "profile=smoke").runs:
        assert [other.folder for other in planned(tmp_path, *run.overrides).runs] == [run.folder]


def test_every_rule_is_in_the_comparison(tmp_path: Path) -> None:
    rules = {
        "nonprivate",
        "dpsgd",
        "threshold",
        "smaller_tables",
        "fest",
        "adafest",
        "adafest_plus",
        "exponential",
        "frozen",
    }
    for profile in ("smoke", "demo"):
        assert set(planned(tmp_path, "experiment=comparison", f"profile={profile}").by_algorithm()) == rules


def test_the_demo_grid_is_cut_to_minutes(tmp_path: Path) -> None:
    assert len(planned(tmp_path, "experiment=comparison", "profile=demo").runs) <= 50


@pytest.mark.slow
def test_the_paper_grid_is_the_papers(tmp_path: Path) -> None:
    """Slow: composes the paper's grid."""
    criteo = tmp_path / "train.txt"
    criteo.write_text("0\t" + "\t" * 38 + "\n")
    runs = planned(tmp_path, "experiment=comparison", "profile=paper", f"data.path={criteo}", "algorithm=adafest").runs
    adafest = [run.config.algorithm for run in runs]
    assert {a.threshold for a in adafest} == {0.5, 1, 5, 10, 20, 50, 100}
    assert {a.contribution_clipping_norm for a in adafest} == {1, 5, 10}
    assert {run.config.privacy.epsilon for run in runs} == {1, 3, 8}
    ratios = {a.noise_ratio for a in adafest}
    assert (min(ratios), max(ratios)) == (0.1, 10)
    searched = {
        (a.clipping_norm, run.config.optimizer.tables.learning_rate) for a, run in zip(adafest, runs, strict=True)
    }
    assert len(searched) == 5 * 4  # at three τ; one pair of them is that of the grid
    assert len(runs) == len(ratios) * 7 * 3 * 3 + (len(searched) - 1) * 3 * 3


NORM, RATE = "algorithm.clipping_norm", "optimizer.tables.learning_rate"


@pytest.mark.parametrize("experiment", ["comparison", "streaming", "text", "text_large_vocabulary"])
def test_rivals_search_what_dpsgd_does(experiment: str) -> None:
    """Each algorithm that trains tables has every clipping norm with every table rate that dpsgd is given."""
    parts = yaml.safe_load((Path(conf.__path__[0]) / "experiment" / f"{experiment}.yaml").read_text())["grids"]["paper"]

    def pairs(name: str) -> set[tuple[float, float]]:
        own = [part for part in parts if name in part["algorithm"] and NORM in part and RATE in part]
        return {pair for part in own for pair in itertools.product(part[NORM], part[RATE])}

    rivals = {name for part in parts for name in part["algorithm"]} - {"nonprivate", "frozen"}
    assert len(pairs("dpsgd")) >= 12 and all(pairs(name) == pairs("dpsgd") for name in rivals)
    (free,) = [part for part in parts if part["algorithm"] == ["nonprivate"]]
    assert len(free["optimizer.dense.learning_rate"]) >= 3 and len(free[RATE]) >= 2
    assert any(NORM in part for part in parts if "frozen" in part["algorithm"])
    for part in parts:
        if part["algorithm"] == ["exponential"] and NORM not in part:
            assert min(part["algorithm.selection_clipping_norm"]) == 0.001 and len(part["algorithm.noise_ratio"]) >= 3


def test_streams_have_the_papers_settings() -> None:
    parts = yaml.safe_load((Path(conf.__path__[0]) / "experiment" / "streaming.yaml").read_text())["grids"]["paper"]
    (adafest,) = [part for part in parts if part["algorithm"] == ["adafest"] and NORM not in part]
    ratios = adafest["algorithm.noise_ratio"]
    assert (min(ratios), max(ratios)) == (0.1, 10) and adafest["algorithm.contribution_clipping_norm"] == [1, 5, 10]
    (fest,) = [part for part in parts if part["algorithm"] == ["fest"] and NORM not in part]
    rows = fest["algorithm.selection.rows"]
    assert (min(rows), max(rows)) == (100, 300_000)


def test_the_command_line_goes_before_the_grid(tmp_path: Path) -> None:
    base = ["experiment=comparison", "profile=smoke"]
    assert planned(tmp_path, *base, "algorithm=fest,dpsgd").by_algorithm() == {"dpsgd": 1, "fest": 2}
    assert [
        r.config.algorithm.selection.rows
        for r in planned(tmp_path, *base, "algorithm=fest", "algorithm.selection.rows=7,8").runs
    ] == [7, 7, 8, 8]  # either with one k and with k/p a table
    assert len(planned(tmp_path, *base, "seed=0,1,2").runs) == 3 * len(planned(tmp_path, *base).runs)


def test_a_wrong_value_in_a_grid_stops_the_sweep_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"privacy\.epsilon must be a number, not 'two'"):
        planned(tmp_path, "privacy.epsilon=1,two")


def test_an_experiment_without_a_grid_for_the_profile_says_so() -> None:
    config = typed(Composer().compose(["experiment=comparison"]))
    with pytest.raises(UserError, match="has no grid for profile=night; it has one for smoke, demo, paper"):
        products(config.experiment, "night")


def test_datasets_are_made_once_and_every_run_ends(tmp_path: Path, stages: Stages) -> None:
    outcomes = ended(tmp_path, stages, "seed=0,1,2", "sweep.jobs=2")
    assert {seed: outcome.status for seed, outcome in outcomes.items()} == dict.fromkeys(range(3), "done")
    assert (tmp_path / "preprocessed").read_text() == "journey\n"
    assert log_file(outcomes[1].run).read_text() == "training 1\n"


def test_more_threads_than_cores_are_warned_of(
    tmp_path: Path, stages: Stages, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.sweep.cores", lambda: 2)
    ended(tmp_path, stages, "data=names", "seed=0,1", "sweep.jobs=2", "sweep.cores=2")
    assert "warning: 2 runs at once (sweep.jobs) with 2 threads each (sweep.cores) on 2 cores" in capfd.readouterr().err
    ended(tmp_path, stages, "data=names", "seed=2,3", "sweep.jobs=2")
    ended(tmp_path, stages, "data=names", "seed=4", "sweep.jobs=2", "sweep.cores=2")  # one run has both cores
    assert "warning" not in capfd.readouterr().err


def test_a_failed_run_stops_no_other_and_is_retried(tmp_path: Path, stages: Stages) -> None:
    line = ["seed=100,101,102,0", "sweep.jobs=2"]
    outcomes = ended(tmp_path, stages, *line)
    assert {seed: outcome.status for seed, outcome in outcomes.items()} == {
        0: "done",
        100: "failed",
        101: "failed",
        102: "failed",
    }
    assert outcomes[100].reason == "the clipping norm is unheard of."
    assert "was killed (out of memory?)" in outcomes[101].reason
    assert outcomes[102].reason == "ZeroDivisionError: oops"
    assert "Traceback" in log_file(outcomes[102].run).read_text()

    (tmp_path / "mended").touch()
    again = ended(tmp_path, stages, *line)
    assert {seed: outcome.status for seed, outcome in again.items()} == {
        100: "done",
        101: "failed",
        102: "failed",
    }
    assert (outcomes[0].run.folder / "starts").read_text() == "x"


def test_fail_fast_starts_nothing_after_a_failure(tmp_path: Path, stages: Stages) -> None:
    assert list(ended(tmp_path, stages, "seed=0,100,1,2", fail_fast=True)) == [0, 100]


def test_a_dataset_that_cannot_be_made_fails_its_runs_alone(tmp_path: Path, stages: Stages) -> None:
    outcomes = list(run_all(planned(tmp_path, "data=nycflights,criteo_synthetic").runs, stages=stages))
    assert {o.run.config.data.name: (o.status, o.reason) for o in outcomes} == {
        "criteo_synthetic": ("failed", "there is no such file."),
        "nycflights": ("done", ""),
    }


@pytest.mark.long("starts an interpreter that starts runs, and waits for them to stop")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_asks_runs_to_stop_and_starts_no_other(tmp_path: Path, stages: Stages, number: int) -> None:
    script = textwrap.dedent(f"""
        import signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
        sys.path[:0] = [{str(HOME)!r}, {str(tmp_path)!r}]
        from pathlib import Path
        from pipelines.config.compose import Composer
        from pipelines.runs.grid import plan
        from pipelines.sweep import Stages, run_all
        if __name__ == "__main__":
            runs = plan(Composer(), ["paths.runs={tmp_path}", "seed=200,201,202", "sweep.jobs=2"]).runs
            stages = Stages("fake_stages:preprocess", "fake_stages:train")
            for outcome in run_all(runs, stages=stages):
                print(outcome.run.config.seed, outcome.status, flush=True)
    """)
    (tmp_path / "parent.py").write_text(script)
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("journey/adafest/*/starts"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.2)
    os.kill(parent.pid, number)
    out, _ = parent.communicate(timeout=30)
    assert sorted(out.split("\n")) == ["", "200 interrupted", "201 interrupted"]


def test_the_server_of_a_sweep_imports_what_every_task_of_it_needs() -> None:
    """A module that it lacks is imported by every run anew."""
    runs = plan(Composer(), ["profile=smoke", "experiment=map,text"]).runs
    assert {"pipelines.tasks.clicks", "pipelines.tasks.texts"} <= set(preloaded(runs))
    assert "pipelines.tasks.texts" not in preloaded([run for run in runs if run.config.data.task == "clicks"])
