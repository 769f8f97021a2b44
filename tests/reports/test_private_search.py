"""The price of choosing among runs: what the table says, and that what a search released is no run of a setting."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event, to_record
from dpfest.planning.search_law import Search
from reports.artifacts.private_search import content
from reports.build import build
from reports.comparison import populations
from reports.entry import Inputs
from reports.reading import load_runs
from tests.reports.synthetic import EXAMPLES, noise_of, write_run

PAID = Event(kind="gaussian", what="training step", noise_multiplier=3.0, gradient_noise_multiplier=3.0)

WON = {
    **{"epsilon": 0.999, "sound_epsilon": 0.999, "delta": 1 / EXAMPLES, "fidelity": "rigorous", "sampling": "poisson"},
    **{"step": {"kind": "gaussian", "what": "training step", "count": 1, "part": [], **noise_of("fest")}},
    **{"public_vocabulary": True, **noise_of("fest")},
    "search": {
        **{"distribution": "negative_binomial", "mean": 10, "shape": 0.0, "epsilon_of_run": 0.7},
        "target_epsilon": 1.0,
    },
}


@pytest.fixture(autouse=True)
def events_of_the_tests_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices are of events that these tests choose, not of those that their summaries tell."""
    monkeypatch.setattr("reports.reading.refuse_disagreement", lambda config, ledger, summary: None)


def rows(runs: Path, **paid: Event) -> tuple[list[dict[str, float | None]], int]:
    """The rows of the table, and the number of runs that other artifacts see; `paid` by algorithm."""
    for ledger in runs.glob("*/*/*/release/ledger.json"):
        event = paid.get(ledger.parts[-4])
        said = {name: value for name, value in json.loads(ledger.read_text()).items() if name != "planned"}
        ledger.write_text(json.dumps(said | ({"planned": [to_record(event)]} if event else {})))
    (population,) = populations(load_runs(runs)[0])
    table = content(Inputs([population], runs, population)).table
    assert table is not None
    return [dict(zip((c.name for c in table.columns), row, strict=True)) for row in table.rows], len(population.runs)


def test_the_price_is_that_of_all_runs_and_of_a_search_among_them(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, "dpsgd", test=0.75, validation=0.76, seed=seed)
        write_run(tmp_path, "frozen", test=0.70, seed=seed)
    write_run(tmp_path, "fest", test=0.74, validation=0.73)
    write_run(tmp_path, "dpsgd", test=0.80, epsilon=3.0)
    for seed, test in ((5, 0.71), (6, 0.73)):
        write_run(tmp_path, "fest", test=test, validation=0.99, seed=seed, privacy=WON)
    (one, three), seen = rows(tmp_path, dpsgd=PAID, frozen=PAID, fest=PAID)
    assert seen == 6, "what a search released is not compared with runs of settings"
    assert (one["epsilon"], one["runs"], one["test"]) == (1.0, 5, 0.75)
    assert one["composed"] == pytest.approx(accountant.epsilon([PAID] * 5, 1 / EXAMPLES), rel=0.01)
    assert one["searched"] == pytest.approx(Search(5).epsilon([[PAID]], 1 / EXAMPLES), rel=0.01)
    assert one["search_test"] == pytest.approx(0.72) and one["search_spread"] == pytest.approx(0.02 / 2**0.5)
    assert (one["searches"], one["run_epsilon"]) == (2, 0.7)
    assert (three["runs"], three["searches"], three["search_test"]) == (1, 0, None)
    assert three["searched"] == pytest.approx(three["composed"], rel=0.01), "one run is no choice"


def test_what_a_search_released_is_listed_among_the_runs_or_left_out_by_name(tmp_path: Path, undrawn: None) -> None:
    """The page lists it beside other runs on the same data; without them there is nothing to show it in."""
    beside = write_run(tmp_path / "runs", "fest", test=0.71, privacy=WON)
    alone = write_run(tmp_path / "runs", "fest", test=0.71, privacy=WON, dataset="journey")
    write_run(tmp_path / "runs", "dpsgd", test=0.75)
    built = build(tmp_path / "runs", tmp_path / "report", only=["frontier"])
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    (left_out,) = built.skipped
    assert left_out.path == f"journey/fest/{alone.name}" and "a private search released it" in left_out.reason
    (of_runs,) = (path.read_text(encoding="utf-8") for path in (tmp_path / "report" / "runs").iterdir())
    assert f"nycflights/fest/{beside.name}" in of_runs and of_runs.count("; released by a private search") == 1
    assert f"{left_out.path}</code>: {left_out.reason}" in page


def test_a_price_that_is_not_known_is_left_open(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "dpsgd", test=0.75)
    write_run(tmp_path / "a", "frozen", test=0.70)
    ((row,), _) = rows(tmp_path / "a", dpsgd=PAID)  # a run whose ledger says nothing
    assert row["composed"] is row["searched"] is None and row["test"] == 0.75
    write_run(tmp_path / "b", "dpsgd", test=0.75, fidelity="paper")
    ((row,), _) = rows(tmp_path / "b", dpsgd=PAID)
    assert row["composed"] is row["searched"] is None


def test_in_a_stream_runs_of_one_period_length_are_composed_part_by_part(tmp_path: Path) -> None:
    days = [replace(PAID, part=(f"period {number}",)) for number in (1, 2)]
    for period, runs in ((9, 2), (18, 1)):
        for seed in range(runs):
            write_run(tmp_path, "dpsgd", test=0.75, seed=seed, period=period, dataset="names_stream")
    for ledger in tmp_path.glob("*/*/*/release/ledger.json"):
        period = json.loads((ledger.parent / "summary.json").read_text())["hyperparameters"]["stream"]["period"]
        planned = {"planned": [to_record(event) for event in days[: 18 // period]]}
        ledger.write_text(json.dumps(json.loads(ledger.read_text()) | planned))
    (population,) = populations(load_runs(tmp_path)[0])
    table = content(Inputs([population], tmp_path, population)).table
    assert table is not None
    half, whole = (dict(zip((c.name for c in table.columns), row, strict=True)) for row in table.rows)
    assert [(row["period"], row["runs"]) for row in (half, whole)] == [(9, 2), (18, 1)]
    assert half["composed"] == pytest.approx(accountant.epsilon([PAID] * 2, 1 / EXAMPLES), rel=0.01)
    assert whole["composed"] == pytest.approx(accountant.epsilon([PAID], 1 / EXAMPLES), rel=0.01)
