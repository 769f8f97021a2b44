"""fig1b: how sparse the embedding gradient is without privacy, in the five largest features and in all."""

from __future__ import annotations

import math
import statistics

from reports.algorithms import algorithm
from reports.entry import Content, Inputs
from reports.setting import Setting
from reports.style import WIDTH, Drawing
from reports.tables import Column, Table

LARGEST = 5


def content(inputs: Inputs) -> Content:
    setting = inputs.population.nonprivate
    batches = f" in batches of {setting.runs[0].batch_size:,}" if setting else ""
    caption = (
        "Gradient sparsity (the fraction of embedding gradient coordinates that are zero, mean over all "
        f"steps of non-private training{batches}) of the {LARGEST} categorical features with the most buckets, and of "
        "all features together."
    )
    if setting is None or not setting.runs[0].tables:
        tables = [] if setting is None else ["The non-private runs do not record their rows per table."]
        return Content(caption, missing=tables, epsilons=[])
    rows = _sparsities(setting)
    table = Table(
        [
            Column("feature", "feature"),
            Column("buckets", "buckets", lambda value: f"{value:,}"),
            Column("dimension", "dimension"),
            Column("rows_mean", "non-zero rows a step", lambda value: f"{value:,.1f}"),
            Column("sparsity", "gradient sparsity", lambda value: f"{value:.5f}"),
        ],
        list(rows),
    )
    figure = Drawing(0.72 * WIDTH, 2.2)
    axes = figure.subplots()
    labels = [f"{name} ({buckets:,})" for name, buckets, *_ in rows]
    # On a linear axis 0.99 and 0.9999 look alike: the axis is the logarithm of the distance from 1.
    dense = [max(1 - sparsity, 1e-7) for *_, sparsity in rows]
    places = range(len(rows))
    start = 10.0 ** (math.ceil(math.log10(max(dense))))
    axes.hlines(places, start, dense, color=algorithm("fest").colour, linewidth=1.6)
    axes.plot(dense, places, "o", color=algorithm("fest").colour, markersize=5.5)
    for place, value, (*_, sparsity) in zip(places, dense, rows, strict=True):
        axes.annotate(
            _percent(sparsity, 1),
            (value, place),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    stop = 10.0 ** (math.floor(math.log10(min(dense))) - 0.35)
    axes.set_xscale("log")
    axes.set_xlim(start, stop)
    decades = [10.0**-power for power in range(round(-math.log10(start)), math.floor(-math.log10(stop)) + 1)]
    within = (1.0, 0.5, 0.2) if len(decades) < 3 else (1.0,)
    ticks = [decade * share for decade in decades for share in within if decade * share >= stop]
    axes.set_xticks(ticks, [_percent(1 - value) for value in ticks])
    axes.minorticks_off()
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlabel("gradient sparsity (zero coordinates)")
    return Content(caption, figure, table, epsilons=[])


def _sparsities(setting: Setting) -> list[tuple[str, int, int, float, float]]:
    """Return (feature, buckets, dimension, mean non-zero rows, sparsity) of the largest features, then of all."""
    first = setting.runs[0].tables
    means = [statistics.fmean(run.tables[i].rows_mean for run in setting.runs) for i in range(len(first))]
    rows = [(t.name, t.rows, t.dimension, mean, 1 - mean / t.rows) for t, mean in zip(first, means, strict=True)]
    largest = sorted(rows, key=lambda row: (-row[1], row[0]))[:LARGEST]
    coordinates = sum(t.rows * t.dimension for t in first)
    nonzero = sum(t.dimension * mean for t, mean in zip(first, means, strict=True))
    every = (f"all {len(first)}", sum(t.rows for t in first), None, sum(means), 1 - nonzero / coordinates)
    return [*largest, every]  # type: ignore[list-item]


def _percent(sparsity: float, extra: int = 0) -> str:
    """Format a percentage with enough digits to differ from 100%, plus `extra` ones: 90%, 99.9%."""
    digits = max(0, math.ceil(-math.log10(max(1 - sparsity, 1e-9)) - 1e-9) - 2)
    return f"{100 * sparsity:.{digits + extra}f}%"
