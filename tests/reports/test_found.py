"""What was found: each claim on each dataset is counted once and drawn once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reports.comparison import Population, populations
from reports.found import Found, short
from reports.runs import load_runs
from reports.style import style
from tests.reports.synthetic import write_run


@pytest.fixture
def groups(tmp_path: Path) -> list[Population]:
    for name in ("nycflights", "journey", "text_synthetic"):
        write_run(tmp_path, "dpsgd", test=0.7, dataset=name)
    return populations(load_runs(tmp_path)[0])


OWN = "exponential_fails"  # for this test


def claim(name: str, verdict: str, **datasets: str) -> dict[str, Any]:
    where = "not in the paper" if name == OWN else "§4.2"
    return {
        "id": name,
        "where": where,
        "verdict": verdict,
        "datasets": {
            data: {"verdict": said, "as_tried": data == "nycflights" and name == OWN} for data, said in datasets.items()
        },
    }


CLAIMS = [
    claim("adafest_ahead_of_fest", "holds", journey="holds", nycflights="holds", text_synthetic="inconclusive"),
    claim("exponential_fails", "differs by dataset", journey="holds", nycflights="does not hold"),
    claim("ratio_five_or_ten", "does not hold", journey="does not hold", nycflights="not enough runs"),
    claim("wallclock_criteo", "holds"),
    claim("lora_behind", "not enough runs"),
    claim("larger_ratio_better", "inconclusive", text_synthetic="inconclusive"),
]


def test_the_sentence_counts_the_verdicts_of_each_dataset(groups: list[Population]) -> None:
    found = Found.of(CLAIMS, groups)
    assert found.datasets == ["journey", "nycflights", "benchmarks"]
    tally = (
        "Of 6 claims about sparsity-preserving private training, 4 are decided on at least one data set (3 of the "
        "paper's 5). Hold / do not hold: journey 2 / 1, nycflights 1 / 1, benchmarks 1 / 0. * 1 verdict could change "
        "with settings that were not tried."
    )
    assert found.findings == [
        "At one or more of the losses compared, DP-AdaFEST cuts the gradient more than DP-FEST on journey, nycflights.",
        "Exponential selection loses more utility than is tolerable (0.01, or what frozen embeddings lose if that is "
        "less) on journey (not on nycflights*).",
    ]
    assert found.sentence == f"{found.findings[0][:-1]}; e{found.findings[1][1:]} {tally}"
    reduced = Found.of([claim("significant_reduction", "holds", journey="holds")], groups).findings
    assert reduced == [
        "The gradient can be made more than 10 times smaller at a loss of utility below 0.005 at ε = 1 on journey."
    ]
    undecided = claim("lora_behind", "not enough runs", journey="not enough runs")
    assert "these runs decide none" in Found.of([undecided], groups).sentence
    assert "these runs test none: that takes real data" in Found.of(CLAIMS[-2:], groups).sentence
    assert Found.of([], []).sentence.startswith("Of 0 claims")


def test_the_picture_has_a_mark_for_each_claim_and_dataset_and_says_which(groups: list[Population]) -> None:
    with style():
        figure = Found.of(CLAIMS, groups).picture()
    said = [words for (words,) in figure.hovers.values()]
    assert len(said) == len(set(said)) == 7
    assert {"Exponential fails: holds on journey", "Exponential fails: does not hold on nycflights"} <= set(said)
    one, other = figure.axes
    assert [label.get_text() for label in one.get_yticklabels()] == [short(c["id"]) for c in CLAIMS[:3]]
    assert [label.get_text() for label in other.get_xticklabels()] == ["journey", "nycflights", "benchmarks"]
    # Verdicts are told by their shape, too, and stand where their labels are.
    looks = Counter((line.get_marker(), line.get_markerfacecolor() == "none") for line in one.lines)
    assert looks == {("o", False): 3, ("X", False): 2, ("o", True): 1}
    (open_,) = [line for line in one.lines if line.get_markerfacecolor() == "none"]
    assert (list(open_.get_xdata()), list(open_.get_ydata())) == ([1], [2])
