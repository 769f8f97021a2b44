"""A table of one's own at the prompt: trained as typed, under a name of its own, and refused in one sentence."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from pipelines.config.compose import Composer
from pipelines.config.settings import typed
from pipelines.runs.release import checked
from tests.cli.conftest import HOME, Command
from tests.pipelines.data.clicks.test_table import clicks, written

TYPED = [
    "data.label=clicked",
    "data.categorical={user: 8192, item: 131072}",
    'data.numeric={price: log1p, age: "standard(40, 15)"}',
]
QUICK = ["train.steps=2", "train.batch_size=32", "model.hidden=[8]"]
OWN = """
defaults: [table, _self_]
name: clicks
path: parts/*.csv
label: rating > 3
categorical: {user: 64}
numeric: {price: log1p}
unit: [household_id]
"""


@pytest.fixture
def own(tmp_path: Path, calibrations: Path) -> Path:
    """A working directory with a table, which conf/data/clicks.yaml describes."""
    written(tmp_path, clicks())
    for folder in ("parts", "conf/data", "runs"):
        (tmp_path / folder).mkdir(parents=True)
    written(tmp_path / "parts", clicks()[:300], "a.csv")
    written(tmp_path / "parts", clicks()[300:], "b.csv")
    (tmp_path / "conf" / "data" / "clicks.yaml").write_text(OWN)
    (tmp_path / "runs" / ".calibration").symlink_to(calibrations)
    return tmp_path


def test_a_table_is_trained_as_typed(dpfest_here: Command, own: Path) -> None:
    ended = dpfest_here("train", "data=table", "data.path=clicks.parquet", *TYPED, *QUICK, "algorithm=dpsgd")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("table dpsgd: AUC ") and "epsilon 0.99" in ended.stdout
    (run,) = (own / "runs" / "table" / "dpsgd").iterdir()
    tables = checked(run).summary["embedding_gradient"]["tables"]
    assert [(table["name"], table["rows"]) for table in tables] == [("item", 131072), ("user", 8192)]


def test_a_file_of_ones_own_gives_it_a_name(dpfest_here: Command, own: Path) -> None:
    """From conf/ of the working directory or from --config-dir; the command line adds to its columns."""
    more = ["data.categorical={item: 128}", "+data.numeric.visits=none", "~data.numeric.price"]
    ended = dpfest_here("train", "data=clicks", *more, *QUICK, "privacy.unit=household_id")
    assert ended.returncode == 0, ended.stderr
    (run,) = (own / "runs" / "clicks" / "adafest").iterdir()
    release = checked(run)
    assert release.summary["dataset"] == "clicks" and release.summary["privacy"]["unit"] == "household"
    data = release.config["data"]
    assert (data["kind"], data["path"], data["unit"]) == ("table", "*.csv", ["household_id"])
    assert (data["categorical"], data["numeric"]) == ({"user": 64, "item": 128}, {"visits": "none"})
    shutil.move(own / "conf", own / "mine")
    again = dpfest_here("train", "--config-dir", "mine", "data=clicks", *more, *QUICK, "privacy.unit=household_id")
    assert again.stdout.startswith("done before: clicks adafest"), again.stderr
    lost = dpfest_here("train", "data=clicks")
    assert lost.returncode == 2 and "there is no data=clicks" in lost.stderr


def test_a_sweep_and_a_multirun_take_mappings(dpfest_here: Command, own: Path) -> None:
    swept = dpfest_here("sweep", "data=clicks", "data.categorical={item: 16},{item: 32}", *QUICK, "--dry-run")
    assert swept.returncode == 0, swept.stderr
    assert swept.stdout.count("clicks/adafest/") == 2
    shown = dpfest_here("preprocess", "--multirun", "data=clicks", "data.categorical={item: 16},{item: 32}")
    assert shown.returncode == 0, shown.stderr
    sizes = [json.loads(path.read_text())["made_with"]["categorical"] for path in own.glob("data/*/dataset.json")]
    assert sorted(size["item"] for size in sizes) == [16, 32]


@pytest.mark.usefixtures("no_reference")
def test_it_has_a_card_and_a_reference(dpfest_here: Command, own: Path) -> None:
    card = dpfest_here("card", "data=clicks")
    assert card.stdout.startswith("clicks: 600 rows") and "1 tables of 64 rows" in card.stdout
    reference = dpfest_here("config", "data=table").stdout
    for key in ("path", "label", "categorical", "numeric", "unit", "kind"):
        assert f"  data.{key}=" in reference
    assert "a public number" in " ".join(reference.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["data=table"], "data.path must be set: add data.path=... to the command."),
        (["data=table", "data.path=clicks.parquet"], "data.label must be set: add data.label=... to the command."),
        (["data=clicks", "data.days=4"], "there is no key data.days"),
        (["data=clicks", "data.split.held_out=0.1"], "there is no key data.split.held_out"),
        (["data=clicks", "algorithm=fest", "algorithm.selection.source=streaming"], "data=clicks is no stream"),
        (["data=clicks", "data.categorical={user: many}"], "data.categorical.user must be a whole number, not 'many'."),
        (["data=clicks", "data.categorical={user: 0}"], "data.categorical.user must be a whole number from 1 to"),
        (["data=clicks", "data.vocabulary={polcy: hash}"], "there is no key data.vocabulary.polcy; did you mean"),
        (["data=clicks", "daat={user: 1}"], "there is no key daat; did you mean data?"),
        (["data=clicks", "data.numeric={age: standard(40, 15)}"], "put texts of more than a word in quotes"),
        (["data=clicks", "data.label=rating > 3"], 'data.label="rating > 3"\''),
        (["data=clicks", "privacy.unit=user_id"], "is no column of units of data=clicks, which has household_id"),
        (["data=clicks", "data.name=journey"], "data.name=journey is the name of other data: give yours another."),
        (["data=clicks", "data.kind=tabel"], "did you mean data=table?"),
        (["data=clicks", "model=roberta"], "model=roberta cannot be trained on data=clicks"),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_any_work(
    dpfest_here: Command, own: Path, arguments: list[str], said: str
) -> None:
    ended = dpfest_here("preprocess", *arguments)
    assert ended.returncode == 2 and said in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (own / "data").exists()


def test_a_file_without_a_kind_is_told_how_to_name_one(dpfest_here: Command, own: Path) -> None:
    (own / "conf" / "data" / "clicks.yaml").write_text(yaml.safe_dump({"name": "clicks", "path": "x.csv"}))
    said = dpfest_here("preprocess", "data=clicks").stderr
    assert "data.name=clicks is none of journey" in said and "a table of your own says kind: table." in said


def test_the_example_of_the_document_is_a_table(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", (HOME / "docs" / "DATA.md").read_text(encoding="utf-8"), flags=re.S)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "clicks.yaml").write_text(example)
    data = typed(Composer(tmp_path).compose(["data=clicks"])).data
    data.check()
    assert (data.kind, data.name, data.units, data.label) == ("table", "clicks", ("household_id",), "rating > 3")


def test_a_mapping_replaces_nothing_and_the_schema_refuses_what_it_lacks() -> None:
    config = typed(Composer().compose(["data=criteo_synthetic", "optimizer.dense={options: {eps: 1.0e-6}}"]))
    assert config.optimizer.dense.options == {"eps": 1e-6} and config.optimizer.dense.name == "adam"
