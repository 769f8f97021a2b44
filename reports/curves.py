"""The private page of a run: losses, batch sizes and updated coordinates of its steps, for its owner's eyes.

They are computed from training rows without noise, so that no epsilon covers them: the page is written to the run's
`private/`, readable by its owner alone, and is no part of the report.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.runs.release import PRIVATE
from pipelines.system.files import OWNER_ONLY, write_atomically
from reports.style import WIDTH, Drawing, style
from reports.templates import render

PAGE = "curves.html"
NOTE = "Computed from training rows without noise: epsilon does not cover these numbers. Do not publish them."
_LABELS = {
    "loss": "loss of the batch",
    "examples": "examples in the batch",
    "coordinates": "updated coordinates",
    "auc": "AUC",
    "accuracy": "accuracy",
}

Metrics = Sequence[Mapping[str, Any]]


def metrics_of(run: Path) -> Metrics:
    """Return the metrics that a run has logged, in their order; a last line that is being written is left out.

    Raises:
        UserError: the folder has none.
    """
    path = run / PRIVATE / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(
            f"{run} is not the folder of a run that has begun: it has no {PRIVATE}/metrics.jsonl."
        ) from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise UserError(f"{path}, line {number}, is damaged ({error}).") from error
    if not any("step" in line for line in found):
        raise UserError(f"{run} has logged no step yet.")
    return found


def drawn(metrics: Metrics) -> Drawing:
    """Draw each number that metrics hold by the step, a panel each; the splits of a name share a panel."""
    names = [name for name in _LABELS if any(isinstance(line.get(name), int | float) for line in metrics)]
    figure = Drawing(WIDTH, 0.3 + 1.7 * ((len(names) + 1) // 2))
    grid = figure.subplots((len(names) + 1) // 2, 2, squeeze=False)
    for axes, name in zip(grid.flat, names, strict=False):
        for split in dict.fromkeys(line["split"] for line in metrics):
            points = [(m["step"], m[name]) for m in metrics if m["split"] == split and m.get(name) is not None]
            if points:
                few = split != "train" or len(points) == 1
                axes.plot(
                    *zip(*points, strict=True), marker="o" if few else "", markersize=3, label=split, linewidth=0.9
                )
        axes.set_xlabel("step", fontsize=8)
        axes.set_title(_LABELS[name], fontsize=8.5)
        axes.tick_params(labelsize=7.5)
        if len(axes.lines) > 1:
            axes.legend(fontsize=7.5)
    for axes in grid.flat[len(names) :]:
        axes.set_axis_off()
    return figure


def write_page(run: Path) -> Path:
    """Write the private page of a run, finished or not; returns its path.

    Raises:
        UserError: the folder has no metrics of a run.
    """
    metrics = metrics_of(run)
    picture = io.StringIO()
    with style():
        drawn(metrics).savefig(picture, format="svg", metadata={"Date": None, "Creator": None})
    svg = picture.getvalue()
    title = "/".join(run.resolve().parts[-3:])
    last = {line["split"]: line for line in metrics}
    text = render("curves.html.jinja", title=title, note=NOTE, picture=svg[svg.index("<svg") :], last=last)
    path = run / PRIVATE / PAGE
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"), OWNER_ONLY)
    return path
