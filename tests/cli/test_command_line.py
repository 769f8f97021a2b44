"""What a user meets at the prompt: help, errors, Hydra's flags, and an empty folder that stays empty."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.examples import EXAMPLES
from cli.sweep import _follow
from cli.tasks import describe
from pipelines.config.compose import Composer
from pipelines.runs.grid import plan
from pipelines.sweep import Outcome
from tests.cli.conftest import HOME, Command

COMMANDS = [name for name in EXAMPLES if name != "dpfest"]
WITH_OVERRIDES = [name for name in COMMANDS if name not in ("config", "init", "predict", "evaluate", "watch")]


def test_importing_the_command_imports_nothing_heavy() -> None:
    heavy = "torch polars matplotlib sklearn scipy dp_accounting hydra numpy"
    code = f"import sys, cli.main; print(sorted(set('{heavy}'.split()) & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_every_example(dpfest_here: Command, command: str) -> None:
    shown = dpfest_here(command, "--help")
    assert shown.returncode == 0
    for line in EXAMPLES[command].split("\n\n")[1:]:
        assert line.strip() in shown.stdout


def test_help_of_the_whole_lists_every_command(dpfest_here: Command) -> None:
    shown = dpfest_here("--help").stdout
    for command in COMMANDS:
        assert f" {command} " in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["algorithm.treshold=20"], "there is no key algorithm.treshold; did you mean algorithm.threshold?"),
        (["treshold=20"], "there is no key treshold; did you mean algorithm.threshold?"),
        (["+algorithm.treshold=20"], "there is no key algorithm.treshold; did you mean algorithm.threshold?"),
        (["algoritm=fest"], "there is no key algoritm; did you mean algorithm?"),
        (["algorithm=adafestt"], "there is no algorithm=adafestt; did you mean algorithm=adafest?"),
        (["algorithm.threshold=high"], "algorithm.threshold must be a number, not 'high'."),
        (["privacy.epsilon=-1"], "privacy.epsilon must be a number from 0.01 to 1,000, not -1."),
        (["model.hidden=[16,x]"], "model.hidden[1] must be a whole number, not 'x'."),
        (["data=criteo_kaggle"], "data.path must be set: add data.path=... to the command."),
        (
            ["data.path=p/a,b.txt"],
            """for one value with a comma in it 'data.path="p/a,b.txt"'""",
        ),
        (["data=criteo_kaggle", "data.path=p/${HOME}.txt"], "data.path holds ${HOME}, which is read as the value of"),
        (["seed=1,2"], "seed=1,2 names several values: for a run of each use `dpfest sweep` or --multirun"),
        (["train.epochs"], "Hydra cannot read the override train.epochs; write key=value"),
        (["-m", "seed=1,2", "train.epochs=1,two"], "train.epochs must be a number, not 'two'."),
        (
            ["-m", "algorithm=fest,adafestt"],
            "there is no algorithm=adafestt; did you mean algorithm=adafest?",
        ),
        (["--config-dir", "nowhere", "-m", "seed=1,2"], "--config-dir: there is no folder nowhere."),
        (["paths.runs=a=b"], "quote the value for Hydra, and all for the shell: 'paths.runs=\"a=b\"'."),
        (["seed=-1"], "seed must be a whole number from 0 to 9,223,372,036,854,775,807, not -1."),
        (["seed=1" + "0" * 30], "seed must fit in 64 bits"),
        (["budget.examples=-5"], "budget.examples must be a whole number from 1 to"),
        (["-m", "seed=glob(*)"], "seed=glob(*) matches no choice: glob(...) chooses files of a group."),
        (
            ["-m", "algorithm=glob(x*)"],
            "algorithm=glob(x*) matches no choice; algorithm is one of adafest, adafest_plus,",
        ),
        (["--cfg"], "argument --cfg/-c: expected one argument"),
    ],
)
def test_a_wrong_line_is_one_sentence_before_any_work(
    dpfest_here: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    ended = dpfest_here("train", "profile=smoke", *arguments)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_same_in_a_process_of_its_own(dpfest: Command) -> None:
    ended = dpfest("train", "algorithm.treshold=20")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: there is no key algorithm.treshold; did you mean algorithm.threshold?\n"


def test_cfg_job_prints_the_configuration_and_leaves_nothing(dpfest_here: Command, tmp_path: Path) -> None:
    shown = dpfest_here("train", "algorithm=fest", "algorithm.selection.rows=77", "--cfg", "job", "-p", "algorithm")
    assert shown.returncode == 0, shown.stderr
    assert "rows: 77" in shown.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", WITH_OVERRIDES)
def test_every_command_shows_its_configuration(dpfest_here: Command, command: str) -> None:
    shown = dpfest_here(command, "privacy.epsilon=3", "--cfg", "job", "--package", "privacy")
    assert shown.returncode == 0, shown.stderr
    assert "epsilon: 3" in shown.stdout


def test_help_of_train_leads_to_the_reference_of_its_keys(dpfest_here: Command) -> None:
    assert "`dpfest config train`" in dpfest_here("train", "--help").stdout
    assert "train.batch_size=2048" in dpfest_here("config", "train").stdout
    refused = dpfest_here("config", "algorithm=adafset")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.endswith("did you mean algorithm=adafest?\n")


@pytest.mark.parametrize(
    "hydra",
    [
        "callbacks: {c: {_target_: shutil.copyfile, src: a, dst: b}}",
        'callbacks: {c: {"_targ\\u0065t_": shutil.copyfile, src: a, dst: b}}',
        "job_logging: {handlers: {x: {(): os.system}}}",
        "job_logging: {handlers: {x: {class: shutil.copyfile, src: a, dst: b}}}",
    ],
)
def test_settings_of_somebody_else_that_name_code_are_refused(dpfest_here: Command, tmp_path: Path, hydra: str) -> None:
    (tmp_path / "theirs" / "experiment").mkdir(parents=True)
    text = f"# @package _global_\nhydra: {{{hydra}}}\n"
    (tmp_path / "theirs" / "experiment" / "nice.yaml").write_text(text)
    ended = dpfest_here("budget", "--config-dir", "theirs", "experiment=nice")
    assert ended.returncode == 2 and "nice.yaml names code to run" in ended.stderr
    assert not (tmp_path / "b").exists()


def test_what_made_several_runs_of_a_sweep_fail_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    runs = plan(Composer(), ["data=names", "algorithm=frozen,dpsgd", "seed=1,2"]).runs
    reasons = ["train.txt is cut off.", "no memory.", "train.txt is cut off.", "train.txt is cut off."]
    ended = [Outcome(run, "failed", reason) for run, reason in zip(runs, reasons, strict=True)]
    assert _follow(iter(ended), runs, 4) == 1
    shown = capsys.readouterr().out.split("4 failed.\n")[1].splitlines()
    assert shown[::2] == [f"failed: {runs[0]} and 2 more: {reasons[0]}", f"failed: {runs[1]}: {reasons[1]}"]
    assert shown[1].startswith("        dpfest train data=names algorithm=frozen seed=1    (log: ")


@pytest.mark.parametrize("more", [(), ("search=poisson", "search.mean=2")], ids=["sweep", "search"])
def test_a_sweep_into_a_folder_that_cannot_be_written_says_so_before_it_starts(
    dpfest_here: Command, more: tuple[str, ...]
) -> None:
    """/proc takes no file from anybody, root included."""
    ended = dpfest_here(
        "sweep", "data=criteo_synthetic", "profile=smoke", "algorithm=dpsgd", "paths.runs=/proc/x", *more
    )
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert "error: paths.runs=/proc/x cannot be written (" in ended.stderr


def test_a_config_dir_adds_to_the_shipped_files(dpfest_here: Command, tmp_path: Path) -> None:
    (tmp_path / "mine" / "algorithm").mkdir(parents=True)
    (tmp_path / "mine" / "algorithm" / "gentle.yaml").write_text("defaults: [adafest]\nthreshold: 3.5\n")
    line = ["--config-dir", "mine", "--cfg", "job", "--package", "algorithm"]
    assert "threshold: 3.5" in dpfest_here("train", "algorithm=gentle", *line).stdout
    planned = dpfest_here("sweep", "--config-dir", "mine", "--dry-run", "profile=smoke", "algorithm=gentle,dpsgd")
    assert "2 runs (1 adafest, 1 dpsgd)" in planned.stdout, planned.stderr


def test_budget_runs_under_multirun_without_litter(dpfest_here: Command, tmp_path: Path) -> None:
    line = ["budget.examples=100000", "train.steps=10", "algorithm=nonprivate", "privacy.epsilon=1,8"]
    ended = dpfest_here("budget", "--multirun", *line)
    assert ended.returncode == 0, ended.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}


@pytest.mark.slow
def test_a_suggested_batch_size_can_be_planned_as_it_is_printed(dpfest_here: Command, tmp_path: Path) -> None:
    """Slow: calibrates at many sizes."""
    line = ["budget.examples=6000", "train.batch_size=512", "algorithm=dpsgd", "data=journey"]
    ended = dpfest_here("budget", "--plan", *line)
    assert ended.returncode == 0, ended.stderr
    suggested = re.search(r"^suggested: (train\.batch_size=(\d+)) (train\.steps=\d+)$", ended.stdout, re.MULTILINE)
    assert suggested
    row = next(row.split() for row in ended.stdout.splitlines() if row.endswith("suggested"))
    again = dpfest_here("budget", *line, suggested[1], suggested[3])
    sigma = re.search(r"^noise multiplier σ +([\d.]+)$", again.stdout, re.MULTILINE)
    assert sigma and float(row[3]) == pytest.approx(float(sigma[1]), rel=0.01)
    assert row[0].replace(",", "") == suggested[2]
    assert not list(tmp_path.glob("outputs*"))


def test_a_small_epsilon_keeps_its_digits() -> None:
    privacy = {
        "epsilon": 0.00009996,
        "delta": 1e-6,
        "fidelity": "paper",
        "sampling": "shuffled",
        "sound_epsilon": 12.3456,
    }
    summary = {
        "dataset": "d", "algorithm": "dpsgd", "privacy": privacy, "embedding_gradient": {"reduction": 1.0},
        "utility": {"metric": "auc", "value": 0.7, "split": "test", "validation": 0.7},
    }  # fmt: skip
    line = describe(summary)
    assert "epsilon 9.996e-05 at delta 1e-06" in line
    assert "sound epsilon 12.35," in line


def test_a_shadowed_package_is_named(dpfest: Command, tmp_path: Path) -> None:
    other = tmp_path / "site" / "reports"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    ended = dpfest("--help", PYTHONPATH=f"{tmp_path / 'site'}:{HOME}")
    assert ended.returncode == 2
    assert "the package reports of dpfest" in ended.stderr
    assert str(other) in ended.stderr


def test_a_report_without_a_folder_of_runs_says_so(dpfest_here: Command, tmp_path: Path) -> None:
    for line in (["report"], ["report", "--list", "paths.runs=typo"]):
        ended = dpfest_here(*line)
        assert ended.returncode == 2
        assert "there is no folder" in ended.stderr and "paths.runs" in ended.stderr
    assert dpfest_here("report", "--list", "experiment=text_large_vocabulary").returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("no_reference")
def test_a_report_takes_several_artifacts_and_its_commands_name_the_runs(dpfest_here: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    line = ["report", "--only", "fig2,fig8", "--only", "frontier", "experiment=comparison", "profile=smoke"]
    ended = dpfest_here(*line, "paths.runs=mine")
    assert ended.returncode == 0, ended.stderr
    assert [line.split()[0] for line in ended.stdout.splitlines()[:3]] == ["fig2", "fig8", "frontier"]
    assert "dpfest sweep experiment=comparison profile=smoke paths.runs=mine" in ended.stdout
