"""`dpfest release` at the prompt: what it packs, what it says, what it refuses."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from cli.release import finished_runs
from tests.cli.conftest import Command


@pytest.fixture
def trained(dpfest_here: Command, tmp_path: Path, calibrations: Path) -> dict[str, str]:
    """Folders of finished runs by algorithm."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".calibration").symlink_to(calibrations)
    found = {}
    for algorithm in ("frozen", "nonprivate"):
        ended = dpfest_here("train", "profile=smoke", f"data.vocabulary.sizes={[20] * 26}", f"algorithm={algorithm}")
        assert ended.returncode == 0, ended.stderr
        found[algorithm] = ended.stdout.splitlines()[-1]
    return found


def test_it_packs_says_what_it_cost_and_refuses_runs_without_privacy(
    dpfest_here: Command, trained: dict[str, str], tmp_path: Path
) -> None:
    frozen, nonprivate = trained["frozen"], trained["nonprivate"]
    ended = dpfest_here("release", frozen, "profile=smoke")
    assert ended.returncode == 0, ended.stderr
    archive = ended.stdout.splitlines()[-1]
    assert archive.startswith("criteo_synthetic-frozen-") and len(zipfile.ZipFile(archive).namelist()) == 5
    assert re.search(r"epsilon 0\.99\d* at delta", ended.stdout) and "Epsilon holds at delta" in ended.stdout
    assert f"{frozen}: SHA256SUMS, config.yaml, ledger.json, model.safetensors, summary.json" in ended.stdout

    refused = dpfest_here("release", frozen, nonprivate, "--to", "both.zip")
    assert refused.returncode == 2 and "was trained without privacy" in refused.stderr
    assert not (tmp_path / "both.zip").exists()
    both = dpfest_here("release", frozen, nonprivate, "--to", "both.zip", "--nonprivate")
    assert both.returncode == 0 and len(zipfile.ZipFile("both.zip").namelist()) == 10
    assert "Trained without privacy: nothing is guaranteed." in both.stdout

    assert finished_runs("runs/criteo_synthetic/f") == [frozen]
    assert finished_runs("") == sorted([frozen, nonprivate])


def test_a_line_without_a_run_or_with_a_wrong_one_is_one_sentence(dpfest_here: Command, tmp_path: Path) -> None:
    for line, said in (([], "needs the folder of a run"), (["nowhere"], "nowhere is no folder of a run")):
        ended = dpfest_here("release", *line)
        assert ended.returncode == 2 and said in ended.stderr and ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
