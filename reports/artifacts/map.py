"""map: where sparsity pays, on planted data that differ in one property at a time, and on real datasets.

The measure is the share of DP-SGD's gain over frozen embeddings that an algorithm keeps: 0 is frozen, 1 is DP-SGD. It
is dimensionless, so data of different difficulty can be compared in one figure.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from matplotlib.axes import Axes

from reports.algorithms import algorithm, label
from reports.comparison import MAP, Population, Setting
from reports.entry import Content, Inputs
from reports.style import NOTE_COLOUR, WIDTH, Drawing, hover, key, log_axis
from reports.tables import Column, Table
from reports.wording import metric, multiple, settings_text, significant, utility

RULES = ("threshold", "smaller_tables", "fest_equal", "fest", "adafest")
KEPT = 0.9
"""Share of DP-SGD's gain over frozen embeddings that a setting must keep."""
LEAST_GAIN = 0.01
"""Smallest gain in utility that counts: one seed and a test split of thousands resolve no less."""
GRID = 3
"""Number of settings of an algorithm on real data from which it is drawn: fewer do not show what it can keep."""
REAL = ("D", "^", ">", "*", "P", "<")
"""Markers of real datasets, in turn; the colour is the algorithm's, as is the filling."""
FILLING = {"threshold": "top", "smaller_tables": "right", "fest_equal": "none", "fest": "bottom", "adafest": "left"}
APART = 1.08
"""Factor by which real datasets of neighbouring algorithms are moved apart in a panel."""
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
    """

    name: str
    heading: str
    of: Callable[[Population, float, int], float | None]
    log: bool = True
    word: Callable[[float], str] = significant


def _setting(name: str) -> Callable[[Population, float, int], float | None]:
    """Return the look-up of a setting of the data, which only planted data have."""
    return lambda population, epsilon, batch: population.runs[0].data.get(name) if population.kind == "map" else None


def _examples_per_row(population: Population, epsilon: float, batch: int) -> float | None:
    return population.examples / population.embedding_rows if population.embedding_rows else None


AXES = (
    Axis("examples_per_row", "examples per embedding row", _examples_per_row),
    Axis("zipf_exponent", "Zipf exponent", _setting("zipf_exponent"), log=False),
    Axis("tail_signal", "share of signal in rare values", _setting("tail_signal"), log=False),
    Axis("epsilon", "ε", lambda population, epsilon, batch: epsilon),
    Axis("batch_size", "batch size", lambda population, epsilon, batch: batch, word="{:,.0f}".format),
)


@dataclass(frozen=True)
class Point:
    """The settings of one dataset, ε and batch size, with its value on each axis by name."""

    population: Population
    frozen: Setting
    dpsgd: Setting
    places: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        """Gain of DP-SGD over frozen embeddings, in test utility."""
        return self.dpsgd.test - self.frozen.test

    @property
    def pays(self) -> bool:
        """Whether the gain counts, on validation (by which settings are chosen) and on test."""
        return min(self.gain, self.dpsgd.validation - self.frozen.validation) >= LEAST_GAIN

    def best(self, name: str) -> Setting | None:
        """Return the setting of largest reduction that keeps enough of the gain on validation; None if no setting that
        cuts the gradient does."""
        least = self.frozen.validation + KEPT * (self.dpsgd.validation - self.frozen.validation)
        kept = [s for s in self.population.of(name, self.dpsgd.epsilon) if s.reduction > 1 and s.validation >= least]
        return max(kept, key=lambda s: (s.reduction, s.validation, s.key), default=None)

    def kept(self, setting: Setting) -> float:
        """Return the share of the gain that a setting keeps, on test."""
        return (setting.test - self.frozen.test) / self.gain


def points(group: Population) -> Iterator[Point]:
    """Yield a point for each ε and batch size at which both references were trained."""
    for epsilon in group.epsilons:
        for batch in sorted({setting.runs[0].batch_size for setting in group.settings}):
            alike = replace(group, settings=tuple(s for s in group.settings if s.runs[0].batch_size == batch))
            frozen, dpsgd = alike.best("frozen", epsilon), alike.best("dpsgd", epsilon)
            if frozen is not None and dpsgd is not None:
                places = {axis.name: axis.of(group, epsilon, batch) for axis in AXES}
                yield Point(alike, frozen, dpsgd, places)


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
        f"The largest reduction of the embedding gradient that keeps at least {KEPT:.0%} of DP-SGD's gain in {name} "
        "over frozen embeddings, chosen on validation. Planted data: each panel varies one property and leaves the "
        "others at the centre. Open (DP-FEST, k/p a table) and half-filled (bottom: "
        "DP-FEST, one k; left: DP-AdaFEST, right: smaller tables, top: "
        "thresholded) markers are real datasets, which also differ from the centre in other properties (but have the "
        "centre's ε outside its own panel); they are missing where the property is unknown. At 1 (▾ for planted data) "
        "no setting tried keeps enough, so only DP-SGD does. "
        f"✕: {NOTHING}, because DP-SGD gains less than {LEAST_GAIN:g} "
        "over frozen embeddings: freeze them. Examples per embedding row are training examples divided by the rows of "
        "all tables; rare values are all but the most frequent ones that make up half of all occurrences. "
        "Grids of settings differ between data and algorithms: a finer one can reach a larger reduction."
    )
    if not planted:
        return Content(caption, missing=["No point has both DP-SGD and frozen embeddings yet."])
    return Content(caption, _figure(planted, real), _table([*planted, *real], name))


def _figure(planted: Sequence[Point], real: Sequence[Point]) -> Drawing:
    figure = Drawing(WIDTH, 4.6)
    grid = list(figure.subplots(2, 3, sharey=True, squeeze=False).flat)
    middle = centre(planted)
    real = [point for point in real if any(_tried(point, name) for name in RULES)]
    markers = dict(zip(dict.fromkeys(point.population.dataset for point in real), itertools.cycle(REAL), strict=False))
    for axes, axis in zip(grid, AXES, strict=False):
        log_axis(axes, "y")
        if axis.log:
            log_axis(axes, "x")
        others = {one.name for one in AXES} - {axis.name}
        line = [p for p in planted if all(p.places[other] == middle[other] for other in others)]
        values = sorted({value for p in line if (value := p.places[axis.name]) is not None})
        for name in RULES:
            _curve(axes, axis, name, sorted(line, key=lambda p: p.places[axis.name] or 0.0))
            for point in real:
                if axis.name == "epsilon" or point.dpsgd.epsilon == middle["epsilon"]:
                    _mark_real(axes, axis, name, point, markers[point.population.dataset])
        if axis.log:
            axes.set_xticks(values, [axis.word(value) for value in values], minor=False)
            axes.set_xticks([], minor=True)
        else:
            axes.set_xticks(values)
        axes.margins(x=0.2)
        axes.set_xlabel(axis.heading)
    grid[0].set_ylim(0.6, max(2 * grid[0].get_ylim()[1], 20))
    for axes in grid[::3]:
        axes.set_ylabel(f"reduction that keeps {KEPT:.0%} (×)")
    rest = grid[len(AXES)]
    rest.axis("off")
    handles = [key(label(name), name, linestyle="-") for name in RULES]
    handles += [key(dataset, marker=marker) for dataset, marker in markers.items()]
    handles.append(key(NONE, marker="v", markerfacecolor="#333333"))
    handles.append(key(NOTHING, marker="x", color=NOTE_COLOUR, markeredgewidth=1.4))
    rest.legend(handles=handles, loc="center", frameon=False)
    return figure


def _curve(axes: Axes, axis: Axis, name: str, line: Sequence[Point]) -> None:
    """Draw the best reductions along an axis; the line is at 1 where there is none, and interrupted where there is
    nothing to keep."""
    look = algorithm(name)
    xs: list[Any] = []
    ys = []
    for point in line:
        if not point.population.of(name, point.dpsgd.epsilon):
            continue
        xs.append(point.places[axis.name])
        ys.append(_height(point, name))
        marker = "x" if not point.pays else look.marker if point.best(name) else "v"
        _mark(axes, point, name, xs[-1], marker)
    axes.plot(xs, ys, color=look.colour, linewidth=1.1, zorder=2)


def _mark_real(axes: Axes, axis: Axis, name: str, point: Point, marker: str) -> None:
    """Draw a real dataset if it has this property and enough runs of this algorithm."""
    place = point.places[axis.name]
    if place is not None and _tried(point, name):
        shift = APART ** (RULES.index(name) - (len(RULES) - 1) / 2)
        _mark(axes, point, name, shift * place, marker, FILLING[name])


def _tried(point: Point, name: str) -> bool:
    return len(point.population.of(name, point.dpsgd.epsilon)) >= GRID


def _height(point: Point, name: str) -> float:
    """Return the height in the figure: NaN if there is nothing to keep, 1 if no setting keeps enough."""
    if not point.pays:
        return float("nan")
    best = point.best(name)
    return 1.0 if best is None else best.reduction


def _mark(axes: Axes, point: Point, name: str, place: Any, marker: str, filling: str = "full") -> None:
    """Draw a point, grey and at 1 where there is nothing to keep."""
    colour, height = (algorithm(name).colour, _height(point, name)) if point.pays else (NOTE_COLOUR, 1.0)
    (mark,) = axes.plot([place], [height], marker, color=colour, fillstyle=filling, markersize=5, zorder=3)
    hover(mark, [f"{_where(point)}: {label(name)}, {_words(point, name)}"])


def _where(point: Point) -> str:
    known = [(axis, value) for axis in AXES if (value := point.places[axis.name]) is not None]
    values = ", ".join(f"{axis.heading} {axis.word(value)}" for axis, value in known)
    return f"{'planted' if point.population.dataset == MAP else point.population.dataset} ({values})"


def _words(point: Point, name: str) -> str:
    if not point.pays:
        return NOTHING
    best = point.best(name)
    if best is None:
        return NONE
    return f"{multiple(best.reduction)} keeps {point.kept(best):.0%} on test ({settings_text(best, point.population)})"


def _table(shown: Sequence[Point], name: str) -> Table:
    columns = [
        Column("dataset", "data"),
        *(Column(axis.name, axis.heading, axis.word) for axis in AXES),
        Column("frozen", f"frozen {name}", utility),
        Column("dpsgd", f"DP-SGD {name}", utility),
        Column("algorithm", "algorithm", label),
        Column("reduction", f"reduction that keeps {KEPT:.0%}", multiple),
        Column("kept", "kept on test", lambda share: f"{share:.0%}"),
        Column("verdict", "in words"),
        Column("seeds", "seeds"),
    ]
    table = Table(columns, heads=1)
    for point in shown:
        for rule in RULES:
            if settings := point.population.of(rule, point.dpsgd.epsilon):
                best = point.best(rule) if point.pays else None
                table.runs.append((best or settings[0]).runs[0].anchor)
                places = [point.places[axis.name] for axis in AXES]
                table.rows.append(
                    (
                        point.population.dataset,
                        *places,
                        point.frozen.test,
                        point.dpsgd.test,
                        rule,
                        best and best.reduction,
                        best and point.kept(best),
                        f"keeps enough at {settings_text(best, point.population)}" if best else _words(point, rule),
                        min(len(one.by_seed) for one in (best or settings[0], point.frozen, point.dpsgd)),
                    )
                )
    return table
