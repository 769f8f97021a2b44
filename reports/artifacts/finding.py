"""What was measured once, for questions that are answered: tables in `reports/findings`, shown as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reports.algorithms import label
from reports.entry import Content, Inputs
from reports.tables import Column, Table
from reports.wording import flag, number

FINDINGS = Path(__file__).parents[1] / "findings"
ONCE = " Measured once: the code that did is in the history, at commit 46f4d1b."
_WORDS: dict[str, Callable[[Any], str]] = {"label": label, "number": number, "flag": flag}


def of(name: str) -> Callable[[Inputs], Content]:
    """Return the artifact of a finding: a caption, columns (name, heading, format of a value) and rows."""

    def content(inputs: Inputs) -> Content:
        found = json.loads((FINDINGS / f"{name}.json").read_text(encoding="utf-8"))
        columns = [
            Column(one["name"], one["heading"], _WORDS.get(word := one.get("word", "{}"), word.format))
            for one in found["columns"]
        ]
        return Content(found["caption"] + ONCE, table=Table(columns, found["rows"]))

    return content
