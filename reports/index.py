"""The report as one Markdown page, and the section of each artifact that is also its own file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.entry import Content, Entry
from reports.tables import Table
from reports.write import Draft


def section(
    entry: Entry,
    content: Content,
    missing: list[str],
    claims: Sequence[Mapping[str, Any]],
    where: str,
    command: str,
) -> str:
    """An artifact's caption, what it lacks, its table, the claims that it shows, and the command that remakes it."""
    parts = [f"**{entry.title}.** {content.caption}"]
    if missing:
        parts.append("\n".join(f"> **Incomplete.** {sentence}  " for sentence in missing))
    if content.table is not None:
        parts.append(content.table.markdown().rstrip() if content.table.rows else "*No rows yet.*")
    if claims:
        said = [f"- {c['statement']} **{c['verdict'].capitalize()}.** {c['evidence']}" for c in claims]
        parts.append("\n".join(said))
    if where:
        parts.append(where)
    parts.append(f"Remake: `{command}`")
    return "\n\n".join(parts) + "\n"


def index(
    entries: Sequence[Mapping[str, Any]], claims: Table, left_out: Sequence[Mapping[str, str]], draft: Draft
) -> str:
    """The claims, all artifacts with picture, caption, table and command, then the runs that were left out and why."""
    parts = ["# Report", "Made by `dpfest report` from run directories alone."]
    parts.append("\n".join(f"- [{e['id']}: {e['title']}](#{e['id']}) ({e['status']})" for e in entries))
    parts.append(f"## The paper's claims\n\n{claims.markdown().rstrip()}")
    for entry in entries:
        parts.append(f'<a id="{entry["id"]}"></a>\n\n## {entry["id"]}: {entry["title"]}')
        for number, variant in enumerate(entry["variants"]):
            parts += _variant(variant, draft, heading=number > 0)
    if left_out:
        lines = "\n".join(f"- `{run['path']}`: {run['reason']}" for run in left_out)
        parts.append(f"## Run folders left out\n\n{lines}")
    return "\n\n".join(parts) + "\n"


def _variant(variant: Mapping[str, Any], draft: Draft, heading: bool) -> list[str]:
    parts = []
    if heading:
        parts.append(f"### {variant['heading']}")
    files = {Path(file).suffix: file for file in variant["files"]}
    if ".png" in files:
        parts.append(f"![{variant['name']}]({files['.png']})")
    if ".md" in files:
        parts.append(draft.text(files[".md"]).rstrip())
    links = [
        f"[{suffix[1:].upper()}]({files[suffix]})" for suffix in (".pdf", ".svg", ".png", ".csv") if suffix in files
    ]
    parts.append(" · ".join(links))
    return parts
