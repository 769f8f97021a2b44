"""What was found: questions, answered by the verdicts on claims, and the family of all verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.claims.family import mark
from reports.comparison import Population, populations
from reports.found import Found
from reports.reading import load_runs
from tests.reports.synthetic import write_run


@pytest.fixture
def groups(tmp_path: Path) -> list[Population]:
    for name in ("nycflights", "journey", "text_synthetic"):
        write_run(tmp_path, "dpsgd", test=0.7, dataset=name)
    return populations(load_runs(tmp_path)[0])


def result(verdict: str, p: float = 1e-6, tried: bool = False, **panels: dict[str, Any]) -> dict[str, Any]:
    return {"verdict": verdict, "p": p, "as_tried": tried, "without_runs": False, "panels": panels}


def panel(verdict: str, p: float = 1e-6, crossing: list[Any] | None = None) -> dict[str, Any]:
    return {"verdict": verdict, "p": p, "as_tried": False, "crossing": crossing}


def claim(name: str, where: str = "§4.2", **datasets: dict[str, Any]) -> dict[str, Any]:
    return {"id": name, "where": where, "datasets": datasets, "nowhere": None}


def test_questions_are_answered_by_data_at_the_main_epsilon(groups: list[Population]) -> None:
    crossing = {"ε = 1": panel("the curves cross", crossing=[203.4, 0.00651, "beyond"]), "ε = 3": panel("holds")}
    claims = [
        claim(
            "adafest_ahead_of_one_k",
            journey=result("holds in part", **crossing),
            nycflights=result("does not hold", p=0.04, tried=True),
            text_synthetic=result("inconclusive", p=1.0),
        ),
        claim("training_embeddings_helps_clicks", journey=result("holds"), nycflights=result("not shown", p=1.0)),
        claim("lora_behind", journey=result("not shown", p=1.0)),
        claim("larger_ratio_better", "not in the paper", journey=result("holds")),
    ]
    mark(claims)
    found = Found.of(claims, groups)
    assert found.answers == [
        ("Does private training of the embeddings beat freezing them?", "Yes on journey; not shown on nycflights."),
        (
            "Is DP-AdaFEST ahead of DP-FEST?",
            "Probably not on nycflights*; the curves cross on journey (it is ahead beyond 203×, a loss of 0.0065).",
        ),
    ]
    assert found.marks == (
        "Probably: shown at 95% alone, but not together with all other verdicts (Holm). *: settings that were not "
        "tried could change the answer"
    )
    assert found.tally == (
        "Of 4 claims about sparsity-preserving private training, 3 are decided on at least one data set (2 of the "
        "paper's 3). Of their 5 verdicts by data and ε, each at a level of 5%, 4 stand at that level all together "
        "(Holm)."
    )
    assert "these runs test none: that takes real data" in Found.of(claims, []).tally
    undecided = [claim("lora_behind", journey=result("not shown", p=1.0))]
    assert "these runs decide none" in Found.of(undecided, groups).tally and Found.of(undecided, groups).answers == []


def test_verdicts_stand_together_by_holms_procedure() -> None:
    """Of four verdicts there are eight hypotheses: 0.005 ≤ 0.05 / 8, 0.006 ≤ 0.05 / 7, but 0.009 > 0.05 / 6, so that
    0.0095, less than 0.05 / 5, does not stand either."""
    of = [result("holds", p) for p in (0.006, 0.005, 0.009, 0.0095)]
    claims = [claim("one", a=of[0], b=of[1]), claim("two", a=of[2], b=of[3])]
    mark(claims)
    assert [one["stands"] for one in of] == [True, True, False, False]
    without = result("not shown", 1.0) | {"without_runs": True}
    mark([*claims, claim("three", a=without)])  # what was not tested is no hypothesis
    assert [one["stands"] for one in of] == [True, True, False, False]
    mark([claim("one", a=of[0], b=of[1])])
    assert of[0]["stands"] and of[1]["stands"]


def test_a_verdict_of_several_panels_stands_with_those_that_give_it() -> None:
    panels = {"ε = 1": panel("holds"), "ε = 3": panel("does not hold", p=0.04), "ε = 8": panel("holds")}
    partly, fails = result("holds in part", **panels), result("does not hold", **panels)
    mark([claim("one", a=partly), claim("two", a=fails)])
    assert not partly["stands"] and not fails["stands"]
    assert partly["panels"]["ε = 1"]["stands"] and not partly["panels"]["ε = 3"]["stands"]
