"""The register of the paper's claims, each with its verdict on the runs at hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any

from reports.markup import markup
from reports.page.artifacts import badge, scrolled

_LONG = 400  # characters of evidence that are shown at once


def register(claims: Sequence[Mapping[str, Any]], artifacts: Collection[str]) -> str:
    """A table of claims; `artifacts` are those that the page can link to. Nothing where there are no claims."""
    if not claims:
        return ""
    counts = Counter(claim["verdict"] for claim in claims)
    summary = " · ".join(f"{verdict}: {count}" for verdict, count in counts.items())
    head = "".join(f'<th scope="col" role="columnheader">{name}</th>' for name in ("claim", "verdict", "evidence"))
    rows = "\n".join(_row(claim, artifacts) for claim in claims)
    table = (
        # On a phone its rows stand one under the other; the roles say that it is a table still.
        '<table role="table"><caption>Claims of the paper and what the runs at hand say of them</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead><tbody role="rowgroup">\n{rows}\n</tbody></table>'
    )
    return (
        '<section aria-labelledby="claims"><h2 id="claims">The paper\'s claims</h2>'
        f"<p>{escape(summary)}</p>{scrolled(table, 'claims', 'claims')}</section>"
    )


def _row(claim: Mapping[str, Any], artifacts: Collection[str]) -> str:
    where = f' <span class="quiet">{escape(claim["where"])}</span>' if claim.get("where") else ""
    known = [escape(name) for name in claim.get("artifacts", ()) if name in artifacts]
    shown = [f'<a href="#{name}">{name}</a>' for name in known]
    links = f' <span class="quiet">{", ".join(shown)}</span>' if shown else ""
    said = markup(claim.get("statement") or claim["id"])
    return (
        f'<tr id="claim-{escape(claim["id"])}" role="row"><th scope="row" role="rowheader">{said}{where}</th>'
        f'<td role="cell">{badge(claim["verdict"])}</td>'
        f'<td role="cell">{_evidence(claim["evidence"])}{links}</td></tr>'
    )


def _evidence(evidence: Any) -> str:
    """A sentence, or several; a long one opens from where its first sentence ends."""
    text = evidence if isinstance(evidence, str) else " ".join(map(str, evidence))
    end = text.find(". ", 60)
    if len(text) <= _LONG or end < 0:
        return markup(text)
    return f"<details><summary>{markup(text[: end + 1])}</summary>{markup(text[end + 2 :])}</details>"
