"""A table, and the two forms in which it is written: CSV for machines, Markdown for readers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column: its name in the CSV, its heading in Markdown, and how a value is worded there."""

    name: str
    heading: str
    word: Any = str


@dataclass(frozen=True)
class Table:
    """Rows of raw values, one a column; None is an absent value (`—` in Markdown, empty in CSV)."""

    columns: Sequence[Column]
    rows: list[Sequence[Any]] = field(default_factory=list)

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows([[_raw(value) for value in row] for row in self.rows])
        return out.getvalue()

    def markdown(self) -> str:
        lines = [_line(column.heading for column in self.columns), _line("---" for _ in self.columns)]
        for row in self.rows:
            cells = zip(self.columns, row, strict=True)
            lines.append(_line("—" if value is None else column.word(value) for column, value in cells))
        return "\n".join(lines) + "\n"


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _raw(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "inf" if math.isinf(value) else f"{value:.10g}"
    return "" if value is None else value
