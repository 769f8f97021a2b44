"""The times in docs/PERFORMANCE.md that lie in docs/reference/bench are those of its files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "PERFORMANCE.md").read_text(encoding="utf-8")
NAMES = {
    "plain PyTorch, sparse": "pytorch sparse",
    "plain PyTorch, dense": "pytorch dense",
    "DP-AdaFEST": "adafest",
    "DP-AdaFEST+": "adafest_plus",
    "DP-FEST": "fest",
    "lazy DP-SGD": "dpsgd lazy",
    "dense DP-SGD": "dpsgd",
}


def records(section: str) -> list[dict[str, Any]]:
    path = DOCS / "reference" / "bench" / f"{section}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["records"]
    return found


def rows_after(line: str) -> list[list[str]]:
    """The cells of the table that begins with a line: its head, and each of its rows."""
    found = re.search(rf"^{re.escape(line)}.*\n\|[-|]+\n((?:\|.*\n)+)", TEXT, flags=re.M)
    assert found is not None, line
    lines = [found[0].splitlines()[0], *found[1].splitlines()]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in lines]


def test_embedding_steps_are_those_of_the_benchmark() -> None:
    (_, *sizes), *said = rows_after("| rows | 100,000 |")
    assert [name for name, *_ in said] == list(NAMES)
    timed = {(one["competitor"], f"{one['table_rows']:,}"): 1e3 * one["median_seconds"] for one in records("embedding")}
    for name, *cells in said:
        assert cells == [f"{timed[NAMES[name], size]:.2f}" for size in sizes], name


def test_the_ratio_at_most_rows_is_that_of_the_benchmark() -> None:
    (ratio,) = (
        one["ratio"] for one in records("embedding") if one["competitor"] == "dpsgd" and one["table_rows"] == 10_000_000
    )
    (said,) = re.findall(r"dense DP-SGD takes ([\d,]+) times as long as DP-AdaFEST \(95%", TEXT)
    assert int(said.replace(",", "")) == round(ratio, -1)


def test_correlated_steps_are_those_of_the_benchmark() -> None:
    (_, *bands), *said = rows_after("| coordinates | 2 bands")
    timed = {(one["case"], one["competitor"]): one["ratio"] for one in records("correlated")}
    assert len(said) == 2
    for size, *cells in said:
        assert cells == [f"{timed[f'step, {size} coordinates', f'dpsgd, {b}']:.2f}" for b in bands]


def test_tables_of_ones_own_are_those_of_the_benchmark() -> None:
    (_, *columns), *said = rows_after("| rows | rows of `data=table`")
    timed = {(one["rows"], one["competitor"]): one["ratio"] for one in records("table")}
    assert len(said) == 2
    for size, *cells in said:
        rows = int(size.replace(",", ""))
        assert cells == [f"{timed[rows, name.replace('`', '')]:.1f}" for name in columns]


def test_readme_says_of_steps_what_the_tables_do() -> None:
    """Of the paper's algorithms, on a CPU and on a GPU."""
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    found = re.search(r"([\d.]+) to ([\d.]+) times on a CPU, (\d) to (\d) on a GPU", " ".join(readme.split()))
    assert found is not None
    least, most, low, high = found.groups()
    cpu, gpu = (
        [
            float(cell)
            for name, *cells in rows_after(line)
            if name in ("DP-AdaFEST", "DP-AdaFEST+", "DP-FEST")
            for cell in cells
        ]
        for line in ("| | click model, 338,782 rows", "| | 338,782 rows | 1.69 million rows |")
    )
    assert (f"{min(cpu):.2f}", f"{max(cpu):.2f}") == (least, most)
    assert (f"{min(gpu):.0f}", f"{max(gpu):.0f}") == (low, high)
