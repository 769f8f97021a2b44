"""What was found, as docs/EXPERIMENTS.md tells it: reductions, and AUCs beside them, are those of the run cards."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from reports.comparison import Setting
from reports.readme import Results

DOCS = Path(__file__).parents[1] / "docs"
ROUND = {"10", "500,000"}  # bounds, not results


@pytest.fixture(scope="module")
def settings() -> list[Setting]:
    results = Results.read(DOCS / "reference")
    return [setting for group in results.groups for setting in group.settings]


@pytest.fixture(scope="module")
def found() -> str:
    text = (DOCS / "EXPERIMENTS.md").read_text(encoding="utf-8")
    return " ".join(text.partition("## What was found\n")[2].partition("\n### ")[0].split())


def _rounds_to(value: float, said: str) -> bool:
    """Whether a value is as said, within half a unit of its last digit; from 1,000 on, of its third."""
    number = float(said.replace(",", ""))
    decimals = len(said.partition(".")[2])
    unit = 10.0**-decimals if number < 1000 else 10.0 ** (math.floor(math.log10(number)) - 2)
    return abs(value - number) <= unit / 2 * (1 + 1e-9)


def test_every_reduction_is_that_of_a_setting(settings: list[Setting], found: str) -> None:
    said = set(re.findall(r"([\d,]*\.?\d+)×", found)) - ROUND
    assert len(said) > 30
    reductions = [setting.reduction for setting in settings]
    assert [one for one in said if not any(_rounds_to(value, one) for value in reductions)] == []


def test_utility_and_reduction_named_together_are_those_of_one_setting(settings: list[Setting], found: str) -> None:
    pairs = re.findall(r"(0\.\d{3}) at ([\d,]*\.?\d+)×", found)
    pairs += [(auc, times) for times, auc in re.findall(r"([\d,]*\.?\d+)×(?: \(| at )(0\.\d{3})", found)]
    assert len(pairs) > 15

    def known(auc: str, times: str) -> bool:
        return any(_rounds_to(s.reduction, times) and _rounds_to(s.test, auc) for s in settings)

    assert [pair for pair in pairs if not known(*pair)] == []
