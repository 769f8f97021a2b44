"""`dpfest predict` and `dpfest evaluate`."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tests.cli.conftest import Command
from tests.pipelines.test_train_trained import QUICK, SINGLE, TABLE, clicks


def test_new_rows_are_scored_and_evaluated(dpfest_here: Command, tmp_path: Path) -> None:
    clicks().write_parquet(tmp_path / "clicks.parquet")
    trained = dpfest_here("train", *TABLE, SINGLE, *QUICK, "algorithm=adafest", "model.hidden=[8]")
    assert trained.returncode == 0, trained.stderr
    run = trained.stdout.splitlines()[-1]
    clicks(70).drop("rating").write_parquet(tmp_path / "new.parquet")
    for name in ("scores.parquet", "scores.csv"):
        ended = dpfest_here("predict", run, "data.path=new.parquet", "-o", name)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.splitlines() == [
            "70 rows scored; probabilities after the Platt scaling of the run's validation rows", name
        ]  # fmt: skip
    found, text = pl.read_parquet(tmp_path / "scores.parquet"), pl.read_csv(tmp_path / "scores.csv")
    assert found.columns == ["probability", "logit"] and found.height == 70
    assert found["logit"].to_list() == text["logit"].to_list()
    ended = dpfest_here("evaluate", run, "data.path=clicks.parquet")
    assert ended.returncode == 0 and "examples        900\nAUC             0." in ended.stdout, ended.stderr
    ended = dpfest_here("evaluate", run, "--split", "train")
    assert "warning: epsilon covers the model, and no number that is computed of training rows." in ended.stderr

    (tmp_path / "a.parquet").mkdir()
    (tmp_path / "of").mkdir()
    clicks(70).write_parquet(tmp_path / "of" / "new.parquet")
    for line, said in (
        (["data.path=new.parquet", "-o", "scores.txt"], "--output=scores.txt must end in .parquet or .csv."),
        (
            ["-o", "scores.csv"],
            "Name rows: new ones, as in data.path=new.parquet, or a split of the run's own by --spl",
        ),
        (["--split", "tets", "-o", "scores.csv"], "has no split 'tets'; it has train, validation, test"),
        (["data.path=no.parquet", "-o", "other.csv"], "There is no file no.parquet"),
        (["data.path=new.parquet", "-o", "new.parquet"], "--output=new.parquet is one of the files with the rows"),
        (["data.path=n*.parquet", "-o", "new.parquet"], "--output=new.parquet is one of the files with the rows"),
        (
            ["data.path=*/new.parquet", "-o", "of/new.parquet"],
            "--output=of/new.parquet is one of the files with the rows",
        ),
        (["data.path=of", "-o", "of/new.parquet"], "--output=of/new.parquet is one of the files with the rows"),
        (["data.path=new.parquet", "-o", "a.parquet"], "--output=a.parquet is a folder: name a file."),
        (["data.path=new.parquet", "-o", "new.parquet/a.csv"], "/new.parquet is no folder."),
        (["data.path=new.parquet", "-o", "/proc/a.csv"], "--output=/proc/a.csv cannot be written ("),
    ):
        ended = dpfest_here("predict", run, *line)
        assert ended.returncode == 2 and said in ended.stderr, ended.stderr
    assert not (tmp_path / "other.csv").exists(), "what fails leaves nothing"
    assert pl.read_parquet(tmp_path / "new.parquet").height == 70, "rows that are read are never written over"
