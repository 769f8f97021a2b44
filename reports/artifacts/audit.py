"""audit: empirical lower bounds on each algorithm's ε, for the intact and the sabotaged engine, and the claimed ε."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from reports.algorithms import algorithm, label
from reports.entry import Content, Inputs, unmeasured
from reports.style import NOTE_COLOUR, WIDTH, Drawing, hover, key, log_axis
from reports.tables import Column, Table
from reports.wording import delta

FILE = Path("audit") / "audit.json"
COMMAND = "dpfest audit"
_SABOTAGE_MARKERS = ("v", "s", "D", "^", "P", "X")
LEAST = 0.1
"""Smaller bounds are drawn here, since the axis is logarithmic."""

TICKS = ([0.1, 0.2, 0.5, 1, 2, 5, 10, 20], ["0.1", "0.2", "0.5", "1", "2", "5", "10", "20"])


def content(inputs: Inputs) -> Content:
    audits = read(inputs.report, "audits", {"algorithm", "claim", "delta", "draws", "confidence", "cases"})
    if not audits:
        return unmeasured(COMMAND)
    first = audits[0]
    alike = all(audit[name] == first[name] for audit in audits for name in ("delta", "draws", "confidence"))
    about = (
        f"at δ = {delta(first['delta'])}, from {first['draws']:,} draws of one step on the whole batch in each world, "
        f"with {first['confidence']:.0%} confidence (Clopper and Pearson)"
        if alike
        else "at the confidence, draws and δ of each algorithm's audit"
    )
    caption = (
        f"Empirical lower bounds on the ε of the engine {about}: the test is chosen on one half of the draws and "
        "evaluated on the other, on map and gradient jointly. The intact engine must stay below its claimed ε; the "
        "ratio of bound and claim measures the power of the audit. Every sabotaged engine must exceed the claim. No "
        f"bound can exceed about log(draws / 8). Reproduce with `{COMMAND}`."
    )
    table = Table(
        [
            Column("algorithm", "algorithm", label),
            Column("engine", "engine"),
            Column("claim", "claimed ε", lambda value: f"{value:.3f}"),
            Column("bound", "bound on ε", lambda value: f"{value:.3f}"),
            Column("tightness", "bound / claim", lambda value: f"{value:.2f}"),
            Column("delta", "δ", delta),
            Column("draws", "draws in each world", lambda value: f"{value:,}"),
            Column("verdict", "verdict"),
        ],
        [
            (
                audit["algorithm"],
                case["sabotage"] or "as it is",
                audit["claim"],
                case["bound"],
                case["tightness"],
                audit["delta"],
                audit["draws"],
                case["verdict"],
            )
            for audit in audits
            for case in audit["cases"]
        ],
    )
    return Content(caption, _figure(audits), table)


def _figure(audits: list[Mapping[str, Any]]) -> Drawing:
    """Draw claims as lines, the intact engine's bounds in the algorithms' colours, and those of sabotages hollow."""
    figure = Drawing(WIDTH, 3.3)
    axes = figure.subplots()
    longest_first = sorted(audits, key=lambda audit: -len(audit["cases"]))
    flaws = list(dict.fromkeys(c["sabotage"] for audit in longest_first for c in audit["cases"] if c["sabotage"]))
    deltas = {audit["delta"] for audit in audits}
    for place, audit in enumerate(audits):
        axes.hlines(audit["claim"], place - 0.42, place + 0.42, color="black", linewidth=1.2)
        for case in audit["cases"]:
            height = max(case["bound"], LEAST)
            if case["sabotage"] is None:
                name = audit["algorithm"]
                look: dict[str, Any] = {"color": algorithm(name).colour, "marker": algorithm(name).marker}
                (mark,) = axes.plot(place, height, **look, markersize=5, linestyle="none")
                share = f"{case['tightness']:.0%}"
                upright = "bottom" if height == LEAST else "top"  # the axis is below
                axes.annotate(
                    share, (place, height), xytext=(7, -1), textcoords="offset points", va=upright, fontsize=8
                )
            else:
                number = flaws.index(case["sabotage"])
                (mark,) = axes.plot(
                    place + 0.18 * (number - (len(flaws) - 1) / 2),
                    height,
                    _SABOTAGE_MARKERS[number % len(_SABOTAGE_MARKERS)],
                    color=NOTE_COLOUR,
                    markerfacecolor="white",
                    markersize=5,
                )
            engine = case["sabotage"] or "as it is"
            words = f"{label(audit['algorithm'])}, {engine}: bound {case['bound']:.3f}, claim {audit['claim']:.3f}"
            hover(mark, [words])
    log_axis(axes, "y")
    axes.set_yticks(*TICKS)
    heights = [case["bound"] for audit in audits for case in audit["cases"]] + [a["claim"] for a in audits]
    axes.set_ylim(max(LEAST, 0.6 * min(heights)), 1.4 * max(heights))
    axes.set_xlim(-0.6, len(audits) - 0.4)
    axes.set_xticks(range(len(audits)), [label(a["algorithm"]).replace(" ", "\n", 1) for a in audits])
    axes.grid(False, axis="x")
    axes.set_ylabel("ε of one step" + (f" at δ = {deltas.pop():g}" if len(deltas) == 1 else ""))
    handles = [
        key("claim", color="black", marker="", linestyle="-"),
        key("bound, intact engine (share of claim)", color="black", marker="o", markerfacecolor="black"),
        *(
            key(f"bound, {flaw}", color=NOTE_COLOUR, marker=marker, markerfacecolor="white")
            for flaw, marker in zip(flaws, _SABOTAGE_MARKERS, strict=False)
        ),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


def read(report: Path, kind: str, needed: Set[str]) -> list[Mapping[str, Any]]:
    """Return the audits of a kind, of steps or of trainings, that have cases and all that is needed; none if the file
    is missing or not the output of an audit."""
    try:
        audits = json.loads((report / FILE).read_text(encoding="utf-8"))[kind]
        return [audit for audit in audits if audit.keys() >= needed and audit["cases"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
