"""A table, and the forms in which it is written: CSV for machines, Markdown, HTML and LaTeX for readers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from reports.latex import latex
from reports.markup import markup


@dataclass(frozen=True)
class Column:
    """A column: its name in the CSV, its heading for readers, and how a value is worded for them (`**bold**` is)."""

    name: str
    heading: str
    word: Any = str


@dataclass(frozen=True)
class Table:
    """Rows of raw values, one a column; None is an absent value (`—` in Markdown, empty in CSV)."""

    columns: Sequence[Column]
    rows: list[Sequence[Any]] = field(default_factory=list)
    heads: int = 1  # columns from the first that say what a row is of
    runs: list[str] = field(default_factory=list)  # of each row, the run that it shows (`Run.anchor`), or nothing

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows([[_raw(value) for value in row] for row in self.rows])
        return out.getvalue()

    def markdown(self) -> str:
        lines = [_line(column.heading for column in self.columns), _line("---" for _ in self.columns)]
        return "\n".join([*lines, *(_line(words) for words in self._worded())]) + "\n"

    def html(self, caption: str) -> str:
        """A `<table>`; a row of one target ε says so in `data-epsilon`, for a page that filters, and one of a run in
        `data-run`, for a page that holds it."""
        head = "".join(f'<th scope="col"{self._kind(i)}>{escape(c.heading)}</th>' for i, c in enumerate(self.columns))
        lines = [f"<table><caption>{escape(caption)}</caption>", f"<thead><tr>{head}</tr></thead>", "<tbody>"]
        runs = self.runs or [""] * len(self.rows)
        for row, words, run in zip(self.rows, self._worded(), runs, strict=True):
            cells = "".join(self._cell(i, word) for i, word in enumerate(words))
            link = f' data-run="{escape(run)}"' if run else ""
            lines.append(f"<tr{self._epsilon(row)}{link}>{cells}</tr>")
        if not self.rows:
            lines.append(f'<tr><td colspan="{len(self.columns)}">No rows yet.</td></tr>')
        return "\n".join([*lines, "</tbody></table>"]) + "\n"

    def latex(self) -> str:
        """A `tabular` of plain ASCII that needs no package."""
        kinds = "".join("r" if "number" in self._kind(i) else "l" for i in range(len(self.columns)))
        rows = [[latex(column.heading) for column in self.columns]]
        rows += [[latex(word) for word in words] for words in self._worded()]
        head, *body = [" & ".join(row) + r" \\" for row in rows]
        opening, rule, closing = rf"\begin{{tabular}}{{{kinds}}}", r"\hline", r"\end{tabular}"
        return "\n".join([opening, rule, head, rule, *body, rule, closing, ""])

    def _cell(self, column: int, word: str) -> str:
        name, scope = ("th", ' scope="row"') if column < self.heads else ("td", "")
        return f"<{name}{scope}{self._kind(column)}>{markup(word)}</{name}>"

    def _worded(self) -> list[list[str]]:
        """Every cell in words."""
        pairs = [zip(self.columns, row, strict=True) for row in self.rows]
        return [["—" if value is None else str(column.word(value)) for column, value in cells] for cells in pairs]

    def _kind(self, column: int) -> str:
        """The attribute of a column of numbers, which are set to the right, or of long texts."""
        values = [row[column] for row in self.rows if row[column] is not None]
        numbers = values and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        if numbers:
            return ' class="number"'
        return ' class="long"' if any(len(str(value)) > 30 for value in values) else ""

    def _epsilon(self, row: Sequence[Any]) -> str:
        values = dict(zip((column.name for column in self.columns), row, strict=True))
        epsilon = values.get("epsilon")
        return f' data-epsilon="{epsilon:g}"' if isinstance(epsilon, int | float) else ""


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _raw(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "inf" if math.isinf(value) else f"{value:.10g}"
    return "" if value is None else value
