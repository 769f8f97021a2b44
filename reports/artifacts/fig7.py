"""fig7: effect of σ₁/σ₂ and τ of DP-AdaFEST on utility and embedding gradient size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from reports.ablation import NO_GRID, Grid, gaps, grid_table, held_fixed, largest_grid
from reports.algorithms import label
from reports.comparison import Population
from reports.entry import Content, Inputs
from reports.setting import Setting
from reports.style import SEQUENTIAL, WIDTH, Drawing, dashed, decade, hover, key, log_axis
from reports.wording import generated, metric, number, tooltip

MARKERS = "osD^vPX"
APART = 0.055
"""Least distance of two labelled ticks, as a share of the axis."""


def content(inputs: Inputs) -> Content:
    population = inputs.population
    epsilon = population.main_epsilon
    grid = largest_grid(population, epsilon)
    if epsilon is None or not grid.cells:
        return Content("The effect of σ₁/σ₂ and of τ.", missing=[NO_GRID], epsilons=[epsilon] if epsilon else [])
    caption = (
        "The effect of the noise ratio σ₁/σ₂ (left) and of the threshold τ (right) of DP-AdaFEST on test "
        f"{metric(population)} and on the mean number of non-zero embedding gradient coordinates a step, all "
        f"else held fixed ({held_fixed(grid)}). Bars: standard deviation over seeds. Horizontal lines: the "
        "settings of DP-SGD and frozen embeddings that are best on validation."
    )
    figure = Drawing(WIDTH, 4.5)
    panels = figure.subplots(2, 2, sharex="col", sharey="row")
    _column(panels[:, 0], population, grid, grid.ratios, grid.thresholds, swap=False)
    _column(panels[:, 1], population, grid, grid.thresholds, grid.ratios, swap=True)
    references = [best for name in ("dpsgd", "frozen") if (best := population.best(name, epsilon)) is not None]
    for axes in panels[0]:
        for best in references:
            axes.axhline(best.test, zorder=1, **dashed(best.algorithm))
        axes.margins(y=0.08)
    # In a legend: markers of settings would collide with labels on the lines.
    names = [key(label(s.algorithm), s.algorithm, **dashed(s.algorithm), marker="") for s in references]
    if names:
        figure.legend(handles=names, loc="outside upper center", ncols=len(names))
    panels[0, 0].set_ylabel(f"test {metric(population)}")
    panels[1, 0].set_ylabel("gradient size (coordinates)")
    panels[1, 0].set_xlabel("noise ratio σ₁/σ₂")
    panels[1, 1].set_xlabel("threshold τ")
    keys = (("line: threshold τ", grid.thresholds), ("line: noise ratio σ₁/σ₂", grid.ratios))
    for axes, (symbol, values) in zip(panels[0], keys, strict=True):
        lines = [Line2D([], [], **look, label=words) for words, look in _looks(values)]
        rows = 1 + (len(lines) > 6)
        axes.legend(
            handles=lines, title=symbol, loc="lower center", bbox_to_anchor=(0.5, 1.01),
            ncols=-(-len(lines) // rows), columnspacing=0.9, handlelength=1.3,
            handletextpad=0.3, title_fontsize=8,
        )  # fmt: skip
    empty = sum(setting.coordinates == 0 for setting in grid.cells.values())
    if empty:
        caption += f" {empty} settings in which no row survived have no gradient size to draw."
    return Content(caption + generated(population), figure, grid_table(population, grid), gaps(grid), [epsilon])


def _column(
    panels: Sequence[Axes], population: Population, grid: Grid, along: list[float], lines: list[float], swap: bool
) -> None:
    for line, (_, look) in zip(lines, _looks(lines), strict=True):
        cells = [(x, grid.cells.get((line, x) if swap else (x, line))) for x in along]
        present = [(x, setting) for x, setting in cells if setting is not None]
        marks = panels[0].errorbar(
            [x for x, _ in present], [s.test for _, s in present], yerr=_spreads([s for _, s in present]),
            elinewidth=0.8, **look,
        )  # fmt: skip
        hover(marks.lines[0], [tooltip(setting, population) for _, setting in present])
        sized = [(x, setting.coordinates) for x, setting in present if setting.coordinates > 0]
        marks = panels[1].errorbar(
            [x for x, _ in sized], [size for _, size in sized],
            yerr=_sizes([s for _, s in present if s.coordinates > 0]), elinewidth=0.8, **look,
        )  # fmt: skip
        hover(marks.lines[0], [f"{size:,.1f} coordinates" for _, size in sized])
    log_axis(panels[1], "y")
    for axes in panels:
        if min(along) > 0:
            axes.set_xscale("log")
        else:  # thresholds may be negative
            axes.set_xscale("symlog", linthresh=1, linscale=0.3)
        axes.minorticks_off()
        if len(along) == 1:
            axes.set_xlim(along[0] - abs(along[0]) / 2 - (not along[0]), along[0] + abs(along[0]) / 2 + (not along[0]))
        axes.set_xticks(along, _words(axes, along))


def _words(axes: Axes, along: list[float]) -> list[str]:
    """Return the tick labels of an axis, empty where one would touch the label before it."""
    words, before, place = [], -math.inf, axes.transScale.transform
    low, high = (place((limit, 1.0))[0] for limit in axes.get_xlim())
    for x in along:
        here = (place((x, 1.0))[0] - low) / (high - low)
        shown = here - before >= APART
        words.append((number(x) if x < 1e4 else decade(x)) if shown else "")
        before = here if shown else before
    return words


def _looks(values: list[float]) -> list[tuple[str, dict[str, Any]]]:
    """Return a label and a line style for each value, dark to light."""
    shades = matplotlib.colormaps[SEQUENTIAL](np.linspace(0, 0.9, len(values)))
    return [
        (
            number(value),
            {"color": shade, "marker": MARKERS[i % len(MARKERS)], "markersize": 4, "linewidth": 1.1},
        )
        for i, (value, shade) in enumerate(zip(values, shades, strict=True))
    ]


def _spreads(settings: list[Setting]) -> list[float] | None:
    spreads = [setting.spread or 0.0 for setting in settings]
    return spreads if any(spreads) else None


def _sizes(settings: list[Setting]) -> list[list[float]] | None:
    """Return standard deviations of the gradient size over seeds, below (cut above zero) and above."""
    spreads = [setting.coordinates_spread or 0.0 for setting in settings]
    below = [min(spread, 0.9 * s.coordinates) for spread, s in zip(spreads, settings, strict=True)]
    return [below, spreads] if any(spreads) else None
