"""The table of units: one row for each unit, epsilon and algorithm, and no part in any other comparison."""

from __future__ import annotations

import csv
from pathlib import Path

from reports.artifacts import tab_units
from reports.commands import Commands
from reports.comparison import joined, populations
from reports.entry import Inputs, provenance
from reports.reading import load_runs
from reports.registry import ENTRIES
from tests.reports.synthetic import write_run, write_units


def test_the_table_of_units_compares_them_and_no_other_artifact_sees_their_runs(tmp_path: Path) -> None:
    write_units(tmp_path)
    write_run(tmp_path, "dpsgd", test=0.9, dataset="journey")
    groups = populations(load_runs(tmp_path)[0])
    assert sorted(group.kind for group in groups) == ["clicks", "unit", "unit", "unit"]
    shown = [entry.id for entry in ENTRIES if any(entry.shows(group) for group in groups if group.kind == "unit")]
    assert shown == ["tab_units"]
    drawn = joined([group for group in groups if group.kind == "unit"])
    assert drawn is not None
    content = tab_units.content(Inputs(groups, drawn=drawn))
    assert content.table is not None and not content.missing
    epsilons = ",".join(f"{epsilon:g}" for epsilon in drawn.epsilons)
    assert f" privacy.epsilon={epsilons} " in Commands().sweep("units", drawn) + " "  # the experiment has one epsilon
    rows = list(csv.DictReader(content.table.csv().splitlines()))
    assert [(row["unit"], row["units"]) for row in rows[::8]] == [
        ("example", "1000000"), ("basket", "150000"), ("household", "2469")
    ]  # fmt: skip
    assert {row["over_frozen"] for row in rows if row["algorithm"] == "dpsgd"} == {"0.05"}
    assert "add or remove one basket or example or household" in provenance(drawn, content)
