"""`dpfest audit` at the prompt."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command

QUICK = ("audit", "audit.draws=1000", "audit.canaries=0", "privacy.noise_seed=0")


@pytest.mark.slow
def test_all_private_rules_are_audited_unless_one_is_chosen(dpfest_here: Command, tmp_path: Path) -> None:
    """Slow: calibrates and draws the noise of each private rule."""
    ended = dpfest_here(*QUICK)
    assert ended.returncode == 0, ended.stderr
    path = tmp_path / "report" / "audit" / "audit.json"
    rules = ["dpsgd", "threshold", "fest", "adafest", "adafest_plus", "exponential", "frozen"]
    assert [entry["algorithm"] for entry in json.loads(path.read_text())["audits"]] == rules
    assert ended.stdout.count(" as it is   ") == len(rules)
    assert [p.name for p in tmp_path.iterdir()] == ["report"]


@pytest.mark.slow
def test_what_is_set_has_the_last_word(dpfest_here: Command, tmp_path: Path) -> None:
    """Slow: audits whole trainings."""
    small = ("audit.canaries=400", "audit.steps=4")
    ended = dpfest_here(*QUICK, *small, "algorithm=adafest,frozen", "algorithm.clipping_norm=2", "privacy.epsilon=2")
    assert ended.returncode == 0, ended.stderr
    record = json.loads((tmp_path / "report" / "audit" / "audit.json").read_text())
    first, second = record["audits"]
    (training,) = record["trainings"]
    assert training["settings"] == first["settings"] and training["claim"] == pytest.approx(2, rel=1e-3)
    assert [case["sabotage"] for case in training["cases"]] == [
        None,
        "map not paid for",
        "map counts repeated rows",
    ]
    assert ended.stdout.count("adafest        sampled ") == 3 and "whole trainings of 4 steps" in ended.stdout
    assert "no whole training of frozen is audited: it trains no rows" in ended.stdout
    assert "no whole training of adafest" not in ended.stdout
    assert (first["settings"]["clipping_norm"], first["settings"]["threshold"]) == (2, 0.5)
    assert second["algorithm"] == "frozen" and 1.99 < second["claim"] <= 2


OWN = """
import torch
from dataclasses import dataclass
from dpfest import PrivateAlgorithm
from dpfest.algorithms.algorithm import INDEPENDENT


@dataclass(frozen=True)
class Touched(PrivateAlgorithm):
    name: str = "touched"
    step_event = PrivateAlgorithm.step_event  # which pays for no choice

    def survivors(self, shard, measured, cost, step):
        return shard.touched()


@dataclass(frozen=True)
class Every(PrivateAlgorithm):
    name: str = "every"
    nth: int = 2
    choice = INDEPENDENT

    def survivors(self, shard, measured, cost, step):
        return torch.arange(1, shard.layout.total_rows, self.nth)
"""


def test_a_rule_of_ones_own_is_attacked(dpfest_here: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that reveals what a batch touches, though it claims to be accounted for, and one that does not."""
    (tmp_path / "mine_of_a_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    broken = dpfest_here(*QUICK, "algorithm=mine_of_a_test:Touched")
    assert broken.returncode == 1 and re.search(r"touched +as it is .* broken", broken.stdout)
    sound = dpfest_here(*QUICK, "algorithm=mine_of_a_test:Every", "algorithm.nth=2")
    assert sound.returncode == 0 and re.search(r"every +as it is .* sound", sound.stdout)
    audits = json.loads((tmp_path / "report" / "audit" / "audit.json").read_text())["audits"]
    assert [one["algorithm"] for one in audits] == ["every", "touched"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("nowhere_at_all:Rule", "the module nowhere_at_all cannot be imported"),
        ("json:Rule", "the module json has no Rule"),
        ("json:JSONDecoder", "is no subclass of dpfest.PrivateAlgorithm"),
    ],
)
def test_a_rule_that_is_not_there_is_named(dpfest_here: Command, rule: str, message: str) -> None:
    ended = dpfest_here(*QUICK, f"algorithm={rule}")
    assert ended.returncode != 0 and message in ended.stderr


def test_an_engine_that_costs_more_than_it_claims_ends_with_status_one(
    dpfest_here: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.audit.step.lower_bound", lambda *arguments: 9.0)
    ended = dpfest_here(*QUICK, "algorithm=adafest", "algorithm.threshold=2")
    assert ended.returncode == 1
    assert "broken" in ended.stdout
    (audited,) = json.loads((tmp_path / "report" / "audit" / "audit.json").read_text())["audits"]
    assert audited["settings"]["threshold"] == 2, "what is set has the last word"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["algorithm=nonprivate"], "algorithm=nonprivate has no guarantee to audit"),
        (["audit.draws=10"], "audit.draws must be a whole number from 1,000"),
        (["audit.drws=10"], "did you mean audit.draws?"),
        (["algorithm.threshold=3"], "This is for dpsgd: choose with algorithm=..."),
    ],
)
def test_a_wrong_line_is_one_sentence(dpfest_here: Command, tmp_path: Path, arguments: list[str], message: str) -> None:
    ended = dpfest_here("audit", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr and ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
