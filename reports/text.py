"""Text with `**bold**` and `` `code` `` as HTML, Markdown and LaTeX.

Everything else is escaped: names from runs are shown verbatim and never interpreted as markup.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

from markupsafe import Markup, escape
from pylatexenc.latexencode import UnicodeToLatexEncoder

_MARKED = re.compile(r"\*\*(?P<bold>.+?)\*\*|`(?P<code>[^`]+)`")
_LATEX = UnicodeToLatexEncoder(
    unknown_char_policy=lambda character: f"[{unicodedata.name(character, hex(ord(character))).lower()}]",
    unknown_char_warning=False,
)


def markup(text: str) -> Markup:
    """Return HTML."""
    bold = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(text)))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", bold))


def markdown(text: str) -> str:
    """Return Markdown on one line, for a table's cell or a paragraph."""
    parts, end = [], 0
    for match in _MARKED.finditer(text):
        bold, inner = match["bold"], match["code"]
        parts += [_escaped(text[end : match.start()]), code(inner) if inner else f"**{_escaped(bold)}**"]
        end = match.end()
    return "".join([*parts, _escaped(text[end:])])


def code(text: str) -> str:
    """Return a span of code in Markdown, whatever its content."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{_line(text)}{padding}{fence}"


def latex(text: str) -> str:
    """Return LaTeX in ASCII; a character without a LaTeX form is named, not dropped."""
    bold = re.split(r"\*\*(.+?)\*\*", text)
    return "".join(rf"\textbf{{{_plain(part)}}}" if i % 2 else _plain(part) for i, part in enumerate(bold))


@cache
def _plain(text: str) -> str:
    return _LATEX.unicode_to_latex(text).replace("|", r"\ensuremath{|}")


def _escaped(text: str) -> str:
    """Escape Markdown's special characters; an underscore within a word is not special."""
    return re.sub(r"[\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w)", r"\\\g<0>", _line(text))


def _line(text: str) -> str:
    return re.sub(r"\s*[\r\n]+\s*", " ", text)
