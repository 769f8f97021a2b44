"""`data.vocabulary.policy=private`: which values have rows, what runs pay for them, and what may leave."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dpfest.errors import UserError
from dpfest.planning.ledger import Ledger
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.data.dataset import Dataset, sealed_text
from pipelines.data.identity import data_hash
from pipelines.preprocess import dataset_folder, preprocess
from pipelines.runs.costs import refuse_other_costs
from pipelines.runs.release import checked
from pipelines.select import select
from pipelines.system.checksum import write_sums
from pipelines.train import make_run
from pipelines.train.trained import load
from tests.pipelines.killed import signal_at

RunsIn = Callable[[Path], Path]
ROWS = 4_000
PRIVATE = ("data.vocabulary.policy=private", "data.vocabulary.noise_multiplier=2", "data.vocabulary.delta=1e-7")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of `shop`, one of four shops, and `code`, which no other row has."""
    path = tmp_path_factory.mktemp("table") / "rows.parquet"
    number = np.arange(ROWS)
    pl.DataFrame({"clicked": number % 3 == 0, "shop": number % 4, "code": [f"c{n}" for n in number]}).write_parquet(
        path
    )
    return path


def settings(table: Path, folder: Path, *more: str) -> Config:
    line = [
        "data=table", "data.name=shops", f"data.path={table}", "data.label=clicked",
        "data.categorical={shop: null, code: null}",
        "algorithm=dpsgd", "privacy.epsilon=3", "privacy.noise_seed=0", "train.batch_size=200", "train.steps=3",
        f"paths.data={folder}/data", f"paths.runs={folder}/runs", *PRIVATE, "data.vocabulary.noise_seed=0", *more,
    ]  # fmt: skip
    return typed(Composer().compose(line))


def test_frequent_values_have_rows_and_values_of_single_rows_share_one(table: Path, tmp_path: Path) -> None:
    dataset = Dataset.open(preprocess(settings(table, tmp_path)))
    assert dict(zip(dataset.categorical_names, dataset.vocabulary_sizes, strict=True)) == {"shop": 1 + 4, "code": 1}
    assert not dataset.data_dependent_vocabulary
    known = dataset.description["vocabulary"]
    assert known["release"] == {"noise_multiplier": 2.0, "delta": 1e-7, "values_per_example": 2}
    assert "private release" in known["note"]
    assert dataset.histogram()[dataset.categorical_names.index("code")].tolist() == [dataset.examples]


def test_rows_of_a_seed_are_the_same_again_and_without_one_the_noise_is_secret(table: Path, tmp_path: Path) -> None:
    """Shops of 900 rows at a threshold near 900: which of them pass is the noise's."""
    near = ("data.vocabulary.noise_multiplier=110",)
    seeded = [Dataset.open(preprocess(settings(table, tmp_path / name, *near))) for name in ("a", "b")]
    assert seeded[0].vocabulary_sizes == seeded[1].vocabulary_sizes
    fresh = ("data.vocabulary.noise_seed=null",)
    found = {
        tuple(
            np.load(preprocess(settings(table, tmp_path / f"{n}", *near, *fresh)) / "vocabulary.npz")["shop"].tolist()
        )
        for n in range(8)
    }
    assert len(found) > 1


def test_its_settings_are_of_no_identity_under_another_policy(table: Path, tmp_path: Path) -> None:
    other = ("data.vocabulary.noise_multiplier=5", "data.vocabulary.noise_seed=3")
    hashed = ("data.vocabulary.policy=hash", "data.categorical={shop: 8, code: 8}")
    one, two, three, four = (
        data_hash(settings(table, tmp_path, *more).data) for more in ((), other, hashed, (*other, *hashed))
    )
    assert one != two and three == four


def test_a_run_pays_for_it_and_its_release_says_so(table: Path, tmp_path: Path, runs_in: RunsIn) -> None:
    runs_in(tmp_path / "runs")
    path = make_run(settings(table, tmp_path)).path
    ledger = json.loads((path / "release" / "ledger.json").read_text())
    assert [event["what"] for event in ledger["events"]] == ["vocabulary", "values of one example", "training step"]
    assert Ledger.from_json(ledger).epsilon() <= 3 and ledger["fixed_noise_seed"]
    summary = json.loads((path / "release" / "summary.json").read_text())
    assert summary["privacy"]["vocabulary"] == ledger["events"][:2] and summary["privacy"]["selection"] is None
    card = (path / "release" / "MODEL_CARD.md").read_text()
    assert "The vocabularies are a private release of training rows, which ε covers." in card
    assert "noise_seed:" not in (path / "release" / "config.yaml").read_text()
    assert "vocabulary.npz" in [file.name for file in checked(path).files]
    scores = load(path).predict()
    alone = shutil.copytree(path / "release", tmp_path / "alone")
    shutil.rmtree(tmp_path / "data")
    assert load(alone, f"data.path={table}").predict().equals(scores)
    forged = path / "release" / "vocabulary.npz"
    whole = forged.read_bytes()
    for harm, said in (
        (
            {"shop": np.arange(4, dtype=np.uint64), "code": np.arange(9, dtype=np.uint64)},
            "is not the vocabulary that was",
        ),
        ({"shop": np.arange(4, dtype=np.uint64)}, "is damaged"),
    ):
        np.savez(forged, **harm)
        write_sums(path / "release")
        with pytest.raises(UserError, match=said):
            checked(path)
    forged.write_bytes(whole[: len(whole) // 2])
    write_sums(path / "release")
    with pytest.raises(UserError, match="is damaged"):
        checked(path)
    forged.write_bytes(whole)
    edited = path / "release" / "summary.json"
    edited.write_text(edited.read_text().replace('"probability": 1e-07', '"probability": 1e-09'))
    write_sums(path / "release")
    with pytest.raises(UserError, match=r"privacy\.vocabulary is"):
        checked(path)


def test_a_ledger_that_does_not_pay_for_the_vocabulary_of_its_settings_is_refused() -> None:
    """Though summary and ledger agree, and epsilon is that of the events."""
    step = {"what": "training step", "noise_multiplier": 1.0, "count": 1}
    settings = {"privacy": {}, "data": {"vocabulary": {"policy": "private", "noise_multiplier": 2.0, "delta": 1e-7}}}
    spent = {"step": step, "noise_multiplier": 1.0, "public_vocabulary": True}
    ledger = {"planned": [step], "statements": [], "fidelity": "rigorous"}
    with pytest.raises(UserError, match="what the ledger pays for the vocabulary is"):
        refuse_other_costs(settings, ledger, {"periods": None, "examples": 100, "privacy": spent})


# Data that were made anew have other values in other rows.


@pytest.fixture
def anew(table: Path, tmp_path: Path, runs_in: RunsIn) -> Callable[..., Config]:
    """Makes data anew, with other values than before; thresholds under a secret key are near the count of a shop."""
    runs_in(tmp_path / "runs")
    near = ("data.vocabulary.noise_multiplier=110", "data.vocabulary.noise_seed=null")
    made: list[str | None] = []

    def make(*more: str) -> Config:
        config = settings(table, tmp_path, *near, *more)
        while True:  # each of four shops passes or not, half of the time
            shutil.rmtree(dataset_folder(config), ignore_errors=True)
            made.append(Dataset.open(preprocess(config)).vocabulary_sha256)
            if made[-1] not in made[:-1]:
                return config

    return make


def test_a_run_does_not_resume_on_data_that_were_made_anew(anew: Callable[..., Config]) -> None:
    config = anew("train.steps=6", "train.checkpoint_every=2")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        signal_at(patch, 3, signal.SIGTERM)
        make_run(config)
    again = anew("train.steps=6", "train.checkpoint_every=2")
    with pytest.raises(UserError, match="was begun on another vocabulary of the same data"):
        make_run(again)


def test_rows_are_selected_again_and_splits_are_not_scored_on_data_that_were_made_anew(
    anew: Callable[..., Config],
) -> None:
    fest = ("algorithm=fest", "algorithm.selection.rows=2")
    config = anew(*fest)
    path, selections = make_run(config).path, Path(config.paths.runs) / ".selections"
    make_run(anew(*fest, "seed=1"))
    assert len(list(selections.rglob("rows.npy"))) == 2
    assert len(load(path).predict()) == ROWS  # by the vocabulary of its release
    with pytest.raises(UserError, match="has another vocabulary than the run was trained on"):
        load(path).evaluate_split("test")
    shutil.rmtree(dataset_folder(config))
    with pytest.raises(UserError, match="are in the folder of the data that were trained on, whose noise is secret"):
        load(path).evaluate_split("test")


def test_a_selection_pays_for_the_vocabulary_and_is_refused_where_training_is(
    table: Path, tmp_path: Path, runs_in: RunsIn
) -> None:
    runs_in(tmp_path / "runs")
    fest = ("algorithm=fest", "algorithm.selection.rows=2")
    told = json.loads((select(settings(table, tmp_path, *fest)) / "selection.json").read_text())
    assert [event["what"] for event in told["spent"]] == ["vocabulary", "values of one example", "row selection"]
    with pytest.raises(UserError, match="gumbel costs a draw"):
        select(settings(table, tmp_path, *fest, "algorithm.selection.mechanism=gumbel"))


def test_a_run_without_privacy_is_released_with_its_vocabulary(table: Path, tmp_path: Path, runs_in: RunsIn) -> None:
    runs_in(tmp_path / "runs")
    path = make_run(settings(table, tmp_path, "algorithm=nonprivate", "privacy.delta=1e-8")).path
    assert "vocabulary.npz" in [file.name for file in checked(path).files]


@pytest.mark.parametrize("harm", [lambda file: file.unlink(), lambda file: file.write_bytes(b"junk")])
def test_a_damaged_vocabulary_is_refused_before_anything_is_spent(
    table: Path, tmp_path: Path, runs_in: RunsIn, harm: Callable[[Path], object]
) -> None:
    runs_in(tmp_path / "runs")
    config = settings(table, tmp_path)
    harm(preprocess(config) / "vocabulary.npz")
    with pytest.raises(UserError, match="is damaged: delete"):
        make_run(config)
    assert not list((tmp_path / "runs").rglob("state.pt"))


def test_where_no_value_passes_it_is_said(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preprocess(settings(table, tmp_path, "data.vocabulary.noise_multiplier=3000"))
    assert "no value passed the vocabulary's noised counts" in "".join(capsys.readouterr())


def test_a_vocabulary_that_was_released_otherwise_than_the_run_pays_for_is_refused(
    table: Path, tmp_path: Path, runs_in: RunsIn
) -> None:
    runs_in(tmp_path / "runs")
    config = settings(table, tmp_path)
    folder = preprocess(config)
    description = json.loads((folder / "dataset.json").read_text())
    description["vocabulary"]["release"]["noise_multiplier"] = 0.5
    description.pop("seal")
    (folder / "dataset.json").write_text(sealed_text(description))
    with pytest.raises(UserError, match="delete the folder and preprocess again"):
        make_run(config)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("data.categorical={shop: 8, code: {rows: 8, most: 2, separator: '|'}}",), "features of bags have several"),
        (("data.vocabulary.noise_multiplier=0.5",), "raise data.vocabulary.noise_multiplier"),
        (("privacy=paper",), "under privacy.fidelity=paper take tables of public sizes"),
        (("data.unit=[code]", "privacy.unit=code", "train.batch_size=100"), "with units of privacy"),
        (("data.vocabulary.delta=1",), "data.vocabulary.delta"),
        (("privacy.delta=1e-8",), "data.vocabulary.delta=1e-07, with which a value of a single example is released"),
        (("data.categorical={shop: 8, code: null}",), "data.categorical.shop=8 would be published and has no effect"),
        (("data.vocabulary.policy=hash",), "must say how many rows its table has"),
        (("algorithm=fest", "algorithm.selection.mechanism=gumbel"), "selection.mechanism=gumbel costs a draw"),
        (("search.distribution=negative_binomial",), "several runs and releases the best"),
    ],
)
def test_what_it_cannot_be_combined_with_is_said(
    table: Path, tmp_path: Path, runs_in: RunsIn, more: tuple[str, ...], said: str
) -> None:
    runs_in(tmp_path / "runs")
    with pytest.raises(UserError, match=said):
        make_run(settings(table, tmp_path, *more))
