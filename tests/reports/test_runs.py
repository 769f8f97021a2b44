"""Reading run folders: only finished, whole and finite runs are used, and every other folder is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from reports.chosen import but_for_selection
from reports.comparison import populations
from reports.reading import load_runs
from reports.runs import Timings, setting_key
from reports.setting import Setting
from tests.reports.synthetic import write_cards_of, write_run


def damage(folder: Path, **changes: object) -> None:
    summary = json.loads((folder / "release" / "summary.json").read_text())
    (folder / "release" / "summary.json").write_text(json.dumps(summary | changes))


def earlier_version(folder: Path) -> None:
    """Lay a run out as versions before release/ and private/ did."""
    for name in ("config.yaml", "summary.json", "ledger.json"):
        (folder / "release" / name).rename(folder / name)
    (folder / "release").rmdir()


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda f: (f / "release" / "summary.json").write_text('{"schema": 1, "data'), "summary.json cannot be read"),
        (lambda f: (f / "release" / "summary.json").write_bytes(b"\xff\xfe"), "summary.json cannot be read"),
        (lambda f: (f / "release" / "summary.json").write_text("[]"), "not a JSON object"),
        (lambda f: (f / "release" / "summary.json").write_text("[" * 100_000), "summary.json cannot be read"),
        (lambda f: (f / "release" / "summary.json").unlink(), "no summary.json"),
        (lambda f: (f / "status.json").unlink(), "no status.json"),
        (earlier_version, "an earlier version of dpfest with another file layout made it"),
        (lambda f: (f / "release" / "config.yaml").unlink(), "it has no release/config.yaml"),
        (lambda f: (f / "release" / "config.yaml").write_text("a: [1"), "release/config.yaml cannot be read"),
        (lambda f: (f / "private" / "config.yaml").write_text("a: [1"), "private/config.yaml cannot be read"),
        (lambda f: (f / "release" / "config.yaml").write_text(""), "release/config.yaml holds no settings"),
        (
            lambda f: (f / "release" / "config.yaml").write_text("data: [1, 2]"),
            "release/config.yaml has [1, 2] as its settings of data",
        ),
        (
            lambda f: (f / "release" / "config.yaml").write_text("privacy: {epsilon: one}"),
            "config.yaml is malformed (privacy.epsilon",
        ),
        (lambda f: (f / "status.json").write_text('{"status": "running"}'), "its status is running"),
        (
            lambda f: (f / "status.json").write_text('{"status": "failed", "reason": "out of memory"}'),
            "out of memory",
        ),
        (
            lambda f: damage(f, utility={"metric": "auc", "value": float("nan"), "validation": 0.7}),
            "not a finite",
        ),
        (
            lambda f: damage(f, utility={"metric": "auc", "value": 0.7, "validation": None}),
            "utility.validation",
        ),
        (lambda f: damage(f, embedding_gradient={"parameters": 3}), "coordinates_mean"),
        (lambda f: damage(f, examples="many"), "malformed"),
        (lambda f: damage(f, utility=7), "malformed"),
        (lambda f: damage(f, schema=99), "summary.json has schema 99, and this version reads 2"),
        (lambda f: damage(f, utility={"metric": "auc", "value": 1.7, "validation": 0.7}), "1.7, not between 0 and 1"),
        (lambda f: damage(f, utility={"metric": "auc", "value": 0.7, "validation": -1}), "-1, not between 0 and 1"),
        (lambda f: damage(f, embedding_gradient={"parameters": 3, "coordinates_mean": -5}), "is -5, below 0"),
        (lambda f: damage(f, examples=0), "examples in summary.json is 0, not a whole number above 0"),
        (lambda f: damage(f, steps=1.5), "steps in summary.json is 1.5"),
        (lambda f: damage(f, examples=float("inf")), "examples in summary.json is inf, not a finite number"),
        (lambda f: damage(f, seed=float("inf")), "summary.json is malformed"),
        (
            lambda f: damage(f, utility={"metric": "auc", "value": 10**400, "validation": 0.7}),
            "utility.value in summary.json is 1000",
        ),
        (lambda f: damage(f, privacy={"epsilon": float("inf")}), "privacy.epsilon"),
        (lambda f: damage(f, hyperparameters={"algorithm": 3}), "malformed"),
        (
            lambda f: damage(f, hyperparameters={"algorithm": {"selection": "all"}}),
            "its settings of selection are 'all'",
        ),
        (lambda f: damage(f, dataset="a\x1b[2Jb"), "summary.json has a control character at dataset"),
        (
            lambda f: (f / "release" / "config.yaml").write_text('data: {name: "a\\eb"}'),
            "release/config.yaml has a control character at data.name",
        ),
        (
            lambda f: (f / "release" / "config.yaml").write_text("a: " + "[" * 50_000 + "]" * 50_000),
            "release/config.yaml cannot be read (nested more than 100 levels deep)",
        ),
    ],
)
def test_a_folder_that_cannot_be_used_is_named_with_its_reason(tmp_path: Path, harm, reason: str) -> None:
    write_run(tmp_path, "dpsgd", test=0.72)
    folder = write_run(tmp_path, "fest", test=0.71)
    harm(folder)
    runs, skipped = load_runs(tmp_path)
    assert [run.algorithm for run in runs] == ["dpsgd"]
    (left_out,) = skipped
    assert left_out.path == f"nycflights/fest/{folder.name}"
    assert reason in left_out.reason


def test_empty_half_made_and_hidden_folders_do_no_harm(tmp_path: Path) -> None:
    assert load_runs(tmp_path / "none") == ([], [])
    (tmp_path / "nycflights" / "fest" / "just_started").mkdir(parents=True)
    (tmp_path / ".sweep" / "logs" / "one").mkdir(parents=True)
    (tmp_path / "nycflights" / "note.txt").write_text("mine")
    runs, skipped = load_runs(tmp_path)
    assert runs == []
    assert [left_out.path for left_out in skipped] == ["nycflights/fest/just_started"]


def rewrite(part: Path, **sections: object) -> None:
    """Put other sections in the place of those of a config.yaml."""
    config = yaml.safe_load((part / "config.yaml").read_text())
    (part / "config.yaml").write_text(yaml.safe_dump(config | sections))


def test_parts_of_two_runs_are_no_run(tmp_path: Path) -> None:
    """Of a folder and of a card, with the first thing on which they disagree."""
    folder = write_run(tmp_path / "runs", "dpsgd", test=0.72)
    rewrite(folder / "release", seed=4)
    cards = write_cards_of(tmp_path / "runs", tmp_path / "cards" / "all.jsonl")
    for place in (tmp_path / "runs", cards):
        runs, (left_out,) = load_runs(place)
        assert runs == []
        assert left_out.reason == "its parts are not of one run: seed of the summary is 0, and that of the settings 4"


def test_hyperparameters_come_from_the_configuration_where_the_summary_has_none(tmp_path: Path) -> None:
    write_run(tmp_path, "fest", test=0.71, settings={"selection": {"rows": 77}}, hyperparameters=None)
    ((run,), _) = load_runs(tmp_path)
    assert run.hyperparameters["algorithm"]["selection"]["rows"] == 77


def test_a_setting_that_is_null_is_the_same_as_one_that_an_earlier_version_lacks(tmp_path: Path) -> None:
    for seed, train in enumerate(({"epochs": 2}, {"epochs": 2, "steps": None}, {"epochs": 2, "steps": 60})):
        folder = write_run(tmp_path, "dpsgd", test=0.72, seed=seed, dataset="names", hyperparameters=None)
        rewrite(folder / "release", data={"name": "names", "rows": train.get("steps")}, train=train)
    runs = sorted(load_runs(tmp_path)[0], key=lambda run: run.seed)
    earlier, null, other = map(setting_key, runs)
    assert earlier == null != other
    assert runs[0].material == runs[1].material != runs[2].material
    earlier, null, other = (but_for_selection(Setting("", (run,))) for run in runs)
    assert earlier == null != other


def test_a_run_without_hyperparameters_has_a_setting_of_its_own(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, "dpsgd", test=0.72, seed=seed, hyperparameters={})
    runs, _ = load_runs(tmp_path)
    for key in (setting_key, lambda run: but_for_selection(Setting("", (run,)), "source", "noise_multiplier")):
        assert len({key(run) for run in runs}) == 2


def test_data_are_told_apart_by_their_seeds_and_not_by_where_they_lie(tmp_path: Path) -> None:
    changes = {}, {"path": "moved", "on_bad_row": "skip"}, {"seed": 1}, {"split": {"seed": 1}}
    for run, change in enumerate(changes):
        write_run(tmp_path, "dpsgd", test=0.72, seed=run, data={"seed": 0, "split": {"seed": 0}, **change})
    runs = sorted(load_runs(tmp_path)[0], key=lambda run: run.seed)
    here, moved, drawn, split = (run.material for run in runs)
    assert here == moved and len({here, drawn, split}) == 3
    assert sorted(len(group.runs) for group in populations(runs)) == [1, 1, 2]


def test_pretrained_models_are_told_apart_by_their_weights_and_not_by_where_they_lie(tmp_path: Path) -> None:
    for seed, (weights, place) in enumerate((("5f2a91c3", "here"), ("5f2a91c3", "moved"), ("00c0ffee", "here"))):
        folder = write_run(tmp_path, "dpsgd", test=0.72, seed=seed, dataset="sst2", weights=weights, model="roberta")
        model = {"name": "roberta", "path": f"/{place}"}
        rewrite(folder / "release", data={"name": "sst2", "tokenizer": f"/{place}"}, model=model)
    runs, _ = load_runs(tmp_path)
    here, moved, other = (run.material for run in sorted(runs, key=lambda run: run.seed))
    assert here == moved != other


def test_a_card_with_malformed_settings_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "dpsgd", test=0.72)
    (folder / "release" / "config.yaml").write_text("data: [1, 2]")
    cards = write_cards_of(tmp_path / "runs", tmp_path / "cards" / "all.jsonl")
    runs, (left_out,) = load_runs(cards)
    assert runs == [] and left_out.path == "all.jsonl, line 2"
    assert left_out.reason == "config.yaml has [1, 2] as its settings of data, not settings by name"


@pytest.mark.parametrize("seconds", ["n/a", [20.0], float("nan")])
def test_a_run_whose_times_are_damaged_has_none(tmp_path: Path, seconds: object) -> None:
    folder = write_run(tmp_path, "dpsgd", test=0.72)
    (folder / "private" / "timings.json").write_text(json.dumps({"wall_seconds": seconds}))
    ((run,), skipped) = load_runs(tmp_path)
    assert run.timings is None and skipped == []


def test_the_place_of_the_data_is_private_and_times_too(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "dpsgd", test=0.72, dataset="criteo_kaggle", wall_seconds=33.0)
    for part, place in (("release", "train.txt"), ("private", "/data/criteo/train.txt")):
        rewrite(folder / part, data={"name": "criteo_kaggle", "path": place})
    ((run,), _) = load_runs(tmp_path)
    assert (run.source, run.timings) == ("/data/criteo/train.txt", Timings(33.0))
    shutil.rmtree(folder / "private")  # a release that somebody else reads
    ((run,), _) = load_runs(tmp_path)
    assert (run.source, run.timings) == ("train.txt", None)
