"""The paper's numbers stand as the paper prints them."""

from __future__ import annotations

import pytest

from pipelines.data.clicks.criteo import PUBLISHED_SIZES
from reports.published import (
    TAB_FROZEN,
    TAB_LARGE_VOCAB,
    TAB_LORA,
    TAB_STREAMING,
    TAB_VOCAB,
    TAB_WALLCLOCK,
    TABLES,
    other_data,
)


def test_cells_are_those_of_the_paper() -> None:
    assert TAB_VOCAB.value("categorical-feature-16", "vocabulary_size") == 82_741
    assert TAB_VOCAB.value("categorical-feature-39", "vocabulary_size") == 12_934
    assert TAB_LORA.value(0.005, "lora_embedding") == 23.64
    assert TAB_LARGE_VOCAB.value(0.01, "xlm_r") == 152.94
    assert TAB_WALLCLOCK.value(2_000_000, "dpsgd") == 13.09
    assert TAB_STREAMING.value(8, "nonprivate") == 0.7820  # the paper's own outlier
    assert TAB_STREAMING.value(18, "epsilon_3") == 0.7332
    assert TAB_FROZEN.value(("frozen", 3.0), "sst2") == 0.9151
    assert TAB_FROZEN.value(("dpsgd", 8.0), "qnli") == 0.8634


def test_what_the_paper_does_not_print_is_not_there() -> None:
    assert TAB_STREAMING.value(3, "epsilon_1") is None
    assert TAB_STREAMING.value(1, "epsilon_2") is None


def test_every_row_has_a_value_in_every_column_and_every_table_its_own_label() -> None:
    assert {id: len(table.rows) for id, table in TABLES.items()} == {
        "tab_vocab": 26, "tab_lora": 3, "tab_large_vocab": 3, "tab_wallclock": 6, "tab_streaming": 6, "tab_frozen": 7,
    }  # fmt: skip
    assert all(len(row) == len(table.columns) for table in TABLES.values() for row in table.rows.values())
    assert len({table.label for table in TABLES.values()}) == len(TABLES)


def test_the_papers_factors_are_those_of_its_seconds() -> None:
    for dense, ours, factor in TAB_WALLCLOCK.rows.values():
        assert factor == pytest.approx(dense / ours, rel=0.005)


def test_data_are_hashed_into_the_vocabularies_of_the_papers_table() -> None:
    assert tuple(size for (size,) in TAB_VOCAB.rows.values()) == PUBLISHED_SIZES


def test_a_figure_of_other_data_says_so_and_one_of_the_papers_does_not() -> None:
    assert "The data differ: the paper's figure is for Criteo-Kaggle, this one for nycflights" in other_data(
        "fig8", "nycflights"
    )
    assert "Criteo-1TB" in other_data("fig5", "nycflights_stream")
    assert "numbers are for SST-2, QNLI, ours for text_synthetic" in other_data("tab_frozen", "text_synthetic")
    assert (
        other_data("tab_lora", "sst2")
        == other_data("fig3", "qnli")
        == other_data("fig8", "criteo_kaggle")
        == other_data("frontier", "nycflights")
        == ""
    )
