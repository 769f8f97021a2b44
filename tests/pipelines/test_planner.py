"""`dpfest budget --plan`: the rule, what is printed, and what the evidence says of it."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import dpfest
from dpfest.accounting.accountant import Event
from dpfest.algorithms.rules import ALGORITHMS
from dpfest.errors import UserError
from pipelines.budget import planner
from pipelines.budget.bands import PROMISE
from pipelines.budget.planner import LEAST_STEPS, MOST_GROWTH, Setting, largest_paying, suggest
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.runs.cards import read_cards

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
    """Without calibrating it: the least noise of a batch lies where its exact epsilon passes the target."""
    found = suggest(configured(tmp_path, "privacy.epsilon=0.5", "budget.examples=20000"))
    best, rough = found.suggested.batch_size, {one.batch_size: one.noise_multiplier for one in found.settings}

    def enough(batch_size: int, sigma: float) -> bool:
        steps, given = found.examples_seen // batch_size, {"epsilon": 0.5, "examples": 20_000}
        plan = dpfest.plan(
            dpfest.DPSGD(), batch_size=batch_size, steps=steps, calibrate=lambda events, target, delta: sigma, **given
        )
        return (plan.epsilon or 0.0) <= 0.5

    least, most = ({size: sigma * off for size, sigma in rough.items()} for off in (0.994, 1.006))
    for size in (best // 2, best, 2 * best):
        assert not enough(size, least[size]) and enough(size, most[size])
    assert enough(best, MOST_GROWTH * least[best // 2])  # thus the exact noise, too, grows by no more
    assert not enough(2 * best, MOST_GROWTH * most[best])  # and here by more
    for one in found.settings:
        assert one.steps * one.batch_size <= found.examples_seen < (one.steps + 1) * one.batch_size
    assert found.suggested.steps >= LEAST_STEPS
    assert not (tmp_path / "runs").exists()  # rough noise is no calibration to remember


def test_a_larger_batch_has_less_noise_and_a_larger_epsilon_a_larger_batch(tmp_path: Path) -> None:
    found = [
        suggest(configured(tmp_path, f"privacy.epsilon={epsilon}", "budget.examples=20000")) for epsilon in (0.5, 8)
    ]
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

    monkeypatch.setattr(planner.calibration, "calibrate", calibrate)


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
        (["privacy.epsilon=0.0001"], r"privacy\.epsilon must be a number from 0\.01 to 1,000, not 0\.0001"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_what_cannot_be_planned_is_refused_by_key(tmp_path: Path, line: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        suggest(configured(tmp_path, *line))


def tried() -> dict[tuple[str, str, float], dict[int, float]]:
    """Validation AUC by dataset, algorithm and epsilon, then by batch size: that of its best learning rates."""
    found: dict[tuple[str, str, float], dict[int, float]] = defaultdict(dict)
    cards, damaged = read_cards(SEARCHES / "batch_size.jsonl.xz")
    assert cards and not damaged
    for card in cards:
        summary = card.summary
        by_size = found[summary["dataset"], summary["algorithm"], card.config["privacy"]["epsilon"]]
        size, reached = summary["batch_size"], summary["utility"]["validation"]
        by_size[size] = max(reached, by_size.get(size, 0.0))
    return found


@pytest.mark.documents
def test_what_is_said_of_the_evidence_is_what_it_shows(tmp_path: Path) -> None:
    """Documents: plans at the sizes of eight searches."""
    examples = {
        card.summary["dataset"]: card.summary["examples"] for card in read_cards(SEARCHES / "batch_size.jsonl.xz")[0]
    }
    suggested = {}
    losses = defaultdict(list)
    for (data, _, epsilon), reached in tried().items():
        if (data, epsilon) not in suggested:
            line = [f"data={data}", f"privacy.epsilon={epsilon:g}", f"budget.examples={examples[data]}"]
            suggested[data, epsilon] = suggest(configured(tmp_path, *line)).suggested.batch_size
        best = max(reached.values())
        losses["suggested"].append(best - reached[suggested[data, epsilon]])
        losses["recipe"].append(best - reached[8192])
        losses["drawn"].append(fmean(best - auc for auc in reached.values()))
        losses["worst"].append(best - min(reached.values()))
    mean, most = ({name: f"{of(values):.3f}" for name, values in losses.items()} for of in (fmean, max))
    said = " ".join(planner.EVIDENCE.split())
    assert (
        f"was {mean['suggested']} below that of the best batch tried on average, and {most['suggested']} at worst. A "
        f"batch drawn from those tried loses {mean['drawn']} on average, the worst one {mean['worst']}; always taking "
        f"the recipes' 8,192, at which their learning rates were chosen, {mean['recipe']}."
    ) in said
    assert (len({data for data, _ in suggested}), len(losses["drawn"])) == (3, 3 + 2 + 3)
    sizes = {size for reached in tried().values() for size in reached}
    millions = [f"{of(examples.values()) / 1e6:.2f}" for of in (min, max)]
    assert f"of {millions[0]} to {millions[1]} million examples" in said
    assert f"batches of {min(sizes):,} to {max(sizes):,}" in said
    assert f"that are suggested, {LEAST_STEPS}, were" in said
    page = (HOME / "docs" / "FINDINGS.md").read_text(encoding="utf-8")
    for (data, algorithm, epsilon), reached in tried().items():
        cells = [f"{reached[size]:.4f}" if size in reached else "" for size in sorted(sizes)]
        place = sorted(sizes).index(suggested[data, epsilon])
        cells[place] = f"**{cells[place]}**"
        row = " | ".join([f"`{data}`, {algorithm}, ε = {epsilon:g}", *cells]).replace("  ", " ")
        assert f"| {row.replace('dpsgd', 'DP-SGD')} |".replace("  ", " ") in page


def test_what_is_said_of_the_clipping_norm_is_what_the_searches_show() -> None:
    runs = [
        card for data in ("journey", "names", "nycflights") for card in read_cards(SEARCHES / f"{data}.jsonl.xz")[0]
    ]

    def but_for_clipping(config: Mapping[str, Any]) -> str:
        privacy = {name: value for name, value in config["privacy"].items() if value is not None}
        algorithm = {**config["algorithm"], "clipping_norm": None}
        return json.dumps({**config, "privacy": privacy, "algorithm": algorithm}, sort_keys=True)

    by_setting: dict[str, dict[float, float]] = defaultdict(dict)
    for card in runs:
        if norm := card.config["algorithm"].get("clipping_norm"):
            by_setting[but_for_clipping(card.config)][norm] = card.summary["utility"]["validation"]
    better: dict[str, list[bool]] = defaultdict(list)
    for setting, reached in by_setting.items():
        name = json.loads(setting)["algorithm"]["name"]
        better[name] += [auc > reached[1.0] for norm, auc in reached.items() if norm != 1 and 1.0 in reached]
    counted = {name: f"{sum(times)} of {len(times)}" for name, times in better.items() if times}
    others = {"fest": "3 of 8", "adafest": "2 of 6", "adafest_plus": "5 of 12", "exponential": "3 of 6"}
    assert counted == {"dpsgd": "1 of 10", "frozen": "8 of 11", "threshold": "3 of 6", **others}
    assert "better in 1 of 10 pairs of runs of DP-SGD, and in 8 of 11 of frozen" in " ".join(planner.EVIDENCE.split())


def test_the_best_number_of_bands_is_named_where_noise_is_independent(tmp_path: Path) -> None:
    line = ("budget.examples=1175124", "privacy.epsilon=3", "train.batch_size=8192")
    found = suggest(configured(tmp_path, *line))
    suggested, configured_size = found.suggested.batch_size, 8192
    assert list(found.bands) == [suggested, configured_size] and suggested != configured_size
    for size, shares in found.bands.items():
        assert min(shares) == 2 and len(shares) > 2 and min(shares.values()) < 0.8
        best = min(shares, key=shares.__getitem__)
        share = f"algorithm.bands={best} would leave {shares[best]:.2f} of the noise that accumulates in a row"
        assert f"{share}, at B = {size:,}." in str(found)
    assert found.bands[suggested] != found.bands[configured_size] and PROMISE in str(found)
    for other in ("algorithm=adafest", "algorithm.noise=lazy", "privacy=paper"):
        quiet = suggest(configured(tmp_path, *line, other))
        assert not quiet.bands and "algorithm.bands" not in str(quiet)


def test_batches_are_suggested_as_for_independent_noise_and_weighed_by_what_accumulates(tmp_path: Path) -> None:
    """Else correlated noise, whose noise multiplier grows with the batch, would have eight times the steps."""
    line = ("budget.examples=1175124", "budget.examples_seen=4700000")
    plain, found = (suggest(configured(tmp_path, *line, *more)) for more in ((), ("algorithm.bands=8",)))
    assert found.suggested.batch_size == plain.suggested.batch_size == 8192 and list(found.bands) == [8192]
    ours, theirs = (next(s for s in one.settings if s.batch_size == 8192) for one in (found, plain))
    assert ours.accumulated < 0.4 and ours.noise_multiplier > theirs.noise_multiplier
    gained = ours.signal_to_noise / theirs.signal_to_noise
    assert gained == pytest.approx(1 / found.bands[8192][8], rel=1e-6) and gained > 1.1
    assert re.search(r"a +√T·B/\(σ·a\)\n", str(found)) and f"{ours.accumulated:.3g}" in str(found)
    few = configured(
        tmp_path, "budget.examples=261978", "train.steps=128", "train.batch_size=8192", "algorithm.bands=8"
    )
    assert "Correlated noise would leave no less noise in a row, at B = 8,192." in str(suggest(few))
    with pytest.raises(UserError, match=r"algorithm\.bands=64 leaves groups of less than one of 60 examples"):
        suggest(configured(tmp_path, "budget.examples=60", "algorithm.bands=64", "budget.examples_seen=100000"))
