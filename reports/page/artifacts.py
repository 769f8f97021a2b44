"""One article an artifact: its figure, caption, table, status, and the command that remakes it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from html import escape, unescape
from pathlib import Path
from typing import Any

from reports.markup import badge, markup, scrolled
from reports.page.claims import verdicts
from reports.svg import inline
from reports.wording import number
from reports.write import Draft

Entry = Mapping[str, Any]


def article(entry: Entry, draft: Draft, claims: Sequence[Entry], runs: Collection[str]) -> str:
    """An artifact with all that it shows: one part a population. `claims` are those of the register, `runs` the places
    of runs in the page."""
    name = escape(entry["id"])
    parts = "\n".join(
        _variant(entry, variant, draft, runs, heading=i > 0) for i, variant in enumerate(entry["variants"])
    )
    return (
        f'<article id="{name}" aria-labelledby="{name}-title">\n'
        f'<h3 id="{name}-title">{name}: {escape(entry["title"])} {badge(entry["status"])}{_counted(entry)}</h3>\n'
        f"{verdicts([claim for claim in claims if entry['id'] in claim['artifacts']])}\n{parts}\n</article>"
    )


def _counted(entry: Entry) -> str:
    if entry["experiment"] is None:
        return ""
    needed = "" if entry["runs_needed"] is None else f" of {entry['runs_needed']}"
    return f' <span class="quiet">{entry["runs_done"]}{needed} runs</span>'


def _variant(entry: Entry, variant: Entry, draft: Draft, runs: Collection[str], heading: bool) -> str:
    """What one population shows, or what there is without one."""
    found = {Path(file).suffix: file for file in variant["files"]}
    caption = f"<p>{markup(variant['caption'])}</p>"
    if variant["provenance"]:
        caption += f'<p class="quiet">{escape(variant["provenance"])}</p>'
    parts = [f'<section class="variant"{_choices(variant)}>']
    if heading:
        parts.append(f"<h4>{escape(variant['heading'])}</h4>")
    if variant["missing"]:
        lacking = "<br>".join(markup(sentence) for sentence in variant["missing"])
        parts.append(f'<p class="missing"><strong>Incomplete.</strong> {lacking}</p>')
    if ".svg" in found and variant["status"] != "missing":
        label = f"{entry['title']}. {variant['values']}"
        picture = scrolled(inline(draft.text(found[".svg"]), label), f"figure {variant['name']}", "card")
        parts.append(f"<figure>{picture}<figcaption>{caption}</figcaption></figure>")
    else:
        parts.append(caption)
    if ".html" in found:
        parts.append(scrolled(_linked(draft.text(found[".html"]), runs), f"table {variant['name']}", "table"))
    parts.append(f'<p class="command"><span>Remake:</span> <code>{escape(variant["command"])}</code></p>')
    parts.append(_links(variant))
    return "\n".join([*filter(None, parts), "</section>"])


def _linked(table: str, runs: Collection[str]) -> str:
    """A table whose rows lead to their runs, from the last of the cells that say what they are of."""

    def link(row: re.Match[str]) -> str:
        if unescape(row[2]) not in runs:
            return row[0]
        return f'{row[1]}{row[3]}<a href="#{row[2]}">{row[4]}</a></th><td'

    return re.sub(r'(<tr[^>]* data-run="([^"]*)">)((?:<th[^>]*>.*?</th>)*<th[^>]*>)(.*?)</th><td', link, table)


def _choices(variant: Entry) -> str:
    """By what the page's filter chooses."""
    data = f' data-dataset="{escape(variant["dataset"])}"' if variant["dataset"] else ""
    epsilons = " ".join(number(epsilon) for epsilon in variant["epsilons"])
    return data + (f' data-epsilons="{escape(epsilons)}"' if epsilons else "")


def _links(variant: Entry) -> str:
    kinds = {".pdf": "PDF", ".svg": "SVG", ".png": "PNG", ".csv": "CSV", ".tex": "LaTeX", ".md": "Markdown"}
    links = [
        f'<a href="{escape(file)}">{kinds[Path(file).suffix]}</a>'
        for file in variant["files"]
        if Path(file).suffix in kinds
    ]
    return f'<p class="files quiet">Files: {" · ".join(links)}</p>'
