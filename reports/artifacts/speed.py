"""speed: time of 100 steps by rows of the embedding, ours and the paper's, and of the whole pCTR step."""

from __future__ import annotations

from typing import Any

from reports.algorithms import algorithm, label
from reports.artifacts.tab_wallclock import hundred
from reports.bench import Section, competitor, read
from reports.entry import Content, Inputs, unmeasured
from reports.published import TAB_WALLCLOCK
from reports.style import WIDTH, Drawing, hover, key, log_axis
from reports.tables import Column, Table
from reports.wording import significant

COMMAND = "dpfest bench embedding"
STEP_COMMAND = "dpfest bench step"
# Competitor -> the algorithm whose colour and marker it has, and its line style.
_LOOK: dict[str, tuple[str, str]] = {
    "dpsgd": ("dpsgd", "-"),
    "dpsgd lazy": ("dpsgd", "--"),
    "fest": ("fest", "-"),
    "adafest": ("adafest", "-"),
    "adafest_plus": ("adafest_plus", "-"),
    "pytorch sparse": ("nonprivate", "-"),
    "pytorch dense": ("nonprivate", "--"),
}

_SIZE = {"dpsgd": 7.5}  # of a marker: a smaller star does not look hollow


def content(inputs: Inputs) -> Content:
    embedding, step = read(inputs.report, "embedding"), read(inputs.report, "step")
    missing = [command for section, command in ((embedding, COMMAND), (step, STEP_COMMAND)) if section is None]
    machine = next((section.machine for section in (embedding, step) if section), None)
    if machine is None:
        return unmeasured(*missing)
    caption = (
        "Time of 100 steps of an embedding (dimension 64, batch size 1,024) against its rows: medians on "
        f"{machine}, and the paper's numbers (hollow). The table shows the whole training step of the pCTR model: its "
        "time relative to the same model's ordinary step (plain PyTorch, sparse gradients, not private), median over "
        "turns."
    )
    return Content(
        caption, None if embedding is None else _figure(embedding), _table(step), unmeasured(*missing).missing
    )


def _table(step: Section | None) -> Table:
    records = step.records if step else []
    cases = list(dict.fromkeys(record["case"] for record in records))
    names = list(dict.fromkeys(record["competitor"] for record in records))
    by_step = {(record["competitor"], record["case"]): record for record in records}

    def cell(name: str, case: str) -> Any:
        return by_step[name, case]["ratio"] if (name, case) in by_step else None

    return Table(
        [
            Column("competitor", "step", competitor),
            *(Column(case, f"{case}, to the ordinary step", "{:.2f}×".format) for case in cases),
        ],
        [(name, *(cell(name, case) for case in cases)) for name in names],
    )


def _figure(section: Section) -> Drawing:
    figure = Drawing(WIDTH, 3.4)
    axes = figure.subplots()
    handles = []
    for name, (look, line) in _LOOK.items():
        if records := section.at(name):
            sizes = sorted(records)
            (line_of,) = axes.plot(
                sizes,
                [hundred(records[rows]) for rows in sizes],
                linestyle=line,
                color=algorithm(look).colour,
                marker=algorithm(look).marker,
                markersize=_SIZE.get(look, 4.6),
            )
            hover(
                line_of,
                [f"{competitor(name)}, {rows:,} rows: {significant(hundred(records[rows]))} s" for rows in sizes],
            )
            handles.append(key(competitor(name), look, linestyle=line, markersize=_SIZE.get(look, 4.6)))
    for place, name in ((0, "dpsgd"), (1, "adafest")):
        axes.plot(
            list(TAB_WALLCLOCK.rows),
            [values[place] for values in TAB_WALLCLOCK.rows.values()],
            linestyle=":",
            color=algorithm(name).colour,
            marker=algorithm(name).marker,
            markersize=_SIZE.get(name, 4.6),
            markerfacecolor="white",
        )
        handles.append(
            key(
                f"{label(name)}, the paper",
                name,
                linestyle=":",
                markerfacecolor="white",
                markersize=_SIZE.get(name, 4.6),
            )
        )
    log_axis(axes, "x")
    log_axis(axes, "y")
    axes.set_xlabel("rows of the embedding")
    axes.set_ylabel("seconds of 100 steps")
    figure.legend(handles=handles, loc="outside upper center", ncols=3)
    figure.values = "Its values are in the table of tab_wallclock; the table below shows whole steps."
    return figure
