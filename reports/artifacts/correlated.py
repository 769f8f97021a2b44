"""correlated: DP-SGD and DP-FEST whose noise on rows is correlated over steps, against independent noise, by bands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

from dpfest.accounting.bands import strategy
from reports.algorithms import algorithm, label
from reports.claims.estimate import Difference, Sample
from reports.claims.logic import between
from reports.comparison import Population
from reports.entry import Content, Inputs
from reports.setting import Setting
from reports.style import WIDTH, Drawing, hover, log_axis
from reports.tables import Column, Table
from reports.wording import metric, number, plural, settings_text, significant, utility

RULES = ("dpsgd", "fest")
NEEDED = ("dpsgd", "dpsgd_banded")  # DP-FEST is drawn where it was run
LOOKS = (("o", "solid"), ("s", (0, (4, 1.5))), ("^", (0, (1, 1.2))))
Row = tuple[int, Setting, Difference | None, float | None, int]


class Series(NamedTuple):
    """An algorithm at one ε; of a stream, at one period, too."""

    rule: str
    epsilon: float
    period: int | None

    @property
    def words(self) -> str:
        of = "" if self.rule == RULES[0] else f"{label(self.rule)}, "
        return f"{of}ε = {number(self.epsilon)}" + (f", {plural(self.period, 'day')}" if self.period else "")


def content(inputs: Inputs) -> Content:
    population = inputs.population
    name = metric(population)
    caption = (
        "DP-SGD, and DP-FEST with one k, with noise on the tables' rows that takes back, in each step, a part of what "
        "it was in the b - 1 steps before, against independent noise (b = 1) at the same ε. Left, computed: the noise "
        "that accumulates in a row, relative to independent noise (of a stream, the mean over its periods). Right, "
        f"measured: the gain in test {name}; rates are chosen on validation, for independent noise too, and bars are "
        "one-sided 95% bounds over seeds that did not choose. Batches are cyclic Poisson samples: an example takes "
        "part in every bth step at most. DP-FEST is compared at equal k."
    )
    each: list[tuple[int | None, Population]] = [(None, population)]
    if population.periods:
        each = [(days, population.at(days)) for days in population.periods]
    of = {
        Series(rule, epsilon, days): rows
        for rule in RULES for days, part in each for epsilon in population.epsilons
        if (rows := compared(part, epsilon, rule))
    }  # fmt: skip
    if not of:
        return Content(caption, missing=["No runs with independent and with correlated noise at one ε yet."])
    epsilons = sorted({series.epsilon for series in of})
    return Content(caption, _figure(population, of), _table(population, of), epsilons=epsilons)


def compared(population: Population, epsilon: float, rule: str = RULES[0]) -> list[Row]:
    """Return, for each number of bands, the best setting, its gain over independent noise, the noise that accumulates
    relative to it, and the number of settings tried; independent noise first. Empty without either kind of noise."""
    plain, banded = _both(population, epsilon, rule)
    if not plain or not banded:
        return []
    sample = Sample([*plain, *banded])
    reference = _best(sample, plain)
    rows: list[Row] = [(1, reference, None, 1.0, len(plain))]
    for bands in sorted({int(setting.parameter("bands")) for setting in banded}):
        tried = [setting for setting in banded if setting.parameter("bands") == bands]
        best = _best(sample, tried)
        gain = between(sample, best, reference).at(len(tried) * len(plain))
        rows.append((bands, best, gain, _accumulated(best, reference, bands), len(tried)))
    return rows


def gain(population: Population, epsilon: float, rule: str = RULES[0]) -> tuple[int, Difference] | None:
    """Return the number of bands that is best on validation and its gain over independent noise; None without both."""
    plain, banded = _both(population, epsilon, rule)
    if not plain or not banded:
        return None
    sample = Sample([*plain, *banded])
    best, reference = _best(sample, banded), _best(sample, plain)
    return int(best.parameter("bands")), between(sample, best, reference).at(len(plain) * len(banded))


def _both(population: Population, epsilon: float, rule: str) -> tuple[list[Setting], list[Setting]]:
    """Return the settings with independent and with correlated noise, of equal numbers of rows chosen beforehand."""
    banded = population.of(f"{rule}_banded", epsilon)
    rows = {setting.parameter("selection.rows") for setting in banded}
    return [one for one in population.of(rule, epsilon) if one.parameter("selection.rows") in rows], banded


def _best(sample: Sample, settings: Sequence[Setting]) -> Setting:
    best = sample.best(settings)
    assert best is not None
    return best


def _accumulated(one: Setting, reference: Setting, bands: int) -> float | None:
    """Return the noise that accumulates in a row, relative to the reference's; of a stream, the periods' mean."""
    both = zip(one.runs[0].noise_by_period, reference.runs[0].noise_by_period, strict=True)
    shares = [sigma * strategy(bands, steps).accumulated(steps) / other for (steps, sigma), (_, other) in both]
    return math.fsum(shares) / len(shares) if shares else None


def _figure(population: Population, of: Mapping[Series, Sequence[Row]]) -> Drawing:
    figure = Drawing(WIDTH, 2.6)
    computed, measured = figure.subplots(1, 2)
    for axes, height in ((computed, 1.0), (measured, 0.0)):
        axes.axhline(height, color="#000000", linewidth=0.8)
    for place, ((series, rows), (marker, line)) in enumerate(zip(of.items(), cycle(LOOKS), strict=False)):
        beside = 1.04 ** (place - len(of) // 2)  # so that bars can be told apart
        colour = algorithm(f"{series.rule}_banded").colour
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.0}
        known = [(bands, noise) for bands, _, _, noise, _ in rows if noise is not None]
        if known:
            computed.plot(*zip(*known, strict=True), linestyle=line, **look)
        gains = [(bands, setting, gain) for bands, setting, gain, *_ in rows if gain is not None]
        (marks,) = measured.plot(
            [bands * beside for bands, *_ in gains],
            [gain.value for *_, gain in gains],
            linestyle=line,
            label=series.words,
            **look,
        )
        for bands, _, gain in gains:
            if math.isfinite(gain.half):
                measured.plot([bands * beside] * 2, [gain.low, gain.high], color=colour, linewidth=0.9)
        words = [f"{series.words}, {bands} bands: {utility(one.test)} ({gain})" for bands, one, gain in gains]
        hover(marks, words)
    computed.set_ylim(0, 1.05 * max(1.0, *(row[3] or 0.0 for rows in of.values() for row in rows)))
    computed.set_ylabel("noise accumulated in a row\n(independent noise = 1)")
    measured.set_ylabel(f"test {metric(population)} gained")
    computed.legend(*measured.get_legend_handles_labels(), loc="lower left", fontsize=7)  # below all of its curves
    tried = sorted({row[0] for rows in of.values() for row in rows})
    for axes in (computed, measured):
        log_axis(axes, "x")
        axes.set_xticks(tried, [str(one) for one in tried])
        axes.set_xticks([], minor=True)
        axes.set_xlim(0.9, 1.1 * tried[-1])
        axes.set_xlabel("bands")
    return figure


def _table(population: Population, of: Mapping[Series, Sequence[Row]]) -> Table:
    columns = [
        Column("algorithm", "algorithm"),
        Column("epsilon", "ε", number),
        *([Column("period", "period, days")] if population.periods else []),
        Column("bands", "bands"),
        Column("noise", "accumulated noise, computed", significant),
        Column("sigma", "σ", number),
        Column("test", f"test {metric(population)}", utility),
        Column("gain", "gain over independent noise"),
        Column("low", "its 95% lower bound", utility),
        Column("tried", "settings tried"),
        Column("seeds", "seeds"),
        Column("settings", "settings"),
    ]
    table = Table(columns, runs=[setting.runs[0].anchor for rows in of.values() for _, setting, *_ in rows])
    for series, rows in of.items():
        for bands, setting, gain, noise, tried in rows:
            table.rows.append(
                (
                    label(series.rule), series.epsilon, *([series.period] if population.periods else []),
                    bands, noise, setting.runs[0].noise_multiplier, setting.test,
                    None if gain is None else str(gain),
                    gain.low if gain is not None and math.isfinite(gain.half) else None, tried, len(setting.by_seed),
                    settings_text(setting, population),
                )
            )  # fmt: skip
    return table
