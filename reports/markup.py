"""The little Markdown that captions, notes and cells hold, as HTML."""

from __future__ import annotations

import re
from html import escape


def markup(text: str) -> str:
    """`text` escaped, its `**bold**` and its code in backquotes marked."""
    bold = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(text))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", bold)
