"""The split of SST-2 by sentence: no test row is part of a training row, nor a training row part of a test sentence."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import typed
from pipelines.data.text.glue import Sst2Config
from pipelines.data.text.sentences import HELD_OUT, split, write


def treebank(sentences: int = 60) -> list[str]:
    """Rows of random sentences of 12 words and of some of their phrases, in random order."""
    generator = np.random.default_rng(0)
    rows = []
    for _ in range(sentences):
        words = [f"w{word}" for word in generator.integers(0, 40, 12)]
        starts = generator.integers(0, 11, 8)
        phrases = [words, *(words[start : start + int(generator.integers(1, 6))] for start in starts)]
        rows += [f"{' '.join(phrase)} \t{generator.integers(0, 2)}" for phrase in phrases]
    return [rows[place] for place in generator.permutation(len(rows))]


def part_of(row: str, other: str) -> bool:
    phrase, text = (f" {' '.join(one.partition(chr(9))[0].split())} " for one in (row, other))
    return phrase in text


@pytest.mark.parametrize(("share", "trained", "tested"), [(0.15, 300, 20), (0.5, 200, 200)])
def test_no_test_row_shares_its_words_with_a_training_row(share: float, trained: int, tested: int) -> None:
    training, test = split(treebank(), share)
    assert len(training) > trained and len(test) > tested
    assert not any(part_of(row, other) for row in test for other in training)
    assert not any(part_of(row, other) for row in training for other in test)


def test_rows_are_kept_as_they_are_and_in_order() -> None:
    rows = treebank()
    for part in split(rows, 0.15):
        left = iter(rows)
        assert all(row in left for row in part)


def test_the_split_does_not_depend_on_the_order() -> None:
    rows = treebank()
    assert [sorted(part) for part in split(rows, 0.15)] == [sorted(part) for part in split(rows[::-1], 0.15)]


def test_a_larger_share_holds_out_more_sentences_and_the_same() -> None:
    few, many = (set(split(treebank(), share)[1]) for share in (0.15, 0.5))
    sentences = [{row for row in rows if len(row.split()) == 13} for rows in (few, many)]
    assert sentences[0] < sentences[1]


def test_rows_of_training_and_of_held_out_sentences_are_left_out() -> None:
    rows = treebank()
    training, test = split(rows, 0.15)
    left_out = {row for row in rows if row not in {*training, *test}}
    sentences = [row for row in rows if len(row.split()) == 13]
    held_out = [row for row in sentences if row in test]
    assert 0 < len(left_out) < 100
    for row in left_out:
        assert any(part_of(row, sentence) for sentence in held_out)
        assert any(part_of(row, sentence) for sentence in sentences if sentence not in test)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipelines.data.text.sentences", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def sst2(folder: Path, content: bytes | None = None) -> Path:
    folder.mkdir()
    rows = "\n".join(["sentence\tlabel", *treebank(), ""]).encode()
    (folder / "train.tsv").write_bytes(rows if content is None else content)
    return folder


@pytest.mark.parametrize(("name", "share"), HELD_OUT.items())
def test_the_command_writes_both_files_and_says_if_rows_are_missing(name: str, share: float, tmp_path: Path) -> None:
    done = run(sst2(tmp_path / "SST-2"), tmp_path / "phrases")
    assert done.returncode == 0, done.stderr
    parts = [(tmp_path / "phrases" / f"{name}_{part}.tsv").read_text() for part in ("train", "test")]
    assert [tuple(part.splitlines()) for part in parts] == [
        ("sentence\tlabel", *part) for part in split(treebank(), share)
    ]
    assert [f"{len(part.splitlines()) - 1:,} rows" in done.stdout for part in parts] == [True, True]
    assert "train.tsv has 540 rows, SST-2's 67,349" in done.stderr


def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path: Path) -> None:
    plain = sst2(tmp_path / "plain")
    other = (plain / "train.tsv").read_bytes().replace(b"\n", b"\r\n")
    write(plain, tmp_path / "one")
    write(sst2(tmp_path / "other", b"\xef\xbb\xbf" + other), tmp_path / "two")
    for part in ("train", "test"):
        one, two = (tmp_path / name / f"phrases_{part}.tsv" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "line 1: ''"),
        (b"a\tb\n", "SST-2's first line is"),
        (b"sentence\tlabel\n\xff\t1\n", "cannot be read"),
        (b"sentence\tlabel\na\t1\nb c\n", "line 3: 'b c' is not a text, a tab and a label"),
        (b"sentence\tlabel\na\tz\n", "line 2: 'a\\tz' is not"),
        (b"sentence\tlabel\n", "no row would be left to train on"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    source = sst2(tmp_path / "SST-2", content)
    with pytest.raises(UserError, match=re.escape(says)) as raised:
        write(source, tmp_path / "phrases")
    assert str(source / "train.tsv") in str(raised.value)
    assert not (tmp_path / "phrases").exists()


def test_wrong_paths_are_named_and_nothing_is_replaced(tmp_path: Path) -> None:
    source = sst2(tmp_path / "SST-2")
    (source / "dev.tsv").write_text("a file")
    write(source, source)
    assert (source / "dev.tsv").read_text() == "a file" and (source / "train.tsv").read_bytes().count(b"\n") == 541
    write(source, tmp_path / "phrases")
    for swapped in (tmp_path / "phrases", tmp_path / "none", source / "dev.tsv"):
        done = run(swapped, source)
        assert done.returncode and done.stderr.startswith(f"error: {swapped / 'train.tsv'} cannot be read")
    done = run(source, source / "dev.tsv")
    assert done.returncode and f"{source / 'dev.tsv' / 'phrases_train.tsv'} cannot be written" in done.stderr


@pytest.mark.parametrize("data", ["sst2", "sst2_phrases", "sst2_halves"])
def test_neither_kind_of_folder_passes_for_the_other(tmp_path: Path, data: str) -> None:
    official, written = sst2(tmp_path / "SST-2"), tmp_path / "phrases"
    folders = {"sst2_phrases": official, "sst2_halves": official, "sst2": written}
    (official / "dev.tsv").write_text("sentence\tlabel\na\t1\n")
    write(official, written)
    config = typed(Composer().compose([f"data={data}", f"data.path={folders[data]}", f"model.path={tmp_path}"])).data
    assert isinstance(config, Sst2Config)
    with pytest.raises(
        UserError,
        match=f"{data.removeprefix('sst2_')}_train.tsv: write it with" if data != "sst2" else "no file .*train.tsv",
    ):
        config.files(tmp_path)
