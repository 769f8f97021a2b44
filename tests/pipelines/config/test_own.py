"""An algorithm of the user's own: what it is called, what identifies it, and who may make it run."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dpfest.algorithms.adafest import AdaFEST
from dpfest.errors import UserError
from pipelines.config.code import named_code
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.runs.identity import run_hash
from pipelines.runs.release import checked
from pipelines.train import make_run

RULES = """
from dataclasses import dataclass

import torch

import dpfest


@dataclass(frozen=True)
class Every(dpfest.PrivateAlgorithm):
    nth: int = 2
    choice = dpfest.Algorithm.INDEPENDENT

    def survivors(self, shard, measured, cost, step):
        return torch.arange(step % self.nth, shard.layout.total_rows, self.nth)


class Tight(dpfest.AdaFEST):
    pass


class Unpaid(dpfest.{base}):
    def survivors(self, shard, measured, cost, step):
        return shard.touched()


@dataclass(frozen=True)
class Kind(dpfest.DPSGD):
    kind: str = "x"


@dataclass(frozen=True)
class Pair(dpfest.DPSGD):
    pair: tuple = (1, 2)


class Joint(dpfest.DPSGD):
    joint = True
"""
SOUND = RULES.replace("class Unpaid(dpfest.{base})", "class Unpaid")


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.py").write_text(SOUND)
    return tmp_path / "rules.py"


def config(*line: str) -> Config:
    return typed(Composer().compose(named_code(["profile=smoke", *line])))


def test_its_fields_are_keys_and_its_settings_come_back(rules: Path) -> None:
    made = config(f"algorithm={rules}:Every", "algorithm.nth=3", "algorithm.clipping_norm=0.5")
    assert (made.algorithm.name, made.algorithm.nth, made.algorithm.clipping_norm) == ("Every", 3, 0.5)
    for other in (typed(made.to_dict()), pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert other == made and type(other.algorithm) is type(made.algorithm)
    own = config("algorithm=rules.py:Tight", "algorithm.threshold=4", "algorithm.name=tight").algorithm
    assert isinstance(own, AdaFEST) and own.name == "tight"


def test_its_code_names_the_run_and_other_code_is_refused(rules: Path) -> None:
    line = ("algorithm=rules.py:Every", "algorithm.nth=3")
    before = config(*line)
    assert run_hash(config(f"algorithm={rules}:Every", "algorithm.nth=3")) == run_hash(before), "wherever it lies"
    assert run_hash(config(line[0])) != run_hash(before)
    rules.write_text(SOUND + "\n")
    assert run_hash(config(*line)) != run_hash(before)
    with pytest.raises(UserError, match="no longer the code that the settings name"):
        typed(before.to_dict())


def test_a_release_names_it_and_is_checked_without_running_it(
    rules: Path, prepared: Path, runs_in: Callable[[Path], Path]
) -> None:
    places = (f"paths.data={prepared}", f"paths.runs={runs_in(rules.parent / 'runs')}", "data=names", "data.rows=3000")
    made = make_run(config(f"algorithm={rules}:Every", *places))
    tables = made.summary["embedding_gradient"]["tables"]
    assert all(abs(table["rows_mean"] - table["rows"] / 2) <= 1 for table in tables)
    released = yaml.safe_load((made.path / "release" / "config.yaml").read_text())["algorithm"]
    assert (released["name"], released["target"]) == ("Every", "rules.py:Every")
    rules.write_text("raise SystemExit('somebody else has written this')")
    assert checked(made.path).config["algorithm"] == released


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["algorithm=rules.py:Every", "algorithm.nht=3"], r"no key algorithm\.nht; did you mean algorithm\.nth"),
        (["algorithm=rules.py:Every", "algorithm.nth=0"], r"algorithm\.nth=0 must be a whole number greater than 0"),
        (["algorithm=rules.py:Every", "algorithm.name=fest"], r"algorithm\.name=fest is the name of other algorithm"),
        (["algorithm=rules.py:Every", "algorithm.name=../x"], r"algorithm\.name=\.\./x must be a name of letters"),
        (["algorithm=rules.py:Nothing"], r"the module rules\.py has no Nothing"),
        (["algorithm=rules.py:Unpaid"], r"is no subclass of dpfest\.PrivateAlgorithm"),
        (["algorithm=rules.py:Kind"], r"has a field kind, a key of every such group: rename it"),
        (["algorithm=rules.py:Pair"], "has settings that no file can tell"),
        (["algorithm=module"], r"algorithm\.target must be set"),
        (["algorithm=rules.py:Every,fest"], r"there is no algorithm=rules\.py:Every"),
    ],
)
def test_what_is_no_rule_is_refused(rules: Path, line: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        for _, cfg in Composer().expand(named_code(line)):
            typed(cfg)


def test_a_rule_whose_choice_nobody_pays_for_is_refused(rules: Path) -> None:
    rules.write_text(RULES.replace("{base}", "PrivateAlgorithm"))
    with pytest.raises(UserError, match=r"cannot be imported \(UserError: Unpaid redefines survivors, and inherits"):
        config("algorithm=rules.py:Every")


def test_over_ranks_a_rule_that_chooses_from_all_tables_is_refused(rules: Path) -> None:
    from pipelines.train import ranks

    with pytest.raises(UserError, match="algorithm=Joint cannot be trained over ranks: it chooses rows from all"):
        ranks.make_run(config("algorithm=rules.py:Joint"))


def test_words_that_name_code_are_written_out() -> None:
    assert named_code(["seed=1", "model=a/b.py:C", "model.options.w=1,2", "+model.x=1", "algorithm.threshold=1"]) == [
        "seed=1", "model=module", "++model.target=a/b.py:C", "++model.options.w=1,2", "+model.x=1",
        "algorithm.threshold=1",
    ]  # fmt: skip
    assert named_code(["algorithm=fest,adafest", "data.path=a:b"]) == ["algorithm=fest,adafest", "data.path=a:b"]
