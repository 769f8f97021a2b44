"""The sections of `dpfest bench` that find values: what corrections cost, what masks truncate, what maps keep."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dpfest.accounting import calibrate
from dpfest.errors import UserError
from pipelines.analysis import bias
from pipelines.analysis.contribution import ContributionMap
from pipelines.analysis.corrections import corrections
from pipelines.bench.sections import bench
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.data.rows import TextRows
from tests.pipelines.by_hand import noise_by_hand

SIGMA = 0.7


def config(tmp_path: Path, *overrides: str) -> Config:
    paths = [f"paths.{name}={tmp_path / name}" for name in ("data", "runs", "report")]
    return typed(Composer(None).compose(["profile=smoke", *paths, *overrides]))


@pytest.mark.parametrize("rough", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_correction_costs_what_it_proves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rough: bool) -> None:
    """Slow but for noise to half a percent: calibrates noise exactly, five times."""
    if rough:
        monkeypatch.setattr(
            "pipelines.analysis.corrections.remembered_calibration", lambda runs: partial(calibrate, rough=True)
        )
    found = list(corrections(config(tmp_path, "budget.examples=9216", "train.batch_size=128")))
    by_setting = {each.setting: each for each in found}
    shuffled = by_setting["72 steps"]
    assert shuffled.noise == shuffled.paper_noise and (shuffled.proven or 0) > 3 * (shuffled.claimed or 0)
    few, many = by_setting["k = 10,000"], by_setting["k = 300,000"]
    assert few.paper_noise == many.paper_noise and (few.proven or 0) < (many.proven or 0)
    assert many.claimed == pytest.approx(1.0, rel=1e-2 if rough else 1e-3) and (many.proven or 0) > 1.0
    one, five = by_setting["σ₁/σ₂ = 1"], by_setting["σ₁/σ₂ = 5"]
    # σ₂ = σ √(1 + 1/r²): √2 against √1.04.
    assert (one.noise or 0) / (five.noise or 1) == pytest.approx((2 / 1.04) ** 0.5)
    stream = by_setting["18 periods"]
    assert (stream.proven or 0) > 1.5 and (stream.noise or 0) > (stream.paper_noise or 0)


def test_what_a_mask_truncates_grows_with_its_threshold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise_by_hand(monkeypatch, SIGMA)
    monkeypatch.setattr(bias, "MULTIPLES", (0.0, 1.0, 1000.0))
    monkeypatch.setattr(bias, "MOMENTS", 2)
    monkeypatch.setattr(bias, "BATCHES", 1)
    overrides = ("algorithm.threshold=3", "train.batch_size=512", "privacy.noise_seed=1", "model.hidden=[8]")
    path, records = bench("bias", config(tmp_path, *overrides, "privacy.epsilon=8"))
    assert json.loads(path.read_text(encoding="utf-8"))["records"][0]["values"]["steps"] == 3
    low, middle, high = (record.values or {} for record in records)
    assert 0 <= low["truncated"] < middle["truncated"] < high["truncated"] <= 1
    assert low["coordinates"] > middle["coordinates"] > high["coordinates"]
    network = high["coordinates"]  # no row survives: the dense parameters are left
    assert 0 < network < high["parameters"] and low["coordinates"] < low["parameters"]
    assert 0 < low["gradient_norm"] <= low["clipping_norm"]
    assert low["noise_multiplier"] > low["dpsgd_noise_multiplier"] == SIGMA


def test_what_no_mask_truncates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="algorithm=adafest"):
        bench("bias", config(tmp_path, "algorithm=dpsgd"))


def texts(*tokens: list[int]) -> TextRows:
    ids = np.zeros((len(tokens), 6), dtype=np.int32)
    for place, text in enumerate(tokens):
        ids[place, : len(text)] = text
    lengths = np.array([len(text) for text in tokens], dtype=np.int32)
    return TextRows(np.zeros(len(tokens), dtype=np.int32), lengths, ids)


def test_what_survives_a_map_is_what_dense_draws_of_it_leave() -> None:
    # Rows 0 to 9; the texts' distinct tokens are {1, 2, 3, 4}, {1} and {1, 5}.
    found = ContributionMap(texts([1, 2, 3, 4, 4], [1, 1], [1, 5]), 10)
    assert found.norms.tolist() == pytest.approx([2.0, 1.0, 2**0.5])
    clipped = np.zeros(10)
    clipped[[1, 2, 3, 4]] += 0.5
    clipped[1] += 1
    clipped[[1, 5]] += 2**-0.5
    kept = clipped + 0.7 * np.random.default_rng(0).standard_normal((100_000, 10)) >= 0.9
    expected = found.expected(1.0, 0.7, 0.9)
    looked_up = np.array([0, 3, 1, 1, 1, 1, 0, 0, 0, 0])
    # Standard errors are at most 0.005; a map that is not clipped, or counts token 4 twice, is further off than 0.1.
    assert expected.survivors == pytest.approx(kept.sum(1).mean(), abs=0.025)
    assert expected.kept == pytest.approx((kept @ looked_up).mean() / 7, abs=0.01)
    assert expected.touched == pytest.approx(kept[:, 1:6].sum() / kept.sum(), abs=0.01)
    assert expected.clipped == pytest.approx(2 / 3)
    assert found.expected(1.0, 0.7, found.threshold(1.0, 0.7, 2.5)).survivors == pytest.approx(2.5)


def test_clipping_norms_below_the_shortest_map_are_one_setting_and_above_the_longest_only_noise() -> None:
    found = ContributionMap(texts([1, 2, 3, 4], [1, 5, 6, 7], [1, 2, 8, 9]), 10)  # every map is 2 long
    low, high = (found.expected(norm, 3.0 * norm, found.threshold(norm, 3.0 * norm, 2.0)) for norm in (0.5, 2.0))
    assert low.kept == pytest.approx(high.kept)
    paper = found.expected(50.0, 150.0, found.threshold(50.0, 150.0, 2.0))
    assert paper.clipped == 0 and paper.kept < low.kept
    assert paper.kept == pytest.approx(0.2, abs=0.01)  # 2 of 10 rows, whichever: the map is lost in its noise


def test_contribution_looks_at_every_clipping_norm_of_the_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise_by_hand(monkeypatch, SIGMA)
    chosen = ("data=text_synthetic", "algorithm=adafest", "train.batch_size=64")
    path, records = bench("contribution", config(tmp_path, *chosen))
    values = json.loads(path.read_text(encoding="utf-8"))["records"][0]["values"]
    assert values["shortest_map"] <= values["median_map"] <= values["longest_map"]
    at_ten = [record.values or {} for record in records if record.competitor.endswith(", 10x")]
    assert [each["contribution_clipping_norm"] for each in at_ten] == [1, 2, 4, 8, 50, 100, 500]
    assert all(each["reduction"] == pytest.approx(10) for each in at_ten)
    assert all(0.05 < each["kept"] < 1 for each in at_ten)
    with pytest.raises(UserError, match="algorithm=adafest"):
        bench("contribution", config(tmp_path, "data=text_synthetic", "algorithm=dpsgd"))
    with pytest.raises(
        UserError, match="dpfest bench contribution needs texts, which model=pctr cannot read: use data="
    ):
        bench("contribution", config(tmp_path))
