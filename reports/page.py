"""index.html: a document from report.json and the files beside it, which needs no other file."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from pipelines.config.settings import SCHEMAS, schema
from pipelines.data.provenance import Provenance
from reports import frontiers
from reports.claims.claim import DECIDED, DIFFERS, PARTLY
from reports.claims.estimate import CROSSES, ENOUGH, FAILS, HOLDS, INCONCLUSIVE, OPEN, TRAINING
from reports.comparison import Population
from reports.found import Found
from reports.frontiers import Frontier
from reports.reference import ALARM, Agreement
from reports.run_pages import RunPage
from reports.svg import inline
from reports.templates import render
from reports.wording import described, number
from reports.write import Draft

_VERDICTS = {
    HOLDS: "hold",
    FAILS: "do not hold",
    CROSSES: "are of curves that cross",
    PARTLY: "hold at some ε only",
    DIFFERS: "differ by data",
    OPEN: "are not shown",
    INCONCLUSIVE: "are inconclusive on these data and settings",
}
_LONG = 400  # characters of evidence that are shown at once
_PLAIN = 1_000_000  # characters of figures and tables; a page with more holds them compressed


def page(
    draft: Draft,
    entries: Sequence[dict[str, Any]],
    claims: Sequence[dict[str, Any]],
    left_out: Sequence[Mapping[str, str]],
    groups: Sequence[Population],
    runs: Sequence[RunPage],
    curves: Sequence[Frontier] = (),
    reference: Sequence[Agreement] | None = None,
) -> str:
    """Return the page.

    Args:
        draft: the report's files.
        entries, claims, left_out: as in `report.json`.
        groups: populations of the runs.
        runs: the pages of the runs.
        curves: what the picture at the page's beginning was drawn from.
        reference: their agreement with the reference's runs.
    """
    links = {anchor: link for one in runs for anchor, link in one.links.items()}
    shown = [
        entry | {"variants": [_variant(entry, v, draft, links, claims) for v in entry["variants"]]} for entry in entries
    ]
    parts = [(variant, name) for entry in shown for variant in entry["variants"] for name in ("picture", "table")]
    packed = sum(len(variant[name] or "") for variant, name in parts) > _PLAIN
    for variant, name in parts if packed else ():
        variant[name] = _packed(variant[name])
    return render(
        "page.html.jinja",
        entries=shown,
        ids={entry["id"] for entry in entries},
        found=Found.of(claims, groups),
        glance=_glance(curves, draft) if curves else None,
        claims=[claim | {"evidence": _folded(claim["evidence"])} for claim in claims],
        matrix=_matrix(claims, groups),
        verdicts=_VERDICTS,
        decisive=(*DECIDED, DIFFERS),
        enough=ENOUGH,
        retraining=TRAINING["auc"],
        groups=[(group.dataset, described(group)) for group in groups],
        origins=_origins(groups),
        filters=_filters(entries, groups),
        packed=packed,
        pages=runs,
        left_out=left_out,
        reference=Markup(draft.text("tables/reference.html")) if reference else None,
        alarm=ALARM,
    )


def _origins(groups: Sequence[Population]) -> dict[str, Provenance]:
    """Return origin and licence of the real data that come with the project, by dataset."""
    known = dict.fromkeys(group.dataset for group in groups if group.dataset in SCHEMAS["data"])
    origins = {name: schema("data", name).provenance for name in known}
    return {name: origin for name, origin in origins.items() if origin}


def _matrix(claims: Sequence[Mapping[str, Any]], groups: Sequence[Population]) -> dict[str, list[tuple[str, str, str]]]:
    """Return id, verdict and interval of the claims judged on each dataset, in the order of the runs, without datasets
    on which no claim can be tested."""
    with_claims = {name for claim in claims for name in claim["datasets"]}
    names = [group.dataset for group in groups if group.untestable is None and group.dataset in with_claims]
    return {
        name: [
            (claim["id"], judged["verdict"], _interval(judged["interval"]))
            for claim in claims
            if (judged := claim["datasets"].get(name))
        ]
        for name in dict.fromkeys(names)
    }


def _interval(interval: Mapping[str, Any] | None) -> str:
    """Return an interval in words; empty if there is none."""
    if interval is None or interval["low"] is None:
        return ""
    low, high = (None if bound is None else f"{bound:.4g}" for bound in (interval["low"], interval["high"]))
    return f"{interval['of']}: {low} to {high}" if high else f"{interval['of']}: {low} or more"


def _glance(curves: Sequence[Frontier], draft: Draft) -> dict[str, Any]:
    """Return the picture that the page begins with, its caption and its values."""
    caption = frontiers.caption(curves)
    picture = inline(draft.text("figures/frontiers.svg"), f"{caption} Its values are in the table below.", "glance")
    return {"picture": Markup(picture), "caption": caption, "table": Markup(draft.text("tables/frontiers.html"))}


def _variant(
    entry: Mapping[str, Any],
    variant: dict[str, Any],
    draft: Draft,
    links: Mapping[str, str],
    claims: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Add the figure and the table of one population; the figure's words for screen readers say what it shows."""
    files = {Path(file).suffix: file for file in variant["files"]}
    picture = table = None
    if ".svg" in files and variant["status"] != "missing":
        shown = [claim for claim in claims if entry["id"] in claim["artifacts"]]
        found = (f"{re.sub('[*`]', '', c['statement'])} {_judged(c, variant['dataset'])}." for c in shown)
        words = " ".join(filter(None, (f"{entry['title']}.", *found, variant["values"])))
        picture = Markup(inline(draft.text(files[".svg"]), words))
    if ".html" in files:
        table = Markup(_linked(draft.text(files[".html"]), links))
    return variant | {"picture": picture, "table": table}


def _packed(part: Markup | None) -> Markup | None:
    """Return a figure or a table compressed; page.js unpacks it when a reader comes near."""
    if part is None:
        return None
    data = base64.b64encode(zlib.compress(part.encode(), 9)).decode()
    return Markup(f'<script type="text/plain" class="packed">{data}</script>')


def _judged(claim: Mapping[str, Any], dataset: str | None) -> str:
    """Return a claim's verdict on a dataset, or on all."""
    return (claim["datasets"].get(dataset) or claim)["verdict"]


def _linked(table: str, links: Mapping[str, str]) -> str:
    """Link each row of a table to its run, from the last of its heading cells."""

    def link(row: re.Match[str]) -> str:
        link = links.get(unescape(row[2]))
        return row[0] if link is None else f'{row[1]}{row[3]}<a href="{escape(link)}">{row[4]}</a></th><td'

    return re.sub(r'(<tr[^>]* data-run="([^"]*)">)((?:<th[^>]*>.*?</th>)*<th[^>]*>)(.*?)</th><td', link, table)


def _folded(evidence: str) -> tuple[str, str]:
    """Split a long text after its first sentence into the shown and the folded part."""
    end = evidence.find(". ", 60)
    return (evidence, "") if len(evidence) <= _LONG or end < 0 else (evidence[: end + 1], evidence[end + 2 :])


def _filters(entries: Sequence[Mapping[str, Any]], groups: Sequence[Population]) -> list[tuple[str, str, list[str]]]:
    """Return the filters by data and ε, with their choices."""
    shown = {variant["dataset"] for entry in entries for variant in entry["variants"]} - {None}
    epsilons = [number(epsilon) for epsilon in sorted({e for group in groups for e in group.epsilons})]
    return [
        ("dataset", "Data", sorted(shown | {group.dataset for group in groups})),
        ("epsilon", "ε", epsilons),
    ]
