"""Generated logs: the same from the same seed, Zipf categories, a model that can be learnt, and drift."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from dpfest.errors import UserError
from pipelines.config.schema import build
from pipelines.data.clicks.criteo_lines import ParsedLines, parse_block
from pipelines.data.clicks.synthetic import CriteoSyntheticConfig, write_criteo_files
from pipelines.data.dataset import Dataset
from tests.pipelines.data.criteo_text import run


def _quietly(done: int, total: int) -> None:
    pass


def _files(folder: Path, config: CriteoSyntheticConfig, compress: bool = False) -> list[Path]:
    folder.mkdir()
    return write_criteo_files(folder, config, config.rows_of_days(), _quietly, compress)


def _parsed(folder: Path, config: CriteoSyntheticConfig) -> list[ParsedLines]:
    return [parse_block(path.read_bytes()) for path in _files(folder, config)]


def test_the_seed_decides_every_byte(tmp_path: Path) -> None:
    config = CriteoSyntheticConfig(rows=500, days=2)
    first, again = _files(tmp_path / "a", config), _files(tmp_path / "b", config)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    (other, _) = _files(tmp_path / "c", replace(config, seed=1))
    assert other.read_bytes() != first[0].read_bytes()


def test_it_becomes_a_dataset_with_days(tmp_path: Path) -> None:
    dataset = Dataset.open(run(CriteoSyntheticConfig(rows=2_001, days=3), tmp_path))
    assert sum(dataset.rows.values()) == 2_001
    per_day = [split["rows_per_day"] for split in dataset.description["splits"].values()]
    assert {day: sum(days.get(day, 0) for days in per_day) for day in per_day[0]} == {
        "0": 667,
        "1": 667,
        "2": 667,
    }
    assert not (dataset.folder / "source").exists()
    assert [file["generated"] for file in dataset.description["sources"]] == [
        "day_0.txt",
        "day_1.txt",
        "day_2.txt",
    ]


def test_frequencies_follow_zipf(tmp_path: Path) -> None:
    (parsed,) = _parsed(tmp_path / "a", CriteoSyntheticConfig(rows=30_000, zipf_exponent=1.2))
    keys = parsed.keys[:, 3]  # 18,940 values, no blanks
    counts = np.sort(np.unique(keys, return_counts=True)[1])[::-1]
    weights = np.arange(1, 18_941) ** -1.2
    expected = 30_000 * weights / weights.sum()
    # Five standard deviations for the ten most frequent values: a false alarm once in a million seeds or so.
    assert (np.abs(counts[:10] - expected[:10]) < 5 * np.sqrt(expected[:10])).all()
    assert len(counts) > 1_000


def test_the_click_rate_is_realistic_and_negative_counts_and_blanks_occur(tmp_path: Path) -> None:
    (parsed,) = _parsed(tmp_path / "a", CriteoSyntheticConfig(rows=20_000))
    assert 0.22 < parsed.label.mean() < 0.29
    assert 0.05 < (parsed.integers[:, 1] < 0).mean() < 0.3
    assert 0.08 < (parsed.keys[:, 2] == 2**32).mean() < 0.12


def test_the_planted_model_can_be_learnt(tmp_path: Path) -> None:
    dataset = Dataset.open(run(CriteoSyntheticConfig(rows=20_000), tmp_path))
    train = dataset.split("train").gather(np.arange(dataset.rows["train"]))
    test = dataset.split("test").gather(np.arange(dataset.rows["test"]))
    model = LogisticRegression(max_iter=200).fit(train.numeric, train.labels)
    assert roc_auc_score(test.labels, model.predict_proba(test.numeric)[:, 1]) > 0.57


@pytest.mark.parametrize(("drift", "low", "high"), [(0.0, 0.0, 0.0), (0.3, 0.2, 0.4), (1.0, 1.0, 1.0)])
def test_drift_replaces_that_share_of_the_values_every_day(
    tmp_path: Path, drift: float, low: float, high: float
) -> None:
    config = CriteoSyntheticConfig(rows=40_000, days=2, drift=drift, zipf_exponent=0.0)
    days = _parsed(tmp_path / "a", config)
    values = [set(np.unique(parsed.keys[:, 6]).tolist()) - {2**32} for parsed in days]  # 1,172 values, all met
    assert low <= len(values[1] - values[0]) / len(values[1]) <= high


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (CriteoSyntheticConfig(rows=0), "data.days"),
        (CriteoSyntheticConfig(rows=10, days=11), "data.days"),
    ],
)
def test_settings_without_meaning_are_refused(tmp_path: Path, config: CriteoSyntheticConfig, key: str) -> None:
    with pytest.raises(UserError, match=key):
        run(config, tmp_path)


@pytest.mark.parametrize(("key", "value"), [("drift", 2.0), ("zipf_exponent", -1.0), ("seed", -1)])
def test_settings_out_of_range_are_refused_by_their_key(key: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"data\.{key} must be a (whole )?number from 0 to"):
        build(CriteoSyntheticConfig, {key: value}, "data")


@pytest.mark.parametrize(("share", "least", "most"), [(1.0, 0.72, 0.8), (None, 0.6, 0.68), (0.0, 0.4, 0.53)])
def test_the_numbers_carry_their_share_of_the_signal(
    share: float | None, least: float, most: float, tmp_path: Path
) -> None:
    """By how well the numbers alone rank clicks."""
    dataset = Dataset.open(run(CriteoSyntheticConfig(rows=20_000, numeric_share=share), tmp_path))
    train, test = (dataset.split(part).gather(np.arange(dataset.rows[part])) for part in ("train", "test"))
    model = LogisticRegression().fit(train.numeric, train.labels)
    assert least < roc_auc_score(test.labels, model.decision_function(test.numeric)) < most
    assert 0.22 < train.labels.mean() < 0.29  # the click rate stays
