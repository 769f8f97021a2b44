"""The curves of utility against reduction on every dataset, in one picture and one table.

They are the curves that claims compare (`claims.curves`): settings chosen on validation, utility on test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from reports.algorithms import REFERENCES, algorithm, label, ordered
from reports.claims.compared import Compared
from reports.claims.curves import Curve, Reach
from reports.claims.estimate import NEARLY
from reports.comparison import Panel, Population, by_epsilon, by_period
from reports.style import Drawing, dashed, hover, key, log_axis
from reports.tables import Column, Table
from reports.wording import flag, metric, multiple, number, plural, settings_text, utility

SHOWN = ("smaller_tables", "fest", "fest_equal", "adafest", "adafest_plus")
"""The algorithms of the picture and of README's table."""

PAPERS_MODELS = ("pctr", "roberta")
_COLUMNS = 4
_ALONE, _BESIDE_LEGEND = 1.8, 2.6
"""How much larger one panel alone is drawn, and how much wider than its legend."""
_NAMED = 24
"""How many points of a panel alone have their settings written beside them."""
_BAND = "#E6F2E6"


@dataclass(frozen=True)
class Frontier:
    """One panel with its curves, by algorithm; in streams, DP-FEST selects rows by the counts of the days so far."""

    panel: Panel

    @cached_property
    def compared(self) -> Compared:
        return Compared(self.panel, *map(self._variant, self._names))

    @property
    def population(self) -> Population:
        return self.panel.population

    @cached_property
    def _names(self) -> list[str]:
        there = {setting.algorithm for setting in self.population.settings if setting.epsilon == self.panel.epsilon}
        return [name for name in ordered(there) if name not in REFERENCES]

    def _variant(self, name: str) -> str:
        streams = name in ("fest", "fest_equal") and self.population.periods
        return f"{name}/streaming" if streams else name

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Curves of the algorithms that cut the gradient, but not to nothing; none without DP-SGD, nor of correlated
        noise, which has a figure of its own."""
        if self.compared.reference is None:
            return {}
        plain = [name for name in self._names if not name.endswith("_banded")]
        found = {name: self.compared.curve(self._variant(name)) for name in plain}
        return {name: one for name, one in found.items() if any(setting.reduction > 1 for setting in one.settings)}

    def reach(self, name: str, loss: float = NEARLY) -> Reach | None:
        """Return an algorithm's largest reduction within a loss; None without runs."""
        one = self.curves.get(name)
        return None if one is None else one.reach(loss, len(self.compared.rivals))

    def cell(self, name: str) -> str:
        """Return an algorithm's largest reduction, its lower bound and the number of settings tried, in a table's
        cell."""
        reach = self.reach(name)
        if reach is None:
            return "—"
        least, tried = multiple(reach.shown), len(self.curves[name].settings)
        return f"{'≥ ' * reach.ended}{multiple(reach.estimate)} ({least}; {tried})"

    @property
    def controls(self) -> tuple[float | None, float | None]:
        """Test utility of DP-SGD and of frozen embeddings, of the settings that are best on validation over all seeds;
        None without runs."""
        dense, frozen = self.panel.reference, self.population.best("frozen", self.panel.epsilon)
        return None if dense is None else dense.test, None if frozen is None else frozen.test

    @property
    def frozen_loss(self) -> float | None:
        """Loss of frozen embeddings on test, over all seeds; None without runs."""
        dense, frozen = self.controls
        return None if dense is None or frozen is None else dense - frozen

    @property
    def title(self) -> str:
        """Dataset, and any model but the paper's, with the utility of DP-SGD and of frozen embeddings."""
        named = zip(("DP-SGD", "frozen"), self.controls, strict=True)
        known = [f"{name} {value:.3f}" for name, value in named if value is not None]
        own = self.population.model
        model = "" if own in PAPERS_MODELS else f", model={own}"
        return f"{self.population.dataset}{model}\n{', '.join(known)}"


def main(groups: Sequence[Population]) -> list[Frontier]:
    """Return the frontiers of all clicks and streams on which claims can be tested, at their main ε and in the
    shortest period."""
    found = []
    for group in groups:
        if group.kind in ("clicks", "stream") and group.untestable is None and group.main_epsilon is not None:
            panels = by_period(group, group.periods[:1]) or by_epsilon(group, [group.main_epsilon])
            found.append(Frontier(panels[0]))
    firsts = {frontier.population.dataset: frontier for frontier in reversed(found) if frontier.curves}
    return [frontier for frontier in found if firsts.get(frontier.population.dataset) is frontier]


def picture(frontiers: Sequence[Frontier]) -> Drawing | None:
    """Draw the loss of test utility against the reduction, a panel for each dataset; None if there are none."""
    if not frontiers:
        return None
    columns = min(len(frontiers) + 1, _COLUMNS)
    lines = math.ceil((len(frontiers) + 1) / columns)
    alone = len(frontiers) == 1
    wide = _ALONE if alone else 1.0
    figure = Drawing(2.6 * columns * wide, 0.2 + 2.3 * lines * wide)
    grid = figure.subplots(lines, columns, squeeze=False, width_ratios=[_BESIDE_LEGEND, 1.0] if alone else None)
    few = alone and sum(len(one.knots) for one in frontiers[0].curves.values()) <= _NAMED
    for axes, frontier in zip(grid.flat, frontiers, strict=False):
        _draw(axes, frontier, named=few)
    for axes in grid.flat[len(frontiers) :]:
        axes.set_axis_off()
    names = [name for name in SHOWN if any(name in frontier.curves for frontier in frontiers)]
    handles: list[Artist] = [key(label(name), name, linestyle=_dashes(name)) for name in names]
    handles.append(Patch(label=f"loss of at most {NEARLY:g}", facecolor=_BAND))
    handles.append(key("frozen embeddings", "frozen", linestyle=algorithm("frozen").dashes, marker=""))
    grid.flat[len(frontiers)].legend(handles=handles, loc="center left", fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel(f"loss of test {' or '.join(sorted({metric(one.population) for one in frontiers}))}")
    figure.values = "The table of largest reductions has its values."
    return figure


def _draw(axes: Axes, frontier: Frontier, named: bool) -> None:
    """Draw a panel; ``named`` writes beside each point what sets it apart, for which one panel alone has room."""
    frozen = frontier.frozen_loss
    worst = [0.02]
    for name in SHOWN:
        if one := frontier.curves.get(name):
            worst.append(_curve(axes, frontier, name, one, named))
    bottom = max(worst) * 1.15 if frozen is None else min(1.12 * frozen, max(1.15 * max(worst), 0.02))
    axes.axhspan(-1, NEARLY, color=_BAND, zorder=0, linewidth=0)
    axes.axhline(0, color="#000000", linewidth=0.8, zorder=1)
    top = min([0.0, *(loss for one in frontier.curves.values() for loss in _losses(one))])
    axes.set_ylim(bottom, min(-0.12 * bottom, 1.3 * top))
    if frozen is not None and frozen <= bottom:
        axes.axhline(frozen, **dashed("frozen"), zorder=1)
    elif frozen is not None:
        axes.text(
            0.03, 0.03, f"frozen: {frozen:.3f} ↓", transform=axes.transAxes, fontsize=7.5,
            color=algorithm("frozen").colour,
        )  # fmt: skip
    log_axis(axes, "x")
    axes.set_xlim(0.8, max(axes.get_xlim()[1], 20))
    axes.set_title(frontier.title, fontsize=8.5)
    axes.set_xlabel("gradient size reduction (×)", fontsize=8)
    axes.tick_params(labelsize=7.5)


def _dashes(name: str) -> str:
    return "--" if name.endswith("_equal") else "-"


def _losses(one: Curve) -> list[float]:
    return [-one.gain(place).value for place, _ in one.knots]


def _curve(axes: Axes, frontier: Frontier, name: str, one: Curve, named: bool) -> float:
    """Draw a curve; returns its largest loss."""
    look: dict[str, Any] = {"color": algorithm(name).colour, "marker": algorithm(name).marker}
    losses, reductions = _losses(one), [math.exp(place) for place, _ in one.knots]
    half = [one.gain(place).at(len(one.settings)).half for place, _ in one.knots]
    finite = [0.0 if math.isinf(bound) else bound for bound in half]
    line: dict[str, Any] = {"linestyle": _dashes(name), "linewidth": 1.0, "elinewidth": 0.6, "markersize": 3.2}
    axes.errorbar(reductions, losses, finite, **line, **look)
    (marks,) = axes.plot(reductions, losses, linestyle="none", markersize=3.2, zorder=4, **look)
    words = [settings_text(setting, frontier.population) for _, setting in one.knots]
    points = list(zip(reductions, losses, words, strict=True))
    shared = set.intersection(*(set(text.split(", ")) for text in words)) if len(words) > 1 else set()
    for cut, lost, text in points if named else ():
        text = ", ".join(word for word in text.split(", ") if word not in shared)
        axes.annotate(text, (cut, lost), (3, 3), textcoords="offset points", fontsize=6.5, color=look["color"])
    hover(marks, [f"{label(name)}, {multiple(cut)}: loss {lost:.4f} ({text})" for cut, lost, text in points])
    return max(losses)


def table(frontiers: Sequence[Frontier]) -> Table:
    """Return the largest reductions within NEARLY: estimate, what is shown, and the number of settings tried."""
    rows: list[Sequence[Any]] = []
    for frontier in frontiers:
        for name, one in frontier.curves.items():
            reach = frontier.reach(name)
            assert reach is not None
            rows.append(
                (
                    frontier.population.dataset, frontier.panel.epsilon, *frontier.controls, name, reach.estimate,
                    reach.shown, reach.ended, len(one.settings),
                )
            )  # fmt: skip
    columns = [
        Column("data", "data"),
        Column("epsilon", "ε", number),
        Column("dpsgd", "DP-SGD", utility),
        Column("frozen", "frozen", utility),
        Column("algorithm", "algorithm", label),
        Column("reduction", f"largest reduction within {NEARLY:g}", multiple),
        Column("shown", "shown", multiple),
        Column("ended", "the curve ends there", flag),
        Column("settings", "settings tried"),
    ]
    return Table(columns, rows, heads=5)


def caption(frontiers: Sequence[Frontier]) -> str:
    """Return what the picture shows."""
    epsilons = sorted({frontier.panel.epsilon for frontier in frontiers})
    names = {metric(frontier.population) for frontier in frontiers}
    return (
        f"Downwards: test {' or '.join(sorted(names))} lost against DP-SGD. To the right: how many times fewer "
        f"coordinates of the tables a step changes. ε = {', '.join(map(number, epsilons))}, "
        f"{plural(len(frontiers), 'data set')}; up and right is better. A curve joins those settings of an algorithm "
        "that none of its others beats on validation; bars end at one-sided 95% bounds. Below the dash-dotted line, "
        "frozen embeddings do better."
    )
