"""docs/LIBRARY.md: every example runs, and what it says of itself holds."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

HOME = Path(__file__).resolve().parents[1]
TEXT = (HOME / "docs" / "LIBRARY.md").read_text(encoding="utf-8")
SHARED = "What all examples share"
MEASURED = "Clipping norm, batch size, learning rate and threshold"
"""The longest: it runs in the test that checks what it prints."""
NEEDS = {
    MEASURED: ["A DLRM"],
    "validate, before anything is spent": ["Workers, pinned memory, ragged examples"],
}
QUICK = (SHARED, "A two-tower recommender with sampled softmax", "Saving and resuming")
OPTIONAL = {"A Hugging Face classifier": "transformers", "Lightning": "lightning"}
Example = tuple[int, str]


def examples() -> dict[str, list[Example]]:
    """The Python blocks of each section, with the number of lines before them."""
    found: dict[str, list[Example]] = {}
    for match in re.finditer(r"^##+ (?P<title>[^\n]+)$|^```python\n(?P<code>.*?)^```", TEXT, flags=re.M | re.S):
        if match["title"]:
            title = match["title"]
        else:
            found.setdefault(title, []).append((TEXT[: match.start("code")].count("\n"), match["code"]))
    return found


EXAMPLES = examples()


@cache
def executed(title: str) -> tuple[dict[str, Any], str]:
    """What a section leaves behind, and what it prints."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "library"}
    for needed in [] if title == SHARED else [SHARED, *NEEDS.get(title, [])]:
        names |= executed(needed)[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line, code in EXAMPLES[title]:
            exec(compile("\n" * line + code, HOME / "docs" / "LIBRARY.md", "exec"), names)
    return names, printed.getvalue()


def branched(names: dict[str, Any], printed: str) -> bool:
    """Training that branches and goes back stays within its plan."""
    training = names["training"]
    return training.epsilon() == names["branch"].epsilon() <= 3.0 and training.steps_done + 7 == 20


SAID: dict[str, Callable[[dict[str, Any], str], bool]] = {
    "A two-tower recommender with sampled softmax": lambda names, printed: "looks up other rows" in printed,
    "validate, before anything is spent": lambda names, printed: "padding that changes the result" in printed,
    "Saving and resuming": lambda names, printed: names["resumed"].steps_left == 0,
    "Branches": branched,
}
"""What the text says of some: refusals by name, and plans that are kept."""


@pytest.mark.parametrize(
    "title",
    [t if t in QUICK else pytest.param(t, marks=pytest.mark.documents) for t in EXAMPLES if t != MEASURED],
)
def test_example_runs_and_does_what_the_text_says_of_it(title: str) -> None:
    """Documents for the most part: two minutes for all."""
    if title in OPTIONAL:
        pytest.importorskip(OPTIONAL[title])
    left = executed(title)
    assert title not in SAID or SAID[title](*left)


@pytest.mark.documents
def test_the_dlrm_learns_and_the_measured_table_is_the_one_printed() -> None:
    """Documents (trains six times).

    Fixed noise and data: only rounding tells machines apart.  An AUC of 0.5 is chance, with a deviation of 0.01.
    """
    measured = re.findall(r"^\| (.+?) \| (\d+) \| ([\d.]+) \| (0\.\d+) \|$", TEXT, flags=re.M)
    printed = re.findall(r"^\| (.+?) \| (\d+) \| ([\d.]+) \| (0\.\d+) \|$", executed(MEASURED)[1], flags=re.M)
    assert len(measured) == 6 and [row[0] for row in measured] == [row[0] for row in printed]
    for said, found in zip(measured, printed, strict=True):
        assert int(found[1]) == pytest.approx(int(said[1]), abs=3)
        assert float(found[3]) == pytest.approx(float(said[3]), abs=0.04), found
    auc = {row[0]: float(row[3]) for row in printed}
    assert auc["Adagrad, rate 0.1"] > 0.65 > auc["SGD, rate 0.3"]
    loss = {row[0]: float(row[2]) for row in printed}
    assert loss["SGD, rate 3, batches of 100"] > 0.7 > loss["SGD, rate 3"], "that it diverges"
    assert loss["the same, clipping norm 1"] > loss["Adagrad, rate 0.1"] + 0.1, "overconfident"


def test_sections_are_found() -> None:
    assert len(EXAMPLES) >= 18 and {SHARED, *NEEDS, *OPTIONAL, *SAID} <= EXAMPLES.keys()


def test_contents_and_links_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-")
        for title in re.findall(r"^##+ (.+)$", TEXT, flags=re.M)
    }
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        else:
            assert target.startswith("http") or (HOME / "docs" / target.partition("#")[0]).exists(), target


def test_every_refusal_that_is_listed_exists() -> None:
    source = " ".join(path.read_text(encoding="utf-8") for path in (HOME / "dpfest").rglob("*.py"))
    source = re.sub(r'"\s*f?"', "", source)  # messages run over several literals
    for row in TEXT.split("| The message says | Do |")[1].split("\n\n")[0].splitlines()[2:]:
        for message in re.findall(r'"([^"]+)"', row.split(" | ")[0]):
            for part in filter(None, map(str.strip, message.split("..."))):
                assert part in source, part
