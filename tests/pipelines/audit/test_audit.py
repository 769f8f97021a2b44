"""The audit: its bound is honest, its pair is the worst, and it tells a sound engine from every sabotaged one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from cli.audit import SETTINGS
from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event
from dpfest.accounting.bands import strategy
from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import ALGORITHMS
from dpfest.errors import UserError
from dpfest.gradients.parts import RowGradient
from dpfest.gradients.units import UnitConfig
from dpfest.noise.key import NoiseKey
from pipelines.audit.bound import Draws, lower_bound, refuted
from pipelines.audit.flaws import OF_A_STEP
from pipelines.audit.pair import DROPPED, NOISED, REPLICAS, Pair
from pipelines.audit.results import STEPS, read, write
from pipelines.audit.step import Step, audit_step
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from tests.dpfest.steps import step_cost

CHOOSING = ("adafest", "adafest_plus", "exponential")


def configured(name: str, *overrides: str) -> Config:
    """The configuration of `dpfest audit algorithm=NAME`, with fixed noise."""
    line = [f"algorithm={name}", *SETTINGS.get(name, ()), "privacy.noise_seed=0", *overrides]
    return typed(Composer().compose(line))


def gaussian_draws(generator: np.random.Generator, count: int, deviation: float) -> Draws:
    world = generator.random(2 * count) < 0.5
    return Draws(world, np.zeros(2 * count, dtype=np.int64), generator.normal(world, deviation))


# The bound.


def test_a_set_refutes_what_the_clopper_pearson_limits_of_its_two_rates_do() -> None:
    histograms, hits = np.array([[900, 100], [400, 700]]), np.array([[100], [700]])
    least = binomtest(700, 1100).proportion_ci(0.95, "exact").low
    most = binomtest(100, 1000).proportion_ci(0.95, "exact").high
    (found,) = refuted(histograms, hits, 1, 0, 0.01, 0.95)
    assert found == pytest.approx(math.log((least - 0.01) / most))


@pytest.mark.parametrize(("hits", "least"), [((0, 0), 0.0), ((1000, 1100), 0.0), ((0, 1100), 5.5)])
def test_empty_and_full_sets_refute_what_they_can(hits: tuple[int, int], least: float) -> None:
    histograms = np.array([[900, 100], [400, 700]])
    (found,) = refuted(histograms, np.array(hits)[:, None], 1, 0, 0.01, 0.95)
    assert least <= found < 6


def test_the_bound_nears_the_truth_of_randomised_response() -> None:
    generator, epsilon = np.random.default_rng(0), 1.5
    world = generator.random(400_000) < 0.5
    honest = generator.random(400_000) < 1 / (1 + math.exp(-epsilon))
    draws = Draws(world, np.where(honest, world, ~world).astype(np.int64), np.zeros(400_000))
    assert 0.97 * epsilon < lower_bound(draws, 0.0, 0.95) < epsilon


def test_the_bound_exceeds_the_truth_no_more_often_than_it_says() -> None:
    """A mechanism at exactly its claim is called broken in at most 5% of audits (about 0.3%: both rates must err)."""
    generator, deviation, delta = np.random.default_rng(1), 1.0, 0.05
    truth = accountant.epsilon([accountant.Event(kind="gaussian", what="audited", noise_multiplier=deviation)], delta)
    bounds = [lower_bound(gaussian_draws(generator, 10_000, deviation), delta, 0.95) for _ in range(200)]
    assert np.mean(np.array(bounds) > truth) <= 0.05
    assert np.mean(bounds) > 0.7 * truth


def test_nothing_is_refuted_where_the_worlds_are_alike() -> None:
    generator = np.random.default_rng(2)
    draws = Draws(generator.random(50_000) < 0.5, np.zeros(50_000, dtype=np.int64), generator.normal(size=50_000))
    assert lower_bound(draws, 0.0, 0.95) < 0.1


def test_a_value_that_repeats_exactly_is_told_apart() -> None:
    generator = np.random.default_rng(3)
    world = generator.random(20_000) < 0.5
    values = np.where(world, 1e-12, 0.0)
    assert lower_bound(Draws(world, np.zeros(20_000, dtype=np.int64), values), 0.01, 0.95) > 7


# The pair.


def cost(**multipliers: float) -> Event:
    """Next to no noise on the gradient, and some on the choice of rows."""
    some = {"gradient_noise_multiplier": 1e-9, "map_noise_multiplier": 1.0, "epsilon_per_draw": 1.0}
    return step_cost(**some | multipliers)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_canary_moves_the_release_by_its_whole_clipping_norm(name: str) -> None:
    algorithm: Algorithm = configured(name, "algorithm.clipping_norm=3").algorithm
    draws = Pair(algorithm, cost(), NoiseKey.from_seed(0)).draws(4 * REPLICAS)
    assert draws.value[draws.world] == pytest.approx(3, rel=1e-5)
    assert draws.value[~draws.world] == pytest.approx(0, abs=1e-5)
    kinds = {"dpsgd": {NOISED}, "fest": {NOISED}, "frozen": {DROPPED}}.get(name, {DROPPED, NOISED})
    assert set(draws.kind) == kinds
    assert 0.45 < draws.world.mean() < 0.55


@pytest.mark.parametrize(("threshold", "clipping"), [(-1.0, 1.0), (0.5, 1.0), (1.0, 1.0), (7.5, 1.0), (4.0, 0.5)])
def test_the_canary_alone_decides_whether_its_row_reaches_the_threshold(threshold: float, clipping: float) -> None:
    kind = ALGORITHMS["adafest"]
    algorithm = kind(threshold=threshold, contribution_clipping_norm=clipping)  # type: ignore[call-arg]
    silent_map = cost(map_noise_multiplier=1e-9, gradient_noise_multiplier=1.0)
    draws = Pair(algorithm, silent_map, NoiseKey.from_seed(0)).draws(REPLICAS)
    there = draws.kind != DROPPED
    if threshold > 0 and threshold != round(threshold / clipping) * clipping:  # on the threshold, a coin decides
        assert np.array_equal(there, draws.world)
    else:
        assert there[draws.world].mean() > 0.4 and there[~draws.world].mean() == (threshold <= 0)


@pytest.mark.parametrize("name", ["dpsgd", "fest"])
def test_over_correlated_steps_the_canary_moves_the_joint_release_by_its_clipping_norm_and_no_more(name: str) -> None:
    """Its row leaks into four releases, which are told together; and each flaw is seen in what it spoils."""
    algorithm = configured(name, "algorithm.clipping_norm=3", "algorithm.bands=4").algorithm
    flaws = {flaw.name: flaw.attempt for flaw in OF_A_STEP}
    silent, loud = (replace(step_cost(noise), bands=4) for noise in (1e-9, 1.0))
    draws = Pair(algorithm, silent, NoiseKey.from_seed(0)).draws(2 * REPLICAS)
    assert draws.value[draws.world] == pytest.approx(3, rel=1e-5)
    assert draws.value[~draws.world] == pytest.approx(0, abs=1e-5) and set(draws.kind) == {NOISED}
    noised = Pair(algorithm, loud, NoiseKey.from_seed(0)).draws(8 * REPLICAS)
    assert np.std(noised.value[~noised.world]) == pytest.approx(3, rel=0.05)
    spoiled = flaws["columns of the strategy too long"](algorithm, loud, NoiseKey.from_seed(0)).draws(8 * REPLICAS)
    norm = strategy(4, 4).norm  # of the half of the release that is the row's
    assert np.std(spoiled.value[~spoiled.world]) == pytest.approx(3 * math.sqrt((1 + norm**-2) / 2), rel=0.05)
    repeated = flaws["groups ignored"](algorithm, silent, NoiseKey.from_seed(0))
    assert repeated.draws(2 * REPLICAS).value.max() > 3.9


def test_a_round_of_correlated_noise_is_sound_and_its_flaws_are_detected() -> None:
    """Too long columns need the draws of the slow test below."""
    line = ("algorithm.bands=4", "audit.draws=8000", "privacy.epsilon=3", "privacy.delta=0.02")
    found = audit_step(configured("dpsgd", *line))
    verdicts = {case.sabotage: case.verdict for case in found.cases}
    assert found.claim == pytest.approx(3, rel=1e-3) and found.settings["bands"] == 4
    assert verdicts.pop("columns of the strategy too long") in ("broken", "missed")
    assert verdicts.pop(None) == "sound" and set(verdicts.values()) == {"broken"}
    assert found.cases[0].tightness > 0.6


def test_a_threshold_out_of_reach_is_refused_by_its_key() -> None:
    for threshold in ("1000", "1e9"):
        with pytest.raises(UserError, match=r"algorithm\.threshold=.* cannot be audited"):
            audit_step(configured("adafest", f"algorithm.threshold={threshold}"))


@pytest.mark.parametrize("name", CHOOSING)
def test_counts_of_surviving_replicas_spread_no_more_over_steps_than_independent_ones(name: str) -> None:
    """Survivors of a world in a step, against the binomial that the bound takes them for (their variances' ratio)."""
    steps, algorithm = 400, configured(name).algorithm
    multipliers = cost(gradient_noise_multiplier=1.0, map_noise_multiplier=2.6)
    pair = Pair(algorithm, multipliers, NoiseKey.from_seed(5))
    draws = pair.draws(steps * REPLICAS // 2)
    world, there = draws.world.reshape(steps, REPLICAS), (draws.kind != DROPPED).reshape(steps, REPLICAS)
    for present in (False, True):
        trials = (world == present).sum(1)
        counts = (there & (world == present)).sum(1)
        rate = counts.sum() / trials.sum()
        ratio = float(np.mean((counts - trials * rate) ** 2 / (trials * rate * (1 - rate))))
        assert ratio < 1 + 4 * math.sqrt(2 / steps)
        assert name == "exponential" or ratio > 1 - 4 * math.sqrt(2 / steps)


# The sabotages.


def test_each_sabotage_spoils_what_it_names_and_nothing_else() -> None:
    whole = step_cost(2.0, 4.0)
    how = {flaw.name: flaw.attempt.keywords for flaw in OF_A_STEP}  # type: ignore[attr-defined]
    spoiled = {name: change.get("noise", lambda event: event)(whole) for name, change in how.items()}
    assert spoiled["gradient noise halved"] == replace(whole, gradient_noise_multiplier=1.0)
    assert spoiled["no noise on the choice of rows"] == replace(whole, map_noise_multiplier=4.0 * 1e-9)
    assert spoiled["no noise on untouched rows"] == whole
    assert spoiled["no noise"].gradient_noise_multiplier == pytest.approx(2e-9)


@pytest.mark.parametrize("rows", [None, torch.tensor([1, 3, 4])])
def test_untouched_rows_are_silenced_and_touched_ones_are_not(rows: torch.Tensor | None) -> None:
    (silence,) = [how["after"] for flaw in OF_A_STEP if "after" in (how := flaw.attempt.keywords)]  # type: ignore[attr-defined]
    table = RowGradient(rows, torch.ones(5 if rows is None else 3, 1))
    silence(SimpleNamespace(tables=[table]), torch.tensor([3]))  # type: ignore[arg-type]
    where = 3 if rows is None else 1
    assert table.values[where] == 1 and table.values.sum() == 1


def met(step: Step) -> set[str]:
    return {flaw.name for flaw in OF_A_STEP if flaw.applies(step)}


def test_every_rule_meets_the_sabotages_that_it_can_have() -> None:
    found = {name: met(Step(kind())) for name, kind in ALGORITHMS.items()}
    everywhere = {"gradient noise halved", "no noise"}
    assert found["frozen"] == everywhere
    assert found["dpsgd"] == found["fest"] == found["threshold"] == everywhere | {"no noise on untouched rows"}
    of_bands = {"columns of the strategy too long", "groups ignored"}
    assert all(found[name] == {flaw.name for flaw in OF_A_STEP} - of_bands - {"unit ignored"} for name in CHOOSING)
    for name in ("dpsgd", "fest"):
        correlated = ALGORITHMS[name](bands=4)  # type: ignore[call-arg]
        assert met(Step(correlated)) == found[name] | of_bands
        assert met(Step(ALGORITHMS[name](), unit=UnitConfig("household", 4))) == found[name] | {"unit ignored"}


# The stage.


def test_an_algorithm_without_a_guarantee_is_refused() -> None:
    with pytest.raises(UserError, match=r"nonprivate has no guarantee to audit.*dpsgd, threshold, fest"):
        audit_step(configured("nonprivate"))


def test_too_few_draws_are_refused_by_their_key() -> None:
    with pytest.raises(UserError, match=r"audit\.draws must be a whole number from 1,000 to"):
        configured("dpsgd", "audit.draws=10")


@pytest.mark.parametrize(
    "name",
    [one if one in ("adafest", "frozen") else pytest.param(one, marks=pytest.mark.slow) for one in ALGORITHMS],
)
def test_an_audit_reports_every_case_and_its_claim(name: str) -> None:
    """Slow but for two: thousands of steps, sound and sabotaged, of each."""
    reported = []
    config = configured(name, "audit.draws=2000", "privacy.epsilon=3", "privacy.delta=0.02")
    found = audit_step(config, lambda _, case: reported.append(case))
    assert reported == found.cases
    assert [case.sabotage for case in found.cases] == [
        None,
        *(flaw.name for flaw in OF_A_STEP if flaw.applies(Step(config.algorithm))),
    ]
    assert found.claim == pytest.approx(3, rel=1e-3) and found.claim <= 3
    assert (found.delta, found.draws, found.refuted) == (0.02, 2000, False)
    assert all(case.tightness == case.bound / found.claim for case in found.cases)
    assert found.cases[-1].verdict == "broken"  # no noise at all: seen by 2,000 draws
    again = audit_step(config)
    assert [case.bound for case in again.cases] == [case.bound for case in found.cases]


def test_an_engine_under_chacha20_is_sound_its_flaws_are_found_and_the_audit_says_so() -> None:
    found = audit_step(configured("adafest", "audit.draws=4000", "privacy.epsilon=3", "privacy.cipher=chacha20/1"))
    assert found.settings["cipher"] == "chacha20/1" and not found.refuted
    assert found.cases[-1].verdict == "broken"
    assert "cipher" not in audit_step(configured("frozen", "audit.draws=1000")).settings


def test_results_are_plain_json_and_keep_what_was_audited_before(tmp_path: Path) -> None:
    dpsgd, frozen = (audit_step(configured(name, "audit.draws=1000")) for name in ("dpsgd", "frozen"))
    write(tmp_path, [frozen])
    path = write(tmp_path, [dpsgd])
    value = json.loads(path.read_text(encoding="utf-8"))
    assert path == tmp_path / "audit" / "audit.json" and value["schema"] == 1
    assert [entry["algorithm"] for entry in value["audits"]] == ["dpsgd", "frozen"]
    assert set(value["audits"][0]["cases"][0]) == {"sabotage", "bound", "tightness", "verdict", "seconds"}
    assert [one["claim"] for one in read(path, STEPS)] == [dpsgd.claim, frozen.claim]
    path.write_text("not json")
    assert read(path, STEPS) == []


@pytest.mark.slow
@pytest.mark.parametrize("bands", [4, 8])
def test_the_audit_separates_correlated_noise_from_every_sabotage_of_it(bands: int) -> None:
    """As the test below, over a round of steps."""
    found = audit_step(configured("dpsgd", f"algorithm.bands={bands}", "audit.draws=200000"))
    assert [case.verdict for case in found.cases] == ["sound"] + ["broken"] * (len(found.cases) - 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_audit_separates_the_engine_from_every_sabotage_of_it(name: str) -> None:
    """At 2 * 10^5 draws in each world; about half a minute.

    The noise is fixed, so the outcome is.  With fresh noise an engine at exactly its claim would fail in at most 5%
    of audits (about 0.3%, where both rates must err at once), each rule on its own.
    """
    found = audit_step(configured(name, "audit.draws=200000"))
    sound, *sabotaged = found.cases
    assert 0.4 < sound.tightness <= 1 and sound.verdict == "sound"
    if name in ("dpsgd", "fest", "frozen"):
        assert sound.tightness > 0.8
    for case in sabotaged:
        assert case.verdict == "broken", case
