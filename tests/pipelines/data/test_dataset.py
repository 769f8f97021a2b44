"""The processed dataset: what it says of itself, and what it refuses to open."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from dpfest.errors import UserError
from pipelines.data.clicks.criteo import PUBLISHED_SIZES, CriteoKaggleConfig
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.dataset import Dataset
from pipelines.data.derived import read_derived, write_derived
from tests.pipelines.data.criteo_text import Fields, run, some_lines


def _dataset(folder: Path, lines: list[bytes], vocabulary: VocabularyConfig | None = None) -> Dataset:
    (folder / "train.txt").write_bytes(b"\n".join(lines) + b"\n")
    split = SplitConfig(train=0.8, validation=0.2, test=0.0)
    config = CriteoKaggleConfig(
        path=str(folder / "train.txt"), vocabulary=vocabulary or VocabularyConfig(), split=split
    )
    return Dataset.open(run(config, folder / "data"))


def test_it_says_what_it_is_and_how_it_was_made(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path, some_lines(100))
    assert dataset.name == "criteo_kaggle"
    assert dataset.vocabulary_sizes == list(PUBLISHED_SIZES) and sum(PUBLISHED_SIZES) == 338_782
    assert dataset.rows["train"] + dataset.rows["validation"] == 100 and dataset.rows["test"] == 0
    assert dataset.examples == dataset.rows["train"] == dataset.description["splits"]["train"]["rows_per_day"]["0"]
    assert not dataset.data_dependent_vocabulary
    (source,) = dataset.description["sources"]
    assert source["bytes"] == (tmp_path / "train.txt").stat().st_size and len(source["sha256"]) == 64
    assert dataset.description["made_with"]["split"]["validation"] == 0.2


def test_gather_and_chunks_read_the_same_rows(tmp_path: Path) -> None:
    train = _dataset(tmp_path, some_lines(200)).split("train")
    chunks = list(train.chunks(37))
    assert sum(len(chunk) for chunk in chunks) == len(train)
    categorical = np.concatenate([chunk.categorical for chunk in chunks])
    some = np.array([0, 3, 50, len(train) - 1])
    gathered = train.gather(some)
    assert np.array_equal(gathered.categorical, categorical[some])
    assert gathered.numeric.dtype == np.float32 and gathered.numeric.flags.c_contiguous
    assert gathered.numeric.shape == (4, 13) and gathered.categorical.shape == (4, 26)
    assert len(train.gather(np.array([], dtype=np.int64))) == 0
    with pytest.raises(IndexError):
        train.gather(np.array([len(train)]))


@pytest.mark.filterwarnings("error")
def test_one_row_is_a_copy_that_torch_may_hold(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path, some_lines(30))
    for rows in next(dataset.split("train").chunks(1)), dataset.split("train").gather(np.array([3])):
        for part in (rows.labels, rows.days, rows.numeric, rows.categorical):
            assert part.flags.owndata
            torch.from_numpy(part)


def test_the_empty_split_has_no_rows(tmp_path: Path) -> None:
    test = _dataset(tmp_path, some_lines(20)).split("test")
    assert len(test) == 0 and list(test.chunks(8)) == []


def test_histogram_counts_the_training_rows_and_is_cached(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path, some_lines(300))
    histogram = dataset.histogram()
    rows = dataset.split("train").gather(np.arange(dataset.examples)).categorical
    for feature, counts in enumerate(histogram):
        assert np.array_equal(counts, np.bincount(rows[:, feature], minlength=PUBLISHED_SIZES[feature]))
    (dataset.folder / "train.rows").write_bytes(b"")
    again = Dataset(dataset.folder, dataset.description).histogram()
    assert all(np.array_equal(a, b) for a, b in zip(histogram, again, strict=True))


def test_a_folder_that_may_only_be_read_has_its_histogram_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, array: object, rows: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pipelines.data.dataset.write_derived", refuse)
    dataset = _dataset(tmp_path, some_lines(30))
    assert sum(counts.sum() for counts in dataset.histogram()) == 26 * dataset.examples
    assert not (dataset.folder / "histogram.npy").exists()


def test_a_histogram_file_that_cannot_be_right_is_made_again(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path, some_lines(30))
    np.save(dataset.folder / "histogram.npy", np.zeros(5))
    assert sum(counts.sum() for counts in dataset.histogram()) == 26 * dataset.examples


def test_a_histogram_of_the_right_sum_but_other_counts_is_made_again(tmp_path: Path) -> None:
    """As of other rows, or of a flipped bit beside another; the selection of rows would follow it without a word."""
    dataset = _dataset(tmp_path, some_lines(300))
    whole = np.concatenate(dataset.histogram())
    file = dataset.folder / "histogram.npy"
    for spoilt in (whole[::-1].copy(), np.roll(whole, 1)):
        np.save(file, spoilt)
        assert np.array_equal(np.concatenate(dataset.histogram()), whole)
        assert np.array_equal(np.load(file), whole)
    (tmp_path / "other").mkdir()
    other = _dataset(tmp_path / "other", some_lines(200))
    other.histogram()
    for name in ("histogram.npy", "histogram.npy.sha256"):  # whole, but derived from other rows
        (dataset.folder / name).write_bytes((other.folder / name).read_bytes())
    assert np.array_equal(np.concatenate(dataset.histogram()), whole)


def test_a_checksum_is_that_of_the_counts_written_whatever_takes_their_place_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs that start together both write the counts: neither may vouch for the other's, nor fail on them."""
    replace = os.replace

    def with_a_rival(source: Path, target: Path) -> None:
        replace(source, target)
        if target.name == "histogram.npy":
            np.save(target, np.zeros(5, np.int64))

    monkeypatch.setattr(os, "replace", with_a_rival)
    write_derived(tmp_path / "histogram.npy", np.arange(5), "rows")
    assert read_derived(tmp_path / "histogram.npy", "rows") is None
    monkeypatch.undo()
    write_derived(tmp_path / "histogram.npy", np.arange(5), "rows")
    assert np.array_equal(read_derived(tmp_path / "histogram.npy", "rows"), np.arange(5))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "dataset.json").unlink(), "There is no dataset in"),
        (lambda folder: (folder / "dataset.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "dataset.json").write_text('{"schema": 99}'), "has schema 99"),
        (
            lambda folder: (folder / "validation.rows").write_bytes(b"12"),
            r"validation.rows holds 2 bytes, but",
        ),
        (lambda folder: (folder / "train.rows").unlink(), r"train.rows is missing, but"),
    ],
)
def test_a_damaged_dataset_is_not_opened(tmp_path: Path, spoil, said: str) -> None:  # type: ignore[no-untyped-def]
    folder = _dataset(tmp_path, some_lines(50)).folder
    spoil(folder)
    with pytest.raises(UserError, match=said):
        Dataset.open(folder)


def test_an_unknown_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no split 'valid'; it has train, validation, test"):
        _dataset(tmp_path, some_lines(20)).split("valid")


def test_threshold_vocabulary_keeps_frequent_training_values(tmp_path: Path) -> None:
    lines = [Fields(0, [None] * 13, [7, i, 5 if i % 3 else None, *[9] * 23]).line() for i in range(400)]
    dataset = _dataset(tmp_path, lines, VocabularyConfig(policy="threshold", min_count=20))
    # Feature 0 has one value, feature 1 none that is frequent, feature 2 one and the blank; row 0: the rest.
    assert dataset.vocabulary_sizes == [2, 1, 3, *[2] * 23]
    counts = dataset.histogram()
    assert counts[0].tolist() == [0, dataset.examples]
    assert counts[1].tolist() == [dataset.examples]
    assert counts[2][0] == 0 and counts[2].sum() == dataset.examples and counts[2].min() == 0
    assert dataset.data_dependent_vocabulary
    assert "not cover" in json.loads((dataset.folder / "dataset.json").read_text())["vocabulary"]["note"]
    assert np.load(dataset.folder / "vocabulary.npz")["categorical-feature-16"].tolist() == [5, 2**32]


def test_all_vocabulary_gives_each_training_value_a_row_and_unseen_ones_row_0(tmp_path: Path) -> None:
    lines = [Fields(0, [None] * 13, [i, *[i % 5] * 25]).line() for i in range(300)]
    dataset = _dataset(tmp_path, lines, VocabularyConfig(policy="all"))
    assert dataset.vocabulary_sizes == [dataset.examples + 1, *[6] * 25]
    train = dataset.split("train").gather(np.arange(dataset.examples))
    assert sorted(train.categorical[:, 0].tolist()) == list(range(1, dataset.examples + 1))
    unseen = dataset.split("validation").gather(np.arange(dataset.rows["validation"]))
    assert set(unseen.categorical[:, 0].tolist()) == {0}
    assert set(unseen.categorical[:, 1].tolist()) <= {1, 2, 3, 4, 5}
