"""fig9: the joint effect of σ₁/σ₂ and τ on utility and embedding gradient size, as heatmaps."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.patches import Rectangle

from reports.ablation import NO_GRID, Grid, gaps, grid_table, held_fixed, largest_grid
from reports.comparison import Population
from reports.entry import Content, Inputs
from reports.style import SEQUENTIAL, WIDTH, Drawing
from reports.wording import metric, number

BESIDE = 8
"""The most columns with which two heatmaps fit beside each other."""


def content(inputs: Inputs) -> Content:
    population = inputs.population
    epsilon = population.main_epsilon
    grid = largest_grid(population, epsilon)
    if epsilon is None or not grid.cells:
        return Content("The joint effect of σ₁/σ₂ and τ.", missing=[NO_GRID], epsilons=[epsilon] if epsilon else [])
    caption = (
        f"The joint effect of the noise ratio σ₁/σ₂ and the threshold τ of DP-AdaFEST ({held_fixed(grid)}) "
        f"on test {metric(population)} and on the mean number of non-zero embedding gradient coordinates per step; "
        "darker is better in both. Settings marked † are worse than frozen embeddings, at which the colour scale of "
        "utility begins."
    )
    empty = [
        f"τ = {', '.join(number(t) for t in grid.thresholds if (ratio, t) not in grid.cells)} "
        f"at σ₁/σ₂ = {number(ratio)}"
        for ratio in grid.ratios
        if any((ratio, threshold) not in grid.cells for threshold in grid.thresholds)
    ]
    if empty:
        cells = len(grid.ratios) * len(grid.thresholds)
        caption += f" {len(grid.cells)} of {cells} cells were run; hatched and not run: {'; '.join(empty)}."
    utilities, sizes = _matrices(grid)
    # Size follows rows and columns, so that cells keep room for their numbers.
    height, stacked = 1.5 + 0.34 * len(grid.ratios), len(grid.thresholds) > BESIDE
    figure = Drawing(WIDTH, height * (1 + stacked))
    left, right = figure.subplots(*((2, 1) if stacked else (1, 2)))
    worse = {cell for cell, setting in grid.cells.items() if population.worse_than_frozen(setting)}
    _heatmap(
        left,
        grid,
        utilities,
        _from_frozen(population, epsilon, utilities),
        f"test {metric(population)}",
        lambda v: f"{v:.3f}".lstrip("0"),
        worse,
        True,
    )
    # Without a logarithm for zero: a size of 0 takes the colour of the smallest positive one.
    positive = sizes[sizes > 0]
    norm = (
        LogNorm(positive.min(), max(positive.max(), positive.min() * 1.01), clip=True) if positive.size else Normalize()
    )
    _heatmap(right, grid, sizes, norm, "gradient size (coordinates)", _size, worse, False)
    for axes in (left, right) if stacked else (left,):
        axes.set_ylabel("noise ratio σ₁/σ₂")
    return Content(caption, figure, grid_table(population, grid), gaps(grid), [epsilon])


def _from_frozen(population: Population, epsilon: float, utilities: np.ndarray) -> Normalize:
    """Start the colour scale at frozen embeddings, so that one collapsed setting does not hide all differences."""
    low, high = float(np.nanmin(utilities)), float(np.nanmax(utilities))
    frozen = population.best("frozen", epsilon)
    if frozen is not None and frozen.test < high:
        low = max(low, frozen.test)
    return Normalize(low, high, clip=True)


def _matrices(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    shape = (len(grid.ratios), len(grid.thresholds))
    utilities, sizes = np.full(shape, np.nan), np.full(shape, np.nan)
    for (ratio, threshold), setting in grid.cells.items():
        where = grid.ratios.index(ratio), grid.thresholds.index(threshold)
        utilities[where], sizes[where] = setting.test, setting.coordinates
    return utilities, sizes


def _heatmap(
    axes: Axes,
    grid: Grid,
    values: np.ndarray,
    norm: Normalize,
    title: str,
    word: Callable[[float], str],
    worse: set,
    dark_is_high: bool,
) -> None:
    colours = matplotlib.colormaps[SEQUENTIAL + ("_r" if dark_is_high else "")]
    # The first row is on top, so that large ratios are below, as in the paper.
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, norm=norm, aspect="auto")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(title)
    axes.set_xlabel("threshold τ")
    axes.set_xticks(range(len(grid.thresholds)), [number(t) for t in grid.thresholds])
    axes.set_yticks(range(len(grid.ratios)), [number(r) for r in grid.ratios])
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            axes.add_patch(
                Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, hatch="////", edgecolor="#AAAAAA", lw=0)
            )
            continue
        mark = "†" if (grid.ratios[row], grid.thresholds[column]) in worse else ""
        luminance = np.dot(image.cmap(image.norm(value))[:3], (0.299, 0.587, 0.114))
        axes.text(
            column, row, word(value) + mark, ha="center", va="center", fontsize=8,
            color="white" if luminance < 0.55 else "black",
        )  # fmt: skip


def _size(value: float) -> str:
    """Format a count in at most four characters: 640, 6.4k, 64k, 6.4M."""
    for unit, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            scaled = value / unit
            return f"{scaled:.1f}{suffix}" if scaled < 9.95 else f"{scaled:.0f}{suffix}"
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"
