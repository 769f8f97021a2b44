"""Texts in the Parquet files of the hub become the same rows as the official files' texts, and bad rows are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from dpfest.errors import UserError
from tests.pipelines.data.text.test_glue import made, model_folder, sst2_folder, xnli_folder

pytest.importorskip("tokenizers")


def hub_folder(root: Path, folder: str, test: str, **columns: list[Any]) -> Path:
    """The layout, the columns and the types of nyu-mll/glue and facebook/xnli; both splits hold the same rows."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    frame = pl.DataFrame(columns | {"idx": list(range(len(columns["label"])))}, strict=False)
    for split in ("train", test):
        frame.write_parquet(root / folder / f"{split}-00000-of-00001.parquet")
    return root


@pytest.fixture
def here(tmp_path: Path) -> Path:
    model_folder(tmp_path / "model")
    return tmp_path


def assert_same_rows(official: Any, converted: Any) -> None:
    assert official.rows == converted.rows and official.folder != converted.folder
    for part in ("train", "validation", "test"):
        one, other = (data.split(part).gather(np.arange(data.rows[part])) for data in (official, converted))
        assert np.array_equal(one.ids, other.ids) and np.array_equal(one.labels, other.labels)
    assert official.description["text"] == converted.description["text"]


def test_sst2_makes_the_same_rows_in_the_same_splits(here: Path) -> None:
    texts = [" ".join("abc"[place] for place in np.random.default_rng(row).integers(0, 3, 3)) for row in range(60)]
    labels = [row % 3 % 2 for row in range(60)]
    lines = [f"{text}\t{label}".encode() for text, label in zip(texts, labels, strict=True)]
    official = sst2_folder(here / "SST-2")
    for name in ("train.tsv", "dev.tsv"):
        (official / name).write_bytes(b"\n".join([b"sentence\tlabel", *lines, b""]))
    hub = hub_folder(here / "glue", "sst2", "validation", sentence=texts, label=labels)
    data = made(here, f"data.path={hub}", "data.validation=0.3")
    assert_same_rows(made(here, "data.validation=0.3"), data)
    assert 5 < data.rows["validation"] < 30
    (first, _) = data.description["sources"]
    assert first["path"] == str(hub / "sst2" / "train-00000-of-00001.parquet") and first["bytes"] > 0


QNLI = "index\tquestion\tsentence\tlabel\n0\ta\tb ab\tnot_entailment\n1\tc\tc\tentailment\n"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n7\t1\t2\ta\tb ab\t1\n8\t3\t4\tc\tc\t0\n"


@pytest.mark.parametrize(
    ("name", "official", "columns"),
    [("qnli", QNLI, ("question", "sentence")), ("qqp", QQP, ("question1", "question2"))],
)
def test_pairs_and_their_labels_are_the_official_ones(
    here: Path, name: str, official: str, columns: tuple[str, str]
) -> None:
    (here / "pairs").mkdir()
    for file in ("train.tsv", "dev.tsv"):
        (here / "pairs" / file).write_text(official)
    first, second = columns
    hub = hub_folder(here / "glue", name, "validation", **{first: ["a", "c"], second: ["b ab", "c"], "label": [1, 0]})
    places = (here / "pairs", hub)
    assert_same_rows(*(made(here, f"data={name}", f"data.path={place}", "data.max_length=8") for place in places))


def test_xnli_takes_the_folder_of_its_language(here: Path) -> None:
    hub = here / "xnli"
    for language, premise in (("en", "a"), ("de", "c")):
        pair = {"premise": [premise] * 3, "hypothesis": ["b ab"] * 3}
        hub_folder(hub, language, "test", label=[1, 2, 0], **pair)
    official = made(here, "data=xnli", f"data.path={xnli_folder(here / 'XNLI')}")
    english = made(here, "data=xnli", f"data.path={hub}")
    one, other = (data.split("train").gather(np.arange(3)) for data in (official, english))
    assert np.array_equal(one.ids, other.ids) and np.array_equal(one.labels, other.labels)
    german = made(here, "data=xnli", f"data.path={hub}", "data.language=de")
    assert (german.split("train").gather(np.arange(1)).ids[0, :2] == [0, 6]).all()
    with pytest.raises(UserError, match=r"train.fr.tsv: .* or of fr/train-00000-of-00001.parquet and fr/"):
        made(here, "data=xnli", f"data.path={hub}", "data.language=fr")


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        (None, 1, "a text is null"),
        ("  ", 1, "a text is empty"),
        ("a", -1, "label -1, one of 0, 1 wanted"),
        ("a", 2, "label 2, one of 0, 1 wanted"),
        ("a", None, "label null, one of 0, 1 wanted"),
    ],
)
def test_a_malformed_row_is_named_or_left_out_and_counted(
    here: Path, text: str | None, label: int | None, message: str
) -> None:
    hub = hub_folder(here / "glue", "sst2", "validation", sentence=["a", "b", text, "c"], label=[0, 1, label, 1])
    with pytest.raises(UserError) as refused:
        made(here, f"data.path={hub}")
    place = hub / "sst2" / "train-00000-of-00001.parquet"
    assert str(refused.value) == (
        f"{place}, row 3: {message}. Correct the file, or set data.on_bad_row=skip to leave out and count such rows."
    )
    data = made(here, f"data.path={hub}", "data.on_bad_row=skip")
    assert data.rows == {"train": 3, "validation": 0, "test": 3}
    assert data.description["rejected_rows"]["total"] == 2


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"text": ["a"], "label": [1]},
            "no column sentence among text, label, idx; there must be sentence, label.",
        ),
        ({"sentence": [7], "label": [1]}, "column sentence is of type Int64, but text is wanted."),
        ({"sentence": ["a"], "label": ["1"]}, "column label is of type String, but the number of the class is wanted."),
    ],
)
def test_other_columns_are_refused_by_name(here: Path, columns: dict[str, list[Any]], message: str) -> None:
    hub = hub_folder(here / "glue", "sst2", "validation", **columns)
    with pytest.raises(UserError) as refused:
        made(here, f"data.path={hub}")
    assert str(refused.value) == f"{hub / 'sst2' / 'train-00000-of-00001.parquet'}: {message}"


def test_a_file_cut_short_is_refused_in_a_sentence(here: Path) -> None:
    hub = hub_folder(here / "glue", "sst2", "validation", sentence=["a"] * 100, label=[1] * 100)
    file = hub / "sst2" / "train-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"train-00000-of-00001.parquet is a truncated or corrupt Parquet file"):
        made(here, f"data.path={hub}")
    assert not list((here / "data").glob("sst2-*"))
