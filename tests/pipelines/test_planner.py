"""`dpfest budget --plan`: the rule, what is printed, and what the evidence says of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import dpfest
from dpfest.accounting import Event
from dpfest.algorithms import ALGORITHMS
from dpfest.errors import UserError
from pipelines import planner
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.planner import LEAST_STEPS, MOST_GROWTH, Setting, largest_paying, suggest

HOME = Path(__file__).resolve().parents[2]
SEARCHES = HOME / "docs" / "search"


def configured(tmp_path: Path, *line: str) -> Config:
    ours = ["data=journey", "algorithm=dpsgd", "budget.examples=200000", f"paths.data={tmp_path / 'data'}"]
    return typed(Composer().compose([*ours, f"paths.runs={tmp_path / 'runs'}", *line]))


@pytest.mark.parametrize(
    ("growth", "expected"),
    [(0.0, 4096), (0.24, 4096), (0.26, 1), (0.5, 1)],
    ids=["noise that does not grow", "just less than the rule allows", "just more", "noise that grows with the rate"],
)
def test_the_batch_is_doubled_as_long_as_noise_hardly_grows(growth: float, expected: int) -> None:
    def setting(batch_size: int) -> Setting:
        return Setting(batch_size, 2**20 // batch_size, 0.6 * batch_size**growth)

    assert largest_paying(setting, 8000).batch_size == expected


def test_the_suggestion_is_where_exact_noise_says_it_is(tmp_path: Path) -> None:
    found = suggest(configured(tmp_path, "privacy.epsilon=0.5", "budget.examples=100000"))
    best = found.suggested.batch_size

    def sigma(batch_size: int) -> float:
        steps = found.examples_seen // batch_size
        plan = dpfest.plan(dpfest.DPSGD(), epsilon=0.5, examples=100_000, batch_size=batch_size, steps=steps)
        assert plan.noise_multiplier is not None
        return plan.noise_multiplier

    exact = {size: sigma(size) for size in (best // 2, best, 2 * best)}
    assert exact[best] <= MOST_GROWTH * exact[best // 2]
    assert exact[2 * best] > MOST_GROWTH * exact[best]
    for one in found.settings:
        assert one.steps * one.batch_size <= found.examples_seen < (one.steps + 1) * one.batch_size
        if one.batch_size in exact:
            assert one.noise_multiplier == pytest.approx(exact[one.batch_size], rel=0.006)
    assert found.suggested.steps >= LEAST_STEPS
    assert not (tmp_path / "runs").exists()  # rough noise is no calibration to remember


def test_a_larger_batch_has_less_noise_and_more_privacy_moves_the_suggestion_up(tmp_path: Path) -> None:
    found = [suggest(configured(tmp_path, f"privacy.epsilon={epsilon}")) for epsilon in (0.3, 1, 8)]
    sizes = [one.suggested.batch_size for one in found]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    for one in found:
        ratios = [setting.noise_to_batch for setting in one.settings]
        assert ratios == sorted(ratios, reverse=True)
        signals = [setting.signal_to_noise for setting in one.settings]
        assert signals == sorted(signals)
    assert found[-1].suggested.steps < 2 * LEAST_STEPS  # little noise: steps are what ends it
    assert f"fewer than {LEAST_STEPS} steps" in str(found[-1]) and "fewer than" not in str(found[0])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that grows about as calibrated noise does, where its value does not matter."""

    def calibrate(make_events: Callable[[float], Sequence[Event]], *target: float, rough: bool) -> float:
        step = make_events(1.0)[-1]
        return 0.5 + 2 * (step.sampling_probability or 1.0) * math.sqrt(step.count)

    monkeypatch.setattr(planner.accounting, "calibrate", calibrate)


@pytest.mark.parametrize("name", [*ALGORITHMS, "adafest of a paper's claim"])
@pytest.mark.usefixtures("quick")
def test_every_private_algorithm_has_a_plan(tmp_path: Path, name: str) -> None:
    line = ["privacy=paper"] if " " in name else []
    small = ["budget.examples=20000", "train.batch_size=256", "privacy.epsilon=8"]
    found = suggest(configured(tmp_path, f"algorithm={name.split()[0]}", *small, *line))
    assert 19_500 < found.suggested.steps * found.suggested.batch_size <= 20_000 + 256
    assert "nan" not in str(found) and "inf" not in str(found)


@pytest.mark.usefixtures("quick")
def test_the_noise_of_a_map_counts_in_the_gradient(tmp_path: Path) -> None:
    """DP-AdaFEST's gradient has more noise than DP-SGD's, at the same growth: the same batch."""
    one, other = (suggest(configured(tmp_path, f"algorithm={name}")) for name in ("dpsgd", "adafest"))
    assert one.suggested.batch_size == other.suggested.batch_size
    assert other.suggested.noise_multiplier > 1.01 * one.suggested.noise_multiplier


@pytest.mark.usefixtures("quick")
def test_units_are_counted_as_units(tmp_path: Path) -> None:
    text = str(suggest(configured(tmp_path, "privacy.unit=basket_id", "train.batch_size=1024")))
    assert re.search(r"^units \(basket\) N +200,000$", text, re.MULTILINE)


@pytest.mark.usefixtures("quick")
def test_a_compute_budget_is_spent_and_not_exceeded(tmp_path: Path) -> None:
    found = suggest(configured(tmp_path, "budget.examples_seen=1000000"))
    assert found.examples_seen == 1_000_000
    assert all(950_000 < one.steps * one.batch_size <= 1_000_000 for one in found.settings)
    assert "(5 epochs)" in str(found)
    assert [one.batch_size for one in found.settings if one.batch_size == found.configured] == [8192]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["algorithm=nonprivate"], "algorithm=nonprivate adds no noise.*algorithm=dpsgd"),
        (["data=journey_stream"], "data=journey_stream is a stream.*budget.examples"),
        (["search=negative_binomial"], "leave out search"),
        (["budget.examples=null"], r"set budget\.examples.*dpfest preprocess data=journey"),
        (["budget.examples_seen=63"], r"budget\.examples_seen=63 leaves no batch in 64 steps"),
        (["privacy.epsilon=0.0001"], r"privacy\.epsilon=0\.0001 must lie between"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_what_cannot_be_planned_is_refused_by_key(tmp_path: Path, line: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        suggest(configured(tmp_path, *line))
