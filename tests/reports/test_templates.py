"""The templates, and the words of findings."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from reports.claims.claim import missing, undecided
from reports.claims.estimate import INCONCLUSIVE, OPEN
from reports.templates import render


def test_a_value_that_a_template_lacks_is_an_error_and_not_a_gap() -> None:
    with pytest.raises(UndefinedError):
        render("table.html.jinja", caption="c", columns=[])


def test_what_is_missing_can_be_trained_and_what_is_undecided_cannot() -> None:
    lacking, never = missing("DP-SGD or DP-FEST (one k) runs"), undecided("No data.")
    assert (lacking.verdict, lacking.words) == (OPEN, "No DP-SGD or DP-FEST (one k) runs yet.")
    assert lacking.without_runs and not never.without_runs and never.verdict == INCONCLUSIVE
