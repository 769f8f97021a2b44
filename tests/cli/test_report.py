"""`dpfest report --list`, as `make estimate` asks it to foretell the work of `make reproduce`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.reports.synthetic import write_cards_of, write_run


def test_a_line_counts_the_runs_of_its_own_overrides_for_the_experiments_that_it_names(dpfest_here: Command) -> None:
    line = ["report", "--list", "profile=smoke", "algorithm=frozen"]
    one = dpfest_here(*line, "experiment=map")
    assert one.returncode == 0 and "experiment=map: 0 of 2 runs; time left is known" in one.stdout, one.stderr
    assert one.stdout.count("experiment=") == 1
    three = dpfest_here(*line, "experiment=map,units", "seed=range(3)").stdout
    assert "experiment=map: 0 of 6 runs" in three and "experiment=units: 0 of 3 runs" in three


@pytest.mark.slow
def test_a_sweeps_line_counts_every_run_that_it_lists(dpfest_here: Command, tmp_path: Path) -> None:
    """Slow: composes whole grids."""
    listed = dpfest_here("report", "--list", "experiment=comparison", "seed=range(3)", "sweep.jobs=2")
    assert listed.returncode == 0, listed.stderr
    assert "experiment=comparison: 0 of 111 runs; time left is known once some are done" in listed.stdout
    assert "experiment=streaming" not in listed.stdout
    several = dpfest_here("report", "--list", "experiment=map,units")
    assert "experiment=map: 0 of 54 runs" in several.stdout and "experiment=units: 0 of 12 runs" in several.stdout
    of_one = dpfest_here("report", "--list", "--only", "fig3").stdout
    assert "experiment=comparison: 0 of 37 runs" in of_one and of_one.count("experiment=") == 1
    measured = dpfest_here("report", "--list", "--only", "audit,speed")
    assert measured.returncode == 0 and measured.stdout.count("to be measured") == 2
    unknown = dpfest_here("report", "--list", "--only", "fig33")
    assert unknown.returncode == 2 and "did you mean fig3?" in unknown.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_asks_for_nothing_or_for_no_folder_is_answered_with_what_to_do(
    dpfest_here: Command, tmp_path: Path
) -> None:
    none = dpfest_here("report", "--list", "experiment=comparison", "seed=range(0)")
    assert none.returncode == 2 and "seed=range(0) has no value" in none.stderr
    empty = dpfest_here("report", "--only", "")
    assert empty.returncode == 2 and "--only fig8,fig3" in empty.stderr
    (tmp_path / "runs").mkdir()
    (tmp_path / "file").touch()
    for place in ("file", "file/below", "/proc/x"):
        asked = dpfest_here("report", f"paths.report={place}", "experiment=text_large_vocabulary")
        assert asked.returncode == 2 and asked.stderr.startswith("error: ") and "set paths.report" in asked.stderr


def test_a_named_experiment_whose_data_are_elsewhere_says_so(dpfest_here: Command) -> None:
    line = ["report", "--list", "profile=paper", "experiment=comparison"]
    asked = dpfest_here(*line, "data.path=nowhere.txt")
    assert asked.returncode == 2 and "There is no file nowhere.txt" in asked.stderr
    # Of all experiments, those that cannot be planned are merely not counted.
    assert dpfest_here(*line[:3], "data.path=nowhere.txt").returncode == 0


@pytest.mark.usefixtures("no_reference")
def test_cards_are_reported_in_place_of_runs_and_new_runs_are_not_sent_to_them(
    dpfest_here: Command, tmp_path: Path
) -> None:
    write_run(tmp_path / "made", "dpsgd", test=0.7)
    write_cards_of(tmp_path / "made", tmp_path / "docs" / "reference" / "all.jsonl.xz")
    line = ["report", "--only", "frontier", "experiment=comparison"]  # the grids of others would be composed, too
    ended = dpfest_here(*line, "paths.runs=docs/reference", "paths.report=drawn")
    assert ended.returncode == 0, ended.stderr
    assert "frontier   incomplete 1 run; " in ended.stdout and "planned" not in ended.stdout  # cards are no sweep
    assert "more runs: dpfest sweep experiment=comparison" in ended.stdout
    text = (tmp_path / "drawn" / "tables" / "frontier.md").read_text()
    assert "0.7000" in text and "&& dpfest report --only frontier paths.report=drawn" in text
    assert "paths.runs" not in text + ended.stdout
    # Of cards nothing is planned: data that the experiment would need may be missing.
    elsewhere = ("profile=paper", "data=criteo_kaggle", "data.path=nowhere.txt")
    one_file = dpfest_here(*line, *elsewhere, "paths.runs=docs/reference/all.jsonl.xz")
    assert one_file.returncode == 0 and "1 run; " in one_file.stdout, one_file.stderr
