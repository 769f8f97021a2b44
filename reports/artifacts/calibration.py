"""calibration: are probabilities right? Log losses against the best constant's, and reliability curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from reports.algorithms import algorithm, label, ordered
from reports.comparison import Population
from reports.entry import Content, Inputs
from reports.setting import Setting
from reports.style import WIDTH, Drawing, hover, key
from reports.tables import Column, Table
from reports.wording import metric, settings_text, utility

CURVES = ("nonprivate", "dpsgd", "fest", "adafest")
"""The algorithms whose reliability is drawn."""


def content(inputs: Inputs) -> Content:
    population = inputs.population
    constant, best = population.constant_loss, _best(population)
    caption = (
        "Left: the log loss on test of each algorithm's best setting on validation, of its own probabilities (hollow) "
        "and after Platt scaling (filled), two numbers fitted to the validation split, against the best constant "
        "(dashed): to its right, probabilities are worse than none. Right: how often a tenth of the test rows, ordered "
        "by score, has the label 1, against the mean of its probabilities (dotted: before Platt scaling); on the "
        "diagonal they are right."
    )
    if constant is None or not best:
        return Content(caption, missing=["No run tells its log loss beside that of a constant: train again."])
    figure = Drawing(WIDTH, 2.9)
    losses, curves = figure.subplots(1, 2)
    _losses(losses, constant, best)
    for setting in best:
        if setting.algorithm in CURVES:
            _curve(curves, setting)
    curves.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, zorder=1)
    curves.set_xlabel("mean probability")
    curves.set_ylabel("share of labels 1")
    handles = [key(label(s.algorithm), s.algorithm) for s in best if s.algorithm in CURVES]
    curves.legend(handles=handles, loc="upper left", fontsize=7)
    epsilon = population.main_epsilon
    return Content(caption, figure, _table(population, constant, best), epsilons=[] if epsilon is None else [epsilon])


def _best(population: Population) -> list[Setting]:
    """Return the best setting of each algorithm at the main ε, of those that tell how far their probabilities are
    right."""
    found = []
    for name in ordered({setting.algorithm for setting in population.settings}):
        epsilon = None if name == "nonprivate" else population.main_epsilon
        known = [s for s in population.of(name, epsilon) if None not in s.losses[:2]]
        if known:
            found.append(max(known, key=lambda setting: setting.rank))
    return found


def _losses(axes: Axes, constant: float, best: Sequence[Setting]) -> None:
    for place, setting in enumerate(best):
        look: dict[str, Any] = {"color": algorithm(setting.algorithm).colour, "marker": "o", "markersize": 5}
        own, calibrated = setting.losses.own or 0.0, setting.losses.calibrated or 0.0  # both are known
        axes.plot([own, calibrated], [place, place], color="#BBBBBB", linewidth=1, zorder=1)
        (mark,) = axes.plot(own, place, markerfacecolor="white", **look)
        hover(mark, [f"{label(setting.algorithm)}: log loss {utility(own)}"])
        (mark,) = axes.plot(calibrated, place, **look)
        hover(mark, [f"{label(setting.algorithm)}, after Platt scaling: log loss {utility(calibrated)}"])
    axes.axvline(constant, color="#333333", linestyle=(0, (4, 2)), linewidth=0.9, zorder=0)
    axes.set_yticks(range(len(best)), [label(setting.algorithm) for setting in best], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("log loss on test")


def _curve(axes: Axes, setting: Setting) -> None:
    """Draw the reliability of one setting, a mean over its runs."""
    tenths = [np.array(run.reliability) for run in setting.runs if run.reliability]
    if not tenths:
        return
    _, share, own, calibrated = np.mean(tenths, axis=0).T
    look: dict[str, Any] = {"color": algorithm(setting.algorithm).colour, "linewidth": 1.0}
    axes.plot(own, share, linestyle=":", **look)
    axes.plot(calibrated, share, marker=algorithm(setting.algorithm).marker, markersize=3.2, **look)


def _table(population: Population, constant: float, best: Sequence[Setting]) -> Table:
    columns = [
        Column("algorithm", "algorithm", label),
        Column("test", f"test {metric(population)}", utility),
        Column("log_loss", "log loss", utility),
        Column("calibrated_loss", "after Platt scaling", utility),
        Column("constant_loss", "best constant", utility),
        Column("scale", "scale of the scores", utility),
        Column("settings", "settings"),
    ]
    rows: list[Sequence[Any]] = []
    for setting in best:
        scales = [run.scale for run in setting.runs if run.scale is not None]
        scale = sum(scales) / len(scales) if scales else None
        own, calibrated, _ = setting.losses
        rows.append(
            (setting.algorithm, setting.test, own, calibrated, constant, scale, settings_text(setting, population))
        )
    return Table(columns, rows, runs=[setting.runs[0].anchor for setting in best])
