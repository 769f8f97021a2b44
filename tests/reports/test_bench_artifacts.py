"""The paper's table of wall-clock times and the figure of speed, from what `dpfest bench` left."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.artifacts import speed, tab_wallclock
from reports.entry import Inputs
from reports.published import TAB_WALLCLOCK
from reports.style import dress, style
from tests.reports.synthetic import write_bench, write_benches


def test_the_paper_stands_beside_ours_at_each_of_its_sizes(tmp_path: Path) -> None:
    write_benches(tmp_path)
    content = tab_wallclock.content(Inputs(report=tmp_path))
    assert content.table is not None and content.missing == []
    names = [column.name for column in content.table.columns]
    rows = {row[0]: dict(zip(names, row, strict=True)) for row in content.table.rows}
    last = rows[10_000_000]
    assert (last["dpsgd_paper"], last["adafest_paper"], last["factor_paper"]) == (62.473, 0.353, 176.760)
    assert (last["dpsgd"], last["adafest"]) == (pytest.approx(100.0), pytest.approx(0.2))
    assert last["factor"] == pytest.approx(500) and last["factor_difference"] == pytest.approx(500 - 176.76)
    assert last["dpsgd_difference"] == pytest.approx(100 - 62.473) and last["factor_interval"] == "500 to 500"
    assert last["flatness"] == pytest.approx(1.25)
    beyond = rows[20_000_000]
    assert beyond["dpsgd"] is None and beyond["factor_paper"] is None and beyond["adafest"] == pytest.approx(0.2)


def test_sizes_of_the_paper_that_were_not_timed_are_named(tmp_path: Path) -> None:
    write_bench(tmp_path, "embedding", {("dpsgd", 100_000): 0.01, ("adafest", 100_000): 0.002}, "adafest")
    content = tab_wallclock.content(Inputs(report=tmp_path))
    assert content.missing == [
        "Not timed at 200,000, 1,000,000, 2,000,000, 5,000,000, 10,000,000 rows: raise bench.largest_rows."
    ]
    assert content.table is not None and content.table.rows[-1][1] == 176.760  # the paper's figure stands there


def test_the_figure_of_speed_draws_ours_and_the_papers_and_tables_the_steps(tmp_path: Path) -> None:
    write_benches(tmp_path)
    with style():
        content = speed.content(Inputs(report=tmp_path))
        assert content.figure is not None and content.table is not None and content.missing == []
        lines = content.figure.axes[0].lines
        dress(content.figure, "", [])
    assert [len(line.get_xdata()) for line in lines] == [6, 7, 6, 6]  # dense noise has no time beyond ten million
    assert list(lines[2].get_ydata()) == [values[0] for values in TAB_WALLCLOCK.rows.values()]
    assert content.table.rows == [("pytorch sparse", 1.0), ("adafest", pytest.approx(0.9))]


@pytest.mark.parametrize("text", ["", "[]", '{"records": [3]}', '{"records": [], "machine": {}}'])
def test_a_benchmark_that_cannot_be_read_is_asked_for(tmp_path: Path, text: str) -> None:
    write_benches(tmp_path)
    (tmp_path / "bench" / "embedding.json").write_text(text, encoding="utf-8")
    assert tab_wallclock.content(Inputs(report=tmp_path)).missing == ["Not measured yet: dpfest bench embedding"]
    with style():
        content = speed.content(Inputs(report=tmp_path))
    assert content.missing == ["Not measured yet: dpfest bench embedding"]
    assert content.figure is None and content.table is not None
