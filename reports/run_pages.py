"""Pages of all runs with their released settings and ledgers, one for each population; the report links to them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.runs.release import CONFIG, LEDGER
from reports.artifacts.frontier import in_order
from reports.comparison import Population, heading
from reports.runs import Run
from reports.setting import Setting
from reports.templates import render
from reports.wording import metric, settings_text

FOLDER = "runs"


@dataclass(frozen=True)
class RunPage:
    """The page of a population's runs: its file within the report, its heading, and its runs."""

    file: str
    heading: str
    items: Sequence[dict[str, Any]]

    @property
    def links(self) -> dict[str, str]:
        """The address of each run by its anchor, as seen from the report's folder."""
        return {item["run"].anchor: f"{self.file}#{item['run'].anchor}" for item in self.items}

    def text(self) -> str:
        """Return the page."""
        return render("runs.html.jinja", heading=self.heading, items=self.items)


def run_pages(groups: Sequence[Population]) -> list[RunPage]:
    """Return a page for each population with runs; a run without privacy that belongs to two stands in the first."""
    seen, pages = set[str](), list[RunPage]()
    for group in groups:
        if items := list(_items(group, seen)):
            name = re.sub(r"[^\w+-]+", "_", group.dataset)  # names from runs must not lead out of the folder
            pages.append(RunPage(f"{FOLDER}/{len(pages) + 1:02}-{name}.html", heading(group, groups), items))
    return pages


def _items(group: Population, seen: set[str]) -> Iterator[dict[str, Any]]:
    """Yield a population's runs, at the end those that private searches released."""
    searched = [Setting("", (run,)) for run in group.searched]
    for setting in (*in_order(group), *searched):
        settings = settings_text(setting, group)
        for run in (run for run in setting.runs if run.id not in seen):
            seen.add(run.id)
            yield {
                "run": run,
                "variant": setting.variant,
                "settings": settings + ("; released by a private search" * bool(run.search)),
                "metric": metric(group),
                "files": {name: _text(run, name) for name in (CONFIG, LEDGER)},
            }


def _text(run: Run, name: str) -> str | None:
    """Return a released file in JSON, the ledger on one line."""
    content = run.released(name)
    return None if content is None else json.dumps(content, indent=1 if name == CONFIG else None, ensure_ascii=False)
