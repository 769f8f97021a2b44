"""`make reproduce`: what it calls, in which order, and that it estimates the paper's work before it starts."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[1]
STAND_IN = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in *--list*) echo "experiment=some: 0 of 9 runs; the rest takes 5 h with 2 at once";; esac
"""


def reproduce(
    tmp_path: Path, *variables: str, target: str = "reproduce", stand_in: str = STAND_IN
) -> tuple[subprocess.CompletedProcess, list]:
    """Run make with a stand-in for dpfest; returns how it ended, and the words of each call."""
    log, environment = tmp_path / "log", tmp_path / "venv"
    (environment / "bin").mkdir(parents=True)
    dpfest = environment / "bin" / "dpfest"
    dpfest.write_text(stand_in.format(log=log))
    dpfest.chmod(0o755)
    for made in (".ready", ".dev"):
        (environment / made).touch()  # newer than what the environment is made from
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    ended = subprocess.run(
        ["make", target, f"VENV={environment}", "JOBS=2", *variables],
        cwd=HOME, env=clean, capture_output=True, text=True,
    )  # fmt: skip
    lines = log.read_text().splitlines() if log.exists() else []
    return ended, [shlex.split(line) for line in lines]


def started(calls: list[list[str]]) -> list[str]:
    """Command and experiment or section of each call."""
    more = {"sweep": named, "bench": lambda call: call[1:2]}
    return [" ".join([call[0], *more.get(call[0], lambda _: [])(call)]) for call in calls]


def named(call: list[str]) -> list[str]:
    """The experiment of a call."""
    return [word for word in call if word.startswith("experiment=")]


def test_the_demo_makes_runs_then_measures_then_reports(tmp_path: Path) -> None:
    ended, calls = reproduce(tmp_path, "SEEDS=2")
    assert ended.returncode == 0, ended.stderr
    names = started(calls)
    assert names[-4:] == ["bench embedding", "bench step", "audit", "report"]
    # The first figures come early: those of journey.
    experiments = "comparison,streaming,units,map,text,text_large_vocabulary"
    assert names[:3] == ["sweep experiment=comparison", "report", f"sweep experiment={experiments}"]
    assert calls[1][-2:] == ["--only", "fig3"] and "--only" not in calls[-1]
    assert "data=journey" in calls[0] and "data=journey" not in calls[2]
    assert "seed=range(2)" in calls[-1]  # so that it knows how many runs are complete
    *sweeps, others, fest, adafest = (call for call in calls if call[0] == "sweep")
    assert all({"seed=range(2)", "profile=demo", "sweep.jobs=2"} <= set(call) for call in sweeps)
    assert all(
        {"seed=range(3)", "data=journey", "experiment=comparison"} <= set(call) for call in (others, fest, adafest)
    )
    assert "algorithm=dpsgd,frozen" in others and {"algorithm=adafest", "algorithm.noise_ratio=1"} <= set(adafest)
    assert {"algorithm=fest", "algorithm.selection.rows=30000,100000"} <= set(fest)
    assert "bench.seconds=10" in calls[-4] and "bench.seconds=1" in calls[-3]


@pytest.mark.parametrize("failing", ["audit", "bench step"])
def test_a_measurement_that_fails_ends_it(tmp_path: Path, failing: str) -> None:
    stand_in = STAND_IN.replace("case", f'case "$*" in "{failing}"*) exit 3;; esac\ncase', 1)
    ended, calls = reproduce(tmp_path, stand_in=stand_in)
    assert ended.returncode != 0 and sum(call[0] == "report" for call in calls) == 1


def test_an_experiment_with_arguments_of_its_own_is_a_sweep_of_its_own(tmp_path: Path) -> None:
    _, calls = reproduce(tmp_path, "STREAM_ARGS=stream.period=4")
    sweeps = [call for call in calls if call[0] == "sweep"]
    others = ["comparison", "streaming", "units", "map", "text", "text_large_vocabulary"]
    assert [named(call) for call in sweeps[1:-3]] == [[f"experiment={name}"] for name in others]
    assert ["stream.period=4" in call for call in sweeps[1:-3]] == [name == "streaming" for name in others]


def test_the_papers_work_is_on_the_data_that_are_named(tmp_path: Path) -> None:
    ended, calls = reproduce(tmp_path, "PROFILE=paper", "CRITEO=/d/train.txt", "CRITEO_1TB=/d/1tb")
    assert ended.returncode == 0, ended.stderr
    one, other = (call for call in calls if call[0] == "sweep")
    assert {"experiment=comparison", "data.path=/d/train.txt"} <= set(one)
    assert {"experiment=streaming", "data.path=/d/1tb"} <= set(other)
    estimated = [call for call in calls if "--list" in call]
    assert [named(call) for call in estimated] == [["experiment=comparison"], ["experiment=streaming"]]
    assert "0 of 9 runs; the rest takes 5 h" in ended.stdout
    assert "data.path=/d/1tb" in estimated[1] and calls.index(estimated[1]) < calls.index(one)


@pytest.mark.parametrize("engine", ["ray", "slurm"])
def test_a_cluster_carries_the_runs(tmp_path: Path, engine: str) -> None:
    _, calls = reproduce(tmp_path, "PROFILE=smoke", f"ENGINE={engine}", "ENGINE_ARGS=sweep.cores=4 sweep.gpus=0.25")
    sweeps = [set(call) for call in calls if call[0] == "sweep"]
    assert sweeps and all({f"sweep.engine={engine}", "sweep.cores=4", "sweep.gpus=0.25"} <= sweep for sweep in sweeps)
    _, calls = reproduce(tmp_path / "here", "PROFILE=smoke")
    assert not any(word.startswith("sweep.engine") for call in calls for word in call)


def test_a_path_is_one_override_whatever_is_in_it(tmp_path: Path) -> None:
    from pipelines.config.compose import Composer

    path = "/x/Läufe mit Raum, a=b/it's 'so' \"named\".txt"
    work = ["PROFILE=paper", f"CRITEO={path}", f"GLUE={path}", "ROBERTA=/r", f"XNLI={path}", f"XLM_R={path}"]
    shown = subprocess.run(["make", "-n", "reproduce", *work], cwd=HOME, capture_output=True, text=True, check=True)
    found = []
    for line in shown.stdout.splitlines():
        if " sweep " in line or " report profile" in line:
            words = [word for word in shlex.split(line) if word.startswith(("data.path=", "model.path="))]
            found.append([override.value() for override in Composer(None).parse(words)])
    glue = [[f"{path}/{task}", "/r"] for task in ("SST-2", "QNLI", "QQP")]
    assert found == [[path], [path], *glue, [path, path], [path]]


def test_only_what_is_named_is_made_and_naming_nothing_is_refused(tmp_path: Path) -> None:
    ended, calls = reproduce(tmp_path / "one", "PROFILE=paper", "CRITEO_1TB=/d/1tb", target="estimate")
    assert ended.returncode == 0 and [named(call) for call in calls if "--list" in call] == [["experiment=streaming"]]
    assert not any(call[0] == "sweep" for call in calls)
    ended, calls = reproduce(tmp_path / "none", "PROFILE=paper")
    assert ended.returncode != 0 and calls == []
    assert "PROFILE=paper needs the paper's data" in ended.stderr


def test_glue_is_three_tasks_and_each_has_its_folder(tmp_path: Path) -> None:
    _, calls = reproduce(tmp_path, "PROFILE=paper", "GLUE=/d/glue", "ROBERTA=/d/roberta")
    sweeps = [set(call) for call in calls if call[0] == "sweep"]
    assert [{"data=sst2", "data.path=/d/glue/SST-2"} <= sweep for sweep in sweeps] == [True, False, False]
    assert all({"experiment=text", "model.path=/d/roberta", "profile=paper"} <= sweep for sweep in sweeps)


@pytest.mark.parametrize("profile", ["smoke", pytest.param("demo", marks=pytest.mark.documents)])
def test_every_command_of_it_is_understood(tmp_path: Path, profile: str) -> None:
    """Every line of the recipe composes: Hydra shows its configuration instead of doing the work.

    Documents for the demo: hundreds of runs.
    """
    from pipelines.config.compose import Composer
    from pipelines.config.settings import typed

    _, calls = reproduce(tmp_path, f"PROFILE={profile}")
    for call in calls:
        overrides = [word for word in call if "=" in word and not word.startswith("--")]
        for _, cfg in Composer(None).expand(overrides):
            typed(cfg)
