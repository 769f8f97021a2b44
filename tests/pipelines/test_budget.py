"""`dpfest budget`: where N comes from, and what is printed."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import ndtr

from dpfest.accounting import calibration
from dpfest.accounting.accountant import Event
from dpfest.accounting.bands import strategy
from dpfest.algorithms.rules import ALGORITHMS
from dpfest.errors import UserError
from dpfest.planning.unproven import Nonprivate
from dpfest.selection.topk import SelectionConfig
from pipelines import budget as stage
from pipelines.budget.bands import accumulated
from pipelines.config.compose import Composer
from pipelines.config.settings import (
    typed,
)


@pytest.fixture
def config(tmp_path):
    line = ["data=criteo_synthetic", "algorithm=adafest", "budget.examples=50000", "train.batch_size=5000"]
    line += ["train.epochs=10", f"paths.data={tmp_path / 'data'}", f"paths.runs={tmp_path / 'runs'}"]
    made = replace(typed(Composer().compose(line)), algorithm=ALGORITHMS["adafest"]())
    made.data.features = lambda: [100] * 26
    return made


@pytest.fixture(autouse=True)
def no_dataset(monkeypatch, tmp_path):
    monkeypatch.setattr(stage, "dataset_folder", lambda config: tmp_path / "absent")


def test_it_answers_without_a_dataset_and_keeps_the_calibration(config, tmp_path):
    got = stage.budget(config)
    assert got.plan.steps == 100 and got.plan.step().sampling_probability == 0.1 and got.plan.delta == 2e-5
    lines = dict(line.split("  ", 1) for line in str(got).splitlines())
    printed = {name: value.strip() for name, value in lines.items()}
    assert printed["epsilon"].startswith("0.9999") and "of 1 (rigorous, poisson batches" in printed["epsilon"]
    assert float(printed["map σ1"]) == pytest.approx(5 * float(printed["gradient σ2"]), rel=1e-4)
    assert float(printed["delta"]) == 2e-5
    in_batch = math.sqrt(26) * float(printed["map σ1"])
    seen = printed["a row is seen by the map in"]
    assert seen == f"{in_batch / 0.1:,.0f} training examples ({in_batch:,.1f} of a batch)"
    assert len(list((tmp_path / "runs" / ".calibration").iterdir())) == 1
    rows, sigma = 2_600, float(printed["map σ1"])
    survive = rows * ndtr(-config.algorithm.threshold / sigma)
    now, _, advised = printed["untouched rows that survive a step"].partition("; 10 at ")
    assert now == f"{survive:,.3g} of {rows:,} at algorithm.threshold={config.algorithm.threshold:g}"
    assert rows * ndtr(-float(advised) / sigma) == pytest.approx(10, rel=0.05)


def test_a_search_costs_more_than_a_run_and_less_than_all_runs(tmp_path):
    line = ["algorithm=dpsgd", "data=criteo_synthetic", "budget.examples=5000", "train.batch_size=5000"]
    line += ["train.steps=20", "search=negative_binomial", f"paths.runs={tmp_path}"]
    got = stage.budget(typed(Composer().compose(line)))
    printed = {name: value.strip() for name, value in (row.split("  ", 1) for row in str(got).splitlines())}
    assert printed["private search"] == "a logarithmic number of runs with mean 10"
    assert 0.995 < float(printed["epsilon of the search"].removesuffix(" of 1")) <= 1
    one = float(printed["epsilon"].split()[0])
    assert 0.3 < one < 1 < float(printed["epsilon of 10 runs, all released"])
    assert float(printed["noise multiplier σ"]) > float(printed["σ of a run alone at epsilon 1"])


@pytest.mark.parametrize("edited", [1e6, True, float("nan"), "a", -1.0])
def test_a_remembered_calibration_that_was_edited_is_computed_again(config, tmp_path, edited):
    sound = stage.budget(config).plan.noise_multiplier
    (entry,) = (tmp_path / "runs" / ".calibration").iterdir()
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"noise_multiplier": edited}))
    assert stage.budget(config).plan.noise_multiplier == sound


def test_n_is_read_from_the_processed_dataset(config, monkeypatch, tmp_path):
    folder = tmp_path / "dataset"
    folder.mkdir()
    stream = SimpleNamespace(examples=lambda train_days: 40_000, vocabulary_sizes=[5, 2_000])
    monkeypatch.setattr(stage, "dataset_folder", lambda config: folder)
    monkeypatch.setattr(stage.Stream, "open", lambda folder: stream)
    config.budget.examples = None
    config.algorithm = ALGORITHMS["fest"](selection=SelectionConfig(mechanism="gumbel", rows=1_000))
    got = stage.budget(config)
    assert got.plan.examples == 40_000
    assert got.plan.selections[0].draws == 1_000
    assert "(the paper claims 0.01)" in str(got)


def test_an_unknown_n_is_asked_for_by_key(config):
    config.budget.examples = None
    with pytest.raises(UserError, match=r"set budget\.examples.*dpfest preprocess data=criteo_synthetic"):
        stage.budget(config)


def test_a_missing_source_does_not_matter_where_n_is_given(config, monkeypatch):
    def missing(config):
        raise UserError("train.txt is not there")

    monkeypatch.setattr(stage, "dataset_folder", missing)
    assert stage.budget(config).plan.examples == 50_000


def test_without_privacy_it_says_that_nothing_is_guaranteed(config):
    config.algorithm = Nonprivate()
    assert "none: no guarantee" in str(stage.budget(config))


def test_exponential_selection_prints_the_epsilon_of_a_row(config):
    config.algorithm = ALGORITHMS["exponential"](rows_per_step=10)
    assert "epsilon of one drawn row" in str(stage.budget(config))


def steps(count):
    event = Event(kind="gaussian", what="step", noise_multiplier=1.0, sampling_probability=0.01, count=count)
    return lambda sigma: [replace(event, noise_multiplier=sigma)]


def test_calibrations_are_kept_and_believed_only_if_they_meet_the_target(config, tmp_path, monkeypatch):
    calibrate, folder = stage.remembered_calibration(tmp_path / "runs"), tmp_path / "runs" / ".calibration"
    sigma = calibrate(steps(1000), 1.0, 1e-5)
    (entry,) = folder.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(calibration, "calibrate", lambda *_: pytest.fail("calibrated again"))
        assert calibrate(steps(1000), 1.0, 1e-5) == sigma
    for text in ("", "{", "[]", *(json.dumps({"noise_multiplier": value}) for value in (-1, "2", None, 0.99 * sigma))):
        entry.write_text(text)
        assert calibrate(steps(1000), 1.0, 1e-5) == sigma
        assert json.loads(entry.read_text())["noise_multiplier"] == sigma
    assert list(folder.iterdir()) == [entry]


def test_algorithms_that_spend_alike_share_a_calibration(config, tmp_path):
    noise = set()
    for name in ("dpsgd", "frozen", "adafest"):
        config.algorithm = ALGORITHMS[name]()
        noise.add(stage.budget(config).plan.noise_multiplier)
    assert len(noise) == len(list((tmp_path / "runs" / ".calibration").iterdir())) == 1


def test_another_question_has_another_entry(config, tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "calibrate", lambda *_: 1.0)  # its answer does not matter here
    calibrate = stage.remembered_calibration(tmp_path / "runs")
    for epsilon, delta, count in [(1.0, 1e-5, 900), (2.0, 1e-5, 900), (1.0, 1e-6, 900), (1.0, 1e-5, 800)]:
        calibrate(steps(count), epsilon, delta)
    assert len(list((tmp_path / "runs" / ".calibration").iterdir())) == 4


def test_correlated_noise_says_what_accumulates_in_a_row(config):
    config.algorithm = ALGORITHMS["dpsgd"](bands=4)
    plans = [
        stage.planned(replace(config, algorithm=ALGORITHMS["dpsgd"](bands=bands)), 50_000, 26) for bands in (4, None)
    ]
    share = accumulated(*plans)
    steps = np.tril(np.ones((100, 100)))
    rows = strategy(4, 100).coefficients
    matrix = sum(np.diag(np.full(100 - k, a / 16), -k) for k, a in enumerate(rows))
    noise = np.sqrt(((steps @ np.linalg.inv(matrix)) ** 2).sum() * (np.square(rows).sum() / 256))
    ratio = plans[0].noise_multiplier / plans[1].noise_multiplier
    assert share == pytest.approx(ratio * noise / np.sqrt(np.square(steps).sum()), rel=1e-6) and ratio > 1
    printed = str(stage.Budget(plans[0], independent=plans[1]))
    assert f"{share:.3g} of that of independent noise: leave algorithm.bands out" in printed
    assert re.search(r"sampling probability within one of 4 groups +0\.4\n", printed)


def test_independent_noise_is_told_what_bands_would_leave(config):
    """At the batch size and steps that are configured; nothing of what cannot have bands."""
    config.algorithm = ALGORITHMS["dpsgd"]()
    printed = str(found := stage.budget(config))
    assert list(found.bands) == [2, 4, 8] and min(found.bands.values()) > 1
    assert re.search(r"correlated noise +would leave no less noise in a row$", printed)
    config.budget, config.train = (
        replace(config.budget, examples=1_175_124),
        replace(config.train, batch_size=8192, steps=144),
    )
    printed = str(found := stage.budget(config))
    best = min(found.bands, key=found.bands.__getitem__)
    assert (
        f"algorithm.bands={best} would leave {found.bands[best]:.2f} of the noise" in printed
        and found.bands[best] < 0.8
    )
    config.algorithm = ALGORITHMS["dpsgd"](bands=best)
    (share,) = re.findall(
        r"noise accumulated in a row +(\S+) of that of independent noise \(computed", str(stage.budget(config))
    )
    assert float(share) == pytest.approx(found.bands[best], rel=0.02)
    for other in (ALGORITHMS["adafest"](), ALGORITHMS["dpsgd"](noise="lazy")):
        config.algorithm = other
        assert "correlated" not in str(stage.budget(config))


def test_a_stream_says_what_accumulates_in_each_period(tmp_path):
    line = ["data=journey_stream", "algorithm=dpsgd", "algorithm.bands=4", "stream.period=6", "budget.examples=1000000"]
    config = typed(Composer().compose([*line, f"paths.data={tmp_path}", f"paths.runs={tmp_path / 'runs'}"]))
    found = stage.budget(config)
    header, *rows = str(found).splitlines()[-3 - len(found.plan.periods) + 2 :]
    assert header.split("  ")[-1].strip() == "noise in a row" and "q of a group" in header
    shares = [accumulated(found.plan, found.independent, number) for number in range(len(found.plan.periods))]
    assert [row.split()[-1] for row in rows] == [f"{share:.3g}" for share in shares] and max(shares) < 1
