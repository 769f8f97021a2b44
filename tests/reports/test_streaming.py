"""The artifacts of streams: a panel a period, the paper's numbers beside ours, and what its claims come to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports.artifacts import best_reduction, tab_streaming
from reports.build import build
from reports.comparison import Population, populations
from reports.entry import Inputs
from reports.reading import load_runs
from reports.style import style
from tests.reports.synthetic import write_comparison, write_run, write_streaming


@pytest.fixture
def population(tmp_path: Path) -> Population:
    write_streaming(tmp_path)
    return only(tmp_path)


def only(runs: Path) -> Population:
    (found,) = populations(load_runs(runs)[0])
    return found


def test_settings_are_held_against_the_dpsgd_of_their_own_period(population: Population) -> None:
    with style():
        content = best_reduction.fig5(Inputs(drawn=population))
    assert content.figure is not None and content.table is not None and not content.missing
    titles = [axes.get_title() for axes in content.figure.axes]
    assert titles == ["period of 1 day", "period of 4 days", "period of 18 days"]
    names = [column.name for column in content.table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in content.table.rows]
    losses = {
        row["period"]: row["test_loss"]
        for row in rows
        if row["algorithm"] == "fest_equal/streaming" and row["test_loss"]
    }
    # The same in each period, though the utility of all algorithms rises with it.
    assert losses == pytest.approx({1: 0.0055, 4: 0.0055, 18: 0.0055})
    assert {row["algorithm"] for row in rows} == {
        "adafest",
        "frozen",
        "fest_equal/first_day",
        "fest_equal/streaming",
        "fest_equal/all_days",
        "fest/streaming",
    }


def test_periods_without_an_algorithm_are_named(tmp_path: Path) -> None:
    for days in (1, 4, 18):
        write_run(tmp_path, "dpsgd", test=0.66, period=days, dataset="nycflights_stream")
    for source in ("first_day", "streaming", "all_days"):
        settings = {"selection": {"mechanism": "gaussian", "rows": 300, "source": source}}
        write_run(tmp_path, "fest", test=0.7, coordinates=9.0, settings=settings, period=1, dataset="nycflights_stream")
    with style():
        content = best_reduction.fig5(Inputs(drawn=only(tmp_path)))
    assert "No DP-FEST (k/p a table, streaming) runs at period of 4 days, period of 18 days yet." in content.missing


def test_the_table_stands_beside_the_papers_and_names_the_runs_that_it_lacks(tmp_path: Path) -> None:
    write_streaming(tmp_path)
    write_run(tmp_path, "dpsgd", test=0.75, epsilon=3.0, period=4, dataset="nycflights_stream")
    content = tab_streaming.content(Inputs(drawn=only(tmp_path)))
    assert content.table is not None
    names = [column.name for column in content.table.columns]
    rows = {row[0]: dict(zip(names, row, strict=True)) for row in content.table.rows}
    assert sorted(rows) == [1, 2, 4, 8, 16, 18]
    assert rows[4]["epsilon_1"] == pytest.approx(0.714) and rows[4]["epsilon_1_paper"] == 0.7314
    assert rows[4]["epsilon_1_difference"] == pytest.approx(-0.0174) and rows[2]["epsilon_1_difference"] is None
    assert rows[18]["nonprivate_paper"] == 0.7848 and rows[18]["nonprivate_error"] == 0.002
    assert (rows[2]["epsilon_1"], rows[2]["epsilon_1_paper"]) == (None, 0.7313)
    assert (rows[4]["epsilon_3"], rows[4]["epsilon_8"]) == (0.75, None)
    assert content.missing == [f"No DP-SGD run at ε = 3 with a period of {days} days yet." for days in (1, 18)]


def test_streams_and_other_data_each_have_their_own_artifacts(tmp_path: Path, undrawn: None) -> None:
    runs, report = tmp_path / "runs", tmp_path / "report"
    write_comparison(runs, epsilons=(1.0,), seeds=(0,))
    write_streaming(runs)
    build(runs, report, only=["fig3", "fig4", "fig5", "fig6", "tab_streaming"])
    entries = {entry["id"]: entry for entry in json.loads((report / "report.json").read_text())["artifacts"]}
    assert {entry["status"] for entry in entries.values()} == {"complete"}
    datasets = {id: [variant["dataset"] for variant in entry["variants"]] for id, entry in entries.items()}
    assert datasets["fig3"] == datasets["fig4"] == ["nycflights"]
    assert datasets["fig5"] == datasets["fig6"] == datasets["tab_streaming"] == ["nycflights_stream"]
    text = (report / "tables" / "fig5.md").read_text(encoding="utf-8")
    assert "almost as good (here: within 0.005) for DP-FEST as those of all days. **Not shown.**" in text
    assert "dpfest sweep experiment=streaming profile=demo data=nycflights_stream" in text


def test_without_streams_their_artifacts_are_missing_and_name_their_sweep(tmp_path: Path, undrawn: None) -> None:
    runs, report = tmp_path / "runs", tmp_path / "report"
    write_comparison(runs, epsilons=(1.0,), seeds=(0,))
    built = build(runs, report, only=["fig5", "tab_streaming"])
    assert [entry["status"] for entry in built.artifacts] == ["missing", "missing"]
    assert built.sweeps == ["dpfest sweep experiment=streaming"]


def test_data_with_a_grid_in_the_reference_alone_are_remade_by_it(tmp_path: Path, undrawn: None) -> None:
    for days in (1, 18):
        write_run(tmp_path / "runs", "dpsgd", test=0.8, period=days, dataset="journey_stream")
    build(tmp_path / "runs", tmp_path, only=["tab_streaming"], planned={"reference": {"dpsgd": 99}})
    section = (tmp_path / "tables" / "tab_streaming.md").read_text(encoding="utf-8")
    assert "`dpfest sweep experiment=reference profile=demo data=journey_stream" in section
    assert "of 99" not in section
