"""correlated: DP-SGD whose noise on rows is correlated over steps, against independent noise, by number of bands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpfest.bands import strategy
from reports.algorithms import algorithm
from reports.claims.estimate import Difference, Sample
from reports.claims.logic import between
from reports.comparison import Population, Setting
from reports.entry import Content, Inputs
from reports.style import WIDTH, Drawing, hover, log_axis
from reports.tables import Column, Table
from reports.wording import metric, number, settings_text, significant, utility

INDEPENDENT, BANDED = "dpsgd", "dpsgd_banded"
Row = tuple[int, Setting, Difference | None, float | None, int]


def content(inputs: Inputs) -> Content:
    population = inputs.population
    name, epsilon = metric(population), population.main_epsilon
    caption = (
        "DP-SGD with noise on the tables' rows that takes back, in each step, a part of what it was in the b - 1 steps "
        f"before, at the same ε. Left, computed: the noise that accumulates in a row, relative to independent noise "
        f"(b = 1). Right, measured: test {name}; rates are chosen on validation, for independent noise too, and bars "
        "are one-sided 95% bounds of the difference to it, over seeds that did not choose. Batches are cyclic Poisson "
        "samples: an example takes part in every bth step at most."
    )
    rows = _rows(population)
    if len(rows) < 2:
        return Content(caption, missing=["No DP-SGD runs with independent and with correlated noise at one ε yet."])
    return Content(
        caption, _figure(population, rows), _table(population, rows), epsilons=[] if epsilon is None else [epsilon]
    )


def _rows(population: Population) -> list[Row]:
    """Return, for each number of bands, the best setting, its gain over independent noise, the noise that accumulates
    relative to it, and the number of settings tried; independent noise first."""
    epsilon = population.main_epsilon
    plain, banded = population.of(INDEPENDENT, epsilon), population.of(BANDED, epsilon)
    if not plain or not banded:
        return []
    sample = Sample([*plain, *banded])
    reference = sample.best(plain)
    assert reference is not None
    rows: list[Row] = [(1, reference, None, 1.0, len(plain))]
    for bands in sorted({int(setting.parameter("bands")) for setting in banded}):
        tried = [setting for setting in banded if setting.parameter("bands") == bands]
        best = sample.best(tried)
        assert best is not None
        gain = between(sample, best, reference).at(len(tried) * len(plain))
        rows.append((bands, best, gain, _accumulated(best, reference, bands), len(tried)))
    return rows


def _accumulated(one: Setting, reference: Setting, bands: int) -> float | None:
    run, other = one.runs[0], reference.runs[0]
    if run.period is not None or not run.noise_multiplier or not other.noise_multiplier:
        return None
    return run.noise_multiplier * strategy(bands, run.steps).accumulated(run.steps) / other.noise_multiplier


def _figure(population: Population, rows: Sequence[Row]) -> Drawing:
    figure = Drawing(WIDTH, 2.6)
    computed, measured = figure.subplots(1, 2)
    look: dict[str, Any] = {"color": algorithm(BANDED).colour, "marker": algorithm(BANDED).marker, "markersize": 4}
    known = [(bands, noise) for bands, _, _, noise, _ in rows if noise is not None]
    computed.plot(*zip(*known, strict=True), linewidth=1.0, **look)
    computed.axhline(1.0, color="#000000", linewidth=0.8)
    computed.set_ylim(0, max(1.1, *(1.05 * noise for _, noise in known)))
    computed.set_ylabel("noise accumulated in a row\n(independent noise = 1)")
    base = rows[0][1].test
    for bands, setting, gain, _, _ in rows:
        half = gain.half if gain is not None and math.isfinite(gain.half) else 0.0
        (mark,) = measured.plot([bands], [setting.test], **look)
        measured.plot([bands, bands], [setting.test - half, setting.test + half], color=look["color"], linewidth=0.9)
        hover(mark, [f"{bands} band{'s' * (bands > 1)}: {utility(setting.test)}"])
    measured.plot([row[0] for row in rows], [row[1].test for row in rows], color=look["color"], linewidth=1.0)
    measured.axhline(base, color="#000000", linewidth=0.8)
    measured.set_ylabel(f"test {metric(population)}")
    for axes in (computed, measured):
        log_axis(axes, "x")
        axes.set_xticks([row[0] for row in rows], [str(row[0]) for row in rows])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("bands")
    return figure


def _table(population: Population, rows: Sequence[Row]) -> Table:
    columns = [
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
    table = Table(columns, runs=[setting.runs[0].anchor for _, setting, *_ in rows])
    for bands, setting, gain, noise, tried in rows:
        table.rows.append(
            (
                bands, noise, setting.runs[0].noise_multiplier, setting.test, None if gain is None else str(gain),
                gain.low if gain is not None and math.isfinite(gain.half) else None, tried, len(setting.by_seed),
                settings_text(setting, population),
            )
        )  # fmt: skip
    return table
