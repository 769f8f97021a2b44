"""From text files to a dataset: what is read, what is refused, and what is left when something goes wrong."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpfest.errors import UserError
from pipelines.config.schema import build
from pipelines.config.settings import SCHEMAS, schema
from pipelines.data.clicks import blocks
from pipelines.data.clicks.criteo import CriteoKaggleConfig
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.dataset import SPLITS, Dataset
from pipelines.system.files import made_once
from tests.pipelines.data.criteo_text import Fields, run, some_lines

REPOSITORY = Path(__file__).parents[2]


def _write(path: Path, lines: list[bytes], ending: bytes = b"\n", last: bytes = b"\n") -> Path:
    content = ending.join(lines) + last
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def _records(folder: Path) -> list[bytes]:
    return [(folder / f"{split}.rows").read_bytes() for split in SPLITS]


def _everything(lines: list[bytes], folder: Path) -> Dataset:
    """A dataset whose rows are all training rows, in the order of the lines."""
    split = SplitConfig(train=1.0, validation=0.0, test=0.0)
    path = _write(folder / "all.txt", lines)
    return Dataset.open(run(CriteoKaggleConfig(path=str(path), split=split), folder / "data"))


def test_rows_hold_what_the_lines_say(tmp_path: Path) -> None:
    lines = [
        Fields(1, [-3, 0, 1, 99, *[None] * 9], [0x68FD1E64, *[None] * 25]).line(),
        Fields(0, [None] * 13, [0xFFFFFFFF] * 26).line(),
    ]
    rows = _everything(lines, tmp_path).split("train").gather(np.array([0, 1]))
    assert rows.labels.tolist() == [1.0, 0.0]
    wanted = np.log1p(np.array([0, 0, 1, 99, *[0] * 9], dtype=np.float64)).astype(np.float32)
    assert np.array_equal(rows.numeric, [wanted, np.zeros(13, np.float32)])
    assert rows.categorical[0, 0] == 348  # 68fd1e64 in the 1,472 rows of feature 14: see the hash's own test
    assert rows.days.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "ending", "last"),
    [
        ("crlf.txt", b"\r\n", b"\r\n"),
        ("no-last-line-feed.txt", b"\n", b""),
        ("crlf-without-the-last.txt", b"\r\n", b""),
        ("packed.txt.gz", b"\n", b"\n"),
        ("crlf-packed.gz", b"\r\n", b""),
    ],
)
def test_line_endings_and_gzip_change_no_row(tmp_path: Path, name: str, ending: bytes, last: bytes) -> None:
    lines = some_lines(300)
    plain = run(CriteoKaggleConfig(path=str(_write(tmp_path / "plain.txt", lines))), tmp_path / "data")
    other = run(CriteoKaggleConfig(path=str(_write(tmp_path / name, lines, ending, last))), tmp_path / "data")
    assert plain != other
    assert _records(plain) == _records(other)


def test_block_size_changes_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = some_lines(500)
    lines[250:250] = [b"too\tshort"] * 3
    config = CriteoKaggleConfig(path=str(_write(tmp_path / "train.txt", lines)), on_bad_row="skip")
    whole = run(config, tmp_path / "whole")
    monkeypatch.setattr(blocks.LineBlocks.__init__, "__defaults__", (1_000,))
    pieces = run(config, tmp_path / "pieces")
    assert _records(whole) == _records(pieces)
    first = json.loads((pieces / "dataset.json").read_text())["rejected_rows"]["first"]
    assert [text.split(": ")[0].rsplit(" ", 1)[1] for text in first] == ["251", "252", "253"]


def _spoilt(field: int, value: bytes) -> bytes:
    fields = some_lines(1)[0].split(b"\t")
    fields[field] = value
    return b"\t".join(fields)


BAD_LINES = {
    "wrong number of fields": b"1\t2\t3",
    "label neither 0 nor 1": _spoilt(0, b"2"),
    "count not a 64-bit integer": _spoilt(5, b"1.5"),
    "category not 8 hexadecimal digits": _spoilt(20, b"68fd1e6g"),
    "invalid UTF-8": _spoilt(30, b"\xff\xfe"),
}


@pytest.mark.parametrize("reason", BAD_LINES)
@pytest.mark.parametrize("suffix", ["txt", "gz"])
def test_a_bad_line_is_named_and_stops_the_run(tmp_path: Path, reason: str, suffix: str) -> None:
    lines = some_lines(40)
    lines[16] = BAD_LINES[reason]
    path = _write(tmp_path / f"train.{suffix}", lines)
    with pytest.raises(UserError, match=rf"train\.{suffix}, line 17: .*data\.on_bad_row=skip"):
        run(CriteoKaggleConfig(path=str(path)), tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_bad_lines_are_skipped_and_counted_when_asked_for(tmp_path: Path) -> None:
    lines = some_lines(200)
    good = [line for i, line in enumerate(lines) if not 20 <= i < 25]
    lines[20:25] = list(BAD_LINES.values())
    skipping = CriteoKaggleConfig(path=str(_write(tmp_path / "train.txt", lines)), on_bad_row="skip")
    dataset = Dataset.open(run(skipping, tmp_path / "data"))
    rejected = dataset.description["rejected_rows"]
    assert rejected["total"] == 5
    assert rejected["by_reason"] == {reason: 1 for reason in BAD_LINES}
    assert [f"line {line}:" in text for line, text in zip(range(21, 26), rejected["first"], strict=True)] == [True] * 5
    assert sum(dataset.rows.values()) == len(good)
    everything = _everything(good, tmp_path)
    wanted = np.sort(everything.split("train").gather(np.arange(len(good))).categorical[:, 2])
    held = [dataset.split(split).gather(np.arange(rows)) for split, rows in dataset.rows.items()]
    assert np.array_equal(np.sort(np.concatenate([rows.categorical[:, 2] for rows in held])), wanted)


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_broken_files_always_stop(tmp_path: Path, policy: str) -> None:
    broken = {
        "truncated.gz": gzip.compress(b"\n".join(some_lines(3_000)) + b"\n")[:-1_000],
        "empty.txt": b"",
        "empty.gz": gzip.compress(b""),
    }
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name} is (a truncated or corrupt .gz: line [0-9]+|empty)"):
            run(CriteoKaggleConfig(path=str(tmp_path / name), on_bad_row=policy), tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_file_without_lines_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "video.txt").write_bytes(b"\0" * 100_000)
    monkeypatch.setattr(blocks.LineBlocks.__init__, "__defaults__", (10_000,))
    with pytest.raises(UserError, match=r"video\.txt has no line ending in 50,000 bytes"):
        run(CriteoKaggleConfig(path=str(tmp_path / "video.txt"), on_bad_row="skip"), tmp_path / "data")


def test_nothing_but_bad_lines_is_no_dataset(tmp_path: Path) -> None:
    path = _write(tmp_path / "train.txt", [b"a", b"b"])
    with pytest.raises(UserError, match="no row to train on: 2 rows were malformed"):
        run(CriteoKaggleConfig(path=str(path), on_bad_row="skip"), tmp_path / "data")


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    config = CriteoKaggleConfig(path=str(tmp_path))
    with pytest.raises(UserError, match=f"{tmp_path} is a folder, not a file: set data.path to Criteo's .*gz\\.$"):
        run(config, tmp_path / "data")
    _write(tmp_path / "train.txt", some_lines(3))
    with pytest.raises(UserError, match=rf"here data\.path={tmp_path}/train\.txt\.$"):
        run(config, tmp_path / "data")


def test_a_split_too_small_for_an_auc_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(_write(tmp_path / "train.txt", some_lines(3)))
    run(CriteoKaggleConfig(path=path, split=SplitConfig(0.98, 0.01, 0.01)), tmp_path / "data")
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert said == [
        f"warning: {part} holds no row: its AUC will be unknown. Use more data, or raise data.split.{part} (now 0.01)."
        for part in ("validation", "test")
    ]
    run(CriteoKaggleConfig(path=path, split=SplitConfig(0.5, 0.5, 0.0)), tmp_path / "data")
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert "warning: validation holds too few rows (1, all with label 0)" in said


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (CriteoKaggleConfig(path="/nowhere/train.txt"), "no file /nowhere/train.txt: set data.path"),
        (CriteoKaggleConfig(split=SplitConfig(train=0.9)), "data.split must hold shares"),
        (CriteoKaggleConfig(vocabulary=VocabularyConfig(sizes=[3, 4])), "must hold 26 positive numbers"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(tmp_path: Path, config: CriteoKaggleConfig, said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(config, tmp_path)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"on_bad_row": "ignore"}, "data.on_bad_row must be one of stop, skip, not 'ignore'"),
        ({"vocabulary": {"policy": "hashed"}}, "data.vocabulary.policy must be one of hash, threshold, all"),
        ({"vocabulary": {"min_count": 0}}, "data.vocabulary.min_count must be a whole number from 1"),
        ({"vocabulary": {"sizes": [0] * 26}}, r"data.vocabulary.sizes\[0\] must be a whole number from 1"),
        ({"split": {"train": 1.5, "test": -0.5, "validation": 0.0}}, "data.split.train must be a number from 0 to 1"),
        ({"split": {"seed": -1}}, "data.split.seed must be a whole number from 0"),
    ],
)
def test_settings_out_of_range_are_refused_by_their_key(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        build(CriteoKaggleConfig, values, "data")


def test_the_split_has_its_shares_and_follows_the_row_alone(tmp_path: Path) -> None:
    lines = some_lines(4_000)
    first = Dataset.open(run(CriteoKaggleConfig(path=str(_write(tmp_path / "a.txt", lines))), tmp_path / "data"))
    # Fixed rows and seed; four binomial standard deviations would be passed by 1 seed in 10,000.
    for split, share in (("train", 0.8), ("validation", 0.05), ("test", 0.15)):
        assert abs(first.rows[split] - 4_000 * share) < 4 * np.sqrt(4_000 * share * (1 - share))
    longer = run(CriteoKaggleConfig(path=str(_write(tmp_path / "b.txt", lines + lines))), tmp_path / "data")
    for before, after in zip(_records(first.folder), _records(longer), strict=True):
        assert after.startswith(before)
    reseeded = CriteoKaggleConfig(path=str(tmp_path / "a.txt"), split=SplitConfig(seed=1))
    assert _records(run(reseeded, tmp_path / "data")) != _records(first.folder)


def test_a_dataset_is_made_once_and_moved_files_are_known_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path / "train.txt", some_lines(50))
    folder = run(CriteoKaggleConfig(path=str(path)), tmp_path / "data")
    made = (folder / "dataset.json").stat().st_mtime_ns
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere" / "train.txt")
    capsys.readouterr()
    assert run(CriteoKaggleConfig(path=str(moved)), tmp_path / "data") == folder
    assert (folder / "dataset.json").stat().st_mtime_ns == made
    assert "(there already): " in capsys.readouterr().err
    _write(moved, list(reversed(some_lines(50))))
    assert run(CriteoKaggleConfig(path=str(moved)), tmp_path / "data") != folder


@pytest.mark.parametrize("name", SCHEMAS["data"])
def test_the_configuration_files_say_what_the_code_does(name: str) -> None:
    def written(name: str) -> dict[str, Any]:
        """A file with the files of its own group that it extends (`defaults`; the others choose a model)."""
        values = yaml.safe_load((REPOSITORY / "conf" / "data" / f"{name}.yaml").read_text())
        extended = [base for base in values.pop("defaults", ()) if isinstance(base, str) and base != "_self_"]
        return {key: value for base in extended for key, value in written(base).items()} | values

    assert written(name) == dataclasses.asdict(schema("data", name)())


def _script(folder: Path, path: Path, before: str = "") -> list[str]:
    return [
        sys.executable,
        "-c",
        f"{before}\n"
        "from pathlib import Path\n"
        "from pipelines.data.clicks.criteo import CriteoKaggleConfig\n"
        "from tests.pipelines.data.criteo_text import run\n"
        f"print(run(CriteoKaggleConfig(path={str(path)!r}), Path({str(folder)!r})))",
    ]


_STOP_HALF_WAY = """
import time, pipelines.data.clicks.writer as writer
write = writer._write_block
def half(*arguments):
    write(*arguments)
    print("half", flush=True)
    time.sleep(600)
writer._write_block = half
"""


def test_killed_half_way_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    path = _write(tmp_path / "train.txt", some_lines(400))
    command = _script(tmp_path / "data", path, _STOP_HALF_WAY)
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None and killed.stdout.readline() == "half\n"
        os.kill(killed.pid, signal.SIGKILL)
    (left,) = (tmp_path / "data").glob(".criteo_kaggle-*.partial")
    with pytest.raises(UserError, match="There is no dataset"):
        Dataset.open(left)
    folder = run(CriteoKaggleConfig(path=str(path)), tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == [folder]
    assert sum(Dataset.open(folder).rows.values()) == 400


@pytest.mark.slow
def test_two_processes_at_once_make_one_dataset(tmp_path: Path) -> None:
    path = _write(tmp_path / "train.txt", some_lines(3_000))
    command = _script(tmp_path / "data", path)
    both = [
        subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    (folder,) = (tmp_path / "data").iterdir()
    assert sum(Dataset.open(folder).rows.values()) == 3_000


def test_the_later_of_two_writers_without_locks_gives_way(tmp_path: Path) -> None:
    with made_once(tmp_path / "data") as mine:
        assert mine is not None
        (mine / "who").write_text("me")
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "who").write_text("the other")
    assert (tmp_path / "data" / "who").read_text() == "the other"
    assert [entry.name for entry in tmp_path.iterdir() if "partial" in entry.name] == []


def test_the_lock_is_held_by_one_at_a_time_though_it_is_removed_each_time(tmp_path: Path) -> None:
    inside, most = 0, 0

    def enter(_: int) -> None:
        nonlocal inside, most
        with pytest.raises(KeyError), made_once(tmp_path / "data"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.001)
            inside -= 1
            raise KeyError

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, range(100)))
    assert most == 1 and list(tmp_path.iterdir()) == []
