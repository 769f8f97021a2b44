"""Encoders of every family that is said to work, their heads, and LoRA on the embedding table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dpfest.errors import UserError
from dpfest.training.loop import PrivateTraining
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.data.dataset import Dataset
from pipelines.preprocess import preprocess
from pipelines.tasks.low_rank_table import LowRankTable
from pipelines.tasks.roberta import trainable_set
from pipelines.tasks.task import task_of
from pipelines.train import make_run
from tests.pipelines.by_hand import noise_by_hand

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

ROWS, WIDTH = 500, 8
FAMILIES = {
    "bert": (transformers.BertConfig, transformers.BertModel),
    "roberta": (transformers.RobertaConfig, transformers.RobertaForMaskedLM),
    "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaForMaskedLM),
}


def config(tmp_path: Path, *more: str) -> Config:
    places = (f"paths.data={tmp_path}/data", f"paths.runs={tmp_path}/runs", "privacy.noise_seed=5")
    return typed(Composer().compose(["data=text_synthetic", "profile=smoke", "data.rows=300", *places, *more]))


def task(tmp_path: Path, *more: str) -> Any:
    settings = config(tmp_path, *more)
    return task_of(settings, Dataset.open(preprocess(settings)), torch.device("cpu"))


def pretrained(folder: Path, family: str, **more: Any) -> Path:
    shape, kind = FAMILIES[family]
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": WIDTH}
    kind(shape(vocab_size=ROWS, max_position_embeddings=34, pad_token_id=1, **sizes), **more).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("head", ["unit", "own"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains_with_every_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, head: str
) -> None:
    noise_by_hand(monkeypatch, 5.0)
    folder = pretrained(tmp_path / "model", family)
    run = make_run(config(tmp_path, f"model.path={folder}", f"model.head={head}", "algorithm.threshold=2"))
    from safetensors.torch import load_file

    now = load_file(run.path / "release" / "model.safetensors")
    start = task(tmp_path, f"model.path={folder}", f"model.head={head}").model
    trained = {name for names in trainable_set(start).values() for name in names}
    moved = {name for name, value in start.state_dict().items() if not torch.equal(value, now[name])}
    assert moved == trained
    assert run.summary["embedding_gradient"]["parameters"] == ROWS * WIDTH


def test_a_bert_without_pooler_is_whole_for_the_unit_head_alone(tmp_path: Path) -> None:
    folder = pretrained(tmp_path / "model", "bert", add_pooling_layer=False)
    task(tmp_path, f"model.path={folder}")
    with pytest.raises(UserError, match=r"lack bert\.pooler\.dense\.bias and 1 more"):
        task(tmp_path, f"model.path={folder}", "model.head=own")


def test_the_unit_head_reads_the_direction_of_the_first_token_alone(tmp_path: Path) -> None:
    model = task(tmp_path, "model.head_gain=3").model
    features = torch.randn(4, 6, 16)
    want = model.classifier(features)
    other = torch.cat([1000 * features[:, :1], torch.randn(4, 5, 16)], dim=1)
    torch.testing.assert_close(model.classifier(other), want, rtol=1e-3, atol=1e-3)
    assert float(model.classifier.out_proj.weight.detach().norm(dim=1).mean()) == pytest.approx(3, rel=0.5)


def test_a_table_of_low_rank_starts_as_the_table_and_learns_in_its_factors(tmp_path: Path) -> None:
    whole, factored = task(tmp_path).model, task(tmp_path, "algorithm=lora_embedding", "algorithm.rank=4").model
    table = factored.get_input_embeddings()
    assert isinstance(table, LowRankTable)
    ids = torch.tensor([[0, 7, 7, 2], [0, 9, 2, 1]])
    assert torch.equal(table(ids), whole.get_input_embeddings()(ids))
    assert len(trainable_set(factored)["word embedding"]) == 2
    assert not table.table.weight.requires_grad


def test_a_table_of_low_rank_trains_and_its_reduction_is_the_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: dict[str, torch.Tensor] = {}
    step = PrivateTraining.step

    def watched(self: PrivateTraining, batch: Any) -> Any:
        if not before:
            before.update({name: value.clone() for name, value in self.model.state_dict().items()})
        return step(self, batch)

    noise_by_hand(monkeypatch, 5.0)
    monkeypatch.setattr(PrivateTraining, "step", watched)
    settings = config(tmp_path, "algorithm=lora_embedding", "algorithm.rank=4")
    run = make_run(settings)
    from safetensors.torch import load_file

    after = load_file(run.path / "release" / "model.safetensors")
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    own = {name for name in moved if "word_embeddings" in name}
    assert own == {f"roberta.embeddings.word_embeddings.{part}.weight" for part in ("first", "second")}
    size = run.summary["embedding_gradient"]
    assert size["parameters"] == ROWS * 16 and size["coordinates_mean"] == 4 * (ROWS + 16)
    assert size["reduction"] == pytest.approx(ROWS * 16 / (4 * (ROWS + 16)))


def test_the_low_rank_rule_is_refused_where_there_is_no_word_embedding() -> None:
    with pytest.raises(UserError, match="data=journey holds no texts: choose algorithm=dpsgd"):
        typed(Composer().compose(["algorithm=lora_embedding"]))


def test_texts_bring_the_settings_that_their_model_learns_with_and_the_command_line_goes_before_them() -> None:
    text, clicks = (typed(Composer().compose([data])) for data in ("data=journey_text", "data=criteo_synthetic"))
    assert (text.train.batch_size, text.train.micro_batch_size, text.optimizer.tables.learning_rate) == (512, 64, 5)
    assert (clicks.train.batch_size, clicks.optimizer.tables.learning_rate) == (2048, 30)
    own = typed(Composer().compose(["data=text_synthetic", "train.batch_size=7", "optimizer.tables.learning_rate=2"]))
    assert (own.train.batch_size, own.optimizer.tables.learning_rate) == (7, 2)
