"""audit_trainings: empirical lower bounds on the ε of whole trainings, sound and sabotaged, and the claimed ε."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.algorithms import algorithm, label
from reports.artifacts.audit import COMMAND, LEAST, TICKS, read
from reports.entry import Content, Inputs, unmeasured
from reports.style import NOTE_COLOUR, WIDTH, Drawing, hover, key, log_axis
from reports.tables import Column, Table
from reports.wording import delta

_NEEDED = {
    "algorithm", "training", "claim", "delta", "confidence", "steps", "rate", "periods", "canaries", "ideal", "cases",
}  # fmt: skip


def content(inputs: Inputs) -> Content:
    audits = read(inputs.report, "trainings", _NEEDED)
    if not audits:
        return unmeasured(COMMAND)
    first = audits[0]
    caption = (
        "Empirical lower bounds on the ε of whole trainings, from one run each and what leaves it: the weights after "
        f"every step, and the rows selected before. Each of {first['canaries']:,} canaries, an example with an unused "
        "embedding row of its own, is included by a fair coin, and the coins of some are guessed by likelihood ratio. "
        f"The bound, at {first['confidence']:.0%} confidence, is the ε of the noisiest mechanism of the claimed form "
        "that the guesses do not refute (Mahloujifar, Melis and Chaudhuri, 2024); in the last column, of any mechanism "
        "at δ (Steinke, Nasr and Jagielski, 2023). What this attack reaches, in the median, on a mechanism that is "
        "exactly as claimed is its ideal. A training as it is must stay below its claim; every sabotaged one must "
        f"reach it. Reproduce with `{COMMAND}`."
    )
    table = Table(
        [
            Column("algorithm", "algorithm", label),
            Column("training", "training"),
            Column("run", "run"),
            Column("claim", "claimed ε", _number),
            Column("bound", "bound on ε", _number),
            Column("tightness", "bound / claim", lambda value: f"{value:.2f}"),
            Column("ideal", "ideal", _number),
            Column("delta", "δ", delta),
            Column("right", "right guesses"),
            Column("made", "of"),
            Column("verdict", "verdict"),
            Column("at_delta", "of any mechanism", _number),
        ],
        [
            (
                audit["algorithm"],
                _training(audit),
                case["sabotage"] or "as it is",
                case["claim"],
                case["bound"],
                case["tightness"],
                audit["ideal"] if case["sabotage"] is None else None,
                audit["delta"],
                case["right"],
                case["made"],
                case["verdict"],
                case["at_delta"],
            )
            for audit in audits
            for case in audit["cases"]
        ],
    )
    return Content(caption, _figure(audits), table)


def _training(audit: Mapping[str, Any]) -> str:
    periods = f"{audit['periods']} periods of " if audit["periods"] > 1 else ""
    return f"{audit['training']}, {periods}{audit['steps']} steps, q = {audit['rate']:g}"


def _number(value: float) -> str:
    return f"{value:.3f}"


def _figure(audits: list[Mapping[str, Any]]) -> Drawing:
    """Draw a line for each training: claim, ideal, the bound in the algorithm's colours, those of sabotages hollow."""
    figure = Drawing(WIDTH, 1.2 + 0.24 * len(audits))
    axes = figure.subplots()
    for place, audit in enumerate(audits):
        axes.vlines(audit["claim"], place - 0.4, place + 0.4, color="black", linewidth=1.2)
        axes.vlines(max(audit["ideal"], LEAST), place - 0.25, place + 0.25, color="#777777", linewidth=1.0)
        for case in audit["cases"]:
            at = max(case["bound"], LEAST)
            own = algorithm(audit["algorithm"])
            look: dict[str, Any] = {"color": own.colour, "marker": own.marker, "zorder": 3}
            if case["sabotage"] is not None:
                look = {"color": NOTE_COLOUR, "marker": "D", "markerfacecolor": "white"}
            (mark,) = axes.plot(at, place, **look, markersize=5, linestyle="none")
            run = case["sabotage"] or "as it is"
            words = f"{label(audit['algorithm'])}, {audit['training']}, {run}: bound {case['bound']:.3f}"
            hover(mark, [f"{words}, claim {case['claim']:.3f}"])
    log_axis(axes, "x")
    axes.set_xticks(*TICKS)
    ends = [case[name] for audit in audits for case in audit["cases"] for name in ("bound", "claim")]
    axes.set_xlim(0.8 * max(LEAST, min(ends)), 1.4 * max(ends))
    axes.set_yticks(range(len(audits)), [f"{label(audit['algorithm'])}, {audit['training']}" for audit in audits])
    axes.set_ylim(len(audits) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.set_xlabel("ε of the whole training")
    handles = [
        key("claim", color="black", marker="|", markersize=9),
        key("bound", color="black", marker="o", markerfacecolor="black"),
        key("ideal", color="#777777", marker="|", markersize=7),
        key("bound, sabotaged", color=NOTE_COLOUR, marker="D", markerfacecolor="white"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure
