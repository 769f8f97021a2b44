"""A rule and a model of one's own at the prompt, as docs/OWN.md says: trained, swept, planned, audited and reported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command, write_own_parts

SMOKE = ("profile=smoke", "data=names", "data.rows=3000", "device=cpu")


@pytest.fixture
def own(tmp_path: Path, prepared: Path, calibrations: Path) -> tuple[str, ...]:
    """The files that the document shows, in the folder of the command; where its data are."""
    write_own_parts(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".calibration").symlink_to(calibrations)
    return (*SMOKE, f"paths.data={prepared}")


@pytest.mark.slow
@pytest.mark.long("starts a process for each run of a sweep, and builds a report")
def test_they_run_in_every_command(dpfest_here: Command, own: tuple[str, ...], tmp_path: Path) -> None:
    for command in ("sweep", "train"):  # the second finds what the first has made
        rule = ["algorithm=rules.py:EveryOther", "algorithm.nth=3", "model=models.py:TwoTower", "model.options.width=8"]
        ended = dpfest_here(command, *own, *rule)
        assert ended.returncode == 0, ended.stderr
    assert "done before: names EveryOther" in ended.stdout
    ended = dpfest_here("sweep", *own, "algorithm=every_other,fest", "model=two_tower")
    assert ended.returncode == 0 and "2 runs (1 every_other, 1 fest): 0 done, 2 to do." in ended.stdout
    ended = dpfest_here("budget", *own, "budget.examples=50000", "algorithm=every_other")
    assert ended.returncode == 0 and re.search(r"algorithm +every_other", ended.stdout)
    ended = dpfest_here(
        "release",
        *(str(path) for path in (tmp_path / "runs").glob("names/*/*")),
        "--cards",
        "c.jsonl",
        "--made-by",
        "a test",
    )
    assert ended.returncode == 0, ended.stderr
    ended = dpfest_here("report", "profile=smoke", "paths.runs=c.jsonl", "--only", "fig8")
    assert ended.returncode == 0, ended.stderr
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "every_other" in page and "algorithm.nth=3" in page and "algorithm.code" not in page.split("<pre")[0]
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/*/*/release/summary.json")]
    assert sorted((one["model"], one["algorithm"]) for one in summaries) == [
        ("module", "EveryOther"), ("two_tower", "every_other"), ("two_tower", "fest"),
    ]  # fmt: skip


def test_rules_of_ones_own_and_the_librarys_are_audited_together(
    dpfest_here: Command, own: tuple[str, ...], tmp_path: Path
) -> None:
    quick = ("audit", "audit.draws=1000", "audit.canaries=0", "privacy.noise_seed=0")
    ended = dpfest_here(*quick, "algorithm=every_other,frozen")
    assert ended.returncode == 0, ended.stderr
    audits = json.loads((tmp_path / "report" / "audit" / "audit.json").read_text())["audits"]
    assert [one["algorithm"] for one in audits] == ["frozen", "every_other"]


def test_what_cannot_be_trained_is_one_sentence(dpfest_here: Command, own: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "models.py"
    path.write_text(path.read_text().replace("nn.ReLU()", "nn.BatchNorm1d(width)"))
    ended = dpfest_here("train", *own, "algorithm=fest", "model=two_tower")
    assert ended.returncode == 2 and re.search(
        r"error: model\.target=models\.py:TwoTower: The layer .*BatchNorm1d", ended.stderr
    )
    assert not (tmp_path / "runs" / ".selections").exists()
