"""Claims of streams: each holds on runs in which it is so, fails where it is not, and is open on too few."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from reports.artifacts.best_reduction import nonprivate_below
from reports.claims.estimate import FAILS, HOLDS, OPEN
from reports.comparison import populations
from reports.reading import load_runs
from tests.reports.judged import (
    MANY,
    Spec,
    adafest,
    fest,
    found,
    plus,
    verdicts,
    write,
    write_periods,
)
from tests.reports.synthetic import write_run

STREAM_CLAIMS = (
    "streaming_frequencies_suffice",
    "streaming_ahead_of_first_day",
    "adafest_twice_fest_in_streams",
    "combined_ahead_in_streams",
    "private_rises_with_period",
    "nonprivate_unmoved_by_period",
)


def of_days(first: float, streaming: float, everything: float) -> list[Spec]:
    """DP-FEST by the days that are counted: a loss at k = 3000 each, and k = 300 out of all reach."""
    losses = {"first_day": first, "streaming": streaming, "all_days": everything}
    return [
        spec
        for source, loss in losses.items()
        for spec in (fest(300, loss + 0.03, 900.0, source), fest(3000, loss, 90.0, source))
    ]


def test_claims_of_streams(tmp_path: Path) -> None:
    so = [*of_days(0.008, 0.003, 0.002), *MANY, plus(5, 0.002, 3e4), plus(50, 0.03, 3e5)]
    write_periods(tmp_path / "so", (0.002, 0.0015, 0.0), (0.0, 0.0, 0.0), so)
    for days, epsilon in itertools.product((1, 4, 18), (3.0, 8.0)):
        one = ("dpsgd", {}, -0.0001 * days, 1.0)
        write(tmp_path / "so", [one], dataset="nycflights_stream", period=days, epsilon=epsilon)
    said = verdicts(tmp_path / "so")
    assert {claim: said[claim] for claim in STREAM_CLAIMS} == dict.fromkeys(STREAM_CLAIMS, HOLDS)

    other = [*of_days(0.002, 0.008, 0.001), adafest(5, 0.002, 100.0), adafest(50, 0.05, 5e4)]
    other += [plus(5, 0.002, 50.0), plus(50, 0.03, 3e5)]
    write_periods(tmp_path / "not so", (0.0, 0.001, 0.006), (0.0, 0.004, 0.02), other)
    said = verdicts(tmp_path / "not so")
    assert {claim: said[claim] for claim in STREAM_CLAIMS} == dict.fromkeys(STREAM_CLAIMS, FAILS)


def test_a_period_with_fewer_settings_does_not_refute_a_lead(tmp_path: Path) -> None:
    """In periods of 4 days DP-AdaFEST was tried at one poor setting, in those of 1 day at two."""
    sparse = [*of_days(0.008, 0.003, 0.002), *MANY]
    poor = [*of_days(0.008, 0.003, 0.002), adafest(5, 0.03, 50.0)]
    for days, specs in ((1, sparse), (4, poor)):
        base: list[Spec] = [("dpsgd", {}, 0.0, 1.0), ("frozen", {}, 0.05, float("inf"))]
        write(tmp_path, [*base, *specs], dataset="nycflights_stream", period=days)
    assert verdicts(tmp_path)["adafest_twice_fest_in_streams"] == HOLDS
    write(tmp_path, [adafest(50, 0.04, 60.0)], dataset="nycflights_stream", period=4)
    assert verdicts(tmp_path)["adafest_twice_fest_in_streams"] == FAILS


def test_streams_in_which_training_without_privacy_is_behind_say_so(tmp_path: Path) -> None:
    write_periods(tmp_path, (0.002, 0.0015, 0.0), (0.07, 0.0, 0.0), [])
    (population,) = populations(load_runs(tmp_path)[0])
    said = "Non-private training has a lower test AUC than DP-SGD with a period of 1 day: on these"
    assert said in nonprivate_below(population)
    assert not nonprivate_below(population.at(4))


def test_single_runs_of_streams_that_scatter_leave_claims_open(tmp_path: Path) -> None:
    for days, test in ((1, 0.6585), (4, 0.6433), (18, 0.6652)):
        for name, epsilon in (("dpsgd", 1.0), ("nonprivate", None)):
            write_run(tmp_path, name, test=test, epsilon=epsilon, period=days, dataset="nycflights_stream")
    for source, test in (("first_day", 0.71), ("streaming", 0.72), ("all_days", 0.72)):
        settings = fest(300, 0.0, 1.0, source)[1]
        write_run(tmp_path, "fest", test=test, settings=settings, period=1, dataset="nycflights_stream")
    said = verdicts(tmp_path)
    assert {said[claim] for claim in STREAM_CLAIMS} == {OPEN}


def test_utility_that_rises_on_the_whole_and_falls_in_between_does_not_rise(tmp_path: Path) -> None:
    """A straight line through 0.715, 0.725, 0.722 and 0.73 rises."""
    for days, loss in ((1, 0.005), (2, -0.005), (4, -0.002), (8, -0.01)):
        write(tmp_path, [("dpsgd", {}, loss, 1.0)], dataset="nycflights_stream", period=days)
    claim = found(tmp_path, "private_rises_with_period")
    assert claim["verdict"] == FAILS
    assert "the least step, 2 to 4, by −0.0030" in claim["evidence"]


def test_gains_with_and_without_privacy_are_compared_by_one_contrast(tmp_path: Path) -> None:
    write_periods(tmp_path / "so", (0.004, 0.002, 0.0), (0.001, 0.0005, 0.0), [])
    write_periods(tmp_path / "not so", (0.001, 0.0005, 0.0), (0.004, 0.002, 0.0), [])
    assert found(tmp_path / "so", "private_moved_more")["verdict"] == HOLDS
    assert found(tmp_path / "not so", "private_moved_more")["verdict"] == FAILS
    interval = found(tmp_path / "so", "private_moved_more")["datasets"]["nycflights_stream"]["interval"]
    assert interval["low"] == pytest.approx(0.003) and interval["high"] == pytest.approx(0.003)


def test_the_papers_numbers_of_streams_stand_beside_their_claims(tmp_path: Path) -> None:
    assert "0.7846, 0.7848, 0.7847, 0.7820, 0.7848" in found(tmp_path, "nonprivate_unmoved_by_period")["paper"]


def test_each_source_of_frequencies_has_the_selection_noise_that_is_best_for_it(tmp_path: Path) -> None:
    """The first day's few counts drown in a noise of 20, but with one of 7 they are as good as those of the days so
    far: then these are not better."""

    def noised(noise: float, first: float, streaming: float) -> list[Spec]:
        losses = {"first_day": first, "streaming": streaming}
        selection = {"mechanism": "gaussian", "rows": 3000, "noise_multiplier": noise}
        return [("fest", {"selection": selection | {"source": name}}, loss, 90.0) for name, loss in losses.items()]

    write(tmp_path, noised(20.0, 0.01, 0.002), dataset="nycflights_stream", period=1)
    assert found(tmp_path, "streaming_ahead_of_first_day")["verdict"] == HOLDS
    write(tmp_path, noised(7.0, 0.002, 0.004), dataset="nycflights_stream", period=1)
    claim = found(tmp_path, "streaming_ahead_of_first_day")
    assert claim["verdict"] != HOLDS and "0.7180 against 0.7180" in claim["evidence"]


def test_a_period_of_all_days_does_not_tell_streaming_from_all_days(tmp_path: Path) -> None:
    write(tmp_path, of_days(0.008, 0.002, 0.002), dataset="nycflights_stream", period=18)
    assert "No setting with both" in found(tmp_path, "streaming_frequencies_suffice")["evidence"]
    write(tmp_path, of_days(0.008, 0.009, 0.002), dataset="nycflights_stream", period=1)
    assert found(tmp_path, "streaming_frequencies_suffice")["verdict"] == FAILS
    assert found(tmp_path, "streaming_ahead_of_first_day")["verdict"] == HOLDS


@pytest.mark.parametrize(("scatter", "verdict"), [(0.0004, HOLDS), (0.0015, OPEN)])
def test_a_step_that_may_undo_half_of_the_gain_leaves_a_rise_open(scatter: float, verdict: str, tmp_path: Path) -> None:
    """The last step changes nothing, give or take 0.0005 or 0.0019, and the gain is 0.003: half of it is 0.0015."""
    for (days, test), seed, epsilon in itertools.product(
        ((1, 0.72), (4, 0.723), (18, 0.723)), range(8), (1.0, 3.0, 8.0)
    ):
        test += scatter * ((-1) ** seed if days == 4 else -((-1) ** seed) if days == 18 else 0)
        write_run(tmp_path, "dpsgd", test=test, seed=seed, epsilon=epsilon, period=days, dataset="nycflights_stream")
    claim = found(tmp_path, "private_rises_with_period")
    assert claim["verdict"] == verdict, claim["evidence"]
