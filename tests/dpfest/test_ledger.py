"""The ledger: it counts what is spent, refuses what passes the target, and can be checked without us."""

from __future__ import annotations

import json
from types import SimpleNamespace

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from dpfest import accounting
from dpfest.accounting import ExponentialSelectionEvent, GaussianEvent, PureEvent
from dpfest.budget import plan
from dpfest.errors import UserError
from dpfest.ledger import BudgetExceeded, Ledger
from dpfest.topk import SelectionConfig

STEP = GaussianEvent(what="step", noise_multiplier=1.0, sampling_probability=0.01)
SELECTION = GaussianEvent(what="selection", noise_multiplier=20.0)


def times(count):
    return GaussianEvent(what="step", noise_multiplier=1.0, sampling_probability=0.01, count=count)


def ledger(events, slack=1e-9, **settings):
    """A ledger whose target is what the events cost, and a hair."""
    return Ledger(target_epsilon=accounting.epsilon(events, 1e-5) + slack, delta=1e-5, **settings)


def test_equal_events_are_merged_and_epsilon_is_theirs():
    book = Ledger(target_epsilon=8.0, delta=1e-5)
    assert book.epsilon() == 0.0
    for event in (SELECTION, STEP, times(9), STEP):
        book.spend(event)
    assert book.events == [SELECTION, times(11)]
    assert book.epsilon() == accounting.epsilon([SELECTION, times(11)], 1e-5)


def test_a_planned_run_is_verified_once_and_ends_at_its_plan(monkeypatch):
    book = ledger([SELECTION, times(50)])
    book.plan([SELECTION, times(50)])
    monkeypatch.setattr(accounting, "epsilon", lambda *_: pytest.fail("accounted within the plan"))
    book.spend(SELECTION)
    for _ in range(50):
        book.spend(STEP)
    monkeypatch.undo()
    before = book.events
    with pytest.raises(
        BudgetExceeded, match=r"1 x step would bring epsilon from .* past the target privacy\.eps"
    ):
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
    book.spend(GaussianEvent(what="extra", noise_multiplier=8.0))
    with pytest.raises(BudgetExceeded):
        for _ in range(50):
            book.spend(STEP)
    assert book.epsilon() <= book.target_epsilon
    assert 1 < book.events[1].count < 50


def test_the_refusal_is_a_user_error():
    assert issubclass(BudgetExceeded, UserError)


@pytest.mark.parametrize("fidelity", ["rigorous", "paper"])
def test_json_round_trip(fidelity):
    book = Ledger(
        target_epsilon=8.0, delta=1e-5, fidelity=fidelity, steps_per_epoch=100, fixed_noise_seed=True
    )
    book.plan([SELECTION, times(50)])
    book.spend(SELECTION)
    book.spend(times(20))
    record = book.to_json()
    again = Ledger.from_json(json.loads(json.dumps(record)))
    assert again.to_json() == record
    again.spend(times(30))
    assert again.epsilon() == accounting.epsilon([SELECTION, times(50)], 1e-5)


def test_a_forged_record_that_spends_past_its_target_is_refused():
    book = ledger([times(50)])
    book.spend(times(50))
    record = book.to_json()
    record["events"][0]["count"] = 60
    with pytest.raises(BudgetExceeded):
        Ledger.from_json(record)


def test_a_reviewer_can_recount_the_json_with_dp_accounting_alone():
    book = Ledger(target_epsilon=8.0, delta=1e-5)
    book.spend(SELECTION)
    book.spend(times(300))
    record = json.loads(json.dumps(book.to_json()))
    accountant = PLDAccountant()
    for event in record["events"]:
        mechanism = dp_accounting.GaussianDpEvent(event["noise_multiplier"])
        if event["sampling_probability"]:
            mechanism = dp_accounting.PoissonSampledDpEvent(event["sampling_probability"], mechanism)
        accountant.compose(mechanism, event["count"])
    assert accountant.get_epsilon(record["delta"]) == pytest.approx(record["epsilon"], abs=1e-3)


def test_paper_fidelity_holds_the_claim_to_the_target_and_states_the_sound_cost():
    gumbel = PureEvent(what="row selection", epsilon=0.01 / 26, draws=10_000, claimed_epsilon=0.01)
    book = Ledger(target_epsilon=2.0, delta=1e-5, fidelity="paper", steps_per_epoch=100)
    book.spend(gumbel)
    book.spend(times(100))
    assert book.epsilon() == pytest.approx(accounting.epsilon([times(100)], 1e-5) + 0.01)
    one_visit = GaussianEvent(what="step", noise_multiplier=1.0)
    assert book.sound_epsilon() == pytest.approx(accounting.epsilon([gumbel, one_visit], 1e-5))
    assert book.sound_epsilon() > 4 * book.epsilon()
    said = " ".join(book.statements())
    assert "as if they were Poisson" in said and "the paper claims one draw's" in said
    assert book.to_json()["sampling"] == "shuffled"


def test_rigorous_fidelity_counts_the_true_cost_of_gumbel():
    gumbel = PureEvent(what="row selection", epsilon=0.1, draws=3, claimed_epsilon=0.1)
    book = Ledger(target_epsilon=2.0, delta=1e-5)
    book.spend(gumbel)
    assert book.epsilon() == book.sound_epsilon() == pytest.approx(0.3, abs=1e-3)
    assert "true cost" in " ".join(book.statements())


def test_two_paper_selections_are_claimed_twice():
    gumbel = PureEvent(what="row selection", epsilon=0.01, draws=10, claimed_epsilon=0.01)
    book = Ledger(target_epsilon=2.0, delta=1e-5, fidelity="paper", steps_per_epoch=100)
    book.spend(gumbel)
    book.spend(gumbel)
    assert book.epsilon() == pytest.approx(0.02)


def test_a_fixed_noise_seed_is_stated():
    fixed, secret = (Ledger(target_epsilon=1.0, delta=1e-5, fixed_noise_seed=seed) for seed in (True, False))
    assert any("only while noise_seed stays secret" in line for line in fixed.statements())
    assert not any("noise_seed" in line for line in secret.statements())


def test_an_unknown_fidelity_is_refused_by_key():
    with pytest.raises(UserError, match=r"privacy\.fidelity=strict"):
        Ledger(target_epsilon=1.0, delta=1e-5, fidelity="strict")


def privacy(**settings):
    return SimpleNamespace(
        **{"epsilon": 1.0, "delta": None, "fidelity": "rigorous", "noise_seed": None} | settings
    )


def test_the_ledger_of_a_budget_spends_selection_first_and_ends_within_its_target(tmp_path):
    algorithm = SimpleNamespace(name="adafest_plus", noise_ratio=5.0, selection=SelectionConfig())
    budget = plan(
        algorithm, privacy(), examples=50_000, batch_size=5_000, steps=100, features=26, cache=tmp_path
    )
    book = Ledger.of(budget)
    assert book.events == [budget.selection]
    for _ in range(100):
        book.spend_step()
    assert book.epsilon() == budget.epsilon <= 1.0
    with pytest.raises(BudgetExceeded):
        book.spend_step(5)
    summary = json.loads(json.dumps(book.summary()))
    assert summary["epsilon"] == budget.epsilon and summary["fidelity"] == "rigorous"
    assert summary["noise_multiplier"] == budget.noise_multiplier
    assert summary["map_noise_multiplier"] == pytest.approx(5 * summary["gradient_noise_multiplier"])
    assert summary["selection"]["noise_multiplier"] == 20.0
    assert "of 1 (rigorous, poisson, delta 2e-05)" in book.words()


def test_words_are_a_quick_upper_bound():
    book = Ledger(target_epsilon=8.0, delta=1e-5)
    book.spend(times(300))
    said = float(book.words().split()[1])
    assert book.epsilon() - 1e-3 <= said <= 1.01 * book.epsilon() + 1e-3


def test_without_privacy_nothing_is_spent_or_claimed():
    budget = plan(
        SimpleNamespace(name="nonprivate"), privacy(), examples=1000, batch_size=10, steps=5, features=26
    )
    book = Ledger.of(budget)
    book.spend_step()
    assert book.summary() is None and book.words() == "no privacy"
    assert "nothing is guaranteed" in book.statements()[0]
    assert Ledger.from_json(book.to_json()).to_json() == book.to_json()
    with pytest.raises(BudgetExceeded):
        book.spend(STEP)


def test_exponential_selection_is_recounted_by_the_published_pair(tmp_path):
    from dpfest.dominating_pair import privacy_loss

    algorithm = SimpleNamespace(name="exponential", noise_ratio=5.0, rows_per_step=20)
    budget = plan(
        algorithm, privacy(), examples=50_000, batch_size=5_000, steps=50, features=26, cache=tmp_path
    )
    book = Ledger.of(budget)
    book.spend_step(50)
    step = json.loads(json.dumps(book.summary()))["step"]
    assert isinstance(accounting.from_record(step), ExponentialSelectionEvent)
    loss = privacy_loss(
        step["epsilon_per_row"],
        step["rows_per_step"],
        step["noise_multiplier"],
        step["sampling_probability"],
        1e-4,
    )
    assert loss.self_compose(50).get_epsilon_for_delta(book.delta) == pytest.approx(book.epsilon(), abs=1e-3)
