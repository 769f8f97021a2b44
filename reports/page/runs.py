"""Every run with its configuration and ledger, as they may leave, one click away."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from reports.algorithms import label
from reports.artifacts.frontier import in_order
from reports.comparison import Population, Setting, heading
from reports.runs import Run
from reports.wording import metric, multiple, number, settings_text, utility

# Beyond so many characters of configurations and ledgers the page links to the files of further runs.
EMBEDDED = 8_000_000
_FILES = ("config.yaml", "ledger.json")


def run_list(groups: Sequence[Population], report: Path) -> str:
    """All runs, by what they are compared with; a run without privacy that stands in two groups is listed once."""
    parts, seen, room = [], set[Path](), EMBEDDED
    for group in groups:
        lines = []
        for setting, run in ((of, run) for of in in_order(group) for run in of.runs):
            if run.path not in seen:
                seen.add(run.path)
                lines.append(_details(run, setting, group, report, room))
                room -= len(lines[-1])
        if lines:
            lines = [f"<h3>{escape(heading(group, groups))}</h3>", *lines]
            parts.append('<section class="runs">' + "\n".join([*lines, "</section>"]))
    return "\n".join(parts) or "<p>No finished runs yet.</p>"


def _details(run: Run, setting: Setting, group: Population, report: Path, room: int) -> str:
    """One line with what the run is and scored; opened, it shows the files."""
    epsilon = "" if run.target_epsilon is None else f' data-epsilon="{number(run.target_epsilon)}"'
    said = f"test {metric(group)} {utility(run.test)}, reduction {multiple(_reduction(run))}, seed {run.seed}"
    head = (
        f"<strong>{escape(label(setting.variant))}</strong> <span>{escape(settings_text(setting, group))}</span> "
        f'<span class="quiet">{escape(said)}</span>'
    )
    place = "/".join(run.path.parts[-3:])
    files = "".join(_file(run.path / "release" / name, f"{name} of {place}", report, room) for name in _FILES)
    return (
        f'<details class="run" id="{escape(run.anchor)}" data-dataset="{escape(run.dataset)}"{epsilon}>'
        f'<summary>{head}</summary><p class="quiet">{escape(place)}</p>{files}</details>'
    )


def _file(path: Path, label: str, report: Path, room: int) -> str:
    if not path.exists():
        return f'<p class="quiet">There is no {path.name}.</p>'
    text = escape(path.read_text(encoding="utf-8", errors="replace").rstrip())
    if len(text) > room:
        link = Path(os.path.relpath(path, report)).as_posix()
        return f'<p><a href="{escape(link)}">{path.name}</a></p>'
    return f'<h4>{path.name}</h4><pre tabindex="0" role="group" aria-label="{escape(label)}">{text}</pre>'


def _reduction(run: Run) -> float:
    return run.parameters / run.coordinates if run.coordinates > 0 else float("inf")
