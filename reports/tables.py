"""Tables, written as CSV for machines and as Markdown, HTML and LaTeX for readers."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reports.templates import render
from reports.text import latex, markdown


@dataclass(frozen=True)
class Column:
    """A column: name in the CSV, heading for readers, and format of a value for readers (may use `**bold**`)."""

    name: str
    heading: str
    word: Any = str


@dataclass(frozen=True)
class Table:
    """Rows of raw values, one per column; None is an absent value (`—` in Markdown, empty in CSV)."""

    columns: Sequence[Column]
    rows: list[Sequence[Any]] = field(default_factory=list)
    heads: int = 1  # number of leading columns that identify a row
    runs: list[str] = field(default_factory=list)  # the run that each row shows (`Run.anchor`), or empty

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows([[_raw(value) for value in row] for row in self.rows])
        return out.getvalue()

    def markdown(self) -> str:
        lines = [[column.heading for column in self.columns], ["---"] * len(self.columns), *self._worded()]
        return "".join("| " + " | ".join(map(_cell, cells)) + " |\n" for cells in lines)

    def html(self, caption: str) -> str:
        """Return a `<table>`."""
        kinds = [self._kind(place) for place in range(len(self.columns))]
        heads = [place < self.heads for place in range(len(self.columns))]
        runs = self.runs or [""] * len(self.rows)
        cells = [list(zip(words, kinds, heads, strict=True)) for words in self._worded()]
        rows = zip(map(self._epsilon, self.rows), runs, cells, strict=True)
        columns = list(zip(self.columns, kinds, strict=True))
        return render("table.html.jinja", caption=caption, columns=columns, rows=list(rows))

    def latex(self) -> str:
        """Return a `tabular` in ASCII that needs no package."""
        kinds = "".join("r" if "number" in self._kind(i) else "l" for i in range(len(self.columns)))
        rows = [[latex(column.heading) for column in self.columns]]
        rows += [[latex(word) for word in words] for words in self._worded()]
        head, *body = [" & ".join(row) + r" \\" for row in rows]
        opening, rule, closing = rf"\begin{{tabular}}{{{kinds}}}", r"\hline", r"\end{tabular}"
        return "\n".join([opening, rule, head, rule, *body, rule, closing, ""])

    def _worded(self) -> list[list[str]]:
        """Return every cell as text."""
        pairs = [zip(self.columns, row, strict=True) for row in self.rows]
        return [["—" if value is None else str(column.word(value)) for column, value in cells] for cells in pairs]

    def _kind(self, place: int) -> str:
        """Return `number` for a column of numbers, which are right-aligned, `long` for one of long texts."""
        values = [row[place] for row in self.rows if row[place] is not None]
        if values and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            return "number"
        return "long" if any(len(str(value)) > 30 for value in values) else ""

    def _epsilon(self, row: Sequence[Any]) -> str:
        """Return the target ε of a row, if the table has that column."""
        values = dict(zip((column.name for column in self.columns), row, strict=True))
        epsilon = values.get("epsilon")
        return f"{epsilon:g}" if isinstance(epsilon, int | float) else ""


def _cell(words: str) -> str:
    """Format a cell of a Markdown table, in which bars in code must be escaped as well."""
    return re.sub(r"(?<!\\)\|", r"\|", markdown(words))


def _raw(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "inf" if math.isinf(value) else f"{value:.10g}"
    return "" if value is None else value
