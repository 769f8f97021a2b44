"""BERT, which is told which tokens of a pair are the second text's, from the official files to the model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.data.dataset import Dataset
from pipelines.data.text.tokens import TextTokenizer
from pipelines.preprocess import preprocess
from pipelines.tasks.task import task_of
from pipelines.train import make_run
from tests.pipelines.by_hand import noise_by_hand

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

PIECES = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "the", "a", "zebra", "b", "c", "##s"]


def wordpiece() -> dict[str, Any]:
    """A tokenizer in BERT's form."""
    marks = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    cls, sep = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": place}} for place, name in enumerate("AB"))
    last = {"SpecialToken": {"id": "[SEP]", "type_id": 1}}
    return {
        "version": "1.0",
        "added_tokens": [{"id": row, "content": PIECES[row], **marks} for row in (0, 3, 4, 5)],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [cls, first, sep],
            "pair": [cls, first, sep, second, last],
            "special_tokens": {
                name: {"id": name, "ids": [PIECES.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")
            },
        },
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {piece: row for row, piece in enumerate(PIECES)},
        },
    }


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "bert"
    shape = transformers.BertConfig(
        vocab_size=len(PIECES), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16, pad_token_id=0,
    )  # fmt: skip
    transformers.BertModel(shape).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(wordpiece()))
    return folder


def config(tmp_path: Path, model: Path, *more: str) -> Config:
    folder = tmp_path / "pairs"
    folder.mkdir(exist_ok=True)
    lines = ["index\tquestion\tsentence\tlabel", "0\ta b\tc the c\tentailment", "1\tc\tb\tnot_entailment", ""]
    (folder / "train.tsv").write_text("\n".join([lines[0], *20 * lines[1:3], ""]))
    (folder / "dev.tsv").write_text("\n".join(lines))
    places = [f"paths.{name}={tmp_path / name}" for name in ("data", "runs")]
    settings = ["data=qnli", "profile=smoke", f"data.path={folder}", f"model.path={model}", "data.max_length=10"]
    return typed(Composer().compose([*settings, *places, "privacy.noise_seed=5", *more]))


def test_the_second_text_of_a_pair_has_the_segment_that_its_tokenizer_gives_it(tmp_path: Path, model: Path) -> None:
    settings = config(tmp_path, model)
    data = Dataset.open(preprocess(settings))
    task: Any = task_of(settings, data, torch.device("cpu"))
    given = []
    task.model.register_forward_pre_hook(lambda layer, args, named: given.append(named), with_kwargs=True)
    (part,) = task.batches(data.split("test"), np.arange(2), None)
    task.losses(task.model, part.data)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(model / "tokenizer.json"),
        pad_token="[PAD]",
        model_input_names=["input_ids", "token_type_ids"],
    )
    want = tokenizer([("c", "b"), ("a b", "c the c")], padding=True, return_tensors="pt")
    assert torch.equal(given[0]["input_ids"], want["input_ids"])
    assert torch.equal(given[0]["token_type_ids"], want["token_type_ids"])
    assert given[0]["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1]]


def test_bert_trains_on_pairs(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise_by_hand(monkeypatch, 8.0)
    run = make_run(config(tmp_path, model, "algorithm.threshold=1", "train.batch_size=8"))
    assert 0 <= run.summary["utility"]["value"] <= 1
    assert re.fullmatch(r"[0-9a-f]{8}", run.summary["weights"])


def test_places_that_berts_vocabulary_left_unused_are_the_last_of_its_prior() -> None:
    prior = TextTokenizer(wordpiece(), len(PIECES), 0).prior()
    assert set(np.argsort(prior, kind="stable")[:2]) == {1, 2}
    assert prior[PIECES.index("the")] > prior[PIECES.index("zebra")]


def test_a_model_of_other_classes_gets_a_classifier_of_these(tmp_path: Path, model: Path) -> None:
    three = tmp_path / "three"
    shape = transformers.BertConfig.from_pretrained(model, num_labels=3)
    transformers.BertForSequenceClassification(shape).save_pretrained(three)
    (three / "tokenizer.json").write_text((model / "tokenizer.json").read_text())
    for head in ("unit", "own"):
        settings = config(tmp_path, three, f"model.head={head}")
        task: Any = task_of(settings, Dataset.open(preprocess(settings)), torch.device("cpu"))
        assert task.model.config.num_labels == 2 and task.model.classifier is not None


def test_weights_that_cannot_be_used_are_refused_in_a_sentence(tmp_path: Path, model: Path) -> None:
    def refused(match: str) -> None:
        settings = config(tmp_path, model)
        with pytest.raises(UserError, match=match):
            task_of(settings, Dataset.open(preprocess(settings)), torch.device("cpu"))

    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    refused("cannot be loaded: .+")
    weights.write_bytes(whole)
    described = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(described | {"intermediate_size": 12}))
    refused(r"contradict config\.json in the shape of bert\.encoder\.layer\.0\.intermediate")
    (model / "config.json").write_text(json.dumps(described | {"model_type": "gpt2"}))
    refused("of the family gpt2; supported are bert, roberta, xlm-roberta")


@pytest.mark.parametrize(("file", "what"), [("train.tsv", "train on"), ("dev.tsv", "report on")])
def test_a_file_without_rows_is_named(tmp_path: Path, model: Path, file: str, what: str) -> None:
    settings = config(tmp_path, model)
    (tmp_path / "pairs" / file).write_text("index\tquestion\tsentence\tlabel\n")
    with pytest.raises(UserError, match=rf"{file} has no row to {what} \(0 malformed ones left out\)"):
        preprocess(settings)
