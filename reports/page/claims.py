"""The paper's claims, each with its verdict on the runs at hand: the register, its tally, and those of an artifact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any

from reports.claims.estimate import EXPLAINED, FAILS, HOLDS, OPEN, UNTOLD
from reports.markup import badge, markup, scrolled

Claim = Mapping[str, Any]

_LONG = 400  # characters of evidence that are shown at once
_TALLY = {
    HOLDS: "hold",
    FAILS: "do not hold",
    OPEN: "are not decided: not enough runs",
    UNTOLD: "cannot be told on these data and settings",
}


def tally(claims: Sequence[Claim]) -> str:
    """The page's answer: how many claims have each verdict, and which are decided. Nothing where there are none."""
    if not claims:
        return ""
    counts = Counter(claim["verdict"] for claim in claims)
    said = "\n".join(
        f'<li data-status="{escape(verdict)}"><b>{counts[verdict]}</b> {words}</li>'
        for verdict, words in _TALLY.items()
    )
    decided = "\n".join(f"<li>{_linked(claim)}</li>" for claim in claims if claim["verdict"] in (HOLDS, FAILS))
    return (
        f'<p>Of <a href="#claims">{len(claims)} claims</a>, on these runs,</p>\n<ul class="tally">\n{said}\n</ul>'
        + (f'\n<ul class="decided">\n{decided}\n</ul>' if decided else "")
    )


def register(claims: Sequence[Claim], artifacts: Collection[str]) -> str:
    """A table of claims; `artifacts` are those that the page can link to. Nothing where there are no claims."""
    if not claims:
        return ""
    head = "".join(
        f'<th scope="col" role="columnheader">{name}</th>' for name in ("the paper says", "verdict", "these runs say")
    )
    rows = "\n".join(_row(claim, artifacts) for claim in claims)
    table = (
        # On a phone its rows stand one under the other; the roles say that it is a table still.
        '<table role="table"><caption>Claims of the paper and what the runs at hand say of them</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead><tbody role="rowgroup">\n{rows}\n</tbody></table>'
    )
    return (
        '<section aria-labelledby="claims"><h2 id="claims">The paper\'s claims</h2>'
        f"<p>{markup(EXPLAINED)}</p>{scrolled(table, 'claims', 'claims')}</section>"
    )


def verdicts(claims: Sequence[Claim]) -> str:
    """The claims that an artifact shows, each its verdict and a link to the register, where its evidence stands."""
    if not claims:
        return ""
    lines = "\n".join(f"<li>{_linked(claim)}</li>" for claim in claims)
    return f'<ul class="findings">\n{lines}\n</ul>'


def _linked(claim: Claim) -> str:
    return f'{badge(claim["verdict"])} <a href="#claim-{escape(claim["id"])}">{markup(claim["statement"])}</a>'


def _row(claim: Claim, artifacts: Collection[str]) -> str:
    numbers = f' <span class="quiet">{markup(claim["paper"])}.</span>' if claim["paper"] else ""
    shown = [f'<a href="#{escape(name)}">{escape(name)}</a>' for name in claim["artifacts"] if name in artifacts]
    links = f'<p class="quiet shown">{" ".join(shown)}</p>' if shown else ""
    return (
        f'<tr id="claim-{escape(claim["id"])}" role="row"><th scope="row" role="rowheader">'
        f'{markup(claim["statement"])}{numbers} <span class="quiet">{escape(claim["where"])}</span></th>'
        f'<td role="cell">{badge(claim["verdict"])}</td>'
        f'<td role="cell">{_evidence(claim["evidence"])}{links}</td></tr>'
    )


def _evidence(text: str) -> str:
    """A paragraph; a long one opens from where its first sentence ends."""
    end = text.find(". ", 60)
    if len(text) <= _LONG or end < 0:
        return f"<p>{markup(text)}</p>"
    return f"<details><summary>{markup(text[: end + 1])}</summary>{markup(text[end + 2 :])}</details>"
