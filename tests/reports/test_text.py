"""What runs are called is shown as it is in HTML, Markdown and LaTeX; only our own bold and code are marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.build import build
from reports.tables import Column, Table
from reports.text import code, latex, markdown, markup
from tests.reports.synthetic import write_run


def test_bold_and_code_are_marked_and_nothing_else() -> None:
    text = "**yes** `a <b>` <i> [x](y)"
    assert markup(text) == "<strong>yes</strong> <code>a &lt;b&gt;</code> &lt;i&gt; [x](y)"
    assert markdown(text) == r"**yes** `a <b>` \<i\> \[x\](y)"
    assert latex("**50%** of a_b") == r"\textbf{50\%} of a\_b"


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("adafest_plus", "adafest_plus"),
        ("_x_", r"\_x\_"),
        ("a|b", r"a\|b"),
        ("*a*", r"\*a\*"),
        ("![p](http://e.vil)", r"!\[p\](http://e.vil)"),
        ("<script>&amp;~`", r"\<script\>\&amp;\~\`"),
        ("one\n\n# two", "one # two"),
    ],
)
def test_markdowns_own_characters_are_escaped(name: str, escaped: str) -> None:
    assert markdown(name) == escaped


def test_code_may_hold_backquotes() -> None:
    assert code("a``b") == "```a``b```" and code("`a") == "`` `a ``"


def test_latex_is_ascii_and_names_what_it_cannot_set() -> None:
    assert latex("σ₂ ≤ 5·10⁻⁷").isascii()
    assert "cjk unified ideograph-6f22" in latex("漢")


def test_a_cell_stays_a_cell() -> None:
    table = Table([Column("a", "A|B"), Column("b", "b")], [("x|y", "`p|q`")])
    assert all(line.replace(r"\|", "").count("|") == 3 for line in table.markdown().splitlines())


def test_names_in_runs_are_shown_in_the_markdown_report_and_not_obeyed(tmp_path: Path, undrawn: None) -> None:
    runs, report = tmp_path / "runs", tmp_path / "report"
    write_run(runs, "dpsgd", test=0.7, profile="[p](http://e.vil)", model="<b>|pctr")
    (runs / "nycflights" / "dpsgd" / "`b` <i>").mkdir()
    build(runs, report, only=["frontier"])
    for path in (report / "index.md", report / "tables" / "frontier.md"):
        text = path.read_text(encoding="utf-8")
        assert r"\<b\>\|pctr" in text and "<b>|pctr" not in text
        outside_code = [part for line in text.splitlines() for part in line.split("`")[::2]]
        assert not any("](http" in part.replace(r"\](", "") for part in outside_code)
    assert "- ``nycflights/dpsgd/`b` <i>``: it has no status.json" in (report / "index.md").read_text(encoding="utf-8")
