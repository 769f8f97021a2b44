"""fig8: utility against reduction, every setting of every algorithm, one panel per ε."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from reports.algorithms import REFERENCES, algorithm, label, ordered
from reports.artifacts.frontier import in_order, settings_table
from reports.chosen import pareto
from reports.comparison import Population
from reports.entry import Content, Inputs
from reports.setting import Setting
from reports.style import WIDTH, Drawing, dashed, hover, key, log_axis, scale_bar
from reports.wording import metric, number, plural, tooltip

COMPARED = ("fest_equal", "fest", "adafest", "adafest_plus_equal", "adafest_plus", "exponential")
"""The paper's algorithms; any other with runs is drawn as well."""


def content(inputs: Inputs) -> Content:
    population = inputs.population
    caption = (
        f"Test {metric(population)} against the reduction of the embedding gradient: each marker is the mean over "
        "seeds of one setting; bars are standard deviations (horizontal: of the gradient size). Lines join each "
        "algorithm's frontier, chosen on validation. Hollow markers are below frozen embeddings, which update no "
        "embedding: such a reduction is worth nothing. Reference lines are the settings of DP-SGD, frozen embeddings "
        "and non-private training that are best on validation."
    )
    table = settings_table(population, in_order(population))
    if not population.epsilons:
        return Content(caption, table=table)
    figure = Drawing(WIDTH, 3.1)
    panels = figure.subplots(1, len(population.epsilons), sharey=True, squeeze=False)[0]
    infinite = 10 * max((s.reduction for s in population.settings if math.isfinite(s.reduction)), default=1.0)
    bottom, top = _limits(population)
    notes = []
    for axes, epsilon in zip(panels, population.epsilons, strict=True):
        log_axis(axes, "x")
        axes.set_title(f"ε = {number(epsilon)}")
        axes.set_ylim(bottom, top)
        axes.set_xlabel("gradient size reduction (×)")
        below = sum([_scatter(axes, population, name, epsilon, infinite, bottom) for name in _sparse(population)])
        if below:
            notes.append(f"ε = {number(epsilon)}: {plural(below, 'setting')} below the axis, drawn at its edge as ▾.")
        _references(axes, population, epsilon)
        axes.set_xlim(0.6, max(axes.get_xlim()[1], 20))
        if all(setting.spread is None for setting in population.settings):  # else markers have error bars
            scale_bar(axes, population.test_error, f"± standard error of one {metric(population)}")
    panels[0].set_ylabel(f"test {metric(population)}")
    figure.legend(handles=_legend(population), loc="outside upper center", ncols=4, columnspacing=0.8, handlelength=1.9)
    return Content(caption + "".join(f" {note}" for note in notes), figure, table)


def _limits(population: Population) -> tuple[float, float]:
    """Return utility limits that keep the trade-off readable and contain the private references.

    Settings far below these, and non-private training far outside, are marked at the edge instead.
    """
    private = [s.test for s in population.settings if s.epsilon is not None]
    references = [
        s.test
        for e in population.epsilons
        for name in ("frozen", "dpsgd")
        if (s := population.best(name, e)) is not None
    ]
    top, low = max(private), min(private)
    knee = min(references, default=low)
    bottom = max(low, knee - 1.5 * max(top - knee, 0.002))
    height = top - bottom
    margin = max(0.08 * height, 5e-4)
    public = population.best("nonprivate", None)
    if public is not None and bottom - 0.25 * height < public.test < top + 0.25 * height:
        bottom, top = min(bottom, public.test), max(top, public.test)
    elif public is not None and public.test > top:
        top += margin  # room for the arrow that points to it
    elif public is not None:
        bottom -= 2 * margin  # likewise, above settings at the edge
    return bottom - margin, top + margin


def _scatter(axes: Axes, population: Population, name: str, epsilon: float, infinite: float, bottom: float) -> int:
    """Draw one algorithm's settings and frontier; returns the number of settings below the axis."""
    colour, marker = algorithm(name).colour, algorithm(name).marker
    settings = population.of(name, epsilon)
    inside = [s for s in settings if s.test >= bottom]
    below = [s for s in settings if s.test < bottom]
    for setting in inside:
        face = "none" if population.worse_than_frozen(setting) else colour
        marks = axes.errorbar(
            min(setting.reduction, infinite), setting.test, xerr=_across(setting), yerr=setting.spread, fmt=marker,
            color=colour,
            markerfacecolor=face, markeredgewidth=0.9, markersize=4.6, elinewidth=0.8, alpha=0.9, zorder=3,
        )  # fmt: skip
        hover(marks.lines[0], [tooltip(setting, population)])
    frontier = [s for s in pareto(settings) if s.test >= bottom]
    axes.plot(
        [min(s.reduction, infinite) for s in frontier], [s.test for s in frontier],
        color=colour, linewidth=0.9, alpha=0.6, zorder=2,
    )  # fmt: skip
    if below:
        edge = [bottom + 0.012 * (axes.get_ylim()[1] - bottom)] * len(below)
        (marks_below,) = axes.plot(
            [min(s.reduction, infinite) for s in below],
            edge,
            "v",
            color=colour,
            markersize=3.5,
            clip_on=False,
            zorder=3,
        )
        hover(marks_below, [tooltip(setting, population) for setting in below])
    return len(below)


def _references(axes: Axes, population: Population, epsilon: float) -> None:
    """Draw a line for each reference; an arrow and the value at the edge for one outside the limits."""
    bottom, top = axes.get_ylim()
    for name in REFERENCES:
        best = population.best(name, epsilon)
        if best is None:
            continue
        if not bottom <= best.test <= top:
            above = best.test > top
            axes.text(
                0.98, 0.985 if above else 0.05, f"{label(name).lower()} {best.test:.3f} {'↑' if above else '↓'}",
                transform=axes.transAxes, ha="right", va="top" if above else "bottom", fontsize=8,
                color=algorithm(name).colour, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )  # fmt: skip
            continue
        axes.axhline(best.test, zorder=1, **dashed(name))
        if name == "dpsgd":
            marks = axes.errorbar(
                best.reduction, best.test, yerr=best.spread, fmt=algorithm(name).marker, color=algorithm(name).colour,
                markersize=9, elinewidth=0.8, zorder=4,
            )  # fmt: skip
            hover(marks.lines[0], [tooltip(best, population)])


def _across(setting: Setting) -> list[list[float]] | None:
    """Return the scatter of the reduction over seeds, with infinite ends cut off."""
    reach = setting.reduction_spread
    return None if reach is None else [[reach[0]], [min(reach[1], 9 * setting.reduction)]]


def _sparse(population: Population) -> list[str]:
    """Return the algorithms with runs that choose rows."""
    return ordered({setting.algorithm for setting in population.settings} - set(REFERENCES))


def _legend(population: Population) -> list[Line2D]:
    present = {setting.algorithm for setting in population.settings}
    handles = [key(label(name), name) for name in _sparse(population)]
    if "dpsgd" in present:
        handles.append(key("DP-SGD (best)", "dpsgd", linestyle=algorithm("dpsgd").dashes, markersize=8))
    lines = [name for name in ("nonprivate", "frozen") if name in present]
    handles += [key(label(name), name, linestyle=algorithm(name).dashes, marker="") for name in lines]
    if any(population.worse_than_frozen(setting) for setting in population.settings):
        handles.append(key("worse than frozen"))
    return handles
