"""`dpfest watch`."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from pathlib import Path

import pytest

from cli.watch import _drawn
from pipelines.runs.watch import SILENT_SECONDS, sweep_now
from pipelines.system.records import Record
from tests.cli.conftest import Command


def test_runs_are_counted_with_their_progress_and_reasons(dpfest_here: Command, tmp_path: Path) -> None:
    records = tmp_path / "runs" / ".sweep"
    names = [f"names/fest/{'abcdef'[number] * 12}" for number in range(6)]
    records.mkdir(parents=True)
    old = Record("failed", "of an earlier sweep")
    old.write(records / f"{'f' * 12}.json")
    os.utime(records / f"{'f' * 12}.json", (0, 0))
    (records / "plan.json").write_text(json.dumps({"runs": names, "started": time.time() - 240}))
    (tmp_path / "runs" / names[0] / "release").mkdir(parents=True)
    (tmp_path / "runs" / names[0] / "release" / "summary.json").write_text("{}")
    Record("failed", "the clipping norm is unheard of.").write(records / f"{'b' * 12}.json")
    for number, age in ((2, 0.0), (3, 2 * SILENT_SECONDS)):
        Record("running").write(records / f"{'abcdef'[number] * 12}.json")
        log = records / f"{'abcdef'[number] * 12}.log"
        log.write_text(f"{names[number]} …\n{names[number]}: 20/113 after 9 s  loss 0.4\n")
        os.utime(log, (time.time() - age,) * 2)
    ended = dpfest_here("watch")
    assert ended.returncode == 0, ended.stderr
    headline, *lines = ended.stdout.splitlines()
    counts = "1 done, 1 running, 1 silent, 1 failed, 2 waiting"
    assert re.fullmatch(f"6 runs, 4 min . s after the start: {counts}; about 8 min . s left", headline)
    assert lines == [
        "failed      names/fest/bbbbbbbbbbbb  the clipping norm is unheard of.",
        "running     names/fest/cccccccccccc  20/113 after 9 s  loss 0.4",
        "silent      names/fest/dddddddddddd  20/113 after 9 s  loss 0.4",
    ]
    now = sweep_now(tmp_path / "runs")
    assert now is not None and _drawn(now).row_count == 3
    for name in ("c", "d"):
        Record("interrupted", "on request").write(records / f"{name * 12}.json")
    headline = dpfest_here("watch").stdout.splitlines()[0]
    rest = "2 interrupted, 2 waiting; nothing is running: the sweep's own command goes on with them"
    assert headline.endswith(f": 1 done, 1 failed, {rest}")


def test_a_sweep_leaves_what_watch_reads_to_its_owner_alone(dpfest_here: Command, tmp_path: Path) -> None:
    line = ["sweep", "profile=smoke", "data=criteo_synthetic", "data.rows=300", "algorithm=nonprivate", "train.steps=1"]
    assert dpfest_here(*line).returncode == 0
    shown = dpfest_here("watch").stdout
    assert shown.startswith("1 run, ") and shown.endswith(" after the start: 1 done\n")
    assert stat.S_IMODE((tmp_path / "runs" / ".sweep" / "plan.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("place", ["runs", "nowhere"])
def test_a_folder_without_a_sweep_is_refused(dpfest_here: Command, place: str) -> None:
    ended = dpfest_here("watch", place)
    assert ended.returncode == 2 and f"No sweep has made runs in {place}: name its folder" in ended.stderr
