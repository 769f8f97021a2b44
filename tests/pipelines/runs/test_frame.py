"""Finished runs as a frame: the same of folders and of their cards, and refusals by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import typed
from pipelines.preprocess import preprocess
from pipelines.runs.cards import Maker, card, write_cards
from pipelines.runs.release import checked
from pipelines.train import make_run
from pipelines.train.trained import frame

SMALL = ["profile=smoke", "data=criteo_synthetic", "data.rows=200", f"data.vocabulary.sizes={[20] * 26}"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs of different algorithms."""
    home = tmp_path_factory.mktemp("home")
    for algorithm in ("algorithm=fest", "algorithm=nonprivate"):
        places = [f"paths.data={home / 'data'}", f"paths.runs={home / 'runs'}", "privacy.noise_seed=5"]
        config = typed(Composer().compose([*SMALL, algorithm, "train.batch_size=20", "train.steps=2", *places]))
        preprocess(config)
        make_run(config)
    return home / "runs"


def test_a_line_for_each_run_with_its_settings_and_results(runs: Path) -> None:
    found = frame(runs)
    assert found.height == 2 and set(found["algorithm.name"]) == {"fest", "nonprivate"}
    fest = found.row(by_predicate=pl.col("algorithm.name") == "fest", named=True)
    run = checked(runs / fest["run"])
    assert fest["utility.value"] == run.summary["utility"]["value"]
    assert fest["privacy.epsilon"] == run.summary["privacy"]["epsilon"]
    assert fest["algorithm.selection.rows"] == run.config["algorithm"]["selection"]["rows"]
    assert found.filter(pl.col("algorithm.name") == "nonprivate")["algorithm.selection.rows"].to_list() == [None]
    assert fest["privacy.target_epsilon"] == 1.0
    assert found.filter(pl.col("algorithm.name") == "nonprivate")["privacy.epsilon"].to_list() == [None]
    assert found["seed"].dtype == pl.Int64 and found["utility.value"].dtype == pl.Float64
    assert not {"privacy.noise_seed", "privacy", "periods"} & set(found.columns)


def test_cards_give_the_same_columns(runs: Path, tmp_path: Path) -> None:
    folders = [path.parent.parent for path in runs.glob("*/*/*/release/summary.json")]
    maker = Maker("0.1.0", None, "a command")
    write_cards(tmp_path / "cards.jsonl.xz", [card(checked(folder), maker) for folder in folders])
    order = ["algorithm.name"]
    by_folder, by_card = (frame(place).drop("run").sort(order) for place in (runs, tmp_path / "cards.jsonl.xz"))
    assert by_card.select(sorted(by_card.columns)).equals(by_folder.select(sorted(by_folder.columns)))


def test_runs_of_a_private_search_that_did_not_leave_are_no_lines_of_it(runs: Path, tmp_path: Path) -> None:
    """They lie in a hidden folder, and no epsilon covers looking at them."""
    shutil.copytree(runs, tmp_path / "runs")
    fest = next((tmp_path / "runs").glob("*/fest/*"))
    shutil.copytree(fest, tmp_path / "runs" / ".searches" / "criteo_synthetic" / "0a1b2c3d4e5f")
    shutil.copytree(runs, tmp_path / "runs" / ".searches" / "criteo_synthetic" / "0a1b2c3d4e5f" / "runs")
    (fest.parent / "0a1b2c3d4e5f").mkdir()  # one that has not finished
    assert frame(tmp_path / "runs").height == frame(runs).height == 2


def test_what_cannot_be_read_is_named(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no folder nowhere"):
        frame("nowhere")
    with pytest.raises(UserError, match="has no finished run"):
        frame(tmp_path)
    shutil.copytree(runs, tmp_path / "runs")
    path = next((tmp_path / "runs").glob("*/fest/*/release/summary.json"))
    path.write_text("{")
    with pytest.raises(UserError, match="release cannot be read"):
        frame(tmp_path / "runs")
