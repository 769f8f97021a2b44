"""The report as a whole: files, statuses, what a missing run does, and the same bytes every time."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfest.errors import UserError
from reports.build import build
from reports.commands import Commands
from reports.listing import listing
from reports.pace import RunLength
from reports.registry import ENTRIES
from reports.text import markdown
from tests.reports.synthetic import PARAMETERS, write_audit, write_benches, write_run
from tests.reports.synthetic_texts import write_texts

ROOT = Path(__file__).parents[2]

whole = pytest.mark.long("the first test of the whole report draws its figures, for all of them")


@pytest.fixture
def copy(report: Path, tmp_path: Path) -> Path:
    """A copy of the whole report, to be changed."""
    return shutil.copytree(report, tmp_path / "copy")


def entries(report: Path) -> dict[str, dict[str, Any]]:
    return {entry["id"]: entry for entry in json.loads((report / "report.json").read_text())["artifacts"]}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@whole
def test_every_artifact_has_its_files_its_caption_and_the_command_that_remakes_it(report: Path) -> None:
    built = entries(report)
    index = (report / "index.md").read_text(encoding="utf-8")
    assert list(built) == [entry.id for entry in ENTRIES]
    for artifact in ENTRIES:
        entry = built[artifact.id]
        expected = {f"tables/{artifact.id}.{kind}" for kind in ("md", "csv", "html", "tex")}
        if artifact.figure:
            expected |= {f"figures/{artifact.id}.{kind}" for kind in ("png", "pdf", "svg")}
        assert expected <= set(entry["files"])
        assert all((report / file).stat().st_size > 0 for file in entry["files"])
        command = entry["variants"][0]["command"]
        assert f"dpfest report --only {artifact.id}" in command
        assert command in (report / "tables" / f"{artifact.id}.md").read_text(encoding="utf-8")
        assert command in index and markdown(entry["variants"][0]["caption"]) in index
    assert not [path for path in report.rglob("*") if path.name.endswith(".part")]


@whole
def test_a_whole_comparison_is_complete_and_one_with_planned_runs_to_come_is_not(
    comparison: Path, report: Path, tmp_path: Path, undrawn: None
) -> None:
    assert {entry["status"] for entry in entries(report).values()} == {"complete"}
    planned = {"comparison": {"adafest": 38, "frozen": 2, "fest": 38}}
    build(comparison, tmp_path, only=["fig9", "frontier"], planned=planned)
    built = entries(tmp_path)
    assert (built["fig9"]["status"], built["frontier"]["status"]) == ("complete", "incomplete")
    assert "20 of 38 fest runs" in (tmp_path / "tables" / "frontier.md").read_text(encoding="utf-8")


@whole
def test_fonts_are_embedded_and_nothing_is_dated(report: Path) -> None:
    pdf = (report / "figures" / "fig8.pdf").read_bytes()
    assert b"/Subtype /Type42" in pdf or b"/FontFile2" in pdf
    assert b"/Type3" not in pdf and b"CreationDate" not in pdf
    assert "<dc:date>" not in (report / "figures" / "fig8.svg").read_text(encoding="utf-8")


def test_thresholds_are_chosen_on_validation_and_reported_on_test(tmp_path: Path, undrawn: None) -> None:
    runs = tmp_path / "runs"
    write_run(runs, "dpsgd", validation=0.720, test=0.721)
    write_run(runs, "frozen", validation=0.705, test=0.700, coordinates=0.0)
    write_run(runs, "adafest", validation=0.716, test=0.699, coordinates=100, settings={"threshold": 5.0})
    write_run(runs, "adafest", validation=0.690, test=0.730, coordinates=1, settings={"threshold": 9.0})
    build(runs, tmp_path / "report", only=["fig3"])
    table = rows(tmp_path / "report" / "tables" / "fig3.csv")
    chosen = {(row["loss_threshold"], row["algorithm"]): row for row in table}
    assert {loss for loss, _ in chosen} == {"0.001", "0.005", "0.01", "0.02"}
    adafest = chosen["0.005", "adafest"]
    assert float(adafest["validation_loss"]) == pytest.approx(0.004)
    assert float(adafest["test_loss"]) == pytest.approx(0.022)
    assert adafest["worse_than_frozen"] == "yes"  # 0.699 on test, below 0.700
    assert chosen["0.001", "adafest"]["reduction"] == ""
    assert chosen["0.01", "frozen"]["reduction"] == "" and chosen["0.02", "frozen"]["reduction"] == "inf"


def test_missing_algorithms_leave_artifacts_visibly_incomplete(tmp_path: Path, undrawn: None) -> None:
    runs, report = tmp_path / "runs", tmp_path / "report"
    write_run(runs, "dpsgd", test=0.72)
    write_run(runs, "adafest", test=0.71, coordinates=100.0, settings={"threshold": 5.0, "noise_ratio": 5.0})
    write_run(runs, "frozen", test=0.70, coordinates=0.0)
    write_run(runs, "dpsgd", test=0.73, epsilon=3.0)
    write_run(runs, "adafest", test=0.72, coordinates=100.0, epsilon=3.0)
    build(runs, report, only=["fig4"])
    entry = entries(report)["fig4"]
    assert entry["status"] == "incomplete"
    missing = "\n".join(entry["variants"][0]["missing"])
    assert "No DP-AdaFEST+ (one k) (adafest_plus) runs yet." in missing
    assert "No Frozen embeddings (frozen) runs at ε = 3 yet" in missing
    assert "adafest_plus" in (report / "tables" / "fig4.md").read_text(encoding="utf-8")


def test_without_dpsgd_no_loss_is_made_up(tmp_path: Path, undrawn: None) -> None:
    runs, report = tmp_path / "runs", tmp_path / "report"
    write_run(runs, "fest", test=0.71, coordinates=100.0)
    build(runs, report, only=["fig3", "fig8", "fig1b"])
    assert rows(report / "tables" / "fig3.csv") == []
    assert "no DP-SGD run to compare with" in "\n".join(entries(report)["fig3"]["variants"][0]["missing"])
    assert rows(report / "tables" / "fig8.csv")[0]["test_loss"] == ""


def test_an_empty_runs_folder_builds_a_report_that_says_so(tmp_path: Path, undrawn: None) -> None:
    built = build(tmp_path / "none", tmp_path / "report")
    statuses = {name: entry["status"] for name, entry in entries(tmp_path / "report").items()}
    without_runs = ("fig1a", "fig2", "corrections", "bias_variance", "contribution")  # the last were measured once
    assert {statuses.pop(name) for name in without_runs} == {"complete"}
    assert set(statuses.values()) == {"missing"}
    assert entries(tmp_path / "report")["audit"]["variants"][0]["missing"] == ["Not measured yet: dpfest audit"]
    assert (tmp_path / "report" / "figures" / "fig8.png").exists()
    assert "No runs yet." in str(built)
    assert "dpfest sweep experiment=comparison" in str(built)


def test_folders_left_out_are_in_the_report_and_in_what_is_printed(tmp_path: Path, undrawn: None) -> None:
    (tmp_path / "runs" / "nycflights" / "fest" / "broken").mkdir(parents=True)
    built = build(tmp_path / "runs", tmp_path / "report", only=["frontier"])
    left_out = json.loads((tmp_path / "report" / "report.json").read_text())["skipped"]
    assert left_out == [{"path": "nycflights/fest/broken", "reason": "it has no status.json"}]
    assert "nycflights/fest/broken" in str(built)
    assert "nycflights/fest/broken" in (tmp_path / "report" / "index.md").read_text()


def test_many_folders_left_out_are_one_line_of_what_is_printed(tmp_path: Path, undrawn: None) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "runs" / "nycflights" / "fest" / name).mkdir(parents=True)
    lines = str(build(tmp_path / "runs", tmp_path / "report", only=["frontier"])).splitlines()
    (line,) = [line for line in lines if line.startswith("left out")]
    assert "nycflights/fest/a: it has no status.json; and 2 more" in line
    assert "nycflights/fest/c" in (tmp_path / "report" / "index.md").read_text()


def test_the_commands_in_a_report_hold_all_that_differs_from_the_defaults(tmp_path: Path, undrawn: None) -> None:
    runs, report = tmp_path / "my runs", tmp_path / "report"
    folder = write_run(runs, "dpsgd", test=0.7, dataset="criteo_kaggle", profile="paper")
    config = yaml.safe_load((folder / "release" / "config.yaml").read_text())
    config["data"]["path"], config["model"]["path"] = "/data/train.txt", "/models/roberta"
    write_run(runs, "dpsgd", test=0.7, dataset="criteo_kaggle", profile="paper", seed=2)
    (folder / "release" / "config.yaml").write_text(yaml.safe_dump(config))
    paths = {"paths.runs": str(runs), "paths.data": "/data/processed", "paths.report": str(report)}
    build(runs, report, only=["fig8"], commands=Commands(paths, config_dir=Path("mine")))
    sweep, again = entries(report)["fig8"]["variants"][0]["command"].split(" && ")
    assert shlex.split(sweep) == [
        *("dpfest", "sweep", "--config-dir", "mine", "experiment=comparison", "profile=paper"),
        *("data=criteo_kaggle", "data.path=/data/train.txt", "model.path=/models/roberta", "privacy=rigorous"),
        "seed=0,2",
        *("paths.data=/data/processed", f'paths.runs="{runs}"'),
    ]
    assert shlex.split(again) == [
        *("dpfest", "report", "--only", "fig8", "--config-dir", "mine", "profile=paper"),
        *(f'paths.runs="{runs}"', f"paths.report={report}"),
    ]
    assert sweep in (report / "index.md").read_text()


def test_datasets_and_fidelities_have_files_of_their_own(tmp_path: Path, undrawn: None) -> None:
    runs, report = tmp_path / "runs", tmp_path / "report"
    for test in (0.71, 0.72):
        write_run(runs, "dpsgd", test=test, settings={"clipping_norm": test})
    write_run(runs, "dpsgd", test=0.61, dataset="criteo_kaggle")
    write_run(runs, "dpsgd", test=0.62, fidelity="paper")
    build(runs, report, only=["frontier"])
    values = {path.name: [row["test"] for row in rows(path)] for path in (report / "tables").glob("frontier*.csv")}
    assert values == {
        "frontier.csv": ["0.61"],
        "frontier--nycflights-rigorous.csv": ["0.72"],
        "frontier--nycflights-paper.csv": ["0.62"],
    }
    # Naming a dataset gives it the plain names, and what the earlier build left behind goes.
    build(runs, report, only=["frontier"], dataset="nycflights")
    names = {path.name for path in (report / "tables").glob("frontier*.csv")}
    assert names == {"frontier.csv", "frontier--criteo_kaggle.csv", "frontier--nycflights-paper.csv"}
    assert rows(report / "tables" / "frontier.csv")[0]["test"] == "0.72"
    with pytest.raises(UserError, match="no finished runs on sst2"):
        build(runs, report, dataset="sst2")


def test_plain_names_stand_for_the_same_data_whatever_runs_are_there(tmp_path: Path, undrawn: None) -> None:
    """Fewer runs on clicks than on texts: still the clicks, incomplete, on the page as in the list."""
    runs, report = tmp_path / "runs", tmp_path / "report"
    write_texts(runs)
    write_run(runs, "nonprivate", test=0.78, epsilon=None)
    write_run(runs, "frozen", test=0.70, coordinates=0.0)
    for threshold in (5.0, 10.0, 20.0):
        write_run(runs, "adafest", test=0.71, coordinates=9.0, settings={"threshold": threshold, "noise_ratio": 1.0})
    counts = {"nonprivate": 1, "dpsgd": 3, "frozen": 1, "fest": 5, "adafest": 19, "adafest_plus": 5, "exponential": 3}
    plan = [RunLength("nycflights", "pctr", name, 128) for name, n in counts.items() for _ in range(n)]
    planned = {"comparison": counts}
    build(runs, report, only=["fig3", "fig7", "frontier"], planned=planned)
    built = entries(report)
    listed = {line.name: line for line in listing(runs, report, {"comparison": plan}).artifacts}
    for name in ("fig3", "fig7", "frontier"):
        main = built[name]["variants"][0]
        assert (main["name"], main["dataset"], built[name]["status"]) == (name, "nycflights", "incomplete")
        assert (built[name]["runs_done"], built[name]["runs_needed"]) == (listed[name].done, listed[name].needed)
        assert "sst2" in {variant["dataset"] for variant in built[name]["variants"][1:]}
    # Without any run on clicks the plain name shows nothing, and texts keep a name of their own.
    shutil.rmtree(runs / "nycflights")
    build(runs, report, only=["fig3"])
    entry = entries(report)["fig3"]
    assert entry["status"] == "missing" and entry["variants"][0]["dataset"] is None
    assert (report / "figures" / "fig3--sst2.png").exists() and not (report / "tables" / "fig3.csv").exists()


def test_an_algorithm_with_fewer_seeds_than_the_others_is_not_complete(tmp_path: Path, undrawn: None) -> None:
    runs, report = tmp_path / "runs", tmp_path / "report"
    for seed in (0, 1, 2):
        write_run(runs, "frozen", test=0.7, coordinates=0.0, seed=seed)
    write_run(runs, "adafest", test=0.71, coordinates=9.0, settings={"threshold": 5.0, "noise_ratio": 1.0})
    planned = {"comparison": {"frozen": 1, "adafest": 1}}
    build(runs, report, only=["fig9"], planned=planned)
    entry = entries(report)["fig9"]
    assert (entry["runs_done"], entry["runs_needed"]) == (4, 6)
    assert "Done so far: 1 of 3 adafest runs." in entry["variants"][0]["missing"]
    assert "seeds 0, 1, 2 (1 to 3 per setting)" in entry["variants"][0]["provenance"]
    assert "seed=0,1,2" in entry["variants"][0]["command"]
    # What the line asks for counts, where it says.
    asked = {"comparison": {"frozen": 5, "adafest": 5}}
    build(runs, report, only=["fig9"], planned=asked, commands=Commands(seed="range(5)"))
    assert entries(report)["fig9"]["runs_needed"] == 10
    assert "seed=range(5)" in shlex.split(entries(report)["fig9"]["variants"][0]["command"])


@whole
def test_a_report_that_is_killed_leaves_the_old_one_whole(
    comparison: Path, copy: Path, undrawn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(copy)

    def killed(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("reports.build.page", killed)  # the last that is made
    with pytest.raises(KeyboardInterrupt):
        build(comparison, copy, only=["fig2", "frontier"], dataset="nycflights", commands=Commands(profile="other"))
    assert contents(copy) == before


def test_figures_hold_no_command_and_two_folders_hold_the_same(tmp_path: Path) -> None:
    for name, size, test in (("frozen", 0.0, 0.70), ("fest", 900.0, 0.71), ("dpsgd", PARAMETERS, 0.72)):
        write_run(tmp_path / "runs", name, test=test, coordinates=size)
    for name in ("one", "another"):
        paths = {"paths.report": str(tmp_path / name)}
        build(tmp_path / "runs", tmp_path / name, only=["fig8", "frontier"], commands=Commands(paths))
    one, another = contents(tmp_path / "one"), contents(tmp_path / "another")
    assert one.keys() == another.keys()
    differ = {name for name in one if one[name] != another[name]}
    # Commands stand on the page and beside the tables, and they name the folder.
    assert differ >= {f"tables/{name}.md" for name in ("fig8", "frontier")}
    assert [name for name in differ if name.startswith(("figures", "tables")) and not name.endswith(".md")] == []
    assert str(tmp_path / "one") in one["tables/fig8.md"].decode()


@whole
def test_building_one_artifact_keeps_the_others_in_the_report(comparison: Path, copy: Path) -> None:
    names = ("report.json", "index.md", "index.html")
    before = [(copy / name).read_bytes() for name in names]
    build(comparison, copy, only=["frontier"])
    assert [(copy / name).read_bytes() for name in names] == before


def test_an_unknown_artifact_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean frontier"):
        build(tmp_path, tmp_path / "report", only=["frontir"])
    assert not (tmp_path / "report").exists()


BUILD = """
import sys
from pathlib import Path
from reports.build import build
build(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def rebuilt(comparison: Path, folder: Path, *only: str) -> dict[str, bytes]:
    """The report of another process, with another hash seed, in the user's own matplotlib style."""
    folder.mkdir(exist_ok=True)
    (folder.parent / "matplotlibrc").write_text("font.size: 20\naxes.grid: False\nsvg.fonttype: none\n")
    environment = os.environ | {
        "PYTHONHASHSEED": "7",
        "MATPLOTLIBRC": str(folder.parent),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", BUILD, str(comparison), str(folder), *only]
    subprocess.run(command, check=True, env=environment, cwd=folder.parent)
    return contents(folder)


@pytest.mark.slow
@whole
def test_two_builds_are_byte_identical(comparison: Path, report: Path, tmp_path: Path) -> None:
    """Slow: an interpreter of its own for each build."""
    again = rebuilt(comparison, tmp_path / "report", "fig8", "frontier")
    first = contents(report)
    # Claims of time rest on benchmarks, which the second report does not have.
    files = [
        name
        for name in again
        if name.startswith(("figures", "tables")) and "claims" not in name and "found" not in name
    ]
    assert len(files) == 15, files
    assert [name for name in files if first[name] != again[name]] == []


@pytest.mark.slow
def test_two_whole_reports_are_byte_identical(comparison: Path, report: Path, tmp_path: Path) -> None:
    """Slow: a second whole report; the test before compares the same of two artifacts."""
    write_audit(tmp_path / "report")
    write_benches(tmp_path / "report")
    again = rebuilt(comparison, tmp_path / "report")
    assert {name for name, content in contents(report).items() if again[name] != content} == set()
