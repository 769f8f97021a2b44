"""map: where sparsity pays, on planted data that differ in one property at a time, and on real datasets.

The measure is the largest reduction that keeps a share of DP-SGD's gain over frozen embeddings. The share is
dimensionless, so data of different difficulty can be compared in one figure; the reduction is read off the curve that
claims compare (`claims.curves`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from matplotlib.axes import Axes

from dpfest.planning.seen import seen_in_batch
from reports.algorithms import algorithm, label
from reports.claims.compared import Compared
from reports.claims.curves import Reach
from reports.comparison import MAP, Panel, Population
from reports.entry import Content, Inputs
from reports.setting import Setting
from reports.style import NOTE_COLOUR, Drawing, hover, key, log_axis
from reports.tables import Column, Table
from reports.wording import metric, multiple, significant, utility

RULES = ("threshold", "smaller_tables", "fest_equal", "fest", "adafest")
KEPT = 0.9
"""Share of DP-SGD's gain over frozen embeddings that must be kept."""
LEAST_GAIN = 0.01
"""Smallest gain in utility that counts: one seed and a test split of thousands resolve no less."""
GRID = 3
"""Number of settings of an algorithm on real data from which it is drawn: fewer do not show what it can keep."""
NOTHING = "nothing to keep"
NONE = "no setting keeps enough"


@dataclass(frozen=True)
class Axis:
    """A property of data or training that the map varies.

    Attributes:
        name: name in tables.
        heading: name for readers.
        of: returns its value; None if unknown.
        log: whether the axis is logarithmic.
        word: formats a value.
        made_of: names of the axes of which it is a function, if it is no property of its own.
    """

    name: str
    heading: str
    of: Callable[[Population, float, int], float | None]
    log: bool = True
    word: Callable[[float], str] = significant
    made_of: tuple[str, ...] = ()


def _setting(name: str, default: float | None = None) -> Callable[[Population, float, int], float | None]:
    """Return the look-up of a setting of the data, which only planted data have."""

    def look_up(population: Population, epsilon: float, batch: int) -> float | None:
        if population.kind != "map":
            return None
        value = population.runs[0].data.get(name)
        return default if value is None else value

    return look_up


def _examples_per_row(population: Population, epsilon: float, batch: int) -> float | None:
    """Return training examples per row of the tables with signal."""
    rows = population.embedding_rows * (1 - (_setting("crosses", 0.0)(population, epsilon, batch) or 0.0))
    return population.examples / round(rows) if rows else None


def _seen(population: Population, epsilon: float, batch: int) -> float | None:
    """Return how often a row occurs in the mean, as a multiple of what a contribution map with noise ratio 1 sees."""
    for setting in population.of("adafest", epsilon):
        run = setting.runs[0]
        if setting.parameter("noise_ratio") == 1 and run.batch_size == batch and run.map_noise_multiplier:
            norm = setting.parameter("contribution_clipping_norm") or 1.0
            in_batch = seen_in_batch(run.map_noise_multiplier, norm, len(run.tables))
            return batch * len(run.tables) / population.embedding_rows / in_batch
    return None


AXES = (
    Axis("examples_per_row", "examples per embedding row", _examples_per_row),
    Axis("zipf_exponent", "Zipf exponent", _setting("zipf_exponent"), log=False),
    Axis("tail_signal", "share of signal in rare values", _setting("tail_signal"), log=False),
    Axis("crosses", "share of rows in crosses without signal", _setting("crosses", 0.0), log=False),
    Axis("uneven", "largest table / smallest table", _setting("uneven", 1.0)),
    Axis("epsilon", "ε", lambda population, epsilon, batch: epsilon),
    Axis("batch_size", "batch size", lambda population, epsilon, batch: batch, word="{:,.0f}".format),
    Axis(
        "seen", "occurrences of a row / those seen", _seen,
        made_of=("examples_per_row", "epsilon", "batch_size"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """The settings of one dataset, ε and batch size, with its value on each axis by name."""

    population: Population
    frozen: Setting
    dpsgd: Setting
    epsilon: float
    places: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        """Gain of DP-SGD over frozen embeddings, in test utility."""
        return self.dpsgd.test - self.frozen.test

    @property
    def pays(self) -> bool:
        """Whether the gain counts, on validation (by which settings are chosen) and on test."""
        return min(self.gain, self.dpsgd.validation - self.frozen.validation) >= LEAST_GAIN

    def of(self, name: str) -> list[Setting]:
        return self.population.of(name, self.epsilon)

    @cached_property
    def _compared(self) -> Compared:
        panel = Panel(self.epsilon, "", self.population, self.epsilon)
        return Compared(panel, *(name for name in RULES if self.of(name)))

    def reach(self, name: str) -> Reach | None:
        """Return the largest reduction that keeps enough of the gain; None without settings, or with nothing to
        keep."""
        if not self.pays or not self.of(name):
            return None
        found = self._compared.curve(name)
        if not found.settings:
            return Reach(1.0, 1.0, ended=False)
        return found.reach((1 - KEPT) * self.gain, len(self._compared.rivals))


def points(group: Population) -> Iterator[Point]:
    """Yield a point for each ε and batch size at which both references were trained."""
    for epsilon in group.epsilons:
        for batch in sorted({setting.runs[0].batch_size for setting in group.settings}):
            alike = replace(group, settings=tuple(s for s in group.settings if s.runs[0].batch_size == batch))
            frozen, dpsgd = alike.best("frozen", epsilon), alike.best("dpsgd", epsilon)
            if frozen is not None and dpsgd is not None:
                places = {axis.name: axis.of(group, epsilon, batch) for axis in AXES}
                yield Point(alike, frozen, dpsgd, epsilon, places)


def centre(planted: Sequence[Point]) -> dict[str, float | None]:
    """Return the most common value on each axis."""
    return {axis.name: Counter(p.places[axis.name] for p in planted).most_common(1)[0][0] for axis in AXES}


def content(inputs: Inputs) -> Content:
    drawn = inputs.population
    groups = [g for g in inputs.of("map") if (g.fidelity, g.profile) == (drawn.fidelity, drawn.profile)]
    others = [g for g in inputs.of("clicks") if g.untestable is None and g.fidelity == drawn.fidelity]
    planted = [point for group in groups for point in points(group)]
    real = [point for group in others for point in points(group)]
    name = metric(drawn)
    caption = (
        f"The largest reduction of the embedding gradient that keeps {KEPT:.0%} of DP-SGD's gain in {name} over frozen "
        "embeddings, along each algorithm's curve, with its 95% lower bound as a bar. Planted data: each panel varies "
        "one property and leaves the others at the centre; the last one has all points of the panels on examples per "
        "row, ε and batch size again, by how often a mean row occurs, over the √F·σ₁·N/B occurrences at which a map "
        "with noise ratio 1 tells a row from its noise. Hollow markers with a name are real datasets at the "
        "centre's ε, which also differ from it in other properties. At 1 (▾) no setting tried keeps enough, so only "
        f"DP-SGD does. ✕: {NOTHING}, because DP-SGD gains less than {LEAST_GAIN:g} over frozen embeddings: freeze "
        "them. Examples per embedding row are training examples divided by the rows of all tables but crosses; rare "
        "values are all but the most frequent ones that make up half of all occurrences."
    )
    if not planted:
        return Content(caption, missing=["No point has both DP-SGD and frozen embeddings yet."])
    return Content(caption, _figure(planted, real), _table([*planted, *real], name))


def _figure(planted: Sequence[Point], real: Sequence[Point]) -> Drawing:
    middle = centre(planted)
    lines = {axis.name: _line(planted, axis, middle) for axis in AXES}
    axes_shown = [axis for axis in AXES if len(lines[axis.name]) > 1] or list(AXES[:1])
    columns = 4
    lines_shown = math.ceil(len(axes_shown) / columns)
    figure = Drawing(2.5 * columns, 0.7 + 2.3 * lines_shown)
    grid = list(figure.subplots(lines_shown, columns, sharey=True, squeeze=False).flat)
    for axes, axis in zip(grid, axes_shown, strict=False):
        log_axis(axes, "y")
        if axis.log:
            log_axis(axes, "x")
        for name in RULES:
            _curve(axes, axis, name, lines[axis.name])
        for point in real if axis is AXES[0] or axis.made_of else ():
            if point.epsilon == middle["epsilon"]:
                _mark_real(axes, axis, point)
        if not axis.made_of:
            values = sorted({point.places[axis.name] or 0.0 for point in lines[axis.name]})
            axes.set_xticks(values, [axis.word(value) if axis.log else f"{value:g}" for value in values], minor=False)
            axes.set_xticks([], minor=True)
        axes.margins(x=0.2)
        axes.set_xlabel(axis.heading, fontsize=8)
    grid[0].set_ylim(0.6, max(2 * grid[0].get_ylim()[1], 20))
    for axes in grid[::columns]:
        axes.set_ylabel(f"reduction that keeps {KEPT:.0%} (×)")
    for axes in grid[len(axes_shown) :]:
        axes.axis("off")
    handles = [key(label(name), name, linestyle="-") for name in RULES]
    handles.append(key("real datasets", marker="o", markerfacecolor="none"))
    handles.append(key(NONE, marker="v", markerfacecolor="#333333"))
    handles.append(key(NOTHING, marker="x", color=NOTE_COLOUR, markeredgewidth=1.4))
    figure.legend(handles=handles, loc="outside upper center", frameon=False, fontsize=8, ncols=4)
    return figure


def _line(planted: Sequence[Point], axis: Axis, middle: Mapping[str, float | None]) -> list[Point]:
    """Return the planted points that differ from the centre on this axis alone (or on one of those that it is made of),
    along it."""
    properties = {one.name for one in AXES if not one.made_of}

    def differs(point: Point) -> set[str]:
        return {name for name in properties if point.places[name] != middle[name]}

    mine = {axis.name, *axis.made_of}
    line = [p for p in planted if len(differs(p)) <= 1 and differs(p) <= mine and p.places[axis.name] is not None]
    return sorted(line, key=lambda point: point.places[axis.name] or 0.0)


def _curve(axes: Axes, axis: Axis, name: str, line: Sequence[Point]) -> None:
    """Draw the reductions along an axis; the line is at 1 where no setting keeps enough, and interrupted where there
    is nothing to keep."""
    tried = [point for point in line if point.of(name)]
    places: list[Any] = [point.places[axis.name] for point in tried]
    heights = []
    for place, point in zip(places, tried, strict=True):
        reach = point.reach(name)
        heights.append(float("nan") if reach is None else reach.estimate)
        if reach is None:
            _mark(axes, point, name, place, 1.0, marker="x", color=NOTE_COLOUR)
            continue
        if reach.estimate > 1:
            axes.plot([place, place], [reach.shown, reach.estimate], color=algorithm(name).colour, linewidth=0.8)
        _mark(axes, point, name, place, reach.estimate, marker=algorithm(name).marker if reach.estimate > 1 else "v")
    if axis.made_of:  # of several properties, which a line would mix
        return
    dashes = "--" if name.endswith("_equal") else "-"
    axes.plot(places, heights, color=algorithm(name).colour, linewidth=1.1, linestyle=dashes, zorder=2)


def _mark_real(axes: Axes, axis: Axis, point: Point) -> None:
    """Draw a real dataset if it has this property, by the algorithms of which enough settings were tried."""
    place = point.places[axis.name]
    if place is None:
        return
    reached = {name: point.reach(name) for name in RULES if len(point.of(name)) >= GRID}
    heights = {name: reach.estimate for name, reach in reached.items() if reach is not None}
    for name, height in heights.items():
        _mark(axes, point, name, place, height, marker=algorithm(name).marker, markerfacecolor="none")
    if heights:
        words: dict[str, Any] = {"fontsize": 6.5, "color": "#555555", "ha": "center", "va": "bottom"}
        axes.annotate(point.population.dataset, (place, 1.15 * max(heights.values())), **words)


def _mark(axes: Axes, point: Point, name: str, place: float, height: float, **look: Any) -> None:
    own: dict[str, Any] = {"color": algorithm(name).colour, "markersize": 5, "zorder": 3}
    (mark,) = axes.plot([place], [height], **(own | look))
    hover(mark, [f"{_where(point)}: {label(name)}, {_words(point, name)}"])


def _where(point: Point) -> str:
    known = [(axis, value) for axis in AXES if (value := point.places[axis.name]) is not None]
    values = ", ".join(f"{axis.heading} {axis.word(value)}" for axis, value in known)
    return f"{'planted' if point.population.dataset == MAP else point.population.dataset} ({values})"


def _words(point: Point, name: str) -> str:
    reach = point.reach(name)
    if reach is None:
        return NOTHING
    return NONE if reach.estimate == 1 else str(reach)


def _table(shown: Sequence[Point], name: str) -> Table:
    columns = [
        Column("dataset", "data"),
        *(Column(axis.name, axis.heading, axis.word) for axis in AXES),
        Column("frozen", f"frozen {name}", utility),
        Column("dpsgd", f"DP-SGD {name}", utility),
        Column("algorithm", "algorithm", label),
        Column("reduction", f"reduction that keeps {KEPT:.0%}", multiple),
        Column("shown", "shown", multiple),
        Column("verdict", "in words"),
        Column("settings", "settings tried"),
        Column("seeds", "seeds"),
    ]
    table = Table(columns, heads=1)
    for point in shown:
        for rule in RULES:
            if not (settings := point.of(rule)):
                continue
            reach = point.reach(rule)
            table.runs.append(settings[0].runs[0].anchor)
            table.rows.append(
                (
                    point.population.dataset, *(point.places[axis.name] for axis in AXES), point.frozen.test,
                    point.dpsgd.test, rule, None if reach is None else reach.estimate,
                    None if reach is None else reach.shown, _words(point, rule), len(settings),
                    min(len(one.by_seed) for one in (*settings, point.frozen, point.dpsgd)),
                )
            )  # fmt: skip
    return table
