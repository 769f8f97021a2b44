"""`dpfest report --list`, as `make reproduce` asks it to foretell its work."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command


def test_a_sweeps_line_counts_every_run_that_it_lists(dpfest_here: Command, tmp_path: Path) -> None:
    listed = dpfest_here("report", "--list", "experiment=comparison", "seed=range(3)", "sweep.jobs=2")
    assert listed.returncode == 0, listed.stderr
    assert "experiment=comparison: 0 of 108 runs; how long the rest takes shows once some are done" in listed.stdout
    assert "experiment=streaming" not in listed.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_named_experiment_whose_data_are_elsewhere_says_so(dpfest_here: Command) -> None:
    line = ["report", "--list", "profile=paper", "experiment=comparison"]
    asked = dpfest_here(*line, "data.path=nowhere.txt")
    assert asked.returncode == 2 and "There is no file nowhere.txt" in asked.stderr
    # Of all experiments, those that cannot be planned are merely not counted.
    assert dpfest_here(*line[:3], "data.path=nowhere.txt").returncode == 0
