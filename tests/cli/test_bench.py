"""`dpfest bench` at the prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.bench import _table
from pipelines.bench.records import Record
from tests.cli.conftest import Command


@pytest.mark.slow
@pytest.mark.usefixtures("short_turns")
def test_a_section_is_printed_as_a_table_and_kept(dpfest_here: Command, tmp_path: Path) -> None:
    """Slow: memory is measured in processes of their own, which import torch."""
    ended = dpfest_here("bench", "embedding", "--repeats", "1", "profile=smoke")
    assert ended.returncode == 0, ended.stderr
    path = Path("report") / "bench" / "embedding.json"
    assert ended.stdout.splitlines()[0] == "2,000 rows of 64" and ended.stdout.splitlines()[-1] == str(path)
    found = json.loads((tmp_path / path).read_text())["records"]
    for record in found:
        assert f"  {record['competitor']}" in ended.stdout and f"{record['ratio']:,.3f}" in ended.stdout
    assert "adafest* " in ended.stdout  # what the ratios are to
    assert [entry.name for entry in tmp_path.iterdir()] == ["report"]


def test_a_wrong_section_is_one_sentence(dpfest_here: Command, tmp_path: Path) -> None:
    ended = dpfest_here("bench", "peer", "profile=smoke")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: there is no benchmark peer; did you mean peers?\n"
    assert list(tmp_path.iterdir()) == []


def test_what_a_step_takes_of_a_gpu_is_printed_beside_its_time() -> None:
    values = {"operations": 114.0, "waits": 0, "device_seconds": 0.001, "longest": {}}
    record = Record(section="device", competitor="adafest", case="pCTR", reference="adafest", values=values)
    assert _table("pCTR", [record]) == "pCTR\n  competitor\n  adafest*    114 operations, 0 waits, 1.000 ms busy\n"
