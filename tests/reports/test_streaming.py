"""The artifacts of streams: a panel a period, the paper's numbers beside ours, and what its claims come to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports.artifacts import fig5, fig6, tab_streaming
from reports.build import build
from reports.comparison import Population, populations
from reports.runs import load_runs
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
        content = fig5.content(population)
    assert content.figure is not None and content.table is not None and not content.missing
    titles = [axes.get_title() for axes in content.figure.axes]
    assert titles == ["period of 1 day", "period of 4 days", "period of 18 days"]
    names = [column.name for column in content.table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in content.table.rows]
    losses = {row["period"]: row["test_loss"] for row in rows if row["rule"] == "fest/streaming" and row["test_loss"]}
    # The same in each period, though the utility of all rules rises with it.
    assert losses == pytest.approx({1: 0.0055, 4: 0.0055, 18: 0.0055})
    assert {row["rule"] for row in rows} == {"adafest", "frozen", "fest/first_day", "fest/streaming", "fest/all_days"}


def test_the_papers_claims_are_found_where_they_are_so(population: Population) -> None:
    with style():
        figure, combined = fig5.content(population).notes, fig6.content(population).notes
    table = tab_streaming.content(population).notes
    assert "over the 6 settings (period and k) that all three have: DP-FEST (first day) 0.7067" in figure[0]
    assert "nearly as good as all days (within 0.005): holds (-0.0005 ± 0.0000)" in figure[0]
    assert "Better than the first day: holds (+0.0075 ± 0.0000)" in figure[0]
    assert "standard error of 0.0020 over its test rows" in figure[0]
    assert [note.endswith("(all days): holds.") for note in figure[1:]] == [True] * 3
    assert all("DP-AdaFEST more than 2 times ahead of DP-FEST (first day)" in note for note in figure[1:])
    assert len(combined) == 1 and "Period of 1 day" in combined[0] and "DP-AdaFEST+ ahead of" in combined[0]
    assert "Rises with the period: holds (+0.0170 ± 0.0000 from 1 to 18 days)" in table[0]
    assert table[1].startswith("Non-private") and "Unmoved by the period (within 0.005): holds" in table[1]


def test_claims_that_are_not_so_are_said_not_to_be(tmp_path: Path) -> None:
    shared = {"dataset": "nycflights_stream"}
    for days, wobble in ((1, 0.0), (4, 0.0004), (18, -0.0002)):
        down = 0.001 * days + wobble
        write_run(tmp_path, "frozen", test=0.75, coordinates=0.0, period=days, **shared)
        write_run(tmp_path, "dpsgd", test=0.72 - down, period=days, **shared)
        write_run(tmp_path, "nonprivate", test=0.78 - down, period=days, epsilon=None, **shared)
        for source, test in (("first_day", 0.719 + wobble), ("streaming", 0.711), ("all_days", 0.719 - wobble)):
            settings = {"selection": {"mechanism": "gaussian", "rows": 300, "source": source}}
            write_run(tmp_path, "fest", test=test - down, coordinates=9.0, settings=settings, period=days, **shared)
        write_run(
            tmp_path, "adafest", test=0.715 - down, coordinates=90.0, settings={"threshold": 5}, period=days, **shared
        )
    with style():
        notes = fig5.content(only(tmp_path)).notes
    assert "nearly as good as all days (within 0.005): does not hold (-0.0079 ± 0.0008)" in notes[0]
    assert "Better than the first day: does not hold (-0.0081 ± 0.0008)" in notes[0]
    ending = "does not hold (frozen embeddings lose nothing either, so no reduction counts for much here)."
    assert all(note.endswith(ending) for note in notes[1:]) and len(notes) == 4
    rising, unmoved = tab_streaming.content(only(tmp_path)).notes
    assert "Rises with the period: does not hold (-0.01" in rising
    assert "Unmoved by the period (within 0.005): does not hold (-0.01" in unmoved


def test_single_runs_that_scatter_leave_claims_open(tmp_path: Path) -> None:
    shared = {"dataset": "nycflights_stream"}
    for days, test in ((1, 0.6585), (4, 0.6433), (18, 0.6652)):
        write_run(tmp_path, "dpsgd", test=test, period=days, **shared)
        write_run(tmp_path, "nonprivate", test=test, period=days, epsilon=None, **shared)
    for source, test in (("first_day", 0.70), ("streaming", 0.72), ("all_days", 0.72)):
        settings = {"selection": {"mechanism": "gaussian", "rows": 300, "source": source}}
        write_run(tmp_path, "fest", test=test, coordinates=9.0, settings=settings, period=1, **shared)
    with style():
        content = fig5.content(only(tmp_path))
    assert content.notes[0].count("cannot be told from so few runs") == 2
    assert all("cannot be told from so few runs" in note for note in tab_streaming.content(only(tmp_path)).notes)
    # The panels of 4 and 18 days have no sparse rule yet, and say so.
    assert "No DP-FEST (streaming) runs at period of 4 days, period of 18 days yet." in content.missing


def test_the_table_stands_beside_the_papers_and_names_the_runs_that_it_lacks(tmp_path: Path) -> None:
    write_streaming(tmp_path)
    write_run(tmp_path, "dpsgd", test=0.75, epsilon=3.0, period=4, dataset="nycflights_stream")
    content = tab_streaming.content(only(tmp_path))
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


def test_streams_and_other_data_each_have_their_own_artifacts(tmp_path: Path) -> None:
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
    assert "nearly as good as all days (within 0.005): holds" in text
    assert "dpfest sweep experiment=streaming profile=demo data=nycflights_stream" in text


def test_without_streams_their_artifacts_are_missing_and_name_their_sweep(tmp_path: Path) -> None:
    runs, report = tmp_path / "runs", tmp_path / "report"
    write_comparison(runs, epsilons=(1.0,), seeds=(0,))
    built = build(runs, report, only=["fig5", "tab_streaming"])
    assert [entry["status"] for entry in built.artifacts] == ["missing", "missing"]
    assert built.sweeps == ["dpfest sweep experiment=streaming"]
