"""`dpfest preprocess` of a stream, and what is said when days fail."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.pipelines.data.criteo_text import some_lines


@pytest.fixture
def days(tmp_path: Path) -> list[str]:
    (tmp_path / "source").mkdir()
    for day in range(3):
        content = b"\n".join(some_lines(1_000 + day)) + b"\n"
        (tmp_path / "source" / f"day_{day}.gz").write_bytes(gzip.compress(content, mtime=0))
    return ["preprocess", "data=criteo_1tb", "data.path=source", "data.days=3"]


def test_a_broken_day_stops_no_other_and_those_that_are_there_are_kept(
    dpfest_here: Command, tmp_path: Path, days: list[str]
) -> None:
    whole = (tmp_path / "source" / "day_1.gz").read_bytes()
    (tmp_path / "source" / "day_1.gz").write_bytes(whole[:-3_000])
    failed = dpfest_here(*days)
    assert failed.returncode == 2 and "error: 1 of 3 days of data/criteo_1tb-" in failed.stderr
    (folder,) = (tmp_path / "data").iterdir()
    assert {found.name for found in folder.glob("day_*")} == {"day_00", "day_01.failed", "day_02"}
    (tmp_path / "source" / "day_1.gz").write_bytes(whole)
    ended = dpfest_here(*days)
    assert ended.returncode == 0 and "1 of 3 days made" in ended.stderr
    mended = tmp_path / ended.stdout.splitlines()[-1].partition(" ")[0]
    assert {found.name for found in mended.glob("day_*")} == {"day_00", "day_01", "day_02"}
    assert all((mended / day / "train.rows").samefile(folder / day / "train.rows") for day in ("day_00", "day_02"))


def test_a_day_that_fails_leaves_the_others_and_a_status(dpfest_here: Command, tmp_path: Path, days: list[str]) -> None:
    (tmp_path / "source" / "day_0.gz").write_bytes(b"")
    ended = dpfest_here(*days, "preprocess.jobs=2")
    assert ended.returncode == 2 and ended.stdout == ""
    assert "day 0: source/day_0.gz is empty" in ended.stderr
    assert len(list(tmp_path.glob("data/*/day_0[12]/dataset.json"))) == 2


@pytest.mark.usefixtures("no_reference")
def test_the_card_of_generated_data_makes_them(dpfest_here: Command) -> None:
    line = ["card", "data=criteo_synthetic", "data.rows=300", f"data.vocabulary.sizes={[20] * 26}"]
    ended = dpfest_here(*line)
    assert ended.returncode == 0 and ended.stdout.startswith("criteo_synthetic: 300 rows"), ended.stderr
    again = dpfest_here(*line)
    assert again.stdout == ended.stdout and "there already" in again.stderr


@pytest.mark.slow
def test_the_card_of_a_dataset_makes_it_and_says_where_it_is_from(dpfest_here: Command) -> None:
    """Slow: reads all names."""
    ended = dpfest_here("card", "data=names", "data.rows=2000")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("names: 2,000 rows") and "licence: MIT" in ended.stdout
    again = dpfest_here("card", "data=names", "data.rows=2000")
    assert again.stdout == ended.stdout and "there already" in again.stderr
