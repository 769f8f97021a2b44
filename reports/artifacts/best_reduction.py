"""fig3, fig4, fig5, fig6: the best reduction at utility-loss thresholds.

For an algorithm and a threshold x: the setting of largest reduction among those whose validation loss against the best
DP-SGD is at most x. The control is frozen embeddings: from their loss on, no reduction counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from reports.algorithms import SOURCES, algorithm, label
from reports.chosen import best_reduction, loss_on_test, loss_on_validation, pareto
from reports.comparison import Panel, Population, by_epsilon, by_period
from reports.entry import Content, Inputs
from reports.setting import Setting
from reports.style import SHADE, WIDTH, Drawing, dashed, hover, key, log_axis
from reports.tables import Column, Table
from reports.wording import flag, generated, metric, multiple, number, plural, settings_text, signed, tooltip, utility

THRESHOLDS = (0.001, 0.005, 0.01, 0.02)
_KEY, _LETTER = 0.5, 0.075  # inches of a legend's mark with what surrounds it, and of a letter
FIG3 = ("fest_equal", "fest", "adafest", "exponential")
FIG4 = ("fest_equal", "fest", "adafest", "adafest_plus_equal", "adafest_plus")
FIG5 = ("adafest", *SOURCES, "fest/streaming")
FIG6 = ("fest_equal/streaming", "fest/streaming", "adafest", "adafest_plus_equal", "adafest_plus")


def fig3(inputs: Inputs) -> Content:
    """Draw fig3 at the main ε; the paper does not state its ε."""
    population = inputs.population
    epsilons = [population.main_epsilon] if population.main_epsilon is not None else []
    return _content(population, by_epsilon(population, epsilons), FIG3, generated(population))


def fig4(inputs: Inputs) -> Content:
    """Draw fig4: DP-FEST, DP-AdaFEST and DP-AdaFEST+, a panel for each ε."""
    population = inputs.population
    return _content(population, by_epsilon(population, population.epsilons), FIG4)


def fig5(inputs: Inputs) -> Content:
    """Draw fig5: DP-AdaFEST, and DP-FEST with frequencies of the first day, of all days and of the days so far, a panel
    for each period."""
    population = inputs.population
    about = (
        " Each panel is a streaming period: the model is trained on that many days at a time, in order, and evaluated "
        f"on the held-out days.{nonprivate_below(population)}"
    )
    return _content(population, by_period(population, population.periods), FIG5, about, PERIOD)


def fig6(inputs: Inputs) -> Content:
    """Draw fig6: DP-AdaFEST+ against DP-FEST and DP-AdaFEST in the shortest period (one day in the paper)."""
    population = inputs.population
    shortest = population.periods[:1]
    about = (
        " The model is trained on the days of one streaming period at a time; frequencies are those of the days so "
        f"far.{nonprivate_below(population.at(shortest[0]))}"
    )
    return _content(population, by_period(population, shortest), FIG6, about, PERIOD)


def nonprivate_below(population: Population) -> str:
    """Return a sentence on the periods in which training without privacy has less utility than DP-SGD or frozen
    embeddings; empty if there are none."""
    below: dict[str, list[str]] = {}
    for days in population.periods:
        alone = population.at(days)
        free = alone.best("nonprivate", None)
        for name, words in (("frozen", "frozen embeddings"), ("dpsgd", "DP-SGD")):
            other = alone.best(name, population.main_epsilon)
            if free and other and free.test < other.test:
                below.setdefault(words, []).append(plural(days, "day"))
    if not below:
        return ""
    named = " and than ".join(f"{words} with a period of {' and '.join(days)}" for words, days in below.items())
    because = "on these held-out days privacy is not the only cause of lost utility"
    return f" Non-private training has a lower test {metric(population)} than {named}: {because}."


EPSILON = Column("epsilon", "ε", number)
PERIOD = Column("period", "period (days)")


def without_reference(panels: Sequence[Panel]) -> list[str]:
    """Return a sentence for every panel in which no loss can be measured."""
    return [
        f"No utility loss at {panel.where}: no DP-SGD run to compare with."
        for panel in panels
        if panel.reference is None
    ]


def _content(
    population: Population, panels: list[Panel], names: Sequence[str], about: str = "", first: Column = EPSILON
) -> Content:
    """Return the content of all four; `about` ends the caption, `first` is the column that distinguishes panels."""
    missing = without_reference(panels)
    if first is PERIOD:
        lacking = {name: [panel.where for panel in panels if not panel.of(name)] for name in names}
        missing += [f"No {label(name)} runs at {', '.join(where)} yet." for name, where in lacking.items() if where]
    return Content(
        curve_caption(population) + about,
        curve_figure(panels, names),
        threshold_table(panels, names, metric(population), first),
        missing,
        sorted({panel.epsilon for panel in panels}),
    )


def curve_figure(panels: Sequence[Panel], names: Sequence[str]) -> Drawing | None:
    """Draw the panels that have a DP-SGD run, in rows of three; None if there are none."""
    drawn = [panel for panel in panels if panel.reference is not None]
    if not drawn:
        return None
    columns, lines = min(len(drawn), 3), math.ceil(len(drawn) / 3)
    figure = Drawing(WIDTH if columns > 1 else 4.8, 0.5 + 2.5 * lines)
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    right = 1.1 * THRESHOLDS[-1]
    for axes in grid.flat[len(drawn) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, drawn, strict=False):
        population, epsilon = panel.population, panel.epsilon
        log_axis(axes, "y")
        axes.set_title(panel.where)
        for name in names:
            _curve(axes, population, name, epsilon, right)
        axes.set_xlim(-0.02 * right, right)
        axes.set_xticks((0, *THRESHOLDS[1:]), [number(x) for x in (0, *THRESHOLDS[1:])])
        axes.set_xlabel(f"loss of validation {metric(population)} ≤")
        axes.axhline(1, **dashed("dpsgd"))
        _frozen(axes, population, epsilon, right)
    grid[0, 0].set_ylim(0.7, max(grid[0, 0].get_ylim()[1], 100))  # of all panels, after the last one's curves
    for axes in grid[:, 0]:
        axes.set_ylabel("best gradient size reduction (×)")
    handles = _legend(drawn, names, right)
    longest = max(len(str(handle.get_label())) for handle in handles)
    fitting = int(figure.get_figwidth() / (_KEY + longest * _LETTER))
    figure.legend(
        handles=handles, loc="outside upper center", ncols=max(1, min(fitting, 3 if columns > 1 else 2)),
        columnspacing=1.2,
    )  # fmt: skip
    figure.values = "The table below has each algorithm's best reduction at four thresholds of the loss."
    return figure


def _legend(panels: Sequence[Panel], names: Sequence[str], right: float) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []

    def pairs(name: str) -> list[tuple[Population, Setting]]:
        return [(panel.population, s) for panel in panels for s in panel.of(name)]

    for name in names:
        if settings := pairs(name):
            drawn = any(_loss_of(population, setting) <= right for population, setting in settings)
            words = label(name) + ("" if drawn else f" (none within {THRESHOLDS[-1]:g})")
            handles.append(key(words, name))
    handles.append(key(label("dpsgd"), "dpsgd", linestyle=algorithm("dpsgd").dashes, marker=""))
    frozen = [(panel.population, s) for panel in panels if (s := panel.population.best("frozen", panel.epsilon))]
    if any(_loss_of(population, setting) < right for population, setting in frozen):
        shade = Patch(label="frozen embeddings do as well", facecolor=SHADE, edgecolor=algorithm("frozen").colour)
        handles.append(shade)
    if any(population.worse_than_frozen(s) for a in names for population, s in pairs(a)):
        handles.append(key("test worse than frozen"))
    return handles


def _loss_of(population: Population, setting: Setting) -> float:
    """Return the validation loss against the best DP-SGD at the same ε, at least 0."""
    reference = population.best("dpsgd", setting.epsilon)
    assert reference is not None
    return max(loss_on_validation(setting, reference), 0.0)


def _curve(axes: Axes, population: Population, name: str, epsilon: float, right: float) -> None:
    """Draw the staircase of best reductions, with a marker for each setting."""
    settings = population.of(name, epsilon)
    # From the most reduced setting, hence from the largest loss.
    steps = [(_loss_of(population, setting), setting) for setting in reversed(pareto(settings))]
    # Of several that are no worse than DP-SGD only the most reduced one is ever best.
    free = [step for step in steps if step[0] == 0.0][:1]
    stairs = free + sorted((step for step in steps if 0.0 < step[0] <= right), key=lambda step: step[0])
    if not stairs:
        return
    colour, marker, breadth = algorithm(name).colour, algorithm(name).marker, algorithm(name).breadth
    ceiling = 10 * max([s.reduction for _, s in stairs if math.isfinite(s.reduction)] or [1.0])
    losses = [loss for loss, _ in stairs]
    heights = [min(setting.reduction, ceiling) for _, setting in stairs]
    look: dict[str, Any] = {"color": colour, "linewidth": 1.3 * breadth, "zorder": 2.4 - breadth / 10}
    axes.step([*losses, right], [*heights, heights[-1]], where="post", **look)
    for loss, height, (_, setting) in zip(losses, heights, stairs, strict=True):
        face = "white" if population.worse_than_frozen(setting) else colour
        (mark,) = axes.plot(loss, height, marker, color=colour, zorder=3.4 - breadth / 10, clip_on=False)
        mark.set(markerfacecolor=face, markersize=4.6 + 2 * (breadth - 1))
        hover(mark, [tooltip(setting, population)])
        _bars(axes, setting, loss, height)


def _bars(axes: Axes, setting: Setting, loss: float, height: float) -> None:
    """Draw the scatter of a setting's loss and reduction over its seeds, if it has several."""
    across, along = setting.validation_spread, setting.reduction_spread
    if across is None:
        return
    # Cut an infinite bar at the end of the logarithmic axis.
    upright = None if along is None else [[along[0]], [min(along[1], 9 * height)]]
    # Darker than the curve on which they lie, and with caps.
    look: dict[str, Any] = {"ecolor": "#222222", "elinewidth": 0.7, "capsize": 2.5, "capthick": 0.7, "zorder": 2.9}
    axes.errorbar(loss, height, xerr=across, yerr=upright, fmt="none", **look)


def _frozen(axes: Axes, population: Population, epsilon: float, right: float) -> None:
    frozen = population.best("frozen", epsilon)
    if frozen is None:
        return
    loss = _loss_of(population, frozen)
    if loss >= right:
        text = f"frozen: loss {loss:.3f} →"
        axes.text(0.99, 0.1, text, transform=axes.transAxes, ha="right", fontsize=8, color=algorithm("frozen").colour)
        return
    axes.axvspan(loss, right, color=SHADE, zorder=0, linewidth=0)
    axes.axvline(loss, **dashed("frozen"), zorder=1)


def curve_caption(population: Population) -> str:
    return (
        f"The best embedding gradient size reduction whose loss of validation {metric(population)} against "
        "the best DP-SGD stays within a threshold; a higher curve is a better trade-off. The shaded region "
        "starts at the loss of frozen embeddings, which have no embedding gradient: a reduction there is worth "
        f"nothing. Hollow markers are settings whose test {metric(population)} is below that of frozen embeddings."
        f"{bars(population)}"
    )


def bars(population: Population) -> str:
    """Return a sentence for the caption on error bars, if some setting has several seeds."""
    if all(len(setting.by_seed) < 2 for setting in population.settings):
        return ""
    return (
        f" Markers are means over seeds; bars are standard deviations over seeds of validation {metric(population)} "
        "(horizontal) and of the gradient size (vertical)."
    )


def threshold_table(panels: Sequence[Panel], names: Sequence[str], metric_name: str, first: Column = EPSILON) -> Table:
    """Return the setting of each algorithm at each threshold, chosen on validation, with its test loss.

    `first` is the column that distinguishes panels.
    """
    table = Table(
        [
            first,
            Column("loss_threshold", "loss ≤", number),
            Column("algorithm", "algorithm", label),
            Column("reduction", "best reduction", multiple),
            Column("validation_loss", "validation loss", signed),
            Column("test_loss", "test loss", signed),
            Column("test", f"test {metric_name}", utility),
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
            for name in (*names, "frozen"):
                if settings := panel.of(name):
                    chosen = best_reduction(settings, reference, threshold)
                    table.runs.append(chosen.runs[0].anchor if chosen else "")
                    table.rows.append(_row(panel, threshold, name, reference, chosen))
    return table


def _row(panel: Panel, threshold: float, name: str, reference: Setting, chosen: Setting | None) -> Sequence[Any]:
    if chosen is None:
        return (panel.value, threshold, name, *[None] * 7, "no setting within this loss")
    population = panel.population
    worse = None if population.best("frozen", panel.epsilon) is None else population.worse_than_frozen(chosen)
    return (
        panel.value,
        threshold,
        name,
        chosen.reduction,
        loss_on_validation(chosen, reference),
        loss_on_test(chosen, reference),
        chosen.test,
        chosen.spread,
        len(chosen.by_seed),
        worse,
        settings_text(chosen, population),
    )
