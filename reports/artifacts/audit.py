"""audit, audit_trainings: empirical lower bounds on ε, of one step and of whole trainings, and the claimed ε."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from reports.algorithms import algorithm, label
from reports.entry import Content, Inputs, unmeasured
from reports.style import NOTE_COLOUR, WIDTH, Drawing, hover, key, log_axis
from reports.tables import Column, Table
from reports.wording import delta

FILE = Path("audit") / "audit.json"
COMMAND = "dpfest audit"
LEAST = 0.1
"""Smaller bounds are drawn here, since the axis is logarithmic."""

TICKS = ([0.1, 0.2, 0.5, 1, 2, 5, 10, 20], ["0.1", "0.2", "0.5", "1", "2", "5", "10", "20"])
_OF_STEPS = {"algorithm", "claim", "delta", "draws", "confidence", "cases"}
_OF_TRAININGS = {
    "algorithm", "training", "claim", "delta", "confidence", "steps", "rate", "periods", "canaries", "ideal", "cases",
}  # fmt: skip
_FLAWS = ("v", "s", "D", "^", "P", "X")
_IDEAL = "#777777"


def steps(inputs: Inputs) -> Content:
    """Return the audits of one step of each algorithm's engine, intact and sabotaged."""
    audits = _read(inputs.report, "audits", _OF_STEPS)
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
            Column("claim", "claimed ε", _number),
            Column("bound", "bound on ε", _number),
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
    deltas = {audit["delta"] for audit in audits}
    about = f" at δ = {deltas.pop():g}" if len(deltas) == 1 else ""
    names = [label(audit["algorithm"]) for audit in audits]
    return Content(caption, _figure(audits, names, f"ε of one step{about}"), table)


def trainings(inputs: Inputs) -> Content:
    """Return the audits of whole trainings, as they are and sabotaged."""
    audits = _read(inputs.report, "trainings", _OF_TRAININGS)
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
    names = [f"{label(audit['algorithm'])}, {audit['training']}" for audit in audits]
    return Content(caption, _figure(audits, names, "ε of the whole training"), table)


def _training(audit: Mapping[str, Any]) -> str:
    periods = f"{audit['periods']} periods of " if audit["periods"] > 1 else ""
    return f"{audit['training']}, {periods}{audit['steps']} steps, q = {audit['rate']:g}"


def _number(value: float) -> str:
    return f"{value:.3f}"


def _figure(audits: Sequence[Mapping[str, Any]], names: Sequence[str], what: str) -> Drawing:
    """Draw a line for each audit: claim, ideal (of trainings), the bound in the algorithm's colours, those of sabotages
    hollow, each with a marker of its own if there are few."""
    flaws = list(dict.fromkeys(case["sabotage"] for audit in audits for case in audit["cases"] if case["sabotage"]))
    few = len(flaws) <= len(_FLAWS)
    markers = dict(zip(flaws, _FLAWS, strict=False)) if few else dict.fromkeys(flaws, "D")
    figure = Drawing(WIDTH, 1.2 + 0.24 * len(audits))
    axes = figure.subplots()
    for place, (audit, name) in enumerate(zip(audits, names, strict=True)):
        axes.vlines(audit["claim"], place - 0.4, place + 0.4, color="black", linewidth=1.2)
        if "ideal" in audit:
            axes.vlines(max(audit["ideal"], LEAST), place - 0.25, place + 0.25, color=_IDEAL, linewidth=1.0)
        own = algorithm(audit["algorithm"])
        for case in audit["cases"]:
            look: dict[str, Any] = {"color": own.colour, "marker": own.marker, "zorder": 3}
            if case["sabotage"] is not None:
                look = {"color": NOTE_COLOUR, "marker": markers[case["sabotage"]], "markerfacecolor": "white"}
            (mark,) = axes.plot(max(case["bound"], LEAST), place, **look, markersize=5, linestyle="none")
            claim = case.get("claim", audit["claim"])
            hover(mark, [f"{name}, {case['sabotage'] or 'as it is'}: bound {case['bound']:.3f}, claim {claim:.3f}"])
    log_axis(axes, "x")
    axes.set_xticks(*TICKS)
    cases = [(case, audit) for audit in audits for case in audit["cases"]]
    ends = [end for case, audit in cases for end in (case["bound"], case.get("claim", audit["claim"]))]
    axes.set_xlim(0.8 * max(LEAST, min(ends)), 1.4 * max(ends))
    axes.set_yticks(range(len(audits)), names)
    axes.set_ylim(len(audits) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.set_xlabel(what)
    shown = {f"bound, {flaw}": marker for flaw, marker in markers.items()} if few else {"bound, sabotaged": "D"}
    handles = [
        key("claim", color="black", marker="|", markersize=9),
        key("bound", color="black", marker="o", markerfacecolor="black"),
        *([key("ideal", color=_IDEAL, marker="|", markersize=7)] if "ideal" in audits[0] else []),
        *(key(words, color=NOTE_COLOUR, marker=mark, markerfacecolor="white") for words, mark in shown.items()),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 3 if len(handles) > 4 else 4))
    return figure


def _read(report: Path, kind: str, needed: Set[str]) -> list[Mapping[str, Any]]:
    """Return the audits of a kind, of steps or of trainings, that have cases and all that is needed; none if the file
    is missing or not the output of an audit."""
    try:
        audits = json.loads((report / FILE).read_text(encoding="utf-8"))[kind]
        return [audit for audit in audits if audit.keys() >= needed and audit["cases"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
