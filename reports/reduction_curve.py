"""Best reduction at utility-loss thresholds: the curve and the table that fig3 and fig4 share.

For a rule and a threshold x: among its settings whose validation loss against the best DP-SGD is at most x,
the one with the largest reduction. Beside it stand frozen embeddings: from their loss on, none counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from reports.comparison import Population, Setting, best_reduction, pareto
from reports.style import BREADTH, COLOUR, DASH, MARKER, SHADE, WIDTH, Drawing, canvas, hover, key, log_axis
from reports.tables import Column, Table
from reports.wording import flag, metric, multiple, number, rule, said, settings_text, signed, utility

THRESHOLDS = (0.001, 0.005, 0.01, 0.02)


@dataclass(frozen=True)
class Panel:
    """Settings that are held against one DP-SGD: those of one ε, and in a stream of one period.

    `value` tells it from the panels beside it, `where` names it in a sentence.
    """

    value: float | int
    where: str
    population: Population
    epsilon: float

    @property
    def reference(self) -> Setting | None:
        """The best DP-SGD."""
        return self.population.best("dpsgd", self.epsilon)


def by_epsilon(population: Population, epsilons: Sequence[float]) -> list[Panel]:
    """A panel an ε."""
    return [Panel(epsilon, f"ε = {number(epsilon)}", population, epsilon) for epsilon in epsilons]


def by_period(population: Population, periods: Sequence[int]) -> list[Panel]:
    """A panel a streaming period, at the population's main ε."""
    epsilon = population.main_epsilon
    return [
        Panel(days, f"period of {days} day{'s' * (days > 1)}", population.at(days), epsilon)
        for days in periods
        if epsilon is not None
    ]


def curve_figure(panels: Sequence[Panel], rules: Sequence[str]) -> Drawing | None:
    """The panels in rows of three, those without a DP-SGD run left out; None where none is left."""
    drawn = [panel for panel in panels if panel.reference is not None]
    if not drawn:
        return None
    columns, lines = min(len(drawn), 3), math.ceil(len(drawn) / 3)
    figure = canvas(WIDTH if columns > 1 else 4.8, 0.5 + 2.5 * lines)
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    right = 1.1 * THRESHOLDS[-1]
    for axes in grid.flat[len(drawn) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, drawn, strict=False):
        population, epsilon = panel.population, panel.epsilon
        log_axis(axes, "y")
        axes.set_title(panel.where)
        for algorithm in rules:
            _curve(axes, population, algorithm, epsilon, right)
        axes.set_xlim(-0.02 * right, right)
        axes.set_xticks((0, *THRESHOLDS[1:]), [number(x) for x in (0, *THRESHOLDS[1:])])
        axes.set_xlabel(f"loss of validation {metric(population)} ≤")
        axes.set_ylim(0.7, max(axes.get_ylim()[1], 100))
        axes.axhline(1, color=COLOUR["dpsgd"], linestyle=DASH["dpsgd"], linewidth=1.0)
        _frozen(axes, population, epsilon, right)
    for axes in grid[:, 0]:
        axes.set_ylabel("best gradient size reduction (×)")
    figure.legend(
        handles=_legend(drawn, rules, right), loc="outside upper center",
        ncols=3 if columns > 1 else 2, columnspacing=1.2,
    )  # fmt: skip
    figure.values = "What each rule reaches at four thresholds of the loss is in the table below."
    return figure


def _legend(panels: Sequence[Panel], rules: Sequence[str], right: float) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []

    def pairs(name: str) -> list[tuple[Population, Setting]]:
        return [(panel.population, s) for panel in panels for s in panel.population.of(name, panel.epsilon)]

    for algorithm in rules:
        if settings := pairs(algorithm):
            drawn = any(_loss_of(population, setting) <= right for population, setting in settings)
            label = rule(algorithm) + ("" if drawn else f" (none within {THRESHOLDS[-1]:g})")
            handles.append(key(label, algorithm))
    handles.append(key(rule("dpsgd"), "dpsgd", linestyle=DASH["dpsgd"], marker=""))
    frozen = [(panel.population, s) for panel in panels if (s := panel.population.best("frozen", panel.epsilon))]
    if any(_loss_of(population, setting) < right for population, setting in frozen):
        shade = Patch(label="frozen embeddings do as well", facecolor=SHADE, edgecolor=COLOUR["frozen"])
        handles.append(shade)
    if any(population.worse_than_frozen(s) for a in rules for population, s in pairs(a)):
        handles.append(key("test worse than frozen"))
    return handles


def _loss_of(population: Population, setting: Setting) -> float:
    """Validation loss against the best DP-SGD at the same ε, never negative."""
    reference = population.best("dpsgd", setting.epsilon)
    assert reference is not None
    return max(reference.validation - setting.validation, 0.0)


def _curve(axes: Axes, population: Population, algorithm: str, epsilon: float, right: float) -> None:
    """The staircase of best reductions, a marker where a new setting takes over."""
    settings = population.of(algorithm, epsilon)
    # From the most reduced setting, hence from the largest loss.
    steps = [(_loss_of(population, setting), setting) for setting in reversed(pareto(settings))]
    # Of several that are no worse than DP-SGD only the most reduced one is ever best.
    free = [step for step in steps if step[0] == 0.0][:1]
    stairs = free + sorted((step for step in steps if 0.0 < step[0] <= right), key=lambda step: step[0])
    if not stairs:
        return
    colour, marker = COLOUR[algorithm], MARKER[algorithm]
    ceiling = 10 * max([s.reduction for _, s in stairs if math.isfinite(s.reduction)] or [1.0])
    losses = [loss for loss, _ in stairs]
    heights = [min(setting.reduction, ceiling) for _, setting in stairs]
    breadth = BREADTH.get(algorithm, 1.0)
    look: dict[str, Any] = {"color": colour, "linewidth": 1.3 * breadth, "zorder": 2.4 - breadth / 10}
    axes.step([*losses, right], [*heights, heights[-1]], where="post", **look)
    for loss, height, (_, setting) in zip(losses, heights, stairs, strict=True):
        face = "white" if population.worse_than_frozen(setting) else colour
        (mark,) = axes.plot(loss, height, marker, color=colour, zorder=3.4 - breadth / 10, clip_on=False)
        mark.set(markerfacecolor=face, markersize=4.6 + 2 * (breadth - 1))
        hover(mark, [said(setting, population)])
        _bars(axes, setting, loss, height)


def _bars(axes: Axes, setting: Setting, loss: float, height: float) -> None:
    """How far a setting's loss and reduction scatter over its seeds; nothing of a single one."""
    across, along = setting.validation_spread, setting.reduction_spread
    if across is None:
        return
    # On a logarithmic axis a reach without an end has one: the axis's.
    upright = None if along is None else [[along[0]], [min(along[1], 9 * height)]]
    # Darker than the curve, on which they lie, and with caps.
    look: dict[str, Any] = {"ecolor": "#222222", "elinewidth": 0.7, "capsize": 2.5, "capthick": 0.7, "zorder": 2.9}
    axes.errorbar(loss, height, xerr=across, yerr=upright, fmt="none", **look)


def _frozen(axes: Axes, population: Population, epsilon: float, right: float) -> None:
    frozen = population.best("frozen", epsilon)
    if frozen is None:
        return
    loss = _loss_of(population, frozen)
    if loss >= right:
        text = f"frozen: loss {loss:.3f} →"
        axes.text(0.99, 0.1, text, transform=axes.transAxes, ha="right", fontsize=8, color=COLOUR["frozen"])
        return
    axes.axvspan(loss, right, color=SHADE, zorder=0, linewidth=0)
    axes.axvline(loss, color=COLOUR["frozen"], linestyle=DASH["frozen"], linewidth=1.0, zorder=1)


def curve_caption(population: Population) -> str:
    return (
        f"The best embedding gradient size reduction whose loss of validation {metric(population)} against "
        "the best DP-SGD stays within a threshold; a higher curve is a better trade-off. The shaded region "
        "starts at the loss of frozen embeddings, which have no embedding gradient at all: a reduction in "
        f"it buys nothing. Hollow markers are settings whose test {metric(population)} is below that of "
        f"frozen embeddings.{bars(population)}"
    )


def bars(population: Population) -> str:
    """A sentence for the caption on error bars, where some setting has several seeds."""
    if all(len(setting.runs) < 2 for setting in population.settings):
        return ""
    return (
        f" Markers are means over seeds, bars the standard deviation over seeds of validation {metric(population)} "
        "(across) and of the gradient size (upright)."
    )


EPSILON = Column("epsilon", "ε", number)


def threshold_table(panels: Sequence[Panel], rules: Sequence[str], name: str, first: Column = EPSILON) -> Table:
    """The chosen setting of each rule at each threshold, chosen on validation, with its test loss.

    `name` is the metric's, `first` the column that tells one panel from another.
    """
    table = Table(
        [
            first,
            Column("loss_threshold", "loss ≤", number),
            Column("rule", "rule", rule),
            Column("reduction", "best reduction", multiple),
            Column("validation_loss", "validation loss", signed),
            Column("test_loss", "test loss", signed),
            Column("test", f"test {name}", utility),
            Column("test_spread", "± over seeds", utility),
            Column("seeds", "seeds"),
            Column("worse_than_frozen", "worse than frozen", flag),
            Column("settings", "settings"),
        ],
        heads=3,
    )
    for panel in panels:
        reference = panel.reference
        if reference is None:
            continue
        for threshold in THRESHOLDS:
            for algorithm in (*rules, "frozen"):
                settings = panel.population.of(algorithm, panel.epsilon)
                if settings:
                    chosen = best_reduction(settings, reference, threshold)
                    table.runs.append(chosen.runs[0].anchor if chosen else "")
                    table.rows.append(_row(panel, threshold, algorithm, reference, chosen))
    return table


def _row(panel: Panel, threshold: float, algorithm: str, reference: Setting, chosen: Setting | None) -> Sequence[Any]:
    if chosen is None:
        return (panel.value, threshold, algorithm, *[None] * 7, "no setting within this loss")
    population = panel.population
    worse = None if population.best("frozen", panel.epsilon) is None else population.worse_than_frozen(chosen)
    return (
        panel.value,
        threshold,
        algorithm,
        chosen.reduction,
        reference.validation - chosen.validation,
        reference.test - chosen.test,
        chosen.test,
        chosen.spread,
        len(chosen.runs),
        worse,
        settings_text(chosen, population),
    )


def without_reference(panels: Sequence[Panel]) -> list[str]:
    """A sentence for every panel in which no loss can be measured."""
    return [
        f"No utility loss at {panel.where}: there is no DP-SGD run to measure it against."
        for panel in panels
        if panel.reference is None
    ]
