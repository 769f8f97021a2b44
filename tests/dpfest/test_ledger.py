"""The ledger: it counts what is spent, refuses what passes the target, and can be checked without us."""

from __future__ import annotations

import json
from dataclasses import replace

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event
from dpfest.algorithms.adafest import AdaFESTPlus
from dpfest.algorithms.exponential import Exponential
from dpfest.errors import UserError
from dpfest.planning.ledger import BudgetExceeded, Ledger
from dpfest.planning.plan import plan
from dpfest.planning.unproven import Nonprivate

STEP = Event(kind="gaussian", what="step", noise_multiplier=1.0, sampling_probability=0.01)
SELECTION = Event(kind="gaussian", what="selection", noise_multiplier=20.0)


def times(count, **settings):
    return replace(STEP, count=count, **settings)


def empty(target, *, fidelity="rigorous", fixed_noise_seed=False):
    """A ledger with a target and no plan."""
    return Ledger(target, 1e-5, fidelity=fidelity, fixed_noise_seed=fixed_noise_seed)


def ledger(events):
    """A ledger whose target is what the events cost, and a hair."""
    return empty(accountant.epsilon(events, 1e-5) + 1e-9)


def test_equal_events_are_merged_and_epsilon_is_theirs():
    book = empty(8.0)
    assert book.epsilon() == 0.0
    for event in (SELECTION, STEP, times(9), STEP):
        book.spend(event)
    assert book.events == [SELECTION, times(11)]
    assert book.epsilon() == accountant.epsilon([SELECTION, times(11)], 1e-5)


def test_a_planned_run_is_verified_once_and_ends_at_its_plan(monkeypatch):
    book = ledger([SELECTION, times(50)])
    book.plan([SELECTION, times(50)])
    monkeypatch.setattr(accountant, "epsilon", lambda *_: pytest.fail("accounted within the plan"))
    book.spend(SELECTION)
    for _ in range(50):
        book.spend(STEP)
    monkeypatch.undo()
    before = book.events
    with pytest.raises(BudgetExceeded, match=r"1 x step would bring epsilon from .* past the target epsilon="):
        book.spend(STEP)
    assert book.events == before and book.epsilon() <= book.target_epsilon


def test_a_plan_past_the_target_is_refused_before_anything_is_spent():
    book = ledger([times(50)])
    with pytest.raises(BudgetExceeded, match="51 x step"):
        book.plan([times(51)])
    assert book.events == []


def test_what_was_not_planned_is_accounted_before_it_happens():
    book = ledger([SELECTION, times(50)])
    book.plan([times(50)])
    book.spend(SELECTION)  # fits beside the plan
    book.spend(times(50))
    with pytest.raises(BudgetExceeded):
        book.spend(SELECTION)


def test_an_unplanned_event_that_displaces_the_plan_cuts_the_plan_short():
    book = ledger([times(50)])
    book.plan([times(50)])
    book.spend(Event(kind="gaussian", what="extra", noise_multiplier=8.0))
    with pytest.raises(BudgetExceeded):
        for _ in range(50):
            book.spend(STEP)
    assert book.epsilon() <= book.target_epsilon
    assert 1 < book.events[1].count < 50


def test_the_refusal_is_a_user_error():
    assert issubclass(BudgetExceeded, UserError)


@pytest.mark.parametrize("fidelity", ["rigorous", "paper"])
def test_json_round_trip(fidelity):
    book = empty(8.0, fidelity=fidelity, fixed_noise_seed=True)
    shuffled = {"steps_per_epoch": 9} if fidelity == "paper" else {}
    book.plan([SELECTION, times(50, **shuffled)])
    book.spend(SELECTION)
    book.spend(times(20, **shuffled))
    record = book.to_json()
    again = Ledger.from_json(json.loads(json.dumps(record)))
    assert again.to_json() == record
    again.spend(times(30, **shuffled))
    assert again.epsilon() == accountant.epsilon([SELECTION, times(50)], 1e-5)


def test_a_forged_record_that_spends_past_its_target_is_refused():
    book = ledger([times(50)])
    book.spend(times(50))
    record = book.to_json()
    record["events"][0]["count"] = 60
    with pytest.raises(BudgetExceeded):
        Ledger.from_json(record)


def test_a_reviewer_can_recount_the_json_with_dp_accounting_alone():
    book = empty(8.0)
    book.spend(SELECTION)
    book.spend(times(300))
    record = json.loads(json.dumps(book.to_json()))
    accountant = PLDAccountant()
    for event in record["events"]:
        mechanism = dp_accounting.GaussianDpEvent(event["noise_multiplier"])
        if event["sampling_probability"] < 1:
            mechanism = dp_accounting.PoissonSampledDpEvent(event["sampling_probability"], mechanism)
        accountant.compose(mechanism, event["count"])
    assert accountant.get_epsilon(record["delta"]) == pytest.approx(record["epsilon"], abs=1e-3)


def test_paper_fidelity_holds_the_claim_to_the_target_and_states_the_sound_cost():
    gumbel = Event(kind="pure", what="row selection", epsilon_per_draw=0.01 / 26, draws=10_000, claimed_epsilon=0.01)
    book = empty(2.0, fidelity="paper")
    book.spend(gumbel)
    book.spend(times(100, steps_per_epoch=100))
    assert book.epsilon() == pytest.approx(accountant.epsilon([times(100)], 1e-5) + 0.01)
    one_visit = Event(kind="gaussian", what="step", noise_multiplier=1.0)
    assert book.sound_epsilon() == pytest.approx(accountant.epsilon([gumbel, one_visit], 1e-5))
    assert book.sound_epsilon() > 4 * book.epsilon()
    said = " ".join(book.statements())
    assert "as if they were Poisson" in said and "the paper claims one draw's" in said
    assert book.to_json()["sampling"] == "shuffled"


def test_paper_fidelity_takes_shuffled_steps_alone():
    with pytest.raises(UserError, match="sampled as poisson, and this ledger's are shuffled"):
        empty(2.0, fidelity="paper").spend(STEP)


def test_rigorous_fidelity_counts_the_true_cost_of_gumbel():
    gumbel = Event(kind="pure", what="row selection", epsilon_per_draw=0.1, draws=3, claimed_epsilon=0.1)
    book = empty(2.0)
    book.spend(gumbel)
    assert book.epsilon() == book.sound_epsilon() == pytest.approx(0.3, abs=1e-3)
    assert "true cost" in " ".join(book.statements())


def test_two_paper_selections_are_claimed_twice():
    gumbel = Event(kind="pure", what="row selection", epsilon_per_draw=0.01, draws=10, claimed_epsilon=0.01)
    book = empty(2.0, fidelity="paper")
    book.spend(gumbel)
    book.spend(gumbel)
    assert book.epsilon() == pytest.approx(0.02)


def test_a_fixed_noise_seed_is_stated():
    fixed, secret = (empty(1.0, fixed_noise_seed=seed) for seed in (True, False))
    assert any("noise_seed stays secret" in line for line in fixed.statements())
    assert not any("noise_seed" in line for line in secret.statements())


def run(algorithm, steps):
    return plan(algorithm, epsilon=1.0, examples=50_000, batch_size=5_000, steps=steps, features=26)


def test_the_ledger_of_a_plan_spends_selection_first_and_ends_within_its_target():
    planned = run(AdaFESTPlus(), 100)
    book = planned.ledger()
    assert book.events == list(planned.selections)
    for _ in range(100):
        book.spend_step()
    assert book.epsilon() == planned.epsilon <= 1.0
    with pytest.raises(BudgetExceeded):
        book.spend_step(steps=5)
    record = json.loads(json.dumps(book.to_json()))
    assert record["epsilon"] == planned.epsilon and record["fidelity"] == "rigorous"
    selection, step = record["events"]
    assert step["map_noise_multiplier"] == pytest.approx(5 * step["gradient_noise_multiplier"])
    assert selection["noise_multiplier"] == 20.0
    assert record["run"]["algorithm"] == "adafest_plus" and record["run"]["settings"]["selection"]["rows"] == 10_000
    assert "of 1 (rigorous, poisson, delta 2e-05)" in book.summary()


def test_a_calibration_that_is_wrong_is_refused_before_anything_is_spent():
    true = run(AdaFESTPlus(), 100)
    short = replace(true, periods=(replace(true.periods[0], noise_multiplier=0.98 * true.noise_multiplier),))
    with pytest.raises(BudgetExceeded, match="100 x training step would bring epsilon"):
        short.ledger()


def test_words_are_a_quick_upper_bound_with_digits_that_say_something():
    book = empty(8.0)
    book.spend(times(300))
    said = float(book.summary().split()[1])
    assert book.epsilon() - 1e-3 <= said <= 1.01 * book.epsilon() + 1e-3
    faint = empty(8.0)
    faint.spend(Event(kind="gaussian", what="look", noise_multiplier=2_000.0))
    assert 0 < float(faint.summary().split()[1]) < 0.003


def test_epsilon_is_answered_at_any_delta():
    book = empty(8.0)
    book.spend(times(300))
    assert book.epsilon(1e-8) == accountant.epsilon([times(300)], 1e-8) > book.epsilon() > book.epsilon(1e-3)
    assert book.sound_epsilon(1e-8) == book.epsilon(1e-8)
    assert book.epsilon(0.0) == float("inf")


def test_without_privacy_nothing_is_spent_or_claimed():
    book = run(Nonprivate(), 5).ledger()
    book.spend_step()
    assert book.summary() == "no privacy" and book.to_json()["epsilon"] is None
    assert "nothing is guaranteed" in book.statements()[0]
    assert Ledger.from_json(book.to_json()).to_json() == book.to_json()
    with pytest.raises(BudgetExceeded):
        book.spend(STEP)


def test_exponential_selection_is_recounted_by_the_published_pair():
    from dpfest.accounting.dominating_pair import privacy_loss

    book = run(Exponential(rows_per_step=20), 50).ledger()
    book.spend_step(steps=50)
    (step,) = json.loads(json.dumps(book.to_json()))["events"]
    loss = privacy_loss(
        step["epsilon_per_draw"], step["draws"], step["noise_multiplier"], step["sampling_probability"], 1e-4
    )
    assert loss.self_compose(50).get_epsilon_for_delta(book.delta) == pytest.approx(book.epsilon(), abs=1e-3)


# A stream of two periods, and the histograms of two of its days.
SECOND = Event(kind="gaussian", what="step", noise_multiplier=1.5, sampling_probability=0.02)
STREAM = [
    *(replace(SELECTION, part=part) for part in (("period 1", "day 1"), ("period 2", "day 7"))),
    times(200, part=("period 1",)),
    replace(SECOND, count=80, part=("period 2",)),
]


def stream(planned=STREAM):
    target = max(accountant.epsilon([SELECTION, step], 1e-5) for step in (times(200), replace(SECOND, count=80)))
    book = empty(target + 1e-9)
    book.plan(planned)
    return book


def on(event, *part):
    return replace(event, part=part)


def test_a_stream_is_verified_once_and_spends_each_period_on_its_own(monkeypatch):
    book = stream()
    assert book.events == []
    monkeypatch.setattr(accountant, "epsilon", lambda *_: pytest.fail("accounted within the plan"))
    book.spend(on(SELECTION, "period 1", "day 1"))
    book.spend(on(times(200), "period 1"))
    book.spend(on(SELECTION, "period 2", "day 7"))
    for _ in range(80):
        book.spend(on(SECOND, "period 2"))
    monkeypatch.undo()
    assert book.events[0].part == ("period 1", "day 1")
    assert book.target_epsilon - 2e-9 <= book.epsilon() <= book.target_epsilon
    with pytest.raises(BudgetExceeded, match=r"1 x step on period 1 would"):
        book.spend(on(STEP, "period 1"))
    # A fresh part is free to spend as much again; all of the examples together are not.
    book.spend(on(times(200), "period 3"))
    with pytest.raises(BudgetExceeded):
        book.spend(SELECTION)


def test_a_reviewer_recounts_a_stream_from_its_json_with_dp_accounting_alone():
    book = stream(planned=())
    for event in STREAM:
        book.spend(event)
    record = json.loads(json.dumps(book.to_json()))
    spent = record["events"]
    costs = []
    for leaf in (event["part"] for event in spent):
        accountant = PLDAccountant()
        for event in spent:
            if event["part"] == leaf[: len(event["part"])]:
                mechanism = dp_accounting.GaussianDpEvent(event["noise_multiplier"])
                if event["sampling_probability"] < 1:
                    mechanism = dp_accounting.PoissonSampledDpEvent(event["sampling_probability"], mechanism)
                accountant.compose(mechanism, event["count"])
        costs.append(accountant.get_epsilon(record["delta"]))
    assert max(costs) == pytest.approx(record["epsilon"], rel=1e-6)
    again = Ledger.from_json(record)
    assert again.events == book.events and again.to_json() == book.to_json()
