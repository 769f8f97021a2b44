"""Pieces of HTML that every part of the page is made of, and the little Markdown of captions and cells."""

from __future__ import annotations

import re
from html import escape


def markup(text: str) -> str:
    """`text` escaped, its `**bold**` and its code in backquotes marked."""
    bold = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(text))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", bold)


def badge(status: str) -> str:
    """A status or a verdict in a word; its colour says nothing that the word does not."""
    return f'<span class="badge" data-status="{escape(status)}">{escape(status)}</span>'


def scrolled(content: str, label: str, kind: str) -> str:
    """A region that scrolls by itself, by keyboard too, where it is wider than the page."""
    return f'<div class="scroll {kind}" role="group" aria-label="{escape(label)}" tabindex="0">{content}</div>'
