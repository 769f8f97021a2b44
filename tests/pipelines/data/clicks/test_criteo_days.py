"""Criteo's days: three kinds of files give the same rows, a broken day stops no other, a kill loses one at most."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from dpfest.errors import UserError
from pipelines.data import parquet
from pipelines.data.clicks import blocks, writer
from pipelines.data.clicks.criteo_days import Criteo1TBConfig
from pipelines.data.dataset import Dataset
from pipelines.data.stream import Stream
from tests.pipelines.data.criteo_text import run, some_lines

REPOSITORY = Path(__file__).parents[4]
NAMES = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]


def _lines(day: int, rows: int = 200) -> list[bytes]:
    lines = some_lines(rows + day)
    return lines[day:]


def _frame(lines: list[bytes]) -> pl.DataFrame:
    """As a tool would read the text: whole numbers and text, blanks as null."""
    fields = [[text.decode() or None for text in line.split(b"\t")] for line in lines]
    frame = pl.DataFrame(fields, schema=dict.fromkeys(NAMES, pl.String), orient="row")
    return frame.with_columns(pl.col(NAMES[:14]).cast(pl.Int32))


def _write(folder: Path, name: str, lines: list[bytes]) -> Path:
    path = folder / name
    folder.mkdir(exist_ok=True)
    content = b"\n".join(lines) + b"\n"
    if path.suffix == ".parquet":
        _frame(lines).write_parquet(path, row_group_size=70)
    else:
        path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def _source(folder: Path, days: int = 3, rows: int = 200) -> Criteo1TBConfig:
    for day in range(days):
        _write(folder, f"day_{day}.gz", _lines(day, rows))
    return Criteo1TBConfig(path=str(folder), days=days)


def _rows(stream: Path) -> list[bytes]:
    return [(day.folder / f"{part}.rows").read_bytes() for day in Stream.open(stream).days for part in day.rows]


@pytest.mark.parametrize(
    "names", [["day_0", "day_1.tsv", "day_2.txt"], ["day_00.parquet", "day_1.tsv.gz", "day_2.parquet"]]
)
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, names: list[str]) -> None:
    packed = run(_source(tmp_path / "gz"), tmp_path / "data")
    for day, name in enumerate(names):
        _write(tmp_path / "other", name, _lines(day))
    other = run(Criteo1TBConfig(path=str(tmp_path / "other"), days=3), tmp_path / "data")
    assert _rows(packed) == _rows(other)
    (source,) = Stream.open(other).days[0].description["sources"]
    assert source["path"].endswith(names[0]) and len(source["sha256"]) == 64


def test_parquet_is_refused_and_skipped_as_text_is(tmp_path: Path) -> None:
    frame = _frame(_lines(0)).with_columns(pl.col("I1", "I2").cast(pl.Float64))
    spoilt = frame.with_columns(
        C3=pl.when(pl.int_range(pl.len()) == 17).then(pl.lit("two\nlines\tand")).otherwise("C3"),
        I2=pl.when(pl.int_range(pl.len()) == 30).then(1.5).otherwise("I2"),
        label=pl.when(pl.int_range(pl.len()) == 40).then(2).otherwise("label"),
    )
    (tmp_path / "source").mkdir()
    spoilt.write_parquet(tmp_path / "source" / "day_0.parquet")
    with pytest.raises(UserError, match=r"day_0\.parquet, row 18: .*data\.on_bad_row=skip"):
        run(Criteo1TBConfig(path=str(tmp_path / "source"), days=1), tmp_path / "data")
    skipping = Criteo1TBConfig(path=str(tmp_path / "source"), days=1, on_bad_row="skip")
    skipped = run(skipping, tmp_path / "data")
    (day,) = Stream.open(skipped).days
    assert day.description["rejected_rows"]["total"] == 3 and sum(day.rows.values()) == 197
    good = [line for i, line in enumerate(_lines(0)) if i not in (17, 30, 40)]
    _write(tmp_path / "good", "day_0.tsv", good)
    plain = run(Criteo1TBConfig(path=str(tmp_path / "good"), days=1), tmp_path / "data")
    assert _rows(plain) == _rows(skipped)


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (_frame(_lines(0, 3)).drop("C26"), "39 columns, but 40 are wanted"),
        (_frame(_lines(0, 3)).with_columns(C1=pl.lit(7)), r"column 15 \(C1\) is of type Int32, but text of 8 hex"),
        (_frame(_lines(0, 3)).with_columns(I1=pl.lit("7")), r"column 2 \(I1\) is of type String, but a whole number"),
        (_frame(_lines(0, 3)).clear(), "is empty: it holds no row"),
    ],
)
def test_parquet_of_other_columns_is_refused(tmp_path: Path, frame: pl.DataFrame, said: str) -> None:
    (tmp_path / "source").mkdir()
    frame.write_parquet(tmp_path / "source" / "day_0.parquet")
    with pytest.raises(UserError, match=said):
        run(Criteo1TBConfig(path=str(tmp_path / "source"), days=1), tmp_path / "data")


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_broken_day_stops_itself_alone(tmp_path: Path, jobs: int) -> None:
    """Slow where days have processes of their own."""
    config = _source(tmp_path / "source", days=4, rows=1_000)
    for name, keep in (("day_1.gz", 7_000), ("day_2.gz", 0)):
        path = tmp_path / "source" / name
        path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError) as stopped:
        run(config, tmp_path / "data", jobs)
    said = str(stopped.value)
    assert "2 of 4 days of" in said and "could not be made; the others are there." in said
    assert "day 1: " in said and "day_1.gz is a truncated or corrupt .gz: line " in said
    assert "day 2: " in said and "day_2.gz is empty" in said
    (folder,) = (tmp_path / "data").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        *("day_00", "day_01.failed", "day_02.failed", "day_03", "stream.json")
    ]
    assert sum(Dataset.open(folder / "day_03").rows.values()) == 1_000
    with pytest.raises(UserError, match=r"Day 1 of .* is missing .*the last attempt failed: .*truncated"):
        Stream.open(folder)
    # The others serve as a stream of their own, and once the files are mended they are not made again.
    apart = run(Criteo1TBConfig(path=str(tmp_path / "source"), days=[0, 3]), tmp_path / "data", jobs)
    assert Stream.open(apart).day_numbers == [0, 3]
    whole = run(_source(tmp_path / "source", days=4, rows=1_000), tmp_path / "data", jobs)
    assert Stream.open(whole).rows_of_day == [1_000] * 4
    assert (whole / "day_03" / "train.rows").samefile(folder / "day_03" / "train.rows")
    assert not list(whole.glob("*.failed"))


def test_a_broken_parquet_day_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path / "source", "day_0.parquet", _lines(0))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"day_0\.parquet is a truncated or corrupt Parquet file: row 0 is the last"):
        run(Criteo1TBConfig(path=str(path.parent), days=1), tmp_path / "data")
    assert "1 day to make, how many rows is unknown" in capsys.readouterr().err


def test_a_changed_day_is_remade_alone(tmp_path: Path) -> None:
    before = run(_source(tmp_path / "source"), tmp_path / "data")
    _write(tmp_path / "source", "day_1.gz", _lines(7))
    after = run(Criteo1TBConfig(path=str(tmp_path / "source"), days=3), tmp_path / "data")
    shared = [(after / day / "train.rows").samefile(before / day / "train.rows") for day in ("day_00", "day_02")]
    assert after != before and shared == [True, True]
    assert (after / "day_01" / "train.rows").read_bytes() != (before / "day_01" / "train.rows").read_bytes()


def test_moved_files_are_known_again(tmp_path: Path) -> None:
    folder = run(_source(tmp_path / "source"), tmp_path / "data")
    (tmp_path / "source").rename(tmp_path / "elsewhere")
    assert run(Criteo1TBConfig(path=str(tmp_path / "elsewhere"), days=3), tmp_path / "data") == folder


def test_checksums_and_rejected_rows_are_recorded_by_day(tmp_path: Path) -> None:
    _source(tmp_path / "source", days=2)
    _write(tmp_path / "source", "day_1.gz", [*_lines(1), b"nonsense", b"nonsense"])
    with pytest.raises(UserError, match=r"day 1: .*day_1\.gz, line 201: .*data\.on_bad_row=skip"):
        run(Criteo1TBConfig(path=str(tmp_path / "source"), days=2), tmp_path / "data")
    skipping = Criteo1TBConfig(path=str(tmp_path / "source"), days=2, on_bad_row="skip")
    days = Stream.open(run(skipping, tmp_path / "data")).days
    assert [day.description["rejected_rows"]["total"] for day in days] == [0, 2]
    assert days[0].description["sources"][0]["sha256"] != days[1].description["sources"][0]["sha256"]
    assert [day.description["made_with"]["day"] for day in days] == [0, 1]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "day_1.gz").unlink(), r"no file for day 1: .* leave it out: data\.days=\[0,2\]"),
        (lambda folder: _write(folder, "day_1.tsv", _lines(1)), r"Day 1 has two files, day_1\.gz and day_1\.tsv"),
        (lambda folder: _write(folder, "day_01.gz", _lines(1)), r"Day 1 has two files, day_01\.gz and day_1\.gz"),
        (lambda folder: (folder / "day_2.parquet").mkdir(), r"day_2\.parquet is a folder, but a day is one file"),
        (lambda folder: shutil.rmtree(folder), "There is no folder .*source: set data.path to the folder that holds"),
    ],
)
def test_a_folder_that_is_not_right_is_refused_before_work_starts(  # type: ignore[no-untyped-def]
    tmp_path: Path, spoil, said: str
) -> None:
    config = _source(tmp_path / "source")
    spoil(tmp_path / "source")
    with pytest.raises(UserError, match=said):
        run(config, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_the_wrong_folder_is_met_with_the_right_one(tmp_path: Path) -> None:
    _source(tmp_path / "source")
    with pytest.raises(UserError, match=rf"holds none of day_0\.gz, .*did you mean data.path={tmp_path}/source"):
        run(Criteo1TBConfig(path=str(tmp_path)), tmp_path / "data")
    with pytest.raises(UserError, match=r"day_0\.gz is a file, not a folder"):
        run(Criteo1TBConfig(path=str(tmp_path / "source" / "day_0.gz")), tmp_path / "data")


@pytest.mark.parametrize("days", [0, [], [1, 0], [0, 0], [-1, 2]])
def test_days_without_meaning_are_refused(tmp_path: Path, days: int | list[int]) -> None:
    _source(tmp_path / "source")
    with pytest.raises(UserError, match=r"data\.days must be a number of days above 0, or increasing day numbers"):
        run(Criteo1TBConfig(path=str(tmp_path / "source"), days=days), tmp_path / "data")


@pytest.mark.slow
def test_days_made_in_processes_are_the_same(tmp_path: Path) -> None:
    """Slow: starts processes that import torch, and makes two days twice."""
    config = _source(tmp_path / "source")
    assert _rows(run(config, tmp_path / "one")) == _rows(run(config, tmp_path / "two", jobs=2))


def test_it_foretells_rows_and_disk_and_says_how_fast_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _source(tmp_path / "source", days=2, rows=2_000)
    monkeypatch.setattr("pipelines.data.days.progress.__wrapped__.__defaults__", (0.0,))
    run(config, tmp_path / "data")
    said = capsys.readouterr().err.splitlines()
    words = said[0].split()
    rows = int(words[words.index("rows;") - 1].replace(",", ""))
    assert said[0].startswith("criteo_1tb: 2 days to make, about ") and 3_900 < rows < 4_100
    assert "0.7 MB of disk (" in said[0] and "about 0 s with 1 at once" in said[0]
    assert any(re.search(r": \d[\d,]*/\d[\d,]* after \d+ s  \d[\d,]* rows/s, \d+ s left", line) for line in said)


def _script(folder: Path, config: Criteo1TBConfig, before: str = "") -> list[str]:
    return [
        sys.executable,
        "-c",
        f"{before}\n"
        "from pathlib import Path\n"
        "from pipelines.data.clicks.criteo_days import Criteo1TBConfig\n"
        "from tests.pipelines.data.criteo_text import run\n"
        f"print(run(Criteo1TBConfig(path={config.path!r}, days={config.days!r}), Path({str(folder)!r})))",
    ]


_STOP_ON_DAY_1 = """
import time, pipelines.data.clicks.writer as writer
write = writer._write_block
def half(records, *rest):
    write(records, *rest)
    if records["day"][0] == 1:
        print("half", flush=True)
        time.sleep(600)
writer._write_block = half
"""


@pytest.mark.slow
def test_a_kill_loses_the_day_in_the_making_and_no_other(tmp_path: Path) -> None:
    config = _source(tmp_path / "source")
    command = _script(tmp_path / "data", config, _STOP_ON_DAY_1)
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None and killed.stdout.readline() == "half\n"
        os.kill(killed.pid, signal.SIGKILL)
    (folder,) = (tmp_path / "data").iterdir()
    assert [path.name for path in folder.glob("day_*")] == ["day_00"]
    made = (folder / "day_00" / "train.rows").stat().st_mtime_ns
    assert run(config, tmp_path / "data") == folder
    assert sorted(path.name for path in folder.iterdir()) == ["day_00", "day_01", "day_02", "stream.json"]
    assert (folder / "day_00" / "train.rows").stat().st_mtime_ns == made


def test_two_at_once_make_each_day_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, each with a lock of its own; that locks hold between processes, too, is tested on a dataset."""
    config, written = _source(tmp_path / "source"), list[int]()
    write = writer.write_dataset

    def counted(folder: Path, *rest: Any) -> None:
        write(folder, *rest)
        written.append(1)

    monkeypatch.setattr("pipelines.data.clicks.config.write_dataset", counted)
    with ThreadPoolExecutor(2) as both:
        made = list(both.map(lambda _: run(config, tmp_path / "data"), range(2)))
    (folder,) = (tmp_path / "data").iterdir()
    assert made == [folder] * 2 and len(written) == 3
    assert sorted(path.name for path in folder.iterdir()) == ["day_00", "day_01", "day_02", "stream.json"]
    assert Stream.open(folder).rows_of_day == [200] * 3


@pytest.mark.parametrize("kind", ["tsv", pytest.param("parquet", marks=pytest.mark.slow)])
def test_neither_rows_nor_text_of_a_day_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Of what Python and NumPy allocate: 6,000 more rows of 164 bytes would be 1 MB, and their text more."""
    monkeypatch.setattr(blocks.LineBlocks.__init__, "__defaults__", (50_000,))
    monkeypatch.setattr(parquet, "_BLOCK_ROWS", 200)
    lines, peaks = _lines(0, 1_000), []
    for times in (1, 7):
        _write(tmp_path / f"{times}", f"day_0.{kind}", lines * times)
        tracemalloc.start()
        try:
            run(Criteo1TBConfig(path=str(tmp_path / f"{times}"), days=1), tmp_path / "data")
            peaks.append(tracemalloc.get_traced_memory()[1] / 1e6)
        finally:
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + 0.4, peaks


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tsv", "parquet"])
def test_memory_does_not_grow_with_a_day(tmp_path: Path, kind: str) -> None:
    """Slow (processes of their own, 300,000 lines): what Polars allocates, too, of which 240,000 rows are 39 MB."""
    lines = _lines(0, 10_000)
    peaks = []
    for times in (6, 30):
        config = Criteo1TBConfig(path=str(tmp_path / f"{times}"), days=1)
        path = _write(tmp_path / f"{times}", f"day_0.{kind}", lines)
        if kind == "parquet":
            pl.concat([_frame(lines)] * times).write_parquet(path, row_group_size=20_000)
        else:
            path.write_bytes(path.read_bytes() * times)
        # Small blocks: with whole ones, a day of a test's length is a single block.
        before = (
            "import pipelines.data.clicks.blocks as blocks, pipelines.data.parquet as parquet\n"
            "blocks.LineBlocks.__init__.__defaults__ = (1_000_000,)\nparquet._BLOCK_ROWS = 5_000\n"
        )
        command = _script(tmp_path / "data", config, before)
        # The system's own mark, in kB; getrusage would count what the test's process held before the new one began.
        command[-1] += "; print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
        ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True)
        peaks.append(int(ended.stdout.splitlines()[-1]) / 1e3)
    assert peaks[1] < peaks[0] + 25, peaks


def test_a_day_says_what_it_was_made_from(tmp_path: Path) -> None:
    folder = run(_source(tmp_path / "source", days=1), tmp_path / "data")
    record = json.loads((folder / "stream.json").read_text())
    day = json.loads((folder / "day_00" / "dataset.json").read_text())
    assert record["days"] == [{"day": 0, "folder": "day_00", "hash": day["made_with"]["hash"]}]
    assert record["name"] == day["name"] == "criteo_1tb"
    held = sum(np.fromfile(folder / "day_00" / f"{part}.rows", np.uint8).size for part in ("train", "validation"))
    assert held == 200 * day["record"]["bytes"]
