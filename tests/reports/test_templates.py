"""Every finding is worded by a macro that takes the finding's numbers, whichever way its test ends."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from reports import claims
from reports.templates import ENVIRONMENT, render, sentences

PLACE_OF_NAME = {"found": 1, "undecided": 0, "missing": 0}


def worded() -> list[tuple[str, str, frozenset[str]]]:
    """(file, macro, numbers) of every finding that the claims' tests make."""
    found = []
    for path in sorted(Path(claims.__path__[0]).glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in PLACE_OF_NAME):
                continue
            name = call.args[PLACE_OF_NAME[call.func.id]]
            if isinstance(name, ast.Constant):  # else the functions that pass a macro's name on
                numbers = frozenset(keyword.arg for keyword in call.keywords if keyword.arg)
                found.append((path.name, str(name.value), numbers))
    return found


def test_every_finding_has_the_numbers_that_its_macro_words() -> None:
    module = ENVIRONMENT.get_template("evidence.md.jinja").module
    calls = worded()
    assert len(calls) > 20
    for file, macro, numbers in calls:
        assert hasattr(module, macro), f"{file} names {macro}, which evidence.md.jinja does not have"
        assert set(getattr(module, macro).arguments) == numbers, (file, macro)


def test_sentences_stand_on_one_line() -> None:
    assert sentences("lacking", names=["dpsgd", "fest"]) == "No DP-SGD or DP-FEST (one k) runs yet."


def test_a_value_that_a_template_lacks_is_an_error_and_not_a_gap() -> None:
    with pytest.raises(UndefinedError):
        render("table.html.jinja", caption="c", columns=[])
