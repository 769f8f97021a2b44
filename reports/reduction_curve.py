"""Best reduction at utility-loss thresholds: the curve and the table that fig3 and fig4 share.

For a rule and a threshold x: among its settings whose validation loss against the best DP-SGD is at most x,
the one with the largest reduction. Beside it stand frozen embeddings: from their loss on, none counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from reports.comparison import Population, Setting, best_reduction, pareto
from reports.style import COLOUR, DASH, MARKER, SHADE, WIDTH, canvas, key, log_axis
from reports.tables import Column, Table
from reports.wording import metric, multiple, number, rule, settings_text, utility

THRESHOLDS = (0.001, 0.005, 0.01, 0.02)


def curve_figure(population: Population, rules: Sequence[str], epsilons: Sequence[float]) -> Figure | None:
    """One panel an ε, those without a DP-SGD run left out; None where no panel is left."""
    drawn = [e for e in epsilons if population.best("dpsgd", e) is not None]
    if not drawn:
        return None
    figure = canvas(WIDTH if len(drawn) > 1 else 4.8, 3.0)
    panels = figure.subplots(1, len(drawn), sharey=True, squeeze=False)[0]
    right = 1.1 * THRESHOLDS[-1]
    for axes, epsilon in zip(panels, drawn, strict=True):
        log_axis(axes, "y")
        axes.set_title(f"ε = {number(epsilon)}")
        for algorithm in rules:
            _curve(axes, population, population.of(algorithm, epsilon), right)
        axes.set_xlim(-0.02 * right, right)
        axes.set_xticks((0, *THRESHOLDS[1:]), [number(x) for x in (0, *THRESHOLDS[1:])])
        axes.set_xlabel(f"loss of validation {metric(population)} ≤")
        axes.set_ylim(0.7, max(axes.get_ylim()[1], 100))
        axes.axhline(1, color=COLOUR["dpsgd"], linestyle=DASH["dpsgd"], linewidth=1.0)
        _frozen(axes, population, epsilon, right)
    panels[0].set_ylabel("best gradient size reduction (×)")
    figure.legend(
        handles=_legend(population, rules, drawn, right), loc="outside upper center",
        ncols=3 if len(drawn) > 1 else 2, columnspacing=1.2,
    )  # fmt: skip
    return figure


def _legend(
    population: Population, rules: Sequence[str], epsilons: Sequence[float], right: float
) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    for algorithm in rules:
        settings = [s for e in epsilons for s in population.of(algorithm, e)]
        if settings:
            drawn = any(_loss_of(population, setting) <= right for setting in settings)
            label = rule(algorithm) + ("" if drawn else f" (none within {THRESHOLDS[-1]:g})")
            handles.append(key(label, algorithm))
    handles.append(key(rule("dpsgd"), "dpsgd", linestyle=DASH["dpsgd"], marker=""))
    frozen = [s for e in epsilons if (s := population.best("frozen", e)) is not None]
    if any(_loss_of(population, setting) < right for setting in frozen):
        shade = Patch(label="frozen embeddings do as well", facecolor=SHADE, edgecolor=COLOUR["frozen"])
        handles.append(shade)
    if any(population.worse_than_frozen(s) for a in rules for e in epsilons for s in population.of(a, e)):
        handles.append(key("test worse than frozen"))
    return handles


def _loss_of(population: Population, setting: Setting) -> float:
    """Validation loss against the best DP-SGD at the same ε, never negative."""
    reference = population.best("dpsgd", setting.epsilon)
    assert reference is not None
    return max(reference.validation - setting.validation, 0.0)


def _curve(axes: Axes, population: Population, settings: list[Setting], right: float) -> None:
    """The staircase of best reductions, a marker where a new setting takes over."""
    # From the most reduced setting, hence from the largest loss.
    steps = [(_loss_of(population, setting), setting) for setting in reversed(pareto(settings))]
    # Of several that are no worse than DP-SGD only the most reduced one is ever best.
    free = [step for step in steps if step[0] == 0.0][:1]
    stairs = free + sorted((step for step in steps if 0.0 < step[0] <= right), key=lambda step: step[0])
    if not stairs:
        return
    colour, marker = COLOUR[settings[0].algorithm], MARKER[settings[0].algorithm]
    ceiling = 10 * max([s.reduction for _, s in stairs if math.isfinite(s.reduction)] or [1.0])
    losses = [loss for loss, _ in stairs]
    heights = [min(setting.reduction, ceiling) for _, setting in stairs]
    axes.step([*losses, right], [*heights, heights[-1]], where="post", color=colour, linewidth=1.3, zorder=2)
    for loss, height, (_, setting) in zip(losses, heights, stairs, strict=True):
        face = "white" if population.worse_than_frozen(setting) else colour
        axes.plot(loss, height, marker, color=colour, markerfacecolor=face, markersize=4.6, zorder=3, clip_on=False)


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
        "frozen embeddings."
    )


def threshold_table(population: Population, rules: Sequence[str], epsilons: Sequence[float]) -> Table:
    """The chosen setting of each rule at each threshold, chosen on validation, with its test loss."""
    name = metric(population)
    table = Table(
        [
            Column("epsilon", "ε", number),
            Column("loss_threshold", "loss ≤", number),
            Column("rule", "rule", rule),
            Column("reduction", "best reduction", multiple),
            Column("validation_loss", "validation loss", _loss),
            Column("test_loss", "test loss", _loss),
            Column("test", f"test {name}", utility),
            Column("test_spread", "± over seeds", utility),
            Column("seeds", "seeds"),
            Column("worse_than_frozen", "worse than frozen", lambda value: "**yes**" if value else "no"),
            Column("settings", "settings"),
        ]
    )
    for epsilon in epsilons:
        reference = population.best("dpsgd", epsilon)
        if reference is None:
            continue
        for threshold in THRESHOLDS:
            for algorithm in (*rules, "frozen"):
                settings = population.of(algorithm, epsilon)
                if settings:
                    chosen = best_reduction(settings, reference, threshold)
                    table.rows.append(_row(population, epsilon, threshold, algorithm, reference, chosen))
    return table


def _row(
    population: Population,
    epsilon: float,
    threshold: float,
    algorithm: str,
    reference: Setting,
    chosen: Setting | None,
) -> Sequence[Any]:
    if chosen is None:
        return (epsilon, threshold, algorithm, *[None] * 7, "no setting within this loss")
    worse = None if population.best("frozen", epsilon) is None else population.worse_than_frozen(chosen)
    return (
        epsilon,
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


def _loss(value: float) -> str:
    return f"{value:+.4f}"


def without_reference(population: Population, epsilons: Sequence[float]) -> list[str]:
    """A sentence for every ε at which no loss can be measured."""
    return [
        f"No utility loss at ε = {number(e)}: there is no DP-SGD run to measure it against."
        for e in epsilons
        if population.best("dpsgd", e) is None
    ]
