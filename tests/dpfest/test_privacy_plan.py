"""From a target to the noise of each algorithm; what is asked in another way is answered in words."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfest.accounting import accountant, calibration
from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.rules import ALGORITHMS
from dpfest.errors import UserError
from dpfest.noise.key import NoiseKey
from dpfest.planning.plan import plan, training_steps
from dpfest.planning.seen import threshold_for
from dpfest.planning.unproven import Nonprivate
from dpfest.selection.survivors import surviving_rows
from dpfest.selection.topk import SelectionConfig

SIZES = [3, 50, 2_000, 10_000]


_answers: dict[tuple, float] = {}


def remembered(make_events, target, delta):
    """`calibrate`, once for each question of this file."""
    question = (*make_events(1.0), *make_events(2.0), target, delta)
    if question not in _answers:
        _answers[question] = calibration.calibrate(make_events, target, delta)
    return _answers[question]


PAPER = {"fidelity": "paper"}
"""Arguments of `plan` rather than of the algorithm."""


def planned(name, *, features=SIZES, batch=5_000, steps=100, privacy=None, **settings):
    algorithm = Nonprivate() if name == "nonprivate" else ALGORITHMS[name](**settings)
    arguments = {"epsilon": 1.0, **(privacy or {})}
    return plan(
        algorithm, examples=50_000, batch_size=batch, steps=steps, features=features, calibrate=remembered, **arguments
    )


@pytest.mark.parametrize("fidelity", ["rigorous", "paper"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_spends_its_target_and_no_more(name, fidelity):
    got = planned(name, privacy={"fidelity": fidelity})
    assert 0.999 < got.epsilon <= 1.0 and got.target_epsilon == 1.0
    assert got.delta == 1 / 50_000
    assert got.events[-1].count == 100 and got.step().sampling_probability == 0.1
    assert bool(got.selections) == (name in ("fest", "adafest_plus"))


def test_dpsgd_frozen_and_adafest_have_the_same_combined_noise():
    dpsgd, frozen, adafest = (planned(name) for name in ("dpsgd", "frozen", "adafest"))
    assert dpsgd.noise_multiplier == frozen.noise_multiplier == adafest.noise_multiplier
    assert dpsgd.gradient_noise_multiplier == dpsgd.noise_multiplier and dpsgd.map_noise_multiplier is None
    assert adafest.map_noise_multiplier == pytest.approx(5 * adafest.gradient_noise_multiplier)
    combined = (adafest.map_noise_multiplier**-2 + adafest.gradient_noise_multiplier**-2) ** -0.5
    assert combined == pytest.approx(adafest.noise_multiplier)


def test_selection_is_composed_before_noise_is_split():
    plain, plus = planned("adafest"), planned("adafest_plus")
    assert plain.noise_multiplier < plus.noise_multiplier < 1.05 * plain.noise_multiplier
    fest = planned("fest")
    assert fest.noise_multiplier == plus.noise_multiplier
    assert accountant.epsilon(plus.events, plus.delta) <= 1.0


def test_public_selection_is_free():
    selection = SelectionConfig(mechanism="public", prior="counts.npy")
    free = planned("fest", selection=selection)
    assert free.selections == () and free.noise_multiplier == planned("dpsgd").noise_multiplier


def test_exponential_selection_shares_the_noise_ratio():
    got = planned("exponential", noise_ratio=2.0, rows_per_step=25)
    assert got.step().epsilon_per_draw == pytest.approx(1 / (2.0 * got.gradient_noise_multiplier * 5))
    assert got.map_noise_multiplier is None
    adafest = planned("adafest", noise_ratio=2.0)
    assert got.gradient_noise_multiplier == pytest.approx(adafest.gradient_noise_multiplier, rel=0.02)


def test_gumbel_is_subtracted_under_paper_and_composed_at_its_true_cost_under_rigorous():
    selection = SelectionConfig(mechanism="gumbel", rows=400, epsilon=0.05)
    paper = planned("fest", privacy=PAPER, selection=selection)
    trained = accountant.epsilon([paper.events[-1]], paper.delta)
    assert 0.949 < trained <= 0.95 and paper.epsilon == pytest.approx(trained + 0.05)
    rigorous = planned("fest", selection=selection)
    assert rigorous.noise_multiplier > paper.noise_multiplier
    assert accountant.epsilon(rigorous.events, rigorous.delta) <= 1.0


def test_caps_make_gumbel_cheaper_than_where_only_the_number_of_features_is_known():
    selection = SelectionConfig(mechanism="gumbel", rows=400, split="equal", epsilon=0.05)
    known = planned("fest", selection=selection)
    unknown = planned("fest", selection=selection, features=4)
    assert known.selections[0].draws == 3 + 50 + 100 + 100 and unknown.selections[0].draws == 400
    assert unknown.noise_multiplier > known.noise_multiplier


def test_delta_is_settable():
    assert planned("dpsgd", privacy={"delta": 1e-9}).noise_multiplier > planned("dpsgd").noise_multiplier


def test_without_privacy_there_is_no_noise():
    got = planned("nonprivate")
    assert got.epsilon is got.target_epsilon is got.noise_multiplier is got.gradient_noise_multiplier is None
    assert got.events == []


def test_a_claim_that_leaves_nothing_to_train_with_is_refused_by_name():
    selection = SelectionConfig(mechanism="gumbel", epsilon=1.0)
    with pytest.raises(UserError, match=r"^selection\.epsilon=1 leaves nothing of epsilon=1"):
        planned("fest", privacy=PAPER, selection=selection)


def test_a_batch_larger_than_the_data_is_refused_by_name():
    with pytest.raises(UserError, match=r"^batch_size=50001 .* 50000"):
        planned("dpsgd", batch=50_001)


@pytest.mark.parametrize("epochs, steps, expected", [(1.0, None, 23), (2.5, None, 57), (0.01, None, 1), (None, 7, 7)])
def test_steps_are_rounded_up(epochs, steps, expected):
    assert training_steps(45_000, 2_000, epochs=epochs, steps=steps) == expected
    assert training_steps(math.prod([100, 20]), 20, epochs=1.0) == 100


def test_more_rows_a_step_than_there_are_is_refused():
    with pytest.raises(UserError, match=r"^rows_per_step=12054 is more than the 12053 rows"):
        planned("exponential", rows_per_step=12_054)


@pytest.mark.parametrize("epsilon, delta, key", [(1e-4, None, "epsilon"), (1.0, 1e-30, "delta"), (1.0, 0.5, "delta")])
def test_a_target_that_cannot_be_counted_is_refused_by_its_own_name(epsilon, delta, key):
    with pytest.raises(UserError, match=rf"^{key}="):
        planned("dpsgd", privacy={"epsilon": epsilon, "delta": delta})


def test_a_selection_that_takes_all_is_refused_with_what_to_change():
    selection = SelectionConfig(noise_multiplier=1.0)
    with pytest.raises(UserError, match=r"cannot be met.* raise selection\.noise_multiplier"):
        planned("fest", selection=selection)


def test_paper_steps_know_how_often_they_visit_an_example():
    assert planned("dpsgd", privacy=PAPER).step().steps_per_epoch == 10
    assert planned("dpsgd").step().steps_per_epoch is None


@pytest.mark.parametrize(
    ("positional", "changed", "message"),
    [
        ((1.0,), {}, r"only the algorithm by position: give 1\.0 by name"),
        ((), {"algorithm": AdaFEST}, r"^algorithm=<class .*must be an algorithm with its settings"),
        ((), {"algorithm": "adafest"}, r"^algorithm='adafest' must be an algorithm"),
        ((), {"examples": torch.utils.data.TensorDataset(torch.zeros(9))}, r"len\(dataset\).* not a TensorDataset"),
        ((), {"examples": [9.5]}, r"not a list"),
        ((), {"examples": 0}, r"^examples=0 must be a whole number"),
        ((), {"batch_size": 2.5}, r"^batch_size=2\.5 must be a whole number"),
        ((), {"epsilon": None}, r"^epsilon=None must be a number above 0"),
        ((), {"epsilon": math.nan}, r"^epsilon=nan"),
        ((), {"epsilon": -1.0}, r"^epsilon=-1\.0"),
        ((), {"delta": "1e-6"}, r"^delta='1e-6' must be a number"),
        ((), {"epochs": 1.0}, r"^Give exactly one of steps=10 and epochs=1\.0"),
        ((), {"steps": None}, r"^Give exactly one of steps=None and epochs=None"),
        ((), {"steps": 1.5}, r"^steps=1\.5 must be a whole number"),
        ((), {"period": 2}, r"^period=2 applies to streams only"),
        ((), {"fidelity": "exact"}, r"^fidelity='exact' must be one of rigorous, paper"),
        ((), {"algorithm": ALGORITHMS["fest"]()}, r"^fest selects rows: give features="),
    ],
)
def test_what_people_write_who_know_another_library_is_answered_in_words(positional, changed, message):
    arguments = {"algorithm": AdaFEST(), "epsilon": 1.0, "examples": 100, "batch_size": 10, "steps": 10} | changed
    with pytest.raises(ValueError, match=message):
        plan(arguments.pop("algorithm"), *positional, **arguments)


def test_a_plan_edited_by_hand_is_another_plan_and_refused_where_it_costs_more():
    """Its events follow from its settings: there is no plan whose steps are not paid for."""
    true = planned("adafest")
    for edited in (
        replace(true, batch_size=10_000),
        replace(true, algorithm=ALGORITHMS["exponential"](rows_per_step=50, noise_ratio=0.1)),
        replace(true, periods=(replace(true.periods[0], noise_multiplier=0.9 * true.noise_multiplier),)),
        replace(true, periods=(replace(true.periods[0], steps=150),)),
        replace(true, periods=(replace(true.periods[0], examples=40_000),)),
    ):
        with pytest.raises(RuntimeError, match="past the target epsilon=1"):
            edited.ledger()
    with pytest.raises(UserError, match="plan it anew"):
        replace(true, algorithm=Nonprivate())
    with pytest.raises(UserError, match="plan it anew"):
        replace(true, target_epsilon=None)


def test_settings_that_were_planned_cannot_change():
    with pytest.raises(AttributeError, match="rows_per_step"):
        planned("exponential").algorithm.rows_per_step = 5_000


def test_the_threshold_keeps_as_many_untouched_rows_as_were_asked_for():
    """Mean of 400 draws of a Poisson-like count of mean 20: within 5 deviations (false-alarm rate 6e-7)."""
    found = planned("adafest", contribution_clipping_norm=0.5)
    tau = threshold_for(found, rows=1_000_000, false_rows=20)
    key, counts = NoiseKey.from_seed(0), []
    empty = torch.empty(0, dtype=torch.int64)
    for step in range(400):
        kept = surviving_rows(
            empty,
            empty.double(),
            key.stream("map", step),
            universe=1_000_000,
            threshold=tau,
            deviation=0.5 * found.map_noise_multiplier,
        )
        counts.append(len(kept))
    assert abs(np.mean(counts) - 20) < 5 * math.sqrt(20 / 400)


def test_a_threshold_is_for_plans_with_a_map():
    with pytest.raises(UserError, match="dpsgd has no contribution map"):
        threshold_for(planned("dpsgd"), rows=10)
    with pytest.raises(UserError, match="false_rows=10 must lie between 0 and the 10 rows"):
        threshold_for(planned("adafest"), rows=10, false_rows=10)
