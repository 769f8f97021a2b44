"""Reports know every algorithm of the library, and learn a new one from its class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dpfest.algorithms.algorithm import PrivateAlgorithm
from dpfest.algorithms.rules import ALGORITHMS
from reports import algorithms
from reports.algorithms import algorithm, label, ordered
from reports.artifacts import audit, fig8
from reports.comparison import populations
from reports.entry import Inputs
from reports.reading import load_runs
from reports.style import style
from reports.wording import settings_text
from tests.reports.synthetic import write_audit, write_run


@dataclass(frozen=True)
class Toy(PrivateAlgorithm):
    name: str = "toy_rule"
    share: float = 0.5


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(ALGORITHMS, Toy.name, Toy)
    algorithms._unknown.cache_clear()
    yield
    algorithms._unknown.cache_clear()


def test_every_algorithm_of_the_library_looks_like_no_other() -> None:
    looks = [(algorithm(name).colour, algorithm(name).marker) for name in ALGORITHMS]
    assert len(set(looks)) == len(looks)
    assert all(label(name) != name for name in ALGORITHMS)
    sparse = set(ALGORITHMS) - set(algorithms.REFERENCES)
    assert all(algorithm(name).knob for name in sparse)


def test_a_variant_without_a_look_of_its_own_has_that_of_its_algorithm() -> None:
    assert label("fest_equal/all_days") == "DP-FEST (k/p a table, all days)"
    assert algorithm("fest/all_days") == algorithm("fest")
    assert algorithm("adafest_plus/all_days") == algorithm("adafest_plus")
    assert ordered(["other", "frozen", "dpsgd", "fest", "fest"]) == ["dpsgd", "fest", "frozen", "other"]


def test_a_new_algorithm_is_named_drawn_and_tabled_without_a_line_of_its_own(toy: None, tmp_path: Path) -> None:
    new = algorithm("toy_rule")
    assert (new.label, new.knob) == ("Toy rule", "algorithm.share")
    assert (new.colour, new.marker) not in {
        (algorithm(n).colour, algorithm(n).marker) for n in ALGORITHMS if n != new.name
    }
    write_run(tmp_path, "dpsgd", test=0.72)
    write_run(tmp_path, "toy_rule", test=0.71, coordinates=100.0, settings={"share": 0.25})
    (population,) = populations(load_runs(tmp_path)[0])
    with style():
        content = fig8.content(Inputs(drawn=population))
    assert content.figure is not None and content.table is not None
    assert "Toy rule" in [text.get_text() for text in content.figure.legends[0].texts]
    assert "| Toy rule |" in content.table.markdown()
    assert (
        settings_text(population.best("toy_rule", 1.0) or population.settings[0], population) == "algorithm.share=0.25"
    )
    write_audit(tmp_path, algorithm="toy_rule")
    with style():
        audited = audit.steps(Inputs(report=tmp_path))
    assert audited.table is not None and audited.table.rows[0][0] == "toy_rule"
