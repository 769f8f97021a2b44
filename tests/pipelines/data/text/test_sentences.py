"""The split of SST-2 by sentence: no test row is part of a training row, nor a training row part of a test sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpfest.errors import UserError
from pipelines.data.text.sentences import split, write


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


def test_no_test_row_shares_its_words_with_a_training_row() -> None:
    training, test = split(treebank())
    assert len(training) > 300 and len(test) > 20
    assert not any(part_of(row, other) for row in test for other in training)
    assert not any(part_of(row, other) for row in training for other in test)


def test_rows_are_kept_as_they_are_and_in_order() -> None:
    rows = treebank()
    for part in split(rows):
        left = iter(rows)
        assert all(row in left for row in part)


def test_the_split_does_not_depend_on_the_order() -> None:
    rows = treebank()
    assert [sorted(part) for part in split(rows)] == [sorted(part) for part in split(rows[::-1])]


def test_rows_of_training_and_of_held_out_sentences_are_left_out() -> None:
    rows = treebank()
    training, test = split(rows)
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


def test_the_command_writes_both_files(tmp_path: Path) -> None:
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "SST-2" / "train.tsv").write_text("\n".join(["sentence\tlabel", *treebank(), ""]))
    done = run(tmp_path / "SST-2", tmp_path / "phrases")
    assert done.returncode == 0, done.stderr
    parts = [(tmp_path / "phrases" / name).read_text() for name in ("train.tsv", "dev.tsv")]
    assert [tuple(part.splitlines()) for part in parts] == [("sentence\tlabel", *part) for part in split(treebank())]
    assert [f"{len(part.splitlines()) - 1:,} rows" in done.stdout for part in parts] == [True, True]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"", "line 1: ''"),
        (b"a\tb\n", "SST-2's first line is"),
        (b"sentence\tlabel\n\xff\t1\n", "cannot be read"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    source = tmp_path / "SST-2"
    source.mkdir()
    if content is not None:
        (source / "train.tsv").write_bytes(content)
    done = run(source, tmp_path / "phrases")
    assert done.returncode and done.stderr.startswith("error: ") and says in done.stderr and str(source) in done.stderr
    assert not (tmp_path / "phrases").exists()


def test_the_source_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\na b\t1\n")
    with pytest.raises(UserError, match="name another folder"):
        write(tmp_path, tmp_path)
    assert (tmp_path / "train.tsv").read_text() == "sentence\tlabel\na b\t1\n"
