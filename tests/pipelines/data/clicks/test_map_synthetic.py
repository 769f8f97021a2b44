"""The planted data of the map: skew, signal and rare values are what the configuration says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pipelines.data.clicks.map_synthetic import (
    CROSSED,
    DEVIATION,
    MapSyntheticConfig,
    PlantedRows,
    is_rare,
    planted_effects,
    zipf_shares,
)
from pipelines.data.clicks.source import RowBlock
from pipelines.data.dataset import Dataset
from pipelines.data.source import Progress
from tests.pipelines.data.criteo_text import run


def _quietly(done: int, total: int) -> None:
    pass


_PROGRESS: Progress = _quietly


def _block(config: MapSyntheticConfig) -> RowBlock:
    (block,) = PlantedRows(config).blocks(_PROGRESS)
    return block


def test_more_rows_leave_the_first_ones_as_they_are_and_the_seed_decides_all() -> None:
    config = MapSyntheticConfig(rows=2_000, table_rows=100)
    few, many, other = (_block(replace(config, **change)) for change in ({}, {"rows": 5_000}, {"seed": 1}))
    for name in ("content", "label", "numeric", "keys"):
        assert (getattr(few, name) == getattr(many, name)[:2_000]).all()
    assert (few.keys != other.keys).any()


def test_as_many_rows_are_as_many_examples_in_tables_of_the_size_that_was_asked_for(tmp_path: Path) -> None:
    config = MapSyntheticConfig(rows=3_000, table_rows=64)
    sets = [Dataset.open(run(one, tmp_path)) for one in (config, replace(config, table_rows=500, zipf_exponent=0.5))]
    assert sets[0].rows == sets[1].rows and sum(sets[0].rows.values()) == 3_000
    assert [len(counts) for counts in sets[1].histogram()] == [500] * 4 == replace(config, table_rows=500).features()


def test_clicks_are_as_frequent_as_meant_whatever_the_signal() -> None:
    for tail in (0.0, 0.5, 1.0):
        assert 0.22 < _block(MapSyntheticConfig(rows=50_000, tail_signal=tail)).label.mean() < 0.28


def test_frequencies_follow_zipf() -> None:
    counts = np.bincount(_block(MapSyntheticConfig(rows=50_000, table_rows=1_000, zipf_exponent=1.2)).keys[:, 2])
    expected = 50_000 * zipf_shares(1_000, 1.2)
    # Five standard deviations for the ten most frequent values: a false alarm once in a million seeds or so.
    assert (np.abs(counts[:10] - expected[:10]) < 5 * np.sqrt(expected[:10])).all()


@pytest.mark.parametrize("tail_signal", [0.0, 0.2, 0.8, 1.0])
@pytest.mark.parametrize("exponent", [0.0, 1.1, 2.0])
def test_rare_values_hold_the_share_of_the_signal_that_was_asked_for(tail_signal: float, exponent: float) -> None:
    share = zipf_shares(2_000, exponent)
    effect, rare = planted_effects(share, tail_signal, seed=0, feature=1), is_rare(share)
    assert share @ effect**2 == pytest.approx(DEVIATION**2)
    assert share[rare] @ effect[rare] ** 2 == pytest.approx(tail_signal * DEVIATION**2)
    assert 0 < share[rare].sum() < 0.5 + 1e-9 and share[rare].max() <= share[~rare].min()


def test_clicks_follow_the_effects() -> None:
    """Of two of the most frequent values, the one with the larger effect is clicked more often."""
    config = MapSyntheticConfig(rows=100_000, table_rows=50, zipf_exponent=1.0)
    block, effects = _block(config), planted_effects(zipf_shares(50, 1.0), 0.5, config.seed, 0)
    rates = np.array([block.label[block.keys[:, 0] == value].mean() for value in range(10)])
    assert np.corrcoef(rates, effects[:10])[0, 1] > 0.95


def test_uneven_tables_have_as_many_rows_together_and_sizes_in_equal_ratios() -> None:
    config = MapSyntheticConfig(rows=20_000, table_rows=1_000, uneven=64.0)
    sizes = config.features()
    assert sum(sizes) == pytest.approx(4_000, abs=2) and sizes[3] / sizes[0] == pytest.approx(64, rel=0.03)
    assert [larger / smaller for smaller, larger in pairwise(sizes)] == pytest.approx([4, 4, 4], rel=0.03)
    keys = _block(config).keys
    assert all(keys[:, feature].max() < size for feature, size in enumerate(sizes))
    assert 0.22 < _block(config).label.mean() < 0.28


def test_crosses_hold_their_share_of_the_rows_and_change_no_click(tmp_path: Path) -> None:
    config = MapSyntheticConfig(rows=3_000, table_rows=100, uneven=4.0, crosses=0.9)
    sizes = config.features()
    assert len(sizes) == 6 and sum(sizes[4:]) / sum(sizes) == pytest.approx(0.9, abs=0.001)
    with_, without = _block(config), _block(replace(config, crosses=None))
    assert (with_.label == without.label).all() and (with_.keys[:, :4] == without.keys).all()
    for cross, (one, other) in enumerate(CROSSED, 4):
        pairs = with_.keys[:, [one, other]]
        assert len(np.unique(with_.keys[:, cross])) == len(np.unique(pairs, axis=0))
    opened = Dataset.open(run(config, tmp_path))
    assert [len(counts) for counts in opened.histogram()] == sizes
    assert opened.categorical_names[4:] == ["feature_0_1", "feature_2_3"]
