"""Models and texts named on the Hugging Face hub: nothing is fetched unasked, and what was fetched is as a folder is.

The hub's own client talks to a server on this machine.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.preprocess import preprocess
from pipelines.runs.identity import run_hash
from pipelines.system.hub import _say_once
from pipelines.train import make_run
from tests.pipelines.data.text.test_glue import model_folder, sst2_folder
from tests.pipelines.data.text.test_parquet import hub_folder
from tests.pipelines.system.fake_hub import FakeHub, running

client = pytest.importorskip("huggingface_hub")
transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

MODEL, DATA = "owner/tiny-roberta", "nyu-mll/glue"
ASKED = "hub.download=true"


def repository(folder: Path, **saved: Any) -> Path:
    """A tiny RoBERTa with its tokenizer, and what else such repositories hold."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    shape = transformers.RobertaConfig(vocab_size=12, max_position_embeddings=34, pad_token_id=1, **sizes)
    transformers.RobertaForMaskedLM(shape).save_pretrained(model_folder(folder), **saved)
    for name in ("README.md", "tf_model.h5", "pytorch_model.bin"):
        (folder / name).write_bytes(b"not for us")
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with running(FakeHub()) as hub:
        constants = client.constants
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr("time.sleep", lambda _: None)  # between attempts
        _say_once.cache_clear()
        hub.add("model", MODEL, repository(tmp_path / "model"))
        texts = {"sentence": ["abc ab", "a", "c c c a", "b"] * 5, "label": [1, 0, 1, 0] * 5}
        glue = hub_folder(tmp_path / "glue", "sst2", "validation", sentence=["ab", "b a"], label=[1, 0])
        hub.add("dataset", DATA, hub_folder(glue, "sst2", "test", **texts))
        sst2_folder(tmp_path / "SST-2")
        yield hub


def asked(tmp_path: Path, *more: str, model: object = MODEL, data: object = None) -> Config:
    places = [f"paths.data={tmp_path}/data", f"paths.runs={tmp_path}/runs", f"model.path={model}"]
    settings = ["data=sst2", f"data.path={data or tmp_path / 'SST-2'}", "data.max_length=6", "train.steps=2"]
    return typed(Composer().compose([*places, *settings, "train.batch_size=4", "privacy.noise_seed=1", *more]))


def fetched(hub: FakeHub) -> list[str]:
    return [Path(request).name for request in hub.requests if request.startswith("GET") and "/resolve/" in request]


def test_nothing_is_fetched_unasked_and_the_error_says_how_to_ask(tmp_path: Path, hub: FakeHub) -> None:
    with pytest.raises(UserError) as refused:
        make_run(asked(tmp_path))
    assert str(refused.value) == (
        f"There is no folder {MODEL}, and the local cache {tmp_path}/cache has nothing of the model of that name on "
        "the Hugging Face hub. Correct the path; or set hub.download=true to download the files, which needs a "
        f"network; or download them yourself: `hf download {MODEL} config.json tokenizer.json model.safetensors`."
    )
    with pytest.raises(UserError) as refused:
        preprocess(asked(tmp_path, data=f"{DATA}@v1", model=tmp_path / "model"))
    assert (
        f"`hf download {DATA} --repo-type dataset --revision v1 sst2/train-00000-of-00001.parquet "
        "sst2/validation-00000-of-00001.parquet`"
    ) in str(refused.value)
    assert hub.requests == [] and not (tmp_path / "cache").exists()


def test_what_was_fetched_is_the_same_run_as_a_folder_and_needs_no_network_again(
    tmp_path: Path, hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(asked(tmp_path, ASKED, data=DATA))
    parquet = ["train-00000-of-00001.parquet", "validation-00000-of-00001.parquet"]
    assert sorted(fetched(hub)) == sorted(["config.json", "tokenizer.json", "model.safetensors", *parquet])
    commits = {kind: hub.commit(kind, name) for kind, name in hub.repositories}
    said = capsys.readouterr().err
    for kind, name in hub.repositories:
        assert said.count(f"{name}: commit {commits[kind]}, in {tmp_path}/cache/{kind}s--") == 1

    recorded = yaml.safe_load((run.path / "release" / "config.yaml").read_text())
    assert recorded["data"]["path"] == f"{DATA}@{commits['dataset']}"
    assert recorded["data"]["tokenizer"] == recorded["model"]["path"] == f"{MODEL}@{commits['model']}"

    folders = asked(tmp_path, data=tmp_path / "glue", model=tmp_path / "model")
    assert run.path.name == run_hash(folders)
    assert make_run(folders).skipped

    hub.requests.clear()
    monkeypatch.setattr(client.constants, "ENDPOINT", "http://127.0.0.1:9")
    for more in ((), (ASKED,)):
        assert make_run(asked(tmp_path, *more, data=DATA)).skipped
        shutil.rmtree(tmp_path / "data")  # read from the cache again
    assert hub.requests == []


def test_preprocessing_alone_fetches_no_weights(tmp_path: Path, hub: FakeHub) -> None:
    preprocess(asked(tmp_path, ASKED))
    assert sorted(fetched(hub)) == ["config.json", "tokenizer.json"]


def test_tokenizer_and_weights_are_of_one_commit_though_the_repository_has_moved_on(
    tmp_path: Path, hub: FakeHub
) -> None:
    before = shutil.copytree(tmp_path / "model", tmp_path / "before")
    hub.history[hub.commit("model", MODEL)] = before
    preprocess(asked(tmp_path, ASKED))
    repository(tmp_path / "model")  # other random weights
    assert run_hash(asked(tmp_path, ASKED)) == run_hash(asked(tmp_path, model=before))
    now = f"{MODEL}@{hub.commit('model', MODEL)}"
    assert run_hash(asked(tmp_path, ASKED, model=now)) == run_hash(asked(tmp_path, model=tmp_path / "model"))
    assert run_hash(asked(tmp_path, model=now)) != run_hash(asked(tmp_path, model=before))


def test_an_older_format_of_weights_is_fetched_where_there_is_no_other(tmp_path: Path, hub: FakeHub) -> None:
    import torch
    from safetensors.torch import load_file

    weights = tmp_path / "model" / "model.safetensors"
    torch.save(load_file(weights), tmp_path / "model" / "pytorch_model.bin")
    with_both = run_hash(asked(tmp_path, model=tmp_path / "model"))
    assert run_hash(asked(tmp_path, ASKED)) == with_both  # the .bin is not read
    weights.unlink()
    hub.requests.clear()
    run = make_run(asked(tmp_path, ASKED, model=f"{MODEL}@{hub.commit('model', MODEL)}", data=tmp_path / "glue"))
    assert fetched(hub) == ["pytorch_model.bin"] and run.summary["steps"] == 2


def test_weights_in_several_files_are_there_when_all_are(tmp_path: Path, hub: FakeHub) -> None:
    (tmp_path / "model" / "model.safetensors").unlink()
    repository(tmp_path / "model", max_shard_size="2KB")
    name = run_hash(asked(tmp_path, ASKED))
    parts = sorted((tmp_path / "cache").rglob("snapshots/*/model-*.safetensors"))
    assert len(parts) > 1 and name == run_hash(asked(tmp_path, model=tmp_path / "model"))
    parts[0].unlink()
    with pytest.raises(UserError, match=r"has no model\*.safetensors or pytorch_model\*.bin of the model"):
        run_hash(asked(tmp_path))
    hub.requests.clear()
    assert run_hash(asked(tmp_path, ASKED)) == name
    assert fetched(hub) in ([], [parts[0].name])  # its content is still in the cache


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model": "owner/nothing"}, "owner/nothing cannot be downloaded from {url}: there is no model of that name"),
        ({"model": f"{MODEL}@v9"}, f"{MODEL}@v9 cannot be downloaded from {{url}}: it has no revision v9."),
        ({"model": "owner/a--b"}, "owner/a--b cannot be downloaded from {url}: Cannot have -- or .."),
        ({"data": "owner/tsv"}, "owner/tsv on the hub (commit {commit}) has no sst2/train-00000-of-00001.parquet or"),
        ({"data": MODEL}, f"{MODEL} cannot be downloaded from {{url}}: there is no dataset of that name"),
        (
            {"model": "owner/private"},
            "{url}: there is no model of that name (or it is private, and needs `hf auth login`).",
        ),
        (
            {"model": "owner/gated"},
            "{url}: accept its owner's terms on its page, and run `hf auth login` here.",
        ),
        ({"model": "owner/broken"}, "owner/broken cannot be downloaded from {url}: Server error '500"),
    ],
)
def test_what_is_not_on_the_hub_is_said_in_a_sentence(
    tmp_path: Path, hub: FakeHub, more: dict[str, str], message: str
) -> None:
    hub.add("dataset", "owner/tsv", tmp_path / "model")
    hub.refused = {"owner/private": (401, "RepoNotFound"), "owner/gated": (403, "GatedRepo"), "owner/broken": (500, "")}
    with pytest.raises(UserError) as refused:
        make_run(asked(tmp_path, ASKED, **more))
    assert message.format(url=hub.url, commit=hub.commit("dataset", "owner/tsv")) in str(refused.value)
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("lost", "message"),
    [("tokenizer.json", "tokenizer.json"), ("*.safetensors", "model*.safetensors or pytorch_model*.bin")],
)
def test_a_repository_that_lacks_a_file_is_named_with_it(tmp_path: Path, hub: FakeHub, lost: str, message: str) -> None:
    for path in (*(tmp_path / "model").glob(lost), tmp_path / "model" / "pytorch_model.bin"):
        path.unlink()
    with pytest.raises(UserError) as refused:
        make_run(asked(tmp_path, ASKED))
    assert str(refused.value) == (
        f"{MODEL} on the hub (commit {hub.commit('model', MODEL)}) has no {message}: name another model, or a folder "
        "of your own that holds all files."
    )


def test_a_hub_out_of_reach_is_said_in_a_sentence(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        UserError, match=rf"^{MODEL} cannot be downloaded from .*: .*Connection refused; complete files"
    ):
        run_hash(asked(tmp_path, ASKED))
    monkeypatch.setattr(client.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        UserError, match=r"cannot be downloaded from .*: the environment variable HF_HUB_OFFLINE forbids"
    ):
        run_hash(asked(tmp_path, ASKED))


def test_a_download_that_breaks_off_goes_on_where_it_was(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.constants, "DOWNLOAD_CHUNK_SIZE", 1)
    hub.cut = {"model.safetensors": 2}
    assert run_hash(asked(tmp_path, ASKED)) == run_hash(asked(tmp_path, model=tmp_path / "model"))
    size = (tmp_path / "model" / "model.safetensors").stat().st_size
    ranges = [request.rpartition(" ")[2] for request in hub.requests if "bytes=" in request]
    assert ranges == [f"bytes={size // 2}-", f"bytes={size // 2 + (size - size // 2) // 2}-"]


def test_a_download_that_is_given_up_leaves_nothing_half_done(tmp_path: Path, hub: FakeHub) -> None:
    hub.cut = {"model.safetensors": 10**6}
    with pytest.raises(UserError, match="complete files are kept, and the same command downloads the others"):
        run_hash(asked(tmp_path, ASKED))
    with pytest.raises(UserError, match=r"has no model\*.safetensors or pytorch_model\*.bin of the model"):
        run_hash(asked(tmp_path))
    hub.cut = {}
    hub.requests.clear()
    assert run_hash(asked(tmp_path, ASKED)) == run_hash(asked(tmp_path, model=tmp_path / "model"))
    assert fetched(hub) == ["model.safetensors"]


def test_a_folder_goes_before_a_repository_and_no_other_path_is_taken_for_one(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tmp_path / "model", tmp_path / MODEL)
    assert run_hash(asked(tmp_path, ASKED)) == run_hash(asked(tmp_path, model=tmp_path / "model"))
    for wrong in (f"{tmp_path}/modle", "./modle", "../a/modle", "owner/tiny/modle", "modle/"):
        with pytest.raises(
            UserError, match=r"^There is no .*modle/config.json: model.path must be the folder of a model"
        ):
            run_hash(asked(tmp_path, ASKED, model=wrong))
        with pytest.raises(
            UserError, match=r"^There is no file .*modle/train.tsv: set data.path to the folder of train"
        ):
            run_hash(asked(tmp_path, ASKED, data=wrong))
    assert hub.requests == []


def test_without_the_hubs_package_a_name_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sst2_folder(tmp_path / "SST-2")
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", None)
    with pytest.raises(
        UserError, match=r"^There is no folder owner/tiny-roberta, and names on .*pip install -e '\.\[text\]'"
    ):
        run_hash(asked(tmp_path))
