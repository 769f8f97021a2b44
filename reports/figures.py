"""Figures for a notebook: what `dpfest report` draws, as matplotlib figures.

from reports import figures

figures.frontier("runs")                      # loss against reduction, a panel for each data set
figures.artifact("fig8", "docs/reference", dataset="names")
figures.training("runs/clicks/fest/0a1b2c3d4e5f")  # private: losses of its batches
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from dpfest.errors import UserError
from reports import curves, frontiers
from reports.comparison import Population, populations
from reports.entry import Inputs
from reports.reading import load_runs, measured_in
from reports.registry import chosen
from reports.style import style

__all__ = ["artifact", "frontier", "training"]


def frontier(runs: str | Path = "runs", dataset: str | None = None) -> Figure:
    """Draw the loss of utility against the reduction of the embedding gradient, a panel for each data set.

    Args:
        runs: folder of runs or of run cards, or a file of cards.
        dataset: the only one to draw; None for all.

    Raises:
        UserError: there are no finished runs of DP-SGD and of an algorithm to compare with it.
    """
    found = frontiers.main(_groups(Path(runs), dataset))
    with style():
        drawn = frontiers.picture(found)
    if drawn is None:
        raise UserError(f"{runs} has no runs of DP-SGD with others to compare: dpfest sweep experiment=frontier.")
    return drawn


def artifact(name: str, runs: str | Path = "runs", dataset: str | None = None, report: str | Path = "report") -> Figure:
    """Draw one figure of the report.

    Args:
        name: its id, such as fig8 (`dpfest report --list`).
        runs: folder of runs or of run cards, or a file of cards.
        dataset: the data set to draw it from; None for the first that it can be drawn from.
        report: folder with what `dpfest bench` and `dpfest audit` measured.

    Raises:
        UserError: there is no such artifact, it is a table alone, or there are no runs for it.
    """
    (entry,) = chosen([name])
    groups = _groups(Path(runs), dataset)
    shown = [group for group in groups if entry.shows(group)]
    if entry.experiment and not shown:
        raise UserError(f"{runs} has no runs for {name}: dpfest sweep experiment={entry.experiment}.")
    inputs = Inputs(groups, measured_in(Path(runs), Path(report)))
    drawn = entry.main(groups, shown[0].dataset) if shown else None
    with style():
        figure = entry.content(replace(inputs, drawn=drawn)).figure
    if figure is None:
        raise UserError(f"{name} has no figure" + (", or nothing is measured yet." if entry.figure else ": a table."))
    return figure


def training(run: str | Path) -> Figure:
    """Draw losses, batch sizes and updated coordinates of a run, step by step.

    They are computed from training rows without noise, and epsilon does not cover them: do not publish the figure.

    Raises:
        UserError: the folder has no metrics of a run.
    """
    with style():
        return curves.drawn(curves.metrics_of(Path(run)))


def _groups(runs: Path, dataset: str | None) -> list[Population]:
    if not runs.exists():
        raise UserError(f"There is no folder {runs} of runs.")
    groups = populations(load_runs(runs)[0])
    if dataset is None:
        return groups
    if found := [group for group in groups if group.dataset == dataset]:
        return found
    there = ", ".join(sorted({group.dataset for group in groups})) or "none"
    raise UserError(f"There are no finished runs on {dataset}; there are runs on: {there}.")
