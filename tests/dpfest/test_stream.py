"""A stream's plan: each period its own noise, one ledger over disjoint days, the paper's rate and what it is worth."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from torch import nn

from dpfest import FEST, BudgetExceeded, NoiseKey, PrivacyPlan, PrivateTraining, SelectionConfig, UserError, plan
from dpfest.accounting import accountant
from dpfest.algorithms.adafest import AdaFESTPlus
from dpfest.algorithms.rules import DPSGD
from dpfest.gradients.reading import MicroBatch
from dpfest.planning.ledger import Ledger
from dpfest.planning.unproven import Nonprivate, epsilon_at_own_rates

DAYS, BATCH = (400, 400, 420, 400, 300), 50


def stream(algorithm=None, period=2, examples=DAYS, batch_size=BATCH, fidelity="rigorous") -> PrivacyPlan:
    return plan(
        algorithm or DPSGD(),
        epsilon=1.0,
        fidelity=fidelity,
        fixed_noise_seed=True,
        examples=examples,
        period=period,
        batch_size=batch_size,
        epochs=1.0,
        features=[50, 60],
    )


def steps(planned):
    return [event for event in planned.events if event.what == "training step"]


def fest(source, mechanism="gaussian", kind=FEST):
    return kind(selection=SelectionConfig(mechanism=mechanism, rows=10, noise_multiplier=5.0, source=source))


@pytest.fixture(scope="module")
def streaming():
    return stream(fest("streaming"))


def recounted(events, delta):
    """The largest epsilon over kinds of examples, by dp_accounting's own events alone; equal kinds are counted once."""
    settings = ("noise_multiplier", "sampling_probability", "count")
    kinds = {
        tuple(
            tuple(event[name] for name in settings) for event in events if event["part"] == leaf[: len(event["part"])]
        )
        for leaf in (event["part"] for event in events)
    }
    costs = []
    for kind in kinds:
        accountant = PLDAccountant()
        for noise_multiplier, sampling_probability, count in kind:
            mechanism = dp_accounting.GaussianDpEvent(noise_multiplier)
            if sampling_probability < 1:
                mechanism = dp_accounting.PoissonSampledDpEvent(sampling_probability, mechanism)
            accountant.compose(mechanism, count)
        costs.append(accountant.get_epsilon(delta))
    return max(costs)


def test_each_period_samples_and_is_calibrated_on_its_own_examples():
    planned = stream()
    assert [period.days for period in planned.periods] == [range(2), range(2, 4), range(4, 5)]
    assert [period.examples for period in planned.periods] == [800, 820, 300]
    assert [period.steps for period in planned.periods] == [16, 17, 6]  # ceil(N_p / B): one pass
    assert [step.sampling_probability for step in steps(planned)] == [50 / 800, 50 / 820, 50 / 300]
    assert planned.delta == 1 / sum(DAYS) and planned.examples == sum(DAYS) and planned.steps == 39
    sigmas = [period.noise_multiplier for period in planned.periods]
    assert sigmas[2] > 1.2 * sigmas[0]  # the common noise would overspend in the short period
    assert planned.noise_multiplier is None and planned.gradient_noise_multiplier is None
    for step in steps(planned):
        assert 0.999 < accountant.epsilon([step], planned.delta) <= 1
    same = {"noise_multiplier": sigmas[0], "gradient_noise_multiplier": sigmas[0]}
    overspent = [replace(step, **same) for step in steps(planned)]
    assert accountant.epsilon(overspent, planned.delta) > 1.05


@pytest.mark.slow
def test_the_whole_ledger_is_the_largest_period_recounted_by_dp_accounting_alone(streaming):
    """Slow: calibrates and recounts six streams."""
    book = streaming.ledger(len(streaming.periods))
    record = json.loads(json.dumps(book.to_json()))
    assert record["epsilon"] == pytest.approx(recounted(record["events"], record["delta"]), rel=1e-6)
    assert 0.999 < record["epsilon"] <= 1 and record["epsilon"] == book.epsilon()
    assert [event["part"] for event in record["events"] if event["what"] == "row selection"] == [
        ["period 1", "day 0"],
        ["period 1", "day 1"],
        ["period 2", "day 2"],
        ["period 2", "day 3"],
        ["period 3", "day 4"],
    ]
    assert Ledger.from_json(record).events == book.events


def test_no_step_beyond_a_periods_plan_is_paid(streaming):
    book = streaming.ledger(1)
    book.spend_step(1, 17)
    with pytest.raises(BudgetExceeded, match="training step on period 2 would"):
        book.spend_step(1)
    book.spend_step(2, 6)


def test_only_the_examples_that_a_histogram_counts_pay_for_it(streaming):
    first_day, all_days = stream(fest("first_day")), stream(fest("all_days"))
    assert [event.part for event in first_day.selections] == [("period 1", "day 0")]
    assert [event.part for event in all_days.selections] == [()]
    plain, counted = stream().periods[1], streaming.periods[1]
    assert first_day.periods[1].noise_multiplier == plain.noise_multiplier < counted.noise_multiplier
    assert all_days.periods[1].noise_multiplier == counted.noise_multiplier
    for planned in (first_day, all_days, streaming):
        assert 0.999 < planned.epsilon <= 1


@pytest.mark.slow
def test_the_papers_rate_is_worth_more_than_it_claims():
    """Slow: calibrates at the paper's rate."""
    planned = stream(fidelity="paper", period=1)
    assert {period.noise_multiplier for period in planned.periods} == {planned.noise_multiplier}
    assert {step.sampling_probability for step in steps(planned)} == {BATCH / sum(DAYS)}
    book = planned.ledger(len(planned.periods))
    assert 0.99 < book.epsilon() <= 1 < epsilon_at_own_rates(planned) < book.sound_epsilon()
    own = [
        {**event, "sampling_probability": BATCH / examples}
        for event, examples in zip(book.to_json()["events"], DAYS, strict=True)
    ]
    assert epsilon_at_own_rates(planned) == pytest.approx(recounted(own, planned.delta), rel=1e-6)


def test_at_kaggle_size_the_papers_rate_claims_1_where_it_spends_3_and_a_half():
    examples, periods = 45_840_617, 18
    planned = stream(examples=[examples // periods] * periods, period=1, batch_size=2048, fidelity="paper")
    assert planned.noise_multiplier == pytest.approx(0.5765, abs=2e-3)
    assert epsilon_at_own_rates(planned) == pytest.approx(3.5, abs=0.1)


def test_rigorous_epsilon_is_that_of_each_periods_own_rate(streaming):
    assert epsilon_at_own_rates(streaming) == streaming.epsilon


def test_without_privacy_there_is_nothing_to_pay():
    planned = stream(Nonprivate())
    assert planned.events == [] and planned.epsilon is None
    assert [period.steps for period in planned.periods] == [16, 17, 6]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 350}, r"Period 3 \(day 4\) has 300 examples, .* batch_size=350: lower it, or raise period=2"),
        ({"examples": (400, 400, 0, 0), "batch_size": 1}, r"Period 2 \(days 2-3\) has 0 examples"),
        ({"algorithm": fest("streaming", "gumbel")}, "mechanism=gumbel releases rows without counts"),
        ({"algorithm": fest(None, "gumbel", AdaFESTPlus)}, "take gaussian or laplace, or .*first_day or all_days"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_sentence(settings, message):
    with pytest.raises(UserError, match=message):
        stream(**settings)


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.score = nn.Embedding(6, 3), nn.Linear(3, 1)

    def forward(self, row):
        return self.score(self.table(row)).squeeze(1)


def test_rows_that_leave_or_enter_the_set_keep_their_values(streaming):
    torch.manual_seed(0)
    model = Scores()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.5)
    book, key, values = streaming.ledger(), NoiseKey.from_seed(1), [model.table.weight.detach().clone()]
    for number, selected in enumerate([[0, 1, 2], [2, 3]]):
        training = PrivateTraining(
            model,
            lambda model, batch: model(batch) ** 2,
            optimizer,
            streaming,
            lambda indices, seed: [MicroBatch(indices, torch.from_numpy(indices % 6))],
            period=number,
            selected=torch.tensor(selected),
            key=key,
            ledger=book,
        )
        for batch in training:
            training.step(batch)
        values.append(model.table.weight.detach().clone())
    changed = [(after != before).any(1).tolist() for before, after in itertools.pairwise(values)]
    assert changed == [[True, True, True, False, False, False], [False, False, True, True, False, False]]
    assert 0.999 < book.epsilon() <= 1


def test_a_period_goes_on_after_the_one_before(monkeypatch):
    """One ledger; checked whole once, also where batches are read ahead, then by samples, each period's first too."""
    planned, model, checked = stream(), Scores(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def check(recorder, clipping_norm, batch, whole_tables):
        checked.append((batch.step, len(batch.parts[0][0].examples), whole_tables))

    monkeypatch.setattr("dpfest.training.loop.check_batch", check)
    monkeypatch.setattr("dpfest.training.loop.CHECK_EVERY", 10**9)

    def begin(after=None, period=0, loss=losses):
        read, key = (lambda indices, seed: [MicroBatch(indices, torch.from_numpy(indices % 6))]), NoiseKey.from_seed(1)
        return PrivateTraining(model, loss, optimizer, planned, read, period=period, key=key, after=after)

    training, sizes = None, []
    for period in range(3):
        training = begin(training, period)
        sizes.append([len(training.indices(step)) for step in range(2)])
        batches = [training.read(training.request(step)) for step in range(training.steps_left)]  # all ahead
        for batch in batches:
            training.step(batch)
    first_of_each = [(0, sizes[period][0], False) for period in (1, 2)]
    assert checked == [(0, sizes[0][0], True), (1, sizes[0][1], False), (8, checked[2][1], False), *first_of_each]
    assert 0.999 < training.epsilon() <= 1 and len(training.ledger.events) == 3
    with pytest.raises(UserError, match="of this very model and loss function"):
        begin(training, 2, loss=lambda model, batch: model(batch))
    for period in (1, 2):  # the last one's own, and one before it
        with pytest.raises(UserError, match=f"not period {period}, whose noise would be drawn a second time"):
            begin(training, period)
    first = begin()
    begin(first, 1)
    with pytest.raises(UserError, match="was followed by another"):
        begin(first, 1)


def test_a_branch_is_not_followed_for_its_origin_is():
    """Followed by both, an example of the next period would take part in twice as many steps as each ledger counts."""
    planned = stream()

    def begin(model, after=None, period=0):
        read, optimizer = (
            (lambda i, seed: [MicroBatch(i, torch.from_numpy(i % 6))]),
            torch.optim.SGD(model.parameters()),
        )
        key = NoiseKey.from_seed(1) if after is None else None
        return PrivateTraining(model, losses, optimizer, planned, read, period=period, key=key, after=after)

    origin, branch = begin(Scores()), begin(Scores())
    state = origin.fork(2)
    branch.load_state_dict(state, steps=2)
    resumed = begin(Scores())
    resumed.load_state_dict(origin.state_dict())
    for one in (origin, resumed):
        assert begin(one.model, one, 1).steps_left
    of_branch = begin(Scores())
    of_branch.load_state_dict(branch.state_dict())
    for one in (branch, of_branch):
        with pytest.raises(UserError, match="is a branch, and later periods belong to the training that it left"):
            begin(one.model, one, 1)


def test_a_period_with_noise_pending_is_not_followed_before_its_flush():
    planned = stream(algorithm=DPSGD(noise="lazy"))
    model = Scores()

    def begin(after=None, period=0):
        read, optimizer = (
            (lambda i, seed: [MicroBatch(i, torch.from_numpy(i % 6))]),
            torch.optim.SGD(model.parameters()),
        )
        key = NoiseKey.from_seed(1) if after is None else None
        return PrivateTraining(model, losses, optimizer, planned, read, period=period, key=key, after=after)

    first = begin()
    first.step(first.read(first.request(0)))
    with pytest.raises(UserError, match=r"has noise pending on its tables: call its flush\(\) first"):
        begin(first, 1)
    first.flush()
    begin(first, 1)


def losses(model, batch):
    return model(batch) ** 2


def test_no_two_periods_share_a_draw(streaming):
    key = NoiseKey.from_seed(3)
    draws = [streaming.key_of(number, key).stream("row noise").words(4).tolist() for number in range(3)]
    assert len({tuple(draw) for draw in draws}) == 3
    assert streaming.key_of(1, key).secret == streaming.key_of(1, key).secret and streaming.key_of(0, key).fixed
