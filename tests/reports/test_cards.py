"""A report of run cards alone: the bytes of the report of the runs themselves; what is damaged is named by its line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from reports.build import build
from reports.listing import listing
from reports.reading import load_runs
from tests.once import Once
from tests.reports.conftest import draw_only
from tests.reports.synthetic import write_audit, write_benches, write_cards_of, write_run, write_streaming
from tests.reports.synthetic_texts import write_text_run


@pytest.fixture(scope="module")
def runs(once: Once) -> Path:
    def make(folder: Path) -> None:
        for seed in (0, 1):
            write_run(folder, "nonprivate", test=0.78, epsilon=None, coordinates=190_000, seed=seed)
            write_run(folder, "dpsgd", test=0.72 + 0.001 * seed, seed=seed)
            write_run(folder, "frozen", test=0.69, coordinates=0.0, seed=seed)
            for rows in (300, 3000):
                fest = {"clipping_norm": 1.0, "selection": {"mechanism": "gaussian", "rows": rows}}
                write_run(folder, "fest", test=0.71, coordinates=rows * 11.0, settings=fest, seed=seed)
            for threshold in (5.0, 20.0):
                settings = {"clipping_norm": 1.0, "threshold": threshold, "noise_ratio": 5.0}
                write_run(folder, "adafest", test=0.71, coordinates=5e3 / threshold, settings=settings, seed=seed)
        write_streaming(folder, periods=(1,))
        for name in ("dpsgd", "frozen"):
            write_text_run(folder, name, test=0.9, reduction=1, dataset="sst2")

    return once("report-cards", make)


def contents(folder: Path) -> dict[str, str]:
    """Every file; of a page without the lines that say where a run lies."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    texts = {name: path.read_bytes().decode("latin-1") for name, path in files.items()}
    return {name: re.sub(r'<p class="quiet">.*</p>|aria-label="[^"]* of [^"]*"', "", texts[name]) for name in texts}


def test_cards_give_the_report_of_the_runs_themselves_byte_for_byte(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Benchmarks and audits, too, where they were kept beside the cards; nothing is read from `private/`."""
    cards = write_cards_of(runs, tmp_path / "cards" / "all.jsonl.xz")
    write_audit(cards), write_benches(cards)
    write_audit(tmp_path / "of_runs"), write_benches(tmp_path / "of_runs")
    draw_only(monkeypatch, "svg")
    only = ["fig8", "tab_streaming", "tab_frozen", "speed", "audit"]
    build(runs, tmp_path / "of_runs", only=only)
    build(cards, tmp_path / "of_cards", only=only)
    ours, theirs = contents(tmp_path / "of_cards"), contents(tmp_path / "of_runs")
    measured = {name for name in theirs if name.startswith(("bench/", "audit/"))}
    assert ours.keys() == theirs.keys() - measured and len(ours) > 30
    assert [name for name in ours if ours[name] != theirs[name]] == []
    pages = "".join(ours[name] for name in ours if name.startswith("runs/"))
    assert pages.count('<details class="run"') == len(load_runs(runs)[0])
    whole = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "of_cards" / "runs").iterdir())
    assert re.search(
        r'<p class="quiet">all\.jsonl\.xz, line \d+: make reproduce \(dpfest 0\.1\.0, commit 51c0a5d\)', whole
    )


def test_cards_are_counted_as_runs_are(runs: Path, tmp_path: Path) -> None:
    cards = write_cards_of(runs, tmp_path / "cards" / "all.jsonl")
    of_cards, of_runs = (listing(folder, tmp_path) for folder in (cards, runs))
    assert [line.done for line in of_cards.artifacts] == [line.done for line in of_runs.artifacts]
    assert any(line.done for line in of_cards.artifacts)


def test_damaged_cards_are_named_by_file_and_line_and_left_out(runs: Path, tmp_path: Path, undrawn: None) -> None:
    file = write_cards_of(runs, tmp_path / "all.jsonl") / "all.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    lines[4] = lines[4].replace("nycflights", "mycflights", 1)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "none.jsonl.xz").write_bytes(b"no xz")
    usable, skipped = load_runs(tmp_path)
    assert len(usable) == len(lines) - 2
    assert [left_out.path for left_out in skipped] == ["all.jsonl, line 5", "none.jsonl.xz, line 1"]
    built = build(tmp_path, tmp_path / "report", only=["frontier"])
    assert "left out: all.jsonl, line 5: it is damaged: its checksum does not match" in str(built)
    left_out = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))["skipped"]
    assert left_out[0]["path"] == "all.jsonl, line 5"


def test_a_card_that_no_report_can_use_is_left_out_like_its_folder(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "dpsgd", test=0.7)
    write_run(tmp_path / "runs", "fest", test=0.7, steps=1.5)
    write_cards_of(tmp_path / "runs", tmp_path / "cards.jsonl")
    usable, skipped = load_runs(tmp_path / "cards.jsonl")  # one file, as a folder of them
    assert [run.algorithm for run in usable] == ["dpsgd"]
    assert [(s.path, s.reason) for s in skipped] == [
        ("cards.jsonl, line 3", "steps in summary.json is 1.5, not a whole number above 0")
    ]


def test_a_run_that_is_there_twice_counts_once(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    write_cards_of(runs, tmp_path / "runs" / "all.jsonl")
    once, (twice, skipped) = load_runs(runs)[0], load_runs(tmp_path / "runs")
    assert [run.id for run in twice] == [run.id for run in once]
    assert len(skipped) == len(once) and all("it is the same run as " in left_out.reason for left_out in skipped)


def test_a_run_and_its_card_are_the_same_run(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "fest", test=0.71, settings={"selection": {"rows": 300}})
    write_run(tmp_path / "runs", "fest", test=0.71, settings={"selection": {"rows": 301}})
    write_cards_of(tmp_path / "runs", tmp_path / "cards.jsonl.xz")
    of_folders, of_cards = (load_runs(tmp_path / name)[0] for name in ("runs", "cards.jsonl.xz"))
    assert [run.id for run in of_folders] == [run.id for run in of_cards]
    assert len({run.id for run in of_cards}) == 2
    assert {run.hyperparameters["algorithm"]["selection"]["rows"] for run in of_cards} == {300, 301}
    assert [run.material for run in of_folders] == [run.material for run in of_cards]
