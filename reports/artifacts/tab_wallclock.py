"""tab_wallclock: 100 steps of an embedding by its rows, the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reports.artifact import Artifact, Content
from reports.bench import Section, read
from reports.published import TAB_WALLCLOCK
from reports.tables import Column, Table
from reports.wording import rule

COMMAND = "dpfest bench embedding"
SMALLEST = "adafest, smallest table"

OTHERS = ("dpsgd lazy", "fest", "adafest_plus", "pytorch sparse")


def content(report: Path) -> Content:
    section = read(report, "embedding")
    if section is None:
        return Content("Nothing to show yet.", missing=[f"No benchmark yet: {COMMAND}"])
    others = [name for name in OTHERS if section.at(name)]
    caption = (
        "Seconds of 100 steps of an embedding of dimension 64 at batch size 1,024 by its rows, and how many times less "
        "DP-AdaFEST takes than DP-SGD: the paper's figures (TensorFlow, its own machine) beside ours "
        f"({section.machine}; medians, ratios within a turn). DP-AdaFEST is at its dearest: every touched row "
        "survives, and half an untouched one is expected to. 'To the smallest': its time over that on the smallest "
        "table, in the same turns. 'Working': memory on top of the table."
    )
    sizes = sorted(section.at("adafest").keys() | TAB_WALLCLOCK.rows.keys())
    seconds = "{:.3f}".format
    table = Table(
        [
            Column("rows", "rows", lambda value: f"{value:,}"),
            Column("paper_dpsgd", "DP-SGD, paper", seconds),
            Column("dpsgd", "DP-SGD, ours", seconds),
            Column("paper_adafest", "DP-AdaFEST, paper", seconds),
            Column("adafest", "DP-AdaFEST, ours", seconds),
            Column("paper_factor", "factor, paper", "{:.1f}".format),
            Column("factor", "factor, ours", "{:.1f}".format),
            Column("factor_difference", "factor, ours − paper", "{:+.1f}".format),
            Column("flatness", "to the smallest", "{:.2f}".format),
            Column("working_mb", "working, MB", "{:.1f}".format),
            *(Column(name.replace(" ", "_"), f"{_named(name)}, ours", seconds) for name in others),
        ],
        [_row(section, rows, others) for rows in sizes],
    )
    return Content(caption, table=table, missing=_missing(section))


def hundred(record: Mapping[str, Any]) -> float:
    """Seconds of 100 steps."""
    return 100 * record["median_seconds"]


def _row(section: Section, rows: int, others: list[str]) -> tuple[Any, ...]:
    paper = TAB_WALLCLOCK.rows.get(rows, (None, None, None))
    dense, ours, small = (section.at(name).get(rows) for name in ("dpsgd", "adafest", SMALLEST))
    return (
        rows,
        paper[0],
        hundred(dense) if dense else None,
        paper[1],
        hundred(ours) if ours else None,
        paper[2],
        dense["ratio"] if dense else None,
        dense["ratio"] - paper[2] if dense and paper[2] is not None else None,
        1 / small["ratio"] if small and small["ratio"] else None,
        ours["working_bytes"] / 1e6 if ours and ours["working_bytes"] is not None else None,
        *(hundred(found[rows]) if rows in found else None for found in map(section.at, others)),
    )


def _missing(section: Section) -> list[str]:
    timed = {name: section.at(name) for name in ("dpsgd", "adafest")}
    absent = [f"{rows:,}" for rows in TAB_WALLCLOCK.rows if any(rows not in sizes for sizes in timed.values())]
    return [f"Not timed at {', '.join(absent)} rows: raise bench.largest_rows."] if absent else []


def _named(competitor: str) -> str:
    return {"pytorch sparse": "not private", "dpsgd lazy": "DP-SGD with lazy noise"}.get(competitor, rule(competitor))


ARTIFACT = Artifact("tab_wallclock", "Wall-clock time by vocabulary size", content, figure=False, measured=COMMAND)
