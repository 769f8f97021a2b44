"""From a budget to the noise of each algorithm."""

from __future__ import annotations

import math

import pytest

from dpfest import accounting
from dpfest.budget import plan, training_steps
from dpfest.errors import UserError
from dpfest.privacy import PrivacyConfig
from dpfest.rules import ALGORITHMS
from dpfest.topk import SelectionConfig

SIZES = [3, 50, 2_000, 10_000]


_answers: dict[tuple, float] = {}


def remembered(make_events, target, delta):
    """`calibrate`, once for each question of this file."""
    question = (*make_events(1.0), *make_events(2.0), target, delta)
    if question not in _answers:
        _answers[question] = accounting.calibrate(make_events, target, delta)
    return _answers[question]


def budget(name, *, features=SIZES, batch=5_000, steps=100, privacy=None, **settings):
    return plan(
        ALGORITHMS[name](**settings),
        privacy or PrivacyConfig(),
        examples=50_000,
        batch_size=batch,
        steps=steps,
        features=features,
        calibrate=remembered,
    )


PAPER = PrivacyConfig(fidelity="paper")


@pytest.mark.parametrize("fidelity", ["rigorous", "paper"])
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "nonprivate"])
def test_every_algorithm_spends_its_target_and_no_more(name, fidelity):
    got = budget(name, privacy=PrivacyConfig(fidelity=fidelity))
    assert 0.999 < got.epsilon <= 1.0 and got.target_epsilon == 1.0
    assert got.delta == 1 / 50_000
    assert got.events[-1].count == 100 and got.sampling_probability == 0.1
    assert (got.selection is not None) == (name in ("fest", "adafest_plus"))


def test_dpsgd_frozen_and_adafest_have_the_same_combined_noise():
    dpsgd, frozen, adafest = (budget(name) for name in ("dpsgd", "frozen", "adafest"))
    assert dpsgd.noise_multiplier == frozen.noise_multiplier == adafest.noise_multiplier
    assert dpsgd.gradient_noise_multiplier == dpsgd.noise_multiplier and dpsgd.map_noise_multiplier is None
    assert adafest.map_noise_multiplier == pytest.approx(5 * adafest.gradient_noise_multiplier)
    combined = (adafest.map_noise_multiplier**-2 + adafest.gradient_noise_multiplier**-2) ** -0.5
    assert combined == pytest.approx(adafest.noise_multiplier)


def test_selection_is_composed_before_noise_is_split():
    plain, plus = budget("adafest"), budget("adafest_plus")
    assert plain.noise_multiplier < plus.noise_multiplier < 1.05 * plain.noise_multiplier
    fest = budget("fest")
    assert fest.noise_multiplier == plus.noise_multiplier
    assert accounting.epsilon(plus.events, plus.delta) <= 1.0


def test_public_selection_is_free():
    selection = SelectionConfig(mechanism="public", prior="counts.npy")
    free = budget("fest", selection=selection)
    assert free.selection is None and free.noise_multiplier == budget("dpsgd").noise_multiplier


def test_exponential_selection_shares_the_noise_ratio():
    got = budget("exponential", noise_ratio=2.0, rows_per_step=25)
    assert got.epsilon_per_row == pytest.approx(1 / (2.0 * got.gradient_noise_multiplier * 5))
    assert got.map_noise_multiplier is None
    adafest = budget("adafest", noise_ratio=2.0)
    assert got.gradient_noise_multiplier == pytest.approx(adafest.gradient_noise_multiplier, rel=0.02)


def test_gumbel_is_subtracted_under_paper_and_composed_at_its_true_cost_under_rigorous():
    selection = SelectionConfig(mechanism="gumbel", rows=400, epsilon=0.05)
    paper = budget("fest", privacy=PAPER, selection=selection)
    trained = accounting.epsilon([paper.events[-1]], paper.delta)
    assert 0.949 < trained <= 0.95 and paper.epsilon == pytest.approx(trained + 0.05)
    rigorous = budget("fest", selection=selection)
    assert rigorous.noise_multiplier > paper.noise_multiplier
    assert accounting.epsilon(rigorous.events, rigorous.delta) <= 1.0


def test_caps_make_gumbel_cheaper_than_where_only_the_number_of_features_is_known():
    selection = SelectionConfig(mechanism="gumbel", rows=400, epsilon=0.05)
    known = budget("fest", selection=selection)
    unknown = budget("fest", selection=selection, features=4)
    assert known.selection.draws == 3 + 50 + 100 + 100 and unknown.selection.draws == 400
    assert unknown.noise_multiplier > known.noise_multiplier


def test_delta_is_settable():
    assert budget("dpsgd", privacy=PrivacyConfig(delta=1e-9)).noise_multiplier > budget("dpsgd").noise_multiplier


def test_without_privacy_there_is_no_noise():
    got = budget("nonprivate")
    assert got.epsilon is got.target_epsilon is got.noise_multiplier is got.gradient_noise_multiplier is None
    assert got.events == []


def test_a_claim_that_leaves_nothing_to_train_with_is_refused_by_key():
    selection = SelectionConfig(mechanism="gumbel", epsilon=1.0)
    with pytest.raises(UserError, match=r"algorithm\.selection\.epsilon=1 leaves nothing of privacy\.epsilon=1"):
        budget("fest", privacy=PAPER, selection=selection)


def test_a_batch_larger_than_the_data_is_refused_by_key():
    with pytest.raises(UserError, match=r"train\.batch_size=50001 .* 50000"):
        budget("dpsgd", batch=50_001)


@pytest.mark.parametrize("epochs, steps, expected", [(1.0, None, 23), (2.5, None, 57), (0.01, None, 1), (9.0, 7, 7)])
def test_steps_are_rounded_up(epochs, steps, expected):
    assert training_steps(45_000, 2_000, epochs, steps) == expected
    assert training_steps(math.prod([100, 20]), 20, 1.0) == 100


def test_more_rows_a_step_than_there_are_is_refused():
    with pytest.raises(UserError, match=r"algorithm\.rows_per_step=12054 is more than the 12053 rows"):
        budget("exponential", rows_per_step=12_054)


@pytest.mark.parametrize("epsilon, delta, key", [(1e-4, None, "epsilon"), (1.0, 1e-30, "delta"), (1.0, 0.5, "delta")])
def test_a_target_that_cannot_be_counted_is_refused_by_its_own_key(epsilon, delta, key):
    with pytest.raises(UserError, match=rf"^privacy\.{key}="):
        budget("dpsgd", privacy=PrivacyConfig(epsilon=epsilon, delta=delta))


def test_a_selection_that_takes_all_is_refused_with_what_to_change():
    selection = SelectionConfig(noise_multiplier=1.0)
    with pytest.raises(UserError, match=r"cannot be met.*algorithm\.selection\.noise_multiplier"):
        budget("fest", selection=selection)


def test_paper_steps_know_how_often_they_visit_an_example():
    assert budget("dpsgd", privacy=PAPER).step.steps_per_epoch == 10
    assert budget("dpsgd").step.steps_per_epoch is None
