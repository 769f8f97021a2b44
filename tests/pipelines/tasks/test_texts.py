"""The text task: what is trained, what is clipped, what is counted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.rules import DPSGD
from dpfest.errors import UserError
from dpfest.gradients.clipped_sum import ClippedSum
from dpfest.gradients.tables import Survivors
from dpfest.noise.key import NoiseKey
from dpfest.step.engine import PrivateEngine
from dpfest.training.binding import describe
from dpfest.training.loop import PrivateTraining
from pipelines.bench.sections import bench
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.data.dataset import Dataset
from pipelines.data.rows import TextRows
from pipelines.preprocess import preprocess
from pipelines.runs.identity import run_folder, run_hash
from pipelines.tasks.task import task_of
from pipelines.train import make_run
from tests.dpfest.steps import engine_with, micro_batches
from tests.pipelines.by_hand import noise_by_hand

pytest.importorskip("transformers")
pytest.importorskip("peft")

RULES = ("nonprivate", "frozen", "dpsgd", "threshold", "fest", "adafest", "adafest_plus", "exponential")


def config(tmp_path: Path, *more: str) -> Config:
    places = (f"paths.data={tmp_path}/data", f"paths.runs={tmp_path}/runs", "privacy.noise_seed=5")
    return typed(Composer().compose(["data=text_synthetic", "profile=smoke", "data.rows=300", *places, *more]))


@pytest.fixture(autouse=True)
def shared_calibrations(tmp_path: Path, calibrations: Path) -> None:
    for runs in (tmp_path / "runs", tmp_path / "other"):
        runs.mkdir(parents=True)
        (runs / ".calibration").symlink_to(calibrations)


@pytest.fixture
def task(tmp_path: Path) -> Any:
    settings = config(tmp_path)
    return task_of(settings, Dataset.open(preprocess(settings)), torch.device("cpu"))


def some_texts(task: Any) -> Any:
    """Texts of several lengths; tokens stand in one twice and more, and in several of them."""
    ids = np.full((5, 9), 1, np.int32)
    lengths = np.array([9, 4, 6, 3, 9], np.int32)
    generator = np.random.default_rng(0)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = [0, *generator.integers(5, 9, length - 2), 2]
    ((_, batch),) = task._batches(TextRows(np.array([0, 1, 1, 0, 1], np.int32), lengths, ids), 5)
    return batch


def clipped_sum(engine: PrivateEngine, batch: Any, survivors: Survivors, clipping_norm: float) -> ClippedSum:
    """Of one micro-batch, without noise."""
    (part,) = micro_batches([batch])
    recording = engine.recorder.record(part.data, part.examples, 0)
    recording.backward()
    found = ClippedSum(engine.recorder, survivors, clipping_norm)
    found.add(recording)
    return found


@pytest.mark.parametrize("survivors", [None, [0, 2, 6, 8, 400]])
def test_clipped_sums_equal_those_of_one_example_at_a_time(task: Any, survivors: list[int] | None) -> None:
    model = task.model.double()
    with torch.no_grad():  # LoRA's second factor starts at zero, and with it the first one's gradient
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3, generator=torch.Generator().manual_seed(1))
    batch = some_texts(task)
    engine = engine_with(
        model, DPSGD(), task.losses, NoiseKey.from_seed(0), gradient_noise_multiplier=0.0, expected_batch_size=1.0
    )
    kept = Survivors(engine.layout, None if survivors is None else torch.tensor(survivors))

    trainable, gradients = engine.recorder.trainable, []
    table = model.get_input_embeddings().weight
    for example in range(5):
        loss = task.losses(model, tuple(part[example : example + 1] for part in batch)).sum()
        found = dict(zip(trainable, torch.autograd.grad(loss, [*trainable.values()]), strict=True))
        for name, parameter in trainable.items():
            if parameter is table and survivors is not None:
                found[name] = torch.zeros_like(table).index_copy(0, kept.rows, found[name][kept.rows])
        gradients.append(found)
    norms = torch.stack([sum(g.square().sum() for g in found.values()).sqrt() for found in gradients])
    bound = float(norms.median())
    factor = (bound / norms).clamp_max(1.0)
    want = {name: sum(f * found[name] for f, found in zip(factor, gradients, strict=True)) for name in trainable}

    sums = clipped_sum(engine, batch, kept, bound)
    torch.testing.assert_close(sums.example_norms[0], norms, rtol=1e-9, atol=1e-12)
    assert 0 < int((factor < 1).sum()) < 5, "the bound must cut some and spare some"
    for name, parameter in trainable.items():
        if parameter is table:
            rows = slice(None) if survivors is None else kept.rows
            torch.testing.assert_close(sums.rows[0], want[name][rows], rtol=1e-9, atol=1e-12)
        else:
            assert float(want[name].abs().max()) > 0
            torch.testing.assert_close(sums.dense[parameter], want[name], rtol=1e-9, atol=1e-12)


def test_norms_and_clipped_sums_equal_those_of_opacus(task: Any) -> None:
    opacus = pytest.importorskip("opacus")
    model = task.model.double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3, generator=torch.Generator().manual_seed(1))
    batch = some_texts(task)
    engine = engine_with(
        model, DPSGD(), task.losses, NoiseKey.from_seed(0), gradient_noise_multiplier=0.0, expected_batch_size=1.0
    )
    # So small a norm clips every example.
    sums = clipped_sum(engine, batch, Survivors(engine.layout, None), 1e-6)

    sampled = opacus.GradSampleModule(model, loss_reduction="sum", strict=False)
    for layer in engine.recorder.layers.values():
        layer.train()  # Opacus looks at no others; dropout, elsewhere, stays off
    ids, mask, labels = batch
    logits = sampled(input_ids=ids, attention_mask=mask).logits
    torch.nn.functional.cross_entropy(logits, labels, reduction="sum").backward()
    squares = torch.zeros(5, dtype=torch.float64)
    word_embedding = model.get_input_embeddings().weight
    for parameter in engine.recorder.trainable.values():
        theirs = parameter.grad_sample
        if parameter is word_embedding:
            theirs[:, 1] = 0  # Opacus counts padding as a look-up; torch does not
        squares += theirs.flatten(1).square().sum(1)
    torch.testing.assert_close(sums.example_norms[0], squares.sqrt(), rtol=1e-9, atol=0)
    for parameter, mine in (*sums.dense.items(), (word_embedding, sums.rows[0])):
        clipped = torch.tensordot(1e-6 / squares.sqrt(), parameter.grad_sample, 1)
        torch.testing.assert_close(mine, clipped, rtol=1e-9, atol=1e-16)


def test_in_half_precision_norms_sums_and_noise_are_float32(tmp_path: Path) -> None:
    settings = config(tmp_path, "model.precision=bfloat16")
    task = task_of(settings, Dataset.open(preprocess(settings)), torch.device("cpu"))
    batch, seen = some_texts(task), []
    task.model.roberta.encoder.layer[0].attention.self.query.register_forward_hook(
        lambda layer, given, output: seen.append(output.dtype)
    )
    assert task.losses(task.model, batch).dtype == torch.float32 and seen == [torch.bfloat16]
    engine = engine_with(
        task.model, DPSGD(), task.losses, NoiseKey.from_seed(0), gradient_noise_multiplier=0.0, expected_batch_size=1.0
    )
    everything, clipping_norm = Survivors(engine.layout, None), 1e-3
    for example in range(5):
        alone = tuple(part[example : example + 1] for part in batch)
        sums = clipped_sum(engine, alone, everything, clipping_norm)
        parts = [*sums.rows, *sums.dense.values()]
        assert sums.example_norms[0].dtype == torch.float32 and all(part.dtype == torch.float32 for part in parts)
        # bfloat16 keeps 8 bits: a norm that was taken of rounded parts would be off by about 0.004.
        norm = torch.stack([part.double().square().sum() for part in parts]).sum().sqrt()
        assert float(norm) == pytest.approx(clipping_norm, rel=1e-4)
    whole, _ = engine.gradient(micro_batches([batch]), 0)
    assert {value.dtype for value in (*whole.dense.values(), *(t.values for t in whole.tables))} == {torch.float32}


def test_attention_is_eager_in_half_precision_alone_and_a_state_is_bound_to_it(tmp_path: Path) -> None:
    models = []
    for precision in ("float32", "bfloat16"):
        settings = config(tmp_path, f"model.precision={precision}")
        models.append(task_of(settings, Dataset.open(preprocess(settings)), torch.device("cpu")).model)
    assert [model.config._attn_implementation for model in models] == ["sdpa", "eager"]
    fused, eager = (describe(model) for model in models)
    assert fused != eager
    models[1].set_attn_implementation("sdpa")
    assert describe(models[1]) == fused


@pytest.mark.parametrize(
    ("able", "slow"),
    [
        ({"architecture": "x86_64", "amx_bf16": False, "avx512_bf16": False}, True),
        ({"architecture": "x86_64", "amx_bf16": True, "avx512_bf16": False}, False),
        ({"architecture": "x86_64", "amx_bf16": False, "avx512_bf16": True}, False),
        ({"architecture": "aarch64"}, False),
    ],
)
def test_a_cpu_that_emulates_half_precision_is_named(
    able: dict[str, Any], slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    for precision in ("float32", "bfloat16"):
        settings = config(tmp_path, f"model.precision={precision}")
        data = Dataset.open(preprocess(settings))
        capfd.readouterr()
        task_of(settings, data, torch.device("cpu"))
        assert ("float32, the default, is several times faster" in capfd.readouterr().err) == (
            slow and precision == "bfloat16"
        )


def test_half_precision_is_another_run_of_nearly_the_same_losses(tmp_path: Path) -> None:
    settings = {name: config(tmp_path, f"model.precision={name}") for name in ("float32", "bfloat16")}
    assert run_hash(settings["float32"]) != run_hash(settings["bfloat16"])
    data = Dataset.open(preprocess(settings["float32"]))
    full, half = (task_of(each, data, torch.device("cpu")) for each in settings.values())
    wanted, found = full.losses(full.model, some_texts(full)), half.losses(half.model, some_texts(half))
    assert not torch.equal(found, wanted)
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.01)
    assert make_run(settings["bfloat16"]).summary["utility"]["value"] is not None


def test_the_map_counts_a_token_once_a_text_and_padding_never(task: Any) -> None:
    ids, mask, _ = batch = some_texts(task)
    engine = engine_with(
        task.model, DPSGD(), task.losses, NoiseKey.from_seed(0), gradient_noise_multiplier=0.0, expected_batch_size=1.0
    )
    (part,) = micro_batches([batch])
    lookups = engine.recorder.record(part.data, part.examples, 0).lookups
    counted = set(zip(lookups.example.tolist(), lookups.rows[lookups.row_of].tolist(), strict=True))
    want = {(i, token) for i in range(5) for token in ids[i][mask[i].bool()].tolist()}
    assert len(lookups.example) == len(counted)
    assert counted == want and 1 not in lookups.rows.tolist()
    assert any(len(set(row[m.bool()].tolist())) < int(m.sum()) for row, m in zip(ids, mask, strict=True))


def surviving(task: Any, batch: Any, **settings: float) -> list[int]:
    algorithm, key = AdaFEST(**settings), NoiseKey.from_seed(0)
    noise = {"gradient_noise_multiplier": 0.0, "map_noise_multiplier": 0.3, "expected_batch_size": 1.0}
    engine = engine_with(task.model, algorithm, task.losses, key, **noise)
    return engine.gradient(micro_batches([batch]), 0)[0].tables[0].rows.tolist()


def test_a_contribution_norm_below_every_map_scales_the_threshold_and_nothing_else(task: Any) -> None:
    batch = some_texts(task)
    fewest = min(len(set(row[m.bool()].tolist())) for row, m in zip(*batch[:2], strict=True))
    low, high = 0.5, 0.99 * fewest**0.5  # of maps as long as the root of their distinct tokens
    want = surviving(task, batch, contribution_clipping_norm=low, threshold=2 * low)
    assert want == surviving(task, batch, contribution_clipping_norm=high, threshold=2 * high)
    # One that clips no map counts whole tokens, and what it adds is noise.
    assert want != surviving(task, batch, contribution_clipping_norm=50, threshold=100)


def test_a_step_moves_lora_classifier_and_surviving_rows_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: dict[str, Tensor] = {}
    survived: list[set[int]] = []
    step = PrivateTraining.step

    def watched(self: PrivateTraining, batch: Any) -> Any:
        if not before:
            before.update({name: value.clone() for name, value in self.model.state_dict().items()})
        made = step(self, batch)
        survived.append(set(made.release.tables[0].rows.tolist()))
        for name, value in self.model.state_dict().items():
            now.update({name: value.clone()})
        return made

    now: dict[str, Tensor] = {}
    monkeypatch.setattr(PrivateTraining, "step", watched)
    make_run(config(tmp_path, "algorithm.threshold=3", "train.steps=2", "train.batch_size=64"))
    moved = {name for name in now if not torch.equal(now[name], before[name])}
    lora = {name for name in now if "lora_" in name}
    assert len(lora) == 2 * 2 * 2 and all(".query." in name or ".value." in name for name in lora)
    classifier = {f"classifier.out_proj.{part}" for part in ("weight", "bias")}
    (table,) = moved - lora - classifier
    assert table == "roberta.embeddings.word_embeddings.weight"
    assert moved == lora | classifier | {table}
    rows = set(torch.nonzero((now[table] != before[table]).any(1)).squeeze(1).tolist())
    assert rows == set.union(*survived) - {1} and 0 < len(rows) < len(now[table])


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_trains_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    noise_by_hand(monkeypatch, 8.0)
    within = ["algorithm.selection.rows=40"] if rule in ("fest", "adafest_plus") else []
    summary = make_run(config(tmp_path, f"algorithm={rule}", *within)).summary
    assert (summary["dataset"], summary["model"], summary["algorithm"]) == ("text_synthetic", "roberta", rule)
    assert summary["utility"]["metric"] == "accuracy" and 0 <= summary["utility"]["value"] <= 1
    value, error = summary["utility"]["value"], summary["utility"]["standard_error"]
    assert error == pytest.approx((value * (1 - value) / 200) ** 0.5)
    assert summary["embedding_gradient"]["parameters"] == 500 * 16
    if rule == "fest":
        assert summary["embedding_gradient"]["tables"][0]["rows_mean"] == 40


def test_a_run_that_was_broken_off_ends_in_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of texts in micro-batches; other rules, and processes that are killed, are tested on clicks."""
    from safetensors.torch import load_file

    noise_by_hand(monkeypatch, 8.0)
    more = ("train.steps=8", "train.checkpoint_every=3", "train.micro_batch_size=50")
    whole = make_run(config(tmp_path, *more))
    settings = config(tmp_path, *more, f"paths.runs={tmp_path}/other")
    step = PrivateTraining.step

    def breaks(self: PrivateTraining, batch: Any) -> Any:
        if self.steps_done == 5:
            raise RuntimeError("broken off")
        return step(self, batch)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="broken off"):
        patch.setattr(PrivateTraining, "step", breaks)
        make_run(settings)
    assert not (run_folder(settings) / "release" / "summary.json").exists()
    resumed = make_run(settings)
    want, got = (load_file(run.path / "release" / "model.safetensors") for run in (whole, resumed))
    assert want.keys() == got.keys() and all(torch.equal(want[name], got[name]) for name in want)
    assert resumed.summary["utility"] == whole.summary["utility"]


def test_initial_weights_follow_the_seed(tmp_path: Path) -> None:
    data = Dataset.open(preprocess(config(tmp_path)))
    first, again, other = (
        task_of(config(tmp_path, f"seed={seed}"), data, torch.device("cpu")).model.state_dict() for seed in (0, 0, 1)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_it_says_what_is_trained(tmp_path: Path, task: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings = config(tmp_path)
    task_of(settings, Dataset.open(preprocess(settings)), torch.device("cpu"))
    said = capsys.readouterr().err
    # 2 blocks, 2 places, 2 factors of 16 x 16; 2 x 16 + 2 in the classifier.
    assert "LoRA of rank 16 at query and value of 2 blocks (2,048 parameters), the classifier (34)" in said
    assert "the word embedding (500 x 16)" in said


def test_a_pretrained_folder_is_trained_and_its_content_names_the_run(tmp_path: Path) -> None:
    from transformers import RobertaConfig, RobertaForMaskedLM

    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = RobertaForMaskedLM(RobertaConfig(vocab_size=500, max_position_embeddings=34, pad_token_id=1, **shape))
    for place in ("here", "moved"):
        model.save_pretrained(tmp_path / place)
    settings = config(tmp_path, f"model.path={tmp_path}/here")
    assert run_hash(settings) == run_hash(config(tmp_path, f"model.path={tmp_path}/moved"))
    data = Dataset.open(preprocess(settings))
    loaded = task_of(settings, data, torch.device("cpu")).model
    assert torch.equal(loaded.get_input_embeddings().weight, model.get_input_embeddings().weight)
    with torch.no_grad():
        model.get_input_embeddings().weight += 1
    model.save_pretrained(tmp_path / "moved")
    assert run_hash(settings) != run_hash(config(tmp_path, f"model.path={tmp_path}/moved"))
    longer = config(tmp_path, f"model.path={tmp_path}/here", "data.max_length=33")
    with pytest.raises(UserError, match=r"data.max_length=33 exceeds the 32 tokens that the model accepts"):
        task_of(longer, Dataset.open(preprocess(longer)), torch.device("cpu"))
    larger = config(tmp_path, f"model.path={tmp_path}/here", "data.vocabulary_size=501")
    with pytest.raises(UserError, match=r"has 500 rows, padding at 1; the texts were tokenized for 501 rows"):
        task_of(larger, Dataset.open(preprocess(larger)), torch.device("cpu"))


def test_without_the_packages_a_sentence_says_what_to_install(
    tmp_path: Path, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(tmp_path)
    data = Dataset.open(preprocess(settings))
    for package in ("peft", "transformers"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(
            UserError,
            match=rf"needs the package {package}: install the text models' .* pip install -e '\.\[text\]'",
        ):
            task_of(settings, data, torch.device("cpu"))


def test_the_benchmark_of_click_models_refuses_a_model_of_texts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dpfest bench step needs clicks, which model=roberta cannot read"):
        bench("step", config(tmp_path), repeats=1)


@pytest.mark.parametrize("overrides", [["model=pctr"], ["data=criteo_synthetic", "model=roberta"]])
def test_data_and_model_of_two_tasks_are_refused(tmp_path: Path, overrides: list[str]) -> None:
    places = (f"paths.data={tmp_path}/data", f"paths.runs={tmp_path}/runs")
    with pytest.raises(UserError, match=r"cannot be trained on data=\w+: choose model=(roberta|pctr)"):
        typed(Composer().compose(["data=text_synthetic", "profile=demo", *places, *overrides]))


def test_texts_whose_tokenizer_no_model_brings_are_refused() -> None:
    with pytest.raises(UserError, match=r"data=sst2 and model=pctr do not fit together \(data\.tokenizer: "):
        typed(Composer().compose(["data=sst2", "data.path=somewhere", "model=pctr"]))
