"""The sections of `dpfest bench` that find values: what corrections cost, and what masks truncate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpfest.errors import UserError
from pipelines.bench import bias
from pipelines.bench.corrections import corrections
from pipelines.bench.sections import bench
from pipelines.compose import Composer
from pipelines.config import Config, typed


def config(tmp_path: Path, *overrides: str) -> Config:
    paths = [f"paths.{name}={tmp_path / name}" for name in ("data", "runs", "report")]
    return typed(Composer(None).compose(["profile=smoke", *paths, *overrides]))


def test_every_correction_costs_what_it_proves(tmp_path: Path) -> None:
    found = list(corrections(config(tmp_path, "budget.examples=9216", "train.batch_size=128")))
    by_setting = {each.setting: each for each in found}
    shuffled = by_setting["72 steps"]
    assert shuffled.noise == shuffled.paper_noise and (shuffled.proven or 0) > 3 * (shuffled.claimed or 0)
    few, many = by_setting["k = 10,000"], by_setting["k = 300,000"]
    assert few.paper_noise == many.paper_noise and (few.proven or 0) < (many.proven or 0)
    assert many.claimed == pytest.approx(1.0, rel=1e-3) and (many.proven or 0) > 1.0
    one, five = by_setting["σ₁/σ₂ = 1"], by_setting["σ₁/σ₂ = 5"]
    # σ₂ = σ √(1 + 1/r²): √2 against √1.04.
    assert (one.noise or 0) / (five.noise or 1) == pytest.approx((2 / 1.04) ** 0.5)
    stream = by_setting["18 periods"]
    assert (stream.proven or 0) > 1.5 and (stream.noise or 0) > (stream.paper_noise or 0)


def test_what_a_mask_truncates_grows_with_its_threshold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert low["noise_multiplier"] > low["dpsgd_noise_multiplier"]


def test_what_no_mask_truncates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="algorithm=adafest"):
        bench("bias", config(tmp_path, "algorithm=dpsgd"))
