"""Costs are computed once, and known again only for the same plans."""

from __future__ import annotations

from pathlib import Path

from dpfest.accounting.accountant import Event
from reports.costs import FILE, Costs

ONE = Event(kind="gaussian", what="training step", noise_multiplier=3.0, gradient_noise_multiplier=3.0)
OTHER = Event(kind="gaussian", what="training step", noise_multiplier=3.1, gradient_noise_multiplier=3.1)


def refused() -> float:
    raise AssertionError("computed again")


def test_a_cost_is_computed_once_for_what_determines_it(tmp_path: Path) -> None:
    costs = Costs(tmp_path)
    assert costs.of("composed", [1e-5, ONE, OTHER], lambda: 2.0) == 2.0
    assert costs.of("composed", [1e-5, OTHER, ONE], refused) == 2.0
    for what, about in (("searched", [1e-5, ONE, OTHER]), ("composed", [1e-6, ONE, OTHER]), ("composed", [1e-5, ONE])):
        assert costs.of(what, about, lambda: 3.0) == 3.0

    (tmp_path / FILE).write_text(costs.text())
    again = Costs(tmp_path / "nowhere", tmp_path)
    assert again.of("composed", [1e-5, ONE, OTHER], refused) == 2.0
    assert len(again.asked) == 1  # what a report no longer asks for is forgotten
    (tmp_path / FILE).write_text("[1")
    assert Costs(tmp_path).of("composed", [1e-5, ONE, OTHER], lambda: 5.0) == 5.0
