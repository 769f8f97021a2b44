"""What `dpfest report --list` says: runs done and needed, and the time left at this machine's pace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reports.bench import read
from reports.listing import Line, listing
from reports.pace import Pace, RunLength, seconds
from reports.reading import load_runs
from tests.reports.synthetic import write_bench, write_benches, write_comparison, write_run


def comparison(**algorithms: int) -> dict[str, list[RunLength]]:
    """An experiment of so many runs an algorithm, 128 steps each."""
    return {"comparison": [run(algorithm) for algorithm, count in algorithms.items() for _ in range(count)]}


def run(
    algorithm: str, steps: int = 128, data: str = "nycflights", model: str = "pctr", evaluated: float | None = None
) -> RunLength:
    return RunLength(data, model, algorithm, steps, evaluated)


def lines(folder: Path, planned: dict[str, list[RunLength]] | None = None, jobs: int = 1) -> dict[str, Line]:
    found = listing(folder, folder / "report", planned, jobs)
    return {line.name: line for line in [*found.artifacts, *found.experiments]}


def test_runs_of_each_artifact_are_counted(tmp_path: Path) -> None:
    write_comparison(tmp_path, epsilons=(1.0,), seeds=(0,))
    found = lines(tmp_path, comparison(adafest=20, frozen=1, dpsgd=3, nonprivate=1))
    assert (found["fig9"].done, found["fig9"].needed) == (20, 21)
    assert found["fig9"].runs == "  20 of   21 runs"
    assert found["fig2"].runs == "needs no runs" and found["fig2"].time == ""
    assert {line.needed for line in lines(tmp_path).values() if line.source == "comparison"} == {None}
    assert "unknown" in str(listing(tmp_path, tmp_path))


def test_the_rest_takes_as_long_as_what_is_done_took(tmp_path: Path) -> None:
    for norm in (1.0, 2.0):
        write_run(tmp_path, "dpsgd", test=0.7, settings={"clipping_norm": norm})  # 20 s of 128 steps each
    write_run(tmp_path, "frozen", test=0.7, wall_seconds=10.0)
    planned = comparison(dpsgd=8, frozen=3)
    found = lines(tmp_path, planned)
    assert found["experiment=comparison"].left == pytest.approx(6 * 20 + 2 * 10)
    assert (found["fig7"].left, found["fig7"].needed) == (pytest.approx(140), 11)
    assert (found["fig9"].left, found["fig9"].needed) == (pytest.approx(20), 3)  # of frozen embeddings alone
    assert lines(tmp_path, planned, jobs=2)["experiment=comparison"].left == pytest.approx(70)
    # Twice as many steps take twice as long; an algorithm that never ran, nobody knows how long.
    long = {"comparison": [run("dpsgd", 256)] * 3}
    assert lines(tmp_path, long)["experiment=comparison"].left == pytest.approx(40)
    assert lines(tmp_path, comparison(dpsgd=2, adafest=1))["experiment=comparison"].time == "unknown"
    assert lines(tmp_path, comparison(dpsgd=2))["experiment=comparison"].time == ""


def test_a_run_took_what_its_files_say_unless_they_were_copied(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "dpsgd", test=0.7)
    (found,) = load_runs(tmp_path)[0]
    for end, taken in ((33.0, 33.0), (2.0, 20.0), (5000.0, 20.0)):
        os.utime(folder / "private" / "config.yaml", (1000.0, 1000.0))
        os.utime(folder / "release" / "summary.json", (1000.0 + end, 1000.0 + end))
        assert seconds(found) == taken


def test_steps_evaluations_and_the_rest_are_estimated_each_by_itself(tmp_path: Path) -> None:
    """A short run is mostly start and evaluation, a long one steps."""
    timings = {"evaluation_seconds": 8.0, "evaluated_examples": 4_000}
    folder = write_run(tmp_path, "dpsgd", test=0.7, wall_seconds=64.0, timings=timings)  # 128 steps
    os.utime(folder / "private" / "config.yaml", (1000.0, 1000.0))
    os.utime(folder / "release" / "summary.json", (1075.0, 1075.0))  # 3 s of it are neither
    pace = Pace(load_runs(tmp_path)[0])
    assert pace.run(run("dpsgd")) == pytest.approx(75)
    assert pace.run(run("dpsgd", 1280, evaluated=4_000)) == pytest.approx(640 + 8 + 3)
    assert pace.run(run("dpsgd", 10, evaluated=40_000)) == pytest.approx(5 + 80 + 3)
    assert pace.run(run("dpsgd", 10, data="journey", evaluated=500)) == pytest.approx(5 + 1 + 3)
    assert pace.run(run("adafest")) is None


def test_the_benchmark_estimates_evaluations_as_well(tmp_path: Path) -> None:
    write_bench(tmp_path, "step", {("adafest", 338_782): 0.5, ("evaluation", 338_782): 0.128}, "adafest")
    pace = Pace([], read(tmp_path, "step"))
    assert pace.run(run("adafest", 60, evaluated=2_048_000)) == pytest.approx(30 + 128)
    assert pace.run(run("adafest", 60)) == pytest.approx(30)


def test_before_the_first_run_the_benchmark_estimates(tmp_path: Path) -> None:
    times = {("adafest", 338_782): 0.5, ("adafest", 1_693_910): 0.9}
    write_bench(tmp_path / "report", "step", times, "adafest")
    plan = {"comparison": [run("adafest", 17_907, "criteo_kaggle")] * 4}
    left = lines(tmp_path, plan, jobs=2)["experiment=comparison"].left
    assert left == pytest.approx(4 * 17_907 * 0.5)  # it had the machine to itself, which two runs at once share
    assert "9 h 56 min left with 2 at once" in str(listing(tmp_path, tmp_path / "report", plan, 2))
    pace = Pace([], read(tmp_path / "report", "step"))
    assert pace.step(run("dpsgd")) is None
    assert pace.step(run("adafest", model="roberta")) is None  # another model's steps take another time


def test_what_is_measured_says_whether_it_is(tmp_path: Path) -> None:
    assert lines(tmp_path)["speed"].runs == "to be measured"
    assert "(dpfest bench embedding)" in str(listing(tmp_path, tmp_path))
    write_benches(tmp_path / "report")
    assert lines(tmp_path)["speed"].runs == "measured"


def test_runs_of_another_profile_are_no_part_of_this_one(tmp_path: Path) -> None:
    write_run(tmp_path, "dpsgd", test=0.7)
    plan = comparison(dpsgd=1)
    counts = {profile: listing(tmp_path, tmp_path, plan, profile=profile).experiments for profile in ("demo", "paper")}
    assert {profile: line.done for profile, (line,) in counts.items()} == {"demo": 1, "paper": 0}
