"""The whole page, from what is in `report.json`, the figures and tables beside it, and the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from reports.comparison import Population
from reports.markup import badge, scrolled
from reports.page.artifacts import article
from reports.page.claims import register, tally
from reports.page.runs import run_list
from reports.svg import inline
from reports.wording import number, seeds_of
from reports.write import Draft

Entry = Mapping[str, Any]
CENTRAL = "fig8"
"""The artifact that the page begins with."""


def page(
    draft: Draft,
    entries: Sequence[Entry],
    claims: Sequence[Entry],
    left_out: Sequence[Mapping[str, str]],
    groups: Sequence[Population],
) -> str:
    """One HTML document with its style, script and figures inside.

    `entries`, `claims` and `left_out` are those of `report.json`; `groups` holds the runs that are shown one by one.
    """
    places = {run.anchor for group in groups for run in group.runs}
    parts = {name: _resource(f"page.{name}") for name in ("css", "js")}
    return Template(_resource("page.html")).substitute(
        parts,
        tally=tally(claims),
        about=_about(groups),
        complete=_complete(entries),
        contents="\n".join(_link(entry) for entry in entries),
        filters=_filters(entries, groups),
        claims=register(claims, {entry["id"] for entry in entries}),
        artifacts="\n".join(article(entry, draft, claims, places) for entry in entries),
        glance=_glance(entries, draft),
        runs=run_list(groups, draft.folder),
        left_out=_left_out(left_out),
    )


def _resource(name: str) -> str:
    return (files("reports.page") / name).read_text(encoding="utf-8")


def _about(groups: Sequence[Population]) -> str:
    """What was run: a line a population."""
    if not groups:
        return "<p>No finished runs yet.</p>"
    told = "\n".join(f"<li><b>{escape(group.dataset)}</b>: {escape(_described(group))}</li>" for group in groups)
    return f"<ul>\n{told}\n</ul>"


def _glance(entries: Sequence[Entry], draft: Draft) -> str:
    """The central comparison, before all that stands in the paper's order; nothing until it can be drawn."""
    entry = next((entry for entry in entries if entry["id"] == CENTRAL), None)
    if entry is None or not entry["variants"] or entry["status"] == "missing":
        return ""
    variant = entry["variants"][0]
    svg = next(draft.text(file) for file in variant["files"] if file.endswith(".svg"))
    picture = scrolled(
        inline(svg, f"{entry['title']}. Its values are in the table of {CENTRAL}.", "glance"),
        "the central comparison",
        "card",
    )
    return (
        f'<section class="variant" data-dataset="{escape(variant["dataset"])}" aria-labelledby="glance">'
        f'<h2 id="glance">At a glance</h2><figure>{picture}<figcaption><p>Utility against the reduction of the '
        f"embedding gradient, every setting of every rule on {escape(variant['dataset'])}: "
        f'<a href="#{CENTRAL}">{CENTRAL}</a>.</p>'
        "</figcaption></figure></section>"
    )


def _described(group: Population) -> str:
    epsilons = ", ".join(number(epsilon) for epsilon in group.epsilons)
    rows = group.embedding_rows
    said = (
        f"{len(group.runs)} run{'s' * (len(group.runs) != 1)} of {group.model}",
        f"N = {group.examples:,}",
        f"{rows:,} embedding rows" if rows else "",
        f"ε = {epsilons} ({group.fidelity} accounting)" if epsilons else "no privacy",
        seeds_of(group),
        group.profile and f"profile {group.profile}",
    )
    return ", ".join(filter(None, said))


def _link(entry: Entry) -> str:
    name, title = escape(entry["id"]), escape(entry["title"])
    lacking = "" if entry["status"] == "complete" else f" {badge(entry['status'])}"
    return f'<li><a href="#{name}"><b>{name}</b> {title}</a>{lacking}</li>'


def _complete(entries: Sequence[Entry]) -> str:
    complete = sum(entry["status"] == "complete" for entry in entries)
    return f"{complete} of {len(entries)} figures and tables are complete:"


def _filters(entries: Sequence[Entry], groups: Sequence[Population]) -> str:
    """Two choices, of what there is to choose from."""
    shown = {variant["dataset"] for entry in entries for variant in entry["variants"]} - {None}
    data = sorted(shown | {group.dataset for group in groups})
    epsilons = [number(epsilon) for epsilon in sorted({e for group in groups for e in group.epsilons})]
    return _choice("dataset", "Data", data) + _choice("epsilon", "ε", epsilons)


def _choice(name: str, label: str, values: Sequence[str]) -> str:
    options = "".join(f'<option value="{escape(value)}">{escape(value)}</option>' for value in values)
    return f'<label>{label} <select name="{name}"><option value="">all</option>{options}</select></label>'


def _left_out(left_out: Sequence[Mapping[str, str]]) -> str:
    if not left_out:
        return ""
    lines = "".join(f"<li><code>{escape(run['path'])}</code>: {escape(run['reason'])}</li>" for run in left_out)
    return f'<section aria-labelledby="left-out"><h2 id="left-out">Run folders left out</h2><ul>{lines}</ul></section>'
