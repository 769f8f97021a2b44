"""Pages of all runs with their released settings and ledgers, one for each population; the report links to them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.system.plain import yaml_value
from reports.artifacts.frontier import in_order
from reports.comparison import Population, Setting, heading
from reports.runs import Run
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
    for setting, run in ((of, run) for of in (*in_order(group), *searched) for run in of.runs):
        if run.id not in seen:
            seen.add(run.id)
            yield {
                "run": run,
                "variant": setting.variant,
                "settings": settings_text(setting, group) + ("; released by a private search" * bool(run.search)),
                "metric": metric(group),
                "files": {"config.yaml": _settings(run), "ledger.json": _ledger(run)},
            }


def _settings(run: Run) -> str | None:
    """Return the released settings in JSON, which is YAML and quickly written."""
    if run.card is not None:
        return json.dumps(run.card.config, indent=1, ensure_ascii=False)
    text = run.released("config.yaml")
    return text and json.dumps(yaml_value(text), indent=1, ensure_ascii=False)


def _ledger(run: Run) -> str | None:
    if run.card is not None:
        return json.dumps(run.card.ledger, ensure_ascii=False)
    text = run.released("ledger.json")
    return text and json.dumps(json.loads(text), ensure_ascii=False)
