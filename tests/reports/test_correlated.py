"""Correlated noise in reports: an algorithm of its own, its gain over independent noise, the noise that is computed."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from dpfest.accounting.bands import strategy
from reports.artifacts import correlated
from reports.comparison import populations
from reports.entry import Content, Inputs
from reports.reading import load_runs
from reports.style import style
from tests.reports.synthetic import write_run

SEEDS = (0.0, 0.001, -0.001, 0.0005, -0.0005, 0.0002)


def _written(runs: Path, gain: float = 0.004) -> None:
    """Two clipping norms each; with 4 bands the better rate gains, with 16 bands both lose."""
    for seed, moved in enumerate(SEEDS):
        for bands, norm, utility in (
            (None, 1.0, 0.850), (None, 3.0, 0.846), (4, 1.0, 0.850 + gain), (4, 3.0, 0.847), (16, 1.0, 0.840),
        ):  # fmt: skip
            settings: dict[str, Any] = {"clipping_norm": norm} | ({} if bands is None else {"bands": bands})
            write_run(runs, "dpsgd", test=utility + moved, seed=seed, settings=settings)


def _content(runs: Path) -> Content:
    (group,) = populations(load_runs(runs)[0])
    with style():
        return correlated.content(Inputs([group], drawn=group))


def test_the_gain_is_that_of_settings_chosen_for_both(tmp_path: Path) -> None:
    _written(tmp_path)
    content = _content(tmp_path)
    assert content.table is not None and content.figure is not None
    one, four, sixteen = csv.DictReader(content.table.csv().splitlines())
    assert (one["bands"], four["bands"], sixteen["bands"]) == ("1", "4", "16")
    assert (one["tried"], four["tried"], sixteen["tried"]) == ("2", "2", "1")
    assert four["gain"].startswith("+0.004") and 0.003 < float(four["low"]) <= 0.004
    assert sixteen["gain"].startswith("−0.01") and float(sixteen["low"]) < -0.009
    steps = load_runs(tmp_path)[0][0].steps  # noise multipliers of these runs are alike
    assert float(four["noise"]) == pytest.approx(strategy(4, steps).accumulated(steps), rel=5e-3)


def test_each_epsilon_is_compared_with_its_own_independent_noise(tmp_path: Path) -> None:
    for epsilon, gain in ((1.0, 0.01), (8.0, -0.02)):
        for bands in (None, 4):
            settings = {} if bands is None else {"bands": bands}
            for seed, moved in enumerate(SEEDS):
                test = 0.8 + epsilon / 100 + moved + gain * (bands is not None)
                write_run(tmp_path, "dpsgd", epsilon=epsilon, test=test, seed=seed, settings=settings)
    content = _content(tmp_path)
    assert content.table is not None
    rows = [(row["epsilon"], row["bands"], row["gain"][:5]) for row in csv.DictReader(content.table.csv().splitlines())]
    assert rows == [("1", "1", ""), ("1", "4", "+0.01"), ("8", "1", ""), ("8", "4", "−0.02")]


def test_dp_fest_is_compared_at_equal_k_and_a_stream_by_period(tmp_path: Path) -> None:
    for seed, moved in enumerate(SEEDS):
        for bands in (None, 4):
            more = {} if bands is None else {"bands": bands}
            for k, utility in ((100, 0.8), (900, 0.9)):
                if bands is None or k == 100:
                    settings = {"selection": {"rows": k, "split": "joint"}} | more
                    test = utility + moved + 0.01 * (bands is not None)
                    write_run(tmp_path, "fest", test=test, seed=seed, settings=settings)
            for period in (1, 6):
                test = 0.7 + moved + 0.01 * period * (bands is not None)
                stream = {"dataset": "nycflights_stream", "period": period}
                write_run(tmp_path, "dpsgd", test=test, seed=seed, settings=more, **stream)
    rows = []
    for group in populations(load_runs(tmp_path)[0]):
        with style():
            content = correlated.content(Inputs([group], drawn=group))
        assert content.table is not None
        rows += csv.DictReader(content.table.csv().splitlines())
    said = {(row["algorithm"], row.get("period"), row["bands"]): row["gain"][:6] for row in rows}
    assert said == {
        ("DP-FEST (one k)", None, "1"): "", ("DP-FEST (one k)", None, "4"): "+0.010",
        ("DP-SGD", "1", "1"): "", ("DP-SGD", "1", "4"): "+0.010",
        ("DP-SGD", "6", "1"): "", ("DP-SGD", "6", "4"): "+0.060",
    }  # fmt: skip


def test_correlated_noise_is_no_reference_of_others(tmp_path: Path) -> None:
    """What others lose is lost against DP-SGD with independent noise, whichever is better."""
    _written(tmp_path, gain=0.1)
    (group,) = populations(load_runs(tmp_path)[0])
    assert {setting.algorithm for setting in group.settings} == {"dpsgd", "dpsgd_banded"}
    best = group.best("dpsgd", 1.0)
    assert best is not None and best.test == pytest.approx(0.85, abs=1e-3)


def test_bands_are_chosen_on_validation(tmp_path: Path) -> None:
    _written(tmp_path)
    (group,) = populations(load_runs(tmp_path)[0])
    found = correlated.gain(group, 1.0)
    assert found is not None and correlated.gain(group, 3.0) is None
    bands, gained = found
    assert bands == 4 and gained.value == pytest.approx(0.004, abs=1e-3)


def test_without_either_kind_of_noise_runs_are_missing(tmp_path: Path) -> None:
    write_run(tmp_path, "dpsgd", test=0.8)
    assert _content(tmp_path).missing
