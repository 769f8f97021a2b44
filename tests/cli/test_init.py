"""A table of one's own, from the file to the figure, by the commands of docs/OWN_TABLE.md; and refusals."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import polars as pl
import pytest
import yaml

from tests.cli.conftest import HOME, Command
from tests.pipelines.data.clicks.test_table import clicks, written

DOCUMENT = (HOME / "docs" / "OWN_TABLE.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", DOCUMENT, re.DOTALL) for line in block.splitlines()]
SMALL = ["train.steps=2", "train.batch_size=64", "model.hidden=[8]"]


@pytest.fixture
def here(tmp_path: Path, calibrations: Path) -> Path:
    """A working directory with a table clicks.parquet."""
    written(tmp_path, clicks())
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".calibration").symlink_to(calibrations)
    return tmp_path


@pytest.mark.long("some fifteen runs in processes of their own, and a report")
@pytest.mark.usefixtures("no_reference")
def test_nine_steps_lead_from_a_table_to_its_figure(dpfest_here: Command, here: Path) -> None:
    """Three algorithms stand for all."""
    assert [command.split()[1] for command in COMMANDS] == [
        *(
            "init",
            "card",
            "budget",
            "train",
            "train",
            "train",
            "sweep",
            "report",
            "sweep",
            "report",
            "predict",
            "evaluate",
        ),
    ]
    for command in COMMANDS:
        words = shlex.split(command)[1:]
        small = SMALL if words[0] in ("budget", "train", "sweep") else []
        small = ["--only", "fig3"] if words == ["report"] else small
        small = [*small, "algorithm=frozen,dpsgd,adafest"] if "experiment=frontier" in words else small
        cut = ["seed=1" if word.startswith("seed=") else word for word in words]
        if words[0] in ("predict", "evaluate"):
            cut[1] = str(next(here.glob("runs/clicks/adafest/*")))
            (here / cut[2].partition("=")[2]).write_bytes((here / "clicks.parquet").read_bytes())
        ended = dpfest_here(*cut, *small)
        assert ended.returncode == 0, f"{command}: {ended.stdout} {ended.stderr}"
        if words[0] == "train":
            assert "AUC " in ended.stdout
        if "frontier" in words and words[0] == "report":  # the best of the three rates, by name
            table = (here / "report" / "tables" / "frontier.md").read_text(encoding="utf-8")
            assert re.search(r"\| DP-SGD \| [^|]*table lr=\d+ \|", table)
        if words[0] == "init":
            tuned = re.search(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
            assert tuned
            (here / "conf" / "tuned" / "data").mkdir(parents=True)
            (here / "conf" / "tuned" / "data" / "clicks.yaml").write_text(tuned[1], encoding="utf-8")
        if words == ["report"]:
            assert (
                "more runs: dpfest sweep experiment=frontier profile=demo data=clicks privacy=rigorous" in ended.stdout
            )
        if words[0] == "evaluate":
            assert "examples        600" in ended.stdout
    assert (here / "report" / "figures" / "frontiers.png").exists()
    assert "figures/frontiers.png" in (here / "report" / "index.md").read_text(encoding="utf-8")
    (config,) = {
        path.read_text()
        for path in here.glob("runs/clicks/frozen/*/release/config.yaml")
        if "seed: 1" in path.read_text()
    }
    assert yaml.safe_load(config)["optimizer"]["tables"]["learning_rate"] == 30.0


def test_a_proposal_says_what_it_chose_and_what_that_means(dpfest_here: Command, here: Path) -> None:
    ended = dpfest_here("init", "clicks.parquet", "--label", "rating > 3", "--name", "liked")
    assert ended.returncode == 0, ended.stderr
    made = yaml.safe_load((here / "conf" / "data" / "liked.yaml").read_text())
    assert made["label"] == "rating > 3" and made["path"] == "clicks.parquet" and made["name"] == "liked"
    assert "the rows of a table are your public statement" in ended.stdout
    assert "a guess from 600 of 600 rows" in ended.stdout and "dpfest train data=liked algorithm=fest" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["clicks.parquet", "--name", "journey"], "journey is the name of other data: give one of letters"),
        (["clicks.parquet", "--name", "a/b"], "a/b is no name of data"),
        (["clicks.parquet", "--name", "taken"], "taken.yaml exists: edit it, or replace it with --force"),
        (["clicks.parquet", "--label", "clicks"], "--label names the column clicks, and the table has "),
        (["nowhere.parquet"], "There is no file nowhere.parquet"),
        (["empty.csv"], "empty.csv is empty"),
        (["unlabelled.csv"], "No column holds 0 and 1, or true and false, in every row: name the label with --label"),
        (["both.csv"], "Several columns could be the label (a, b): choose one with --label."),
        (["numbers.csv"], "No column looks like a category"),
        (["parted.csv"], "parted.csv has one column, shop;clicked: commas part the values of .csv files"),
        (
            ["words.csv"],
            "(clicked holds no, yes: leave out rows without a label, and write words as 1 and 0): name the label",
        ),
        (["words.csv", "--label", "clicked"], "The label clicked holds no, yes: a label is 1 or 0"),
    ],
)
def test_what_cannot_be_proposed_is_refused(dpfest_here: Command, here: Path, arguments: list[str], said: str) -> None:
    (here / "conf" / "data").mkdir(parents=True)
    (here / "conf" / "data" / "taken.yaml").write_text("name: mine\n")
    (here / "empty.csv").touch()
    (here / "unlabelled.csv").write_text("user_id,price\n1,2.5\n2,3.5\n1,1.5\n")
    (here / "both.csv").write_text("user_id,a,b\n1,0,1\n2,1,0\n1,1,1\n")
    (here / "words.csv").write_text("shop,clicked\na,yes\nb,no\na,no\n")
    (here / "parted.csv").write_text("shop;clicked\na;1\nb;0\n")
    (here / "numbers.csv").write_text("clicked,price\n1,2.5\n0,3.5\n1,1.5\n")
    ended = dpfest_here("init", *arguments)
    assert ended.returncode == 2 and said in ended.stderr
    assert (here / "conf" / "data" / "taken.yaml").read_text() == "name: mine\n"
    assert not [path for path in (here / "conf" / "data").iterdir() if path.name != "taken.yaml"]


def test_a_folder_of_somebody_else_is_refused(dpfest_here: Command, here: Path) -> None:
    (here / "conf").touch()  # no user may write into it
    ended = dpfest_here("init", "clicks.parquet", "--label", "rating > 3")
    assert ended.returncode == 2 and "clicks.yaml cannot be written (Not a directory): start dpfest in" in ended.stderr


def test_force_replaces(dpfest_here: Command, here: Path) -> None:
    assert dpfest_here("init", "clicks.parquet").returncode == 0
    (here / "conf" / "data" / "clicks.yaml").write_text("name: broken\n")
    assert dpfest_here("init", "clicks.parquet", "--force").returncode == 0
    assert yaml.safe_load((here / "conf" / "data" / "clicks.yaml").read_text())["name"] == "clicks"


def test_a_name_is_made_of_the_files(dpfest_here: Command, here: Path) -> None:
    (here / "my clicks.v2").mkdir()
    written(here / "my clicks.v2", clicks()[:100], "a.csv")
    written(here / "my clicks.v2", clicks()[100:], "b.csv")
    assert dpfest_here("init", "my clicks.v2").returncode == 0
    assert dpfest_here("init", "my clicks.v2/*.csv", "--force").returncode == 0
    made = yaml.safe_load((here / "conf" / "data" / "my_clicks.yaml").read_text())
    assert made["path"] == "my clicks.v2/*.csv"
    assert pl.read_csv(here / "my clicks.v2" / "a.csv").height == 100


def test_files_that_differ_are_refused_as_a_table_refuses_them(dpfest_here: Command, here: Path) -> None:
    (here / "parts").mkdir()
    (here / "parts" / "a.csv").write_text("clicked,user_id\n0,1\n1,2\n")
    (here / "parts" / "b.csv").write_text("clicked,user\n0,1\n1,2\n")
    ended = dpfest_here("init", "parts")
    assert ended.returncode == 2
    assert "parts/b.csv has no column user_id, which parts/a.csv names; did you mean user?" in ended.stderr


def test_the_command_of_a_model_card_finds_the_run_done(dpfest_here: Command, tmp_path: Path) -> None:
    """Where the table is described as `dpfest init` names it."""
    rows = {"item": [f"i{n % 7}" for n in range(400)], "clicked": [n % 2 for n in range(400)]}
    pl.DataFrame(rows).write_parquet(tmp_path / "clicks.parquet")
    assert dpfest_here("init", "clicks.parquet").returncode == 0
    line = ("algorithm=fest", "algorithm.selection.rows=3", "train.batch_size=50", "privacy.epsilon=3")
    assert dpfest_here("train", "data=clicks", *line).returncode == 0
    (card,) = tmp_path.glob("runs/clicks/fest/*/release/MODEL_CARD.md")
    command = next(text for text in card.read_text().splitlines() if text.startswith("dpfest train"))
    assert dpfest_here(*shlex.split(command)[1:]).stdout.startswith("done before: ")
