"""Texts become rows once: from the official files, by the model's own tokenizer, and bad lines are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.schema import build
from pipelines.config.settings import typed
from pipelines.data.dataset import Dataset
from pipelines.data.rows import TextRows
from pipelines.data.text.synthetic import TextSyntheticConfig
from pipelines.data.text.tokens import TextTokenizer
from pipelines.preprocess import preprocess
from pipelines.select import select

pytest.importorskip("tokenizers")

PIECES = ["<s>", "<pad>", "</s>", "<unk>", "a", "b", "c", "ab", "abc", "ĠX"]


def model_folder(folder: Path, rows: int = 12) -> Path:
    """A byte-pair tokenizer in RoBERTa's form, and the part of a model's config.json that preprocessing reads."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"vocab_size": rows, "pad_token_id": 1}))
    ends = {"sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": False}
    model = {"type": "BPE", "vocab": {piece: row for row, piece in enumerate(PIECES)}, "merges": ["a b", "ab c"]}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    marks = [{"id": row, "content": mark, "special": True, **flags} for row, mark in enumerate(PIECES[:4])]
    tokenizer = {
        "version": "1.0",
        "added_tokens": marks,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {"type": "RobertaProcessing", **ends},
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def sst2_folder(folder: Path, *lines: bytes, header: bytes = b"sentence\tlabel") -> Path:
    folder.mkdir(exist_ok=True)
    good = (b"abc ab\t1", b"a\t0", b"c c c a\t1", b"b\t0")
    (folder / "train.tsv").write_bytes(b"\n".join([header, *good, *lines, b""]))
    (folder / "dev.tsv").write_bytes(b"sentence\tlabel\nab ab ab ab ab ab\t1\n")
    return folder


def made(tmp_path: Path, *more: str) -> Dataset:
    settings = [
        "data=sst2",
        f"data.path={tmp_path}/SST-2",
        f"model.path={tmp_path}/model",
        "data.max_length=6",
        "data.validation=0",
        f"paths.data={tmp_path}/data",
        f"paths.runs={tmp_path}/runs",
    ]
    return Dataset.open(preprocess(typed(Composer().compose([*settings, *more]))))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    model_folder(tmp_path / "model")
    sst2_folder(tmp_path / "SST-2")
    return tmp_path


def test_rows_hold_labels_lengths_and_padded_ids(here: Path) -> None:
    data = made(here)
    assert data.rows == {"train": 4, "validation": 0, "test": 1}
    assert data.vocabulary_sizes == [12] and not data.data_dependent_vocabulary
    rows = data.split("train").gather(np.arange(4))
    assert rows.labels.tolist() == [1, 0, 1, 0] and rows.lengths.tolist() == [4, 3, 6, 3]
    assert rows.ids[:3].tolist() == [[0, 8, 7, 2, 1, 1], [0, 4, 2, 1, 1, 1], [0, 6, 6, 6, 4, 2]]
    (cut,) = data.split("test").chunks(10)
    assert cut.ids.tolist() == [[0, 7, 7, 7, 7, 2]]
    splits = data.description["splits"]
    assert (splits["train"]["cut"], splits["test"]["cut"]) == (0, 1)
    assert splits["train"]["rows_per_label"] == {"0": 2, "1": 2}
    assert (splits["train"]["tokens_mean"], splits["train"]["tokens_most"]) == (4, 6)
    assert data.description["text"]["labels"] == ["0", "1"]
    assert [Path(source["path"]).name for source in data.description["sources"]] == ["train.tsv", "dev.tsv"]


def test_texts_are_cut_into_tokens_once_wherever_the_files_lie(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made(here)
    monkeypatch.setattr(TextTokenizer, "encode", lambda *_: pytest.fail("cut into tokens again"))
    assert made(here).folder == first.folder
    model_folder(here / "elsewhere")
    assert made(here, f"model.path={here}/elsewhere").folder == first.folder
    monkeypatch.undo()
    vocabulary = (here / "elsewhere" / "tokenizer.json").read_text().replace('"ab c"', '"b c"').replace('"abc"', '"bc"')
    (here / "elsewhere" / "tokenizer.json").write_text(vocabulary)
    assert made(here, f"model.path={here}/elsewhere").folder != first.folder


@pytest.mark.parametrize(
    ("name", "header", "lines", "labels"),
    [
        ("qnli", "index\tquestion\tsentence\tlabel", ["0\ta\tb ab\tnot_entailment", "1\tc\tc\tentailment"], [1, 0]),
        (
            "qqp",
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
            ["7\t1\t2\ta\tb ab\t0", "8\t3\t4\tc\tc\t1"],
            [0, 1],
        ),
    ],
)
def test_pairs_of_texts_stand_behind_one_another(
    here: Path, name: str, header: str, lines: list[str], labels: list[int]
) -> None:
    (here / "pairs").mkdir()
    for file in ("train.tsv", "dev.tsv"):
        (here / "pairs" / file).write_text("\n".join([header, *lines, ""]))
    data = made(here, f"data={name}", f"data.path={here}/pairs", "data.max_length=7")
    rows = data.split("train").gather(np.arange(2))
    assert rows.labels.tolist() == labels
    assert rows.ids.tolist() == [[0, 4, 2, 2, 5, 7, 2], [0, 6, 2, 2, 6, 2, 1]]
    assert data.rows["test"] == 2


def xnli_folder(folder: Path) -> Path:
    """Both archives, cut down: the columns of the files as they are published."""
    (folder / "XNLI-MT-1.0" / "multinli").mkdir(parents=True)
    (folder / "XNLI-1.0").mkdir()
    for language, labels in (("en", ("neutral", "contradictory", "entailment")), ("de", ("entailment",))):
        lines = ["premise\thypo\tlabel", *(f"a\tb ab\t{label}" for label in labels), ""]
        (folder / "XNLI-MT-1.0" / "multinli" / f"multinli.train.{language}.tsv").write_text("\n".join(lines))
    header = "language\tgold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1\tsentence2\tpromptID"
    lines = ["de\tneutral\t\t\tc\tc\t1", "en\tcontradiction\t\t\ta\tb\t1", "en\tentailment\t\t\tc\ta\t2"]
    (folder / "XNLI-1.0" / "xnli.test.tsv").write_text("\n".join([header, *lines, ""]))
    return folder


def test_xnli_is_trained_and_judged_in_one_language(here: Path) -> None:
    folder = xnli_folder(here / "XNLI")
    english = made(here, "data=xnli", f"data.path={folder}", "data.max_length=7")
    assert english.rows == {"train": 3, "validation": 0, "test": 2}
    assert english.split("train").gather(np.arange(3)).labels.tolist() == [1, 2, 0]
    judged = english.split("test").gather(np.arange(2))
    assert judged.labels.tolist() == [2, 0]
    assert judged.ids.tolist() == [[0, 4, 2, 2, 5, 2, 1], [0, 6, 2, 2, 4, 2, 1]]
    assert english.description["rejected_rows"]["total"] == 0
    german = made(here, "data=xnli", f"data.path={folder}", "data.max_length=7", "data.language=de")
    assert german.rows == {"train": 1, "validation": 0, "test": 1} and german.folder != english.folder


def test_what_xnli_lacks_is_named(here: Path) -> None:
    folder = xnli_folder(here / "XNLI")
    with pytest.raises(UserError, match=r"multinli.train.fr.tsv: set data.path to the folder of XNLI-MT-1.0.* and XNL"):
        made(here, "data=xnli", f"data.path={folder}", "data.language=fr")
    with pytest.raises(UserError, match=r"data.language=it is none of XNLI's: ar, bg"):
        made(here, "data=xnli", f"data.path={folder}", "data.language=it")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"a b c", r"train.tsv, line 6: 1 fields between tabs, 2 wanted"),
        (b"a\t2", r"train.tsv, line 6: label '2', one of 0, 1 wanted"),
        (b"  \t1", r"train.tsv, line 6: a text is empty"),
        (b"a\xff\t1", r"train.tsv, line 6: invalid UTF-8 at byte 2 of the line"),
    ],
)
def test_a_malformed_line_is_named_or_left_out_and_counted(here: Path, line: bytes, message: str) -> None:
    sst2_folder(here / "SST-2", line, b"c\t1")
    with pytest.raises(UserError, match=message + r"\. Correct the file, or .* data.on_bad_row=skip"):
        made(here)
    assert not list((here / "data").glob("sst2-*"))
    data = made(here, "data.on_bad_row=skip")
    assert data.rows["train"] == 5
    assert data.description["rejected_rows"]["total"] == 1
    assert "line 6" in data.description["rejected_rows"]["first"][0]


def test_windows_line_ends_make_the_same_rows(here: Path) -> None:
    plain = made(here).split("train").gather(np.arange(4))
    train = here / "SST-2" / "train.tsv"
    train.write_bytes(train.read_bytes().replace(b"\n", b"\r\n"))
    other = made(here).split("train").gather(np.arange(4))
    assert np.array_equal(plain.ids, other.ids) and np.array_equal(plain.labels, other.labels)


def test_other_files_and_folders_are_refused_in_a_sentence(here: Path) -> None:
    sst2_folder(here / "SST-2", header=b"text\tlabel")
    with pytest.raises(UserError, match=r"train.tsv, line 1: no column sentence among text, label; use the off"):
        made(here)
    with pytest.raises(UserError, match=r"There is no file .*nowhere/train.tsv: set data.path to the folder"):
        made(here, f"data.path={here}/nowhere")
    with pytest.raises(UserError, match=r"There is no .*nowhere/config.json: model.path must be the folder of a model"):
        made(here, f"model.path={here}/nowhere")
    with pytest.raises(UserError, match=r"data=sst2 needs the model's own tokenizer: set model.path"):
        made(here, "model.path=null")
    (here / "model" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"holds no tokenizer.json"):
        made(here)
    model_folder(here / "model", rows=9)
    with pytest.raises(UserError, match=r"has ids up to 9, but the model's word embedding has 9 rows"):
        made(here)


def test_the_histogram_counts_the_first_distinct_tokens_of_a_text_once() -> None:
    ids = np.array([[0, 5, 5, 6, 2, 1], [0, 7, 2, 1, 1, 1]], np.int32)
    rows = TextRows(np.zeros(2, np.int32), np.array([5, 3], np.int32), ids)
    assert sorted(rows.counted(0, 6).tolist()) == [0, 0, 2, 2, 5, 6, 7]
    assert rows.counted(0, 2).tolist() == [0, 5, 0, 7]


@pytest.mark.parametrize("most", [1, 2, 16])
def test_no_text_moves_the_histogram_by_more_than_is_noised_for(here: Path, most: int) -> None:
    data = made(here, f"data.counted_tokens={most}")
    counts = data.histogram()[0]
    (bound,) = data.rows_per_example
    assert bound == min(most, 6)
    assert counts[1] == 0 and counts[0] == 4
    one = [TextRows.of(data.split("train")._records[[row]]).counted(0, bound) for row in range(4)]
    assert max(map(len, one)) <= bound
    assert np.array_equal(np.bincount(np.concatenate(one), minlength=12), counts)
    assert np.array_equal(data.histogram()[0], counts)


def selected(here: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[list[int], str]:
    settings = ["data=sst2", f"data.path={here}/SST-2", f"model.path={here}/model", "data.max_length=6"]
    places = [f"paths.data={here}/data", f"paths.runs={here}/runs", "data.validation=0", "algorithm=fest"]
    folder = select(typed(Composer().compose([*settings, *places, "algorithm.selection.rows=5", *more])))
    return np.load(folder / "rows.npy").tolist(), capsys.readouterr().err.splitlines()[-1]


def test_noise_of_the_selection_covers_all_tokens_of_a_text(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pipelines.select

    bounds: list[Any] = []
    original = pipelines.select.select_rows
    monkeypatch.setattr(
        pipelines.select, "select_rows", lambda *a, **k: (bounds.append(k["rows_per_example"]), original(*a, **k))[1]
    )
    _, said = selected(here, capsys, "data.counted_tokens=4")
    assert bounds == [[4]]
    assert "Gaussian noise of standard deviation 40 (multiplier 20) on the counts of each row, at most 4 rows" in said


def test_the_tokenizers_merges_are_a_public_prior(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    public = ("algorithm.selection.mechanism=public", "algorithm.selection.prior=tokenizer")
    rows, said = selected(here, capsys, *public, "algorithm.selection.rows=9")
    # Marks and letters, then the merges in their order; what no merge makes comes last.
    assert rows == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert "the order of the tokenizer's vocabulary" in said and "costs no privacy" in said
    assert selected(here, capsys, *public, "algorithm.selection.rows=8")[0] == list(range(8))
    np.save(here / "counts.npy", np.arange(12))
    public = (public[0], f"algorithm.selection.prior={here}/counts.npy")
    assert selected(here, capsys, *public, "algorithm.selection.rows=3")[0] == [9, 10, 11]


def test_a_prior_of_a_tokenizer_is_for_texts_alone(tmp_path: Path) -> None:
    prior = ("algorithm=fest", "algorithm.selection.mechanism=public", "algorithm.selection.prior=tokenizer")
    places = ("profile=smoke", "data.rows=100", f"paths.data={tmp_path}/data", f"paths.runs={tmp_path}/runs")
    with pytest.raises(UserError, match=r"algorithm.selection.prior=tokenizer is for texts"):
        select(typed(Composer().compose([*prior, *places])))


def test_generated_texts_tell_their_label_by_planted_words(tmp_path: Path) -> None:
    small = ("data=text_synthetic", "data.rows=2000", "data.vocabulary_size=300", f"paths.data={tmp_path}/data")
    data = Dataset.open(preprocess(typed(Composer().compose(small))))
    assert data.vocabulary_sizes == [300] and data.rows["test"] == 2000
    rows = data.split("test").gather(np.arange(2000))
    assert rows.ids.max() < 300 and not (rows.ids == 3).any()
    telling = np.arange(5, 105)
    for label in (0, 1):
        ids = rows.ids[rows.labels == label]
        own = np.isin(ids, telling[label::2]).sum()
        assert own > 1000 and not np.isin(ids, telling[1 - label :: 2]).any()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("telling_words=300", "data.telling_words must be between 2 and half of the words"),
        ("max_length=3", "data.max_length must be a whole number from 4 to 100,000, not 3"),
        ("validation=1.0", "data.validation must be below 1"),
        ("counted_tokens=0", "data.counted_tokens must be a whole number from 1"),
    ],
)
def test_settings_without_meaning_are_refused(setting: str, message: str) -> None:
    name, value = setting.split("=")
    kind = type(getattr(TextSyntheticConfig(), name))
    with pytest.raises(UserError, match=message):
        build(TextSyntheticConfig, {"vocabulary_size": 300, name: kind(value)}, "data").check()
