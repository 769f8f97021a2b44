"""contribution: share of a batch's look-ups whose row survives, by C₁, on texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib

from reports.bench import ONCE, frozen
from reports.entry import Content, Inputs
from reports.style import FOOTER_COLOUR, SEQUENTIAL, WIDTH, Drawing, hover, key, log_axis
from reports.tables import Column, Table
from reports.wording import flag, number

_VALUES = {"in_papers_grid", "contribution_clipping_norm", "reduction", "threshold", "kept", "touched", "clipped"}
_IN_TABLE = (10, 50, 500)
_MOST = 1000  # the axis ends there


def content(inputs: Inputs) -> Content:
    section = frozen("contribution", _VALUES)
    records = [(record, record["values"]) for record in section.records]
    first, at = records[0]
    caption = (
        "An example's contribution map has a one for each distinct token, and DP-AdaFEST clips its norm to C₁. "
        f"Maps of {first['case'].split(',')[0]} have norms of {at['shortest_map']:.1f} to {at['longest_map']:.1f} "
        f"(median {at['median_map']:.1f}): a larger C₁ clips none and only multiplies the noise, C₁σ₁. The figure "
        "shows the expected share of a batch's look-ups whose row survives against the ratio of all rows to surviving "
        f"rows, for {first['batch_size']:,} texts, {at['steps']} steps, ε = {number(at['epsilon'])}, σ₁/σ₂ = "
        f"{number(at['noise_ratio'])}. Circles are settings of the paper's grid as printed (C₁ of 50, 100 and 500, τ "
        "of 50 to 1,000); those beyond the axis are in the table. The dotted line is a random choice of rows."
    )
    table = Table(
        [
            Column("in_papers_grid", "in the paper's grid", flag),
            Column("contribution_clipping_norm", "C₁", number),
            Column("threshold", "τ", "{:,.1f}".format),
            Column("reduction", "reduction", "{:,.1f}×".format),
            Column("kept", "look-ups whose row survives", "{:.3f}".format),
            Column("touched", "survivors that the batch has", "{:.3f}".format),
            Column("clipped", "maps clipped", "{:.1%}".format),
        ],
        [
            tuple(values[name] for name in ("in_papers_grid", "contribution_clipping_norm", "threshold"))
            + tuple(values[name] for name in ("reduction", "kept", "touched", "clipped"))
            for _, values in records
            if values["in_papers_grid"] or round(values["reduction"]) in _IN_TABLE
        ],
    )
    return Content(caption + ONCE, _figure([values for _, values in records]), table)


def _figure(measured: list[Mapping[str, Any]]) -> Drawing:
    figure = Drawing(WIDTH, 3.4)
    axes = figure.subplots()
    norms = sorted({values["contribution_clipping_norm"] for values in measured})
    colours = matplotlib.colormaps[SEQUENTIAL]
    handles = []
    for place, norm in enumerate(norms):
        colour = colours(0.92 * place / max(len(norms) - 1, 1))
        same_norm = [values for values in measured if values["contribution_clipping_norm"] == norm]
        line = sorted((v["reduction"], v["kept"]) for v in same_norm if not v["in_papers_grid"])
        # Broad lines below narrow ones: small C1 nearly coincide.
        (drawn,) = axes.plot(
            *zip(*line, strict=True), color=colour, linewidth=3.2 - 0.3 * place, marker=".", markersize=4
        )
        hover(drawn, [f"C₁ = {number(norm)}, {x:,.0f}×: {y:.3f} of look-ups" for x, y in line])
        grid = [v for v in same_norm if v["in_papers_grid"] and (v["reduction"] or _MOST + 1) <= _MOST]
        places = [v["reduction"] for v in grid], [v["kept"] for v in grid]
        circles = axes.scatter(*places, s=26, facecolors="white", edgecolors=[colour], zorder=3)
        hover(circles, [f"paper: C₁ = {number(norm)}, τ = {number(v['threshold'])}: {v['kept']:.3f}" for v in grid])
        handles.append(key(f"C₁ = {number(norm)}", marker="", color=colour, linestyle="-", linewidth=2))
    reductions = sorted({values["reduction"] for values in measured if not values["in_papers_grid"]})
    axes.plot(reductions, [1 / reduction for reduction in reductions], color=FOOTER_COLOUR, linestyle=":")
    handles += [key("rows at random", marker="", color=FOOTER_COLOUR, linestyle=":"), key("paper's grid")]
    log_axis(axes, "x")
    axes.set_xlim(1.7, 1.3 * _MOST)
    axes.set_ylim(0, None)
    axes.set_xlabel("rows of the table over rows that survive")
    axes.set_ylabel("look-ups whose row survives")
    figure.legend(handles=handles, loc="outside upper center", ncols=5)
    return figure
