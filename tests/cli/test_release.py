"""`dpfest release` at the prompt: what it packs, what it says, what it refuses."""

from __future__ import annotations

import lzma
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from cli.release import finished_runs
from pipelines.runs.cards import read_cards
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
    assert archive.startswith("criteo_synthetic-frozen-") and len(zipfile.ZipFile(archive).namelist()) == 6
    assert re.search(r"epsilon 0\.99\d* at delta", ended.stdout) and "Epsilon holds at delta" in ended.stdout
    assert (
        f"{frozen}: MODEL_CARD.md, SHA256SUMS, config.yaml, ledger.json, model.safetensors, summary.json"
        in ended.stdout
    )

    refused = dpfest_here("release", frozen, nonprivate, "--to", "both.zip")
    assert refused.returncode == 2 and "was trained without privacy" in refused.stderr
    assert not (tmp_path / "both.zip").exists()
    both = dpfest_here("release", frozen, nonprivate, "--to", "both.zip", "--nonprivate")
    assert both.returncode == 0 and len(zipfile.ZipFile("both.zip").namelist()) == 12
    assert "Trained without privacy: nothing is guaranteed." in both.stdout

    assert finished_runs("runs/criteo_synthetic/f") == [frozen]
    assert finished_runs("") == sorted([frozen, nonprivate])


def test_cards_hold_what_may_leave_and_leave_out_runs_that_go_on(
    dpfest_here: Command, trained: dict[str, str], tmp_path: Path
) -> None:
    """Everything of a release but its weights, byte for byte; a run of a sweep that goes on is named and left out."""
    running = tmp_path / "runs" / "criteo_synthetic" / "fest" / "0a1b2c3d4e5f"
    running.mkdir(parents=True)
    (running / "status.json").write_text('{"status": "running"}')
    line = ["release", *trained.values(), str(running), "--cards", "docs/cards.jsonl.xz"]
    assert "add --made-by" in dpfest_here(*line).stderr
    named = [*line, "--made-by", "make reproduce"]
    assert "was trained without privacy" in dpfest_here(*named).stderr and not (tmp_path / "docs").exists()
    written = dpfest_here(*named, "--nonprivate", "--commit", "abc123")
    assert written.returncode == 0, written.stderr
    assert f"left out: {running}: its status is running" in written.stdout
    assert "docs/cards.jsonl.xz: 2 cards, 2 of these runs\n" in written.stdout
    cards, damaged = read_cards(tmp_path / "docs" / "cards.jsonl.xz")
    assert damaged == [] and {card.maker.command for card in cards} == {"make reproduce"}
    assert {card.maker.commit for card in cards} == {"abc123"}
    for card in cards:
        for name in ("config.yaml", "ledger.json", "summary.json"):
            released = Path(trained[card.summary["algorithm"]], "release", name)
            assert card.text(name) == released.read_text(encoding="utf-8")
    # A sweep elsewhere need not make them again.
    sizes = f"data.vocabulary.sizes={[20] * 26}"
    grid = ["sweep", "profile=smoke", sizes, "algorithm=frozen,nonprivate,dpsgd", "paths.runs=elsewhere", "--dry-run"]
    planned = dpfest_here(*grid, "--cards", "docs")
    assert planned.returncode == 0 and "2 done, 1 to do" in planned.stdout, planned.stderr
    assert [line.split()[0] for line in planned.stdout.splitlines()[1:]] == ["done", "done", "to"]
    assert "0 done, 3 to do" in dpfest_here(*grid).stdout
    assert "There are no run cards at runs" in dpfest_here(*grid, "--cards", "runs").stderr
    text = lzma.decompress((tmp_path / "docs" / "cards.jsonl.xz").read_bytes()).decode()
    assert str(tmp_path) not in text and not any(Path(run).name in text for run in trained.values())
    # The same settings on other data: which of the two is meant?
    shutil.copytree(trained["frozen"], tmp_path / "runs" / "criteo_synthetic" / "frozen" / "ffffffffffff")
    twice = dpfest_here(*named, "--nonprivate", "runs/criteo_synthetic/frozen/ffffffffffff")
    assert twice.returncode == 2 and "ffffffffffff have the same settings and seed: give one" in twice.stderr
    # What may not leave is refused here, too, and the file stays as it is.
    Path(trained["frozen"], "release", "notes.txt").write_text("mine")
    refused = dpfest_here(*named, "--nonprivate")
    assert refused.returncode == 2 and "notes.txt is not on the list" in refused.stderr
    assert lzma.decompress((tmp_path / "docs" / "cards.jsonl.xz").read_bytes()).decode() == text


def test_a_line_without_a_run_or_with_a_wrong_one_is_one_sentence(dpfest_here: Command, tmp_path: Path) -> None:
    for line, said in (([], "needs the folder of a run"), (["nowhere"], "nowhere is not the folder of a run")):
        ended = dpfest_here("release", *line)
        assert ended.returncode == 2 and said in ended.stderr and ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
