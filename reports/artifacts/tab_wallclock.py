"""tab_wallclock: time of 100 steps of an embedding by its rows, the paper's and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.bench import Section, competitor, read
from reports.claims.measured import factor
from reports.entry import Content, Inputs, unmeasured
from reports.published import TAB_WALLCLOCK, beside
from reports.tables import Column, Table
from reports.wording import significant

COMMAND = "dpfest bench embedding"
SMALLEST = "adafest, smallest table"

OTHERS = ("dpsgd lazy", "fest", "adafest_plus", "pytorch sparse", "pytorch dense")


def content(inputs: Inputs) -> Content:
    section = read(inputs.report, "embedding")
    if section is None:
        return unmeasured(COMMAND)
    others = [name for name in OTHERS if section.at(name)]
    caption = (
        "Seconds of 100 steps of an embedding of dimension 64 at batch size 1,024 by its rows, and the ratio of "
        "DP-SGD's time to DP-AdaFEST's (factor), with a 95% interval from the scatter over turns. The machines differ: "
        f"the paper used TensorFlow on its own, we {section.machine} (medians; ratios within a turn). Compare factors, "
        "not seconds. DP-AdaFEST is timed in its worst case: every touched row survives, and half an untouched row on "
        "average. 'To the smallest': its time relative to that on the smallest table, in the same turns. 'Working': "
        "memory in addition to the table."
    )
    sizes = sorted(section.at("adafest").keys() | TAB_WALLCLOCK.rows.keys())
    table = Table(
        [
            Column("rows", "rows", "{:,}".format),
            *beside("factor", "factor", significant),
            Column("factor_interval", "factor, 95% interval"),
            *beside("dpsgd", "DP-SGD, s", significant),
            *beside("adafest", "DP-AdaFEST, s", significant),
            Column("flatness", "to the smallest", "{:.2f}".format),
            Column("working_mb", "working, MB", "{:.1f}".format),
            *(Column(name.replace(" ", "_"), f"{competitor(name)}, s, ours", significant) for name in others),
        ],
        [_row(section, rows, others) for rows in sizes],
    )
    return Content(caption, table=table, missing=_missing(section))


def hundred(record: Mapping[str, Any]) -> float:
    """Seconds of 100 steps."""
    return 100 * record["median_seconds"]


def _row(section: Section, rows: int, others: list[str]) -> tuple[Any, ...]:
    dense, ours, small = (section.at(name).get(rows) for name in ("dpsgd", "adafest", SMALLEST))
    ratio = factor(section, rows)
    measured = {
        "factor": ratio.factor if ratio else None,
        "dpsgd": hundred(dense) if dense else None,
        "adafest": hundred(ours) if ours else None,
    }
    cells = {name: TAB_WALLCLOCK.beside(rows, name, value) for name, value in measured.items()}
    return (
        rows,
        *cells["factor"],
        ratio.factors if ratio else None,
        *cells["dpsgd"],
        *cells["adafest"],
        1 / small["ratio"] if small and small["ratio"] else None,
        ours["working_bytes"] / 1e6 if ours and ours["working_bytes"] is not None else None,
        *(hundred(timed[rows]) if rows in timed else None for timed in map(section.at, others)),
    )


def _missing(section: Section) -> list[str]:
    timed = {name: section.at(name) for name in ("dpsgd", "adafest")}
    absent = [f"{rows:,}" for rows in TAB_WALLCLOCK.rows if any(rows not in sizes for sizes in timed.values())]
    return [f"Not timed at {', '.join(absent)} rows: raise bench.largest_rows."] if absent else []
