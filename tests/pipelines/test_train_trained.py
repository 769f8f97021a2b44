"""A trained model on other rows: the scores of its own evaluation, for whatever model and data, and every refusal."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from scipy.special import expit
from sklearn.metrics import log_loss, roc_auc_score

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import typed
from pipelines.data.rows import Rows
from pipelines.data.stream import Stream
from pipelines.preprocess import preprocess
from pipelines.runs.directory import RunDirectory
from pipelines.train import RunOutcome, make_run
from pipelines.train.trained import load

QUICK = ["train.steps=2", "train.batch_size=64", "device=cpu", "privacy.noise_seed=0"]
TABLE = ["data=table", "data.path=clicks.parquet", 'data.label="rating > 3"', "data.numeric={price: log1p}"]
SINGLE = "data.categorical={user: 64, item: 128}"
BAG = "data.categorical={user: 64, item: 128, tags: {rows: 32, most: 3}}"
KINDS = {
    "one value a column": [SINGLE, "algorithm=adafest", "model.hidden=[8]"],
    "a bag, smaller tables": [BAG, "algorithm=smaller_tables", "model.hidden=[8]"],
    "a sequence": [BAG, "algorithm=fest", "algorithm.selection.rows=50", "model=sequence"],
}


def clicks(rows: int = 900) -> pl.DataFrame:
    random = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "user": [f"user {i}" for i in random.integers(0, 97, rows)],
            "item": random.integers(-20, 80, rows),
            "price": random.normal(10, 5, rows),
            "rating": random.integers(1, 6, rows),
            "tags": [[int(tag) for tag in random.integers(0, 40, size)] for size in random.integers(0, 5, rows)],
        }
    )


@pytest.fixture
def made(tmp_path: Path, runs_in: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunOutcome]:
    monkeypatch.chdir(tmp_path)
    clicks().write_parquet("clicks.parquet")
    runs = runs_in(tmp_path / "runs")

    def make(*line: str) -> RunOutcome:
        return make_run(
            typed(Composer().compose([*QUICK, *line, f"paths.runs={runs}", f"paths.data={tmp_path / 'd'}"]))
        )

    return make


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind == "a sequence" else []) for kind in KINDS]
)
def test_new_rows_have_the_scores_of_the_models_own_evaluation(made: Callable[..., RunOutcome], kind: str) -> None:
    run = made(*TABLE, *KINDS[kind])
    trained, utility = load(run.path), run.summary["utility"]
    own = trained.evaluate_split("test")
    assert (own["auc"], own["loss"], own["calibrated_loss"]) == pytest.approx(
        (utility["value"], utility["loss"], utility["calibrated_loss"]), rel=1e-6
    )
    # Of all rows those of the test split, wherever they stand in the file.
    everything = trained.predict("clicks.parquet")
    test = pl.concat(trained.scored_split("test"))
    distance = np.abs(np.subtract.outer(test["logit"].to_numpy(), everything["logit"].to_numpy())).min(1)
    assert everything.height == 900 and distance.max() < 1e-5, "products of other batches differ in their last bits"
    bare = clicks().drop("rating")
    assert trained.predict(bare).equals(everything), "labels are not needed"
    bare.write_parquet("bare.parquet")
    assert load(run.path / "release", "data.path=bare.parquet").predict().equals(everything), "a release is enough"
    platt = utility["calibration"]
    calibrated = expit(platt["scale"] * everything["logit"].to_numpy() + platt["shift"])
    np.testing.assert_allclose(everything["probability"].to_numpy(), calibrated, rtol=1e-12)


def test_scores_are_those_of_the_dataset_row_by_row(made: Callable[..., RunOutcome]) -> None:
    run = made(*TABLE, BAG, "algorithm=dpsgd", "model.hidden=[8]")
    whole = ["data.split.train=1", "data.split.validation=0", "data.split.test=0"]  # all rows in the file's order
    config = typed(Composer().compose([*TABLE, BAG, *whole, "paths.data=all"]))
    rows = next(Stream.open(preprocess(config)).days[0].split("train").chunks(1000))
    assert isinstance(rows, Rows)
    trained = load(run.path)
    numeric, categorical = torch.from_numpy(rows.numeric), torch.from_numpy(rows.categorical.astype(np.int64))
    bags = [tuple(torch.from_numpy(part) for part in bag) for bag in rows.flat_bags()]
    with torch.no_grad():
        logits = trained.model(numeric, categorical, bags).double().numpy()
    np.testing.assert_allclose(trained.predict()["logit"].to_numpy(), logits, rtol=1e-5, atol=1e-6)
    found = trained.evaluate("clicks.parquet")
    labels = (clicks()["rating"] > 3).to_numpy()
    assert found["examples"] == 900
    assert found["auc"] == pytest.approx(roc_auc_score(labels, logits), abs=1e-3)
    assert found["loss"] == pytest.approx(log_loss(labels, expit(logits)), rel=1e-5)


def test_a_learnt_vocabulary_is_found_beside_the_data_or_missed(
    made: Callable[..., RunOutcome], tmp_path: Path
) -> None:
    run = made(*TABLE, SINGLE, "data.vocabulary.policy=threshold", "data.vocabulary.min_count=5", "model.hidden=[8]",
               "algorithm=nonprivate")  # fmt: skip
    found = load(run.path, "data.path=clicks.parquet").predict()
    moved = load(run.path / "release", "data.path=clicks.parquet")
    with pytest.raises(UserError, match=r"learnt from rows \(data\.vocabulary\.policy=threshold\): no release has it"):
        moved.predict()
    (folder,) = (tmp_path / "d").iterdir()
    again = load(run.path / "release", "data.path=clicks.parquet", f"paths.data={folder.parent}").predict()
    assert again.equals(found), "paths.data says where the folder of the data is"
    unseen = pl.DataFrame({"user": ["nobody", None], "item": [10**12, None], "price": [0.0, None]})
    # One by one: in one product, the last bits of two rows may differ.
    nobody, missing = (load(run.path).predict(one)["logit"].item() for one in unseen.iter_slices(1))
    assert nobody == missing, "unknown values share the first row"


def test_texts_are_scored_by_split(made: Callable[..., RunOutcome]) -> None:
    run = made("profile=smoke", "data=text_synthetic", "algorithm=adafest", "train.steps=2")
    trained = load(run.path)
    scores = pl.concat(trained.scored_split("test"))
    labels = np.concatenate([rows.labels for rows in trained._split("test").chunks(64)])
    assert float((scores["label"].to_numpy() == labels).mean()) == pytest.approx(run.summary["utility"]["value"])
    assert scores.select(pl.sum_horizontal("^probability_.*$")).to_series().to_list() == pytest.approx(
        [1.0] * len(labels)
    )
    assert trained.evaluate_split("test")["accuracy"] == run.summary["utility"]["value"]
    with pytest.raises(UserError, match=r"The model reads texts: .* one of their splits by --split"):
        trained.predict("clicks.parquet")


def test_criteos_format_is_scored_line_by_line(made: Callable[..., RunOutcome]) -> None:
    run = made("profile=smoke", "data=criteo_synthetic", "data.rows=300", "algorithm=dpsgd")
    trained = load(run.path)
    assert trained.predict().height == 300 == trained.evaluate()["examples"]
    with pytest.raises(
        UserError, match=r"A table can be scored by a model of data=table, and this one is of data=crit"
    ):
        trained.predict(clicks())


def test_what_cannot_be_used_is_refused(made: Callable[..., RunOutcome], tmp_path: Path) -> None:
    run = made(*TABLE, SINGLE, "algorithm=frozen", "model.hidden=[8]")
    with pytest.raises(UserError, match=r"privacy\.epsilon=3 cannot be changed of a trained model"):
        load(run.path, "privacy.epsilon=3")
    with pytest.raises(UserError, match=r"is no finished run: it has neither release/summary\.json nor status\.json"):
        load(tmp_path)
    with pytest.raises(UserError, match=r"nowhere is no finished run: there is no such folder\."):
        load("nowhere")
    (tmp_path / "status.json").write_text('{"status": "stopped", "reason": "on request"}')
    with pytest.raises(UserError, match=r"its status is stopped \(on request\)\. Wait for its end, or"):
        load(tmp_path)
    of_pandas = type("DataFrame", (), {"__module__": "pandas.core.frame"})()
    with pytest.raises(UserError, match=r"not a pandas DataFrame: give polars\.from_pandas\(table\)\."):
        load(run.path).predict(of_pandas)
    with pytest.raises(UserError, match=r"the table has no column user, which data\.categorical names"):
        load(run.path).predict(clicks().drop("user"))
    with pytest.raises(UserError, match=r"There is no file nowhere\.parquet"):
        load(run.path).predict("nowhere.parquet")
    with pytest.raises(UserError, match=r"the table, row 3: price is inf"):
        load(run.path).predict(clicks(5).with_columns(price=pl.Series([1.0, 2.0, np.inf, 4.0, 5.0])))
    other = load(run.path, "data.categorical={user: 64, item: 256}")
    with pytest.raises(UserError, match=r"model\.safetensors does not fit the model of its settings"):
        other.predict(clicks())
    assert load(run.path).predict(clicks().head(0)).is_empty()
    shutil.copytree(run.path, "copy")
    Path("copy/release/model.safetensors").unlink()
    with pytest.raises(UserError, match=r"copy kept no weights: train it with train\.save_model=true"):
        load("copy")
    assert RunDirectory(run.path).summary() is not None
