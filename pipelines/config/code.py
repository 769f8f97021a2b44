"""Code of the user's own as it is named on a command line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipelines.system.code import CHOICE

_NAMED = re.compile(r"(data|model|algorithm)=([^,=\[\]{}]+:\w+)")


def named_code(overrides: Sequence[str]) -> list[str]:
    """Return overrides with ``algorithm=FILE.py:CLASS`` written out as ``algorithm=module algorithm.target=...``, and
    keys of such a group as ones that may be new, since only the class knows its settings."""
    written: list[str] = []
    for text in overrides:
        match = _NAMED.fullmatch(text)
        written += [f"{match[1]}={CHOICE}", f"{match[1]}.target={match[2]}"] if match else [text]
    open_groups = tuple(f"{text.partition('=')[0]}." for text in written if text.partition("=")[2] == CHOICE)
    return [f"++{text}" if text.startswith(open_groups) else text for text in written] if open_groups else written
