"""Samplers: each is paired with its own accounting, has the law that is accounted, and resumes with the same batches.

Statistical tests at a fixed seed, false-alarm rate 1e-4 each.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

import dpfest
from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event
from dpfest.accounting.bands import strategy
from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.exponential import Exponential
from dpfest.algorithms.rules import DPSGD
from dpfest.errors import UserError
from dpfest.noise.distributions import below
from dpfest.noise.key import NoiseKey
from dpfest.planning.fidelity import FIDELITIES, SAMPLERS
from dpfest.planning.ledger import Ledger
from dpfest.planning.other_samplers import (
    AllocatedBatches,
    BallsInBins,
    CyclicBatches,
    TruncatedBatches,
    TruncatedPoisson,
    default_max_batch_size,
)
from dpfest.planning.sampling import PoissonBatches

KEY = NoiseKey.from_seed(19)
FALSE_ALARM = 1e-4
PROVEN = FIDELITIES["rigorous"].samplings


def enough(make_events: object, target: float, delta: float) -> float:
    """Noise that meets the target of every plan below, without a search."""
    return 2.5


@cache
def planned(sampling: str, **settings: object) -> dpfest.PrivacyPlan:
    arguments = {"examples": 200, "batch_size": 20, "steps": 15, "delta": 1e-3, "epsilon": 1.0} | settings
    algorithm = arguments.pop("algorithm", DPSGD(bands=3 if sampling == "cyclic_poisson" else None))
    return dpfest.plan(algorithm, sampling=sampling, fixed_noise_seed=True, calibrate=enough, **arguments)  # type: ignore[arg-type]


def truncated(sigma: float, q: float, most: int, examples: int) -> Event:
    poisson = Event(kind="gaussian", what="step", noise_multiplier=sigma, sampling_probability=q)
    return replace(poisson, max_batch_size=most, dataset_size=examples)


def made(plan: dpfest.PrivacyPlan, ledger: Ledger | None = None) -> dpfest.PrivateTraining:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(8, 1))
    ids = torch.randint(0, 20, (plan.examples, 2), generator=torch.Generator().manual_seed(1))
    return dpfest.PrivateTraining(
        model,
        lambda model, batch: (model(batch[0]).squeeze(1) - batch[1]).square(),
        torch.optim.SGD(model.parameters(), lr=0.1),
        plan,
        dpfest.DatasetReader(TensorDataset(ids, ids.sum(1).float())),
        key=KEY,
        ledger=ledger,
    )


def test_a_truncated_batch_is_a_uniform_subset_of_a_poisson_batch_and_never_larger() -> None:
    examples, rate, most, steps = 12, 0.4, 5, 6_000
    cut = TruncatedBatches(examples, examples * rate, KEY, most)
    whole = PoissonBatches(examples, examples * rate, KEY)
    counts, over = np.zeros(examples), 0
    for step in range(steps):
        drawn, kept = whole.indices(step), cut.indices(step)
        assert (np.diff(kept) > 0).all() and set(kept) <= set(drawn) and len(kept) == min(len(drawn), most)
        if len(drawn) == most + 1:  # the place that was left out is uniform
            over += 1
            counts[np.flatnonzero(~np.isin(drawn, kept))[0]] += 1
    places = counts[: most + 1]
    assert over > 1_000 and stats.chisquare(places, np.full(most + 1, over / (most + 1))).pvalue > FALSE_ALARM


def test_every_example_is_in_one_batch_of_an_epoch_drawn_uniformly_and_independently() -> None:
    examples, batch_size, epochs = 10, 3, 4_000
    batches = AllocatedBatches(examples, batch_size, KEY)
    assert batches.bins == 4
    where = np.full((epochs, examples), -1)
    for epoch in range(epochs):
        for place in range(batches.bins):
            indices = batches.indices(epoch * batches.bins + place)
            assert (np.diff(indices) > 0).all() and (where[epoch, indices] == -1).all()
            where[epoch, indices] = place
    assert (where >= 0).all()
    singles = np.stack([(where == place).sum(0) for place in range(batches.bins)])
    assert stats.chi2.sf((((singles - epochs / 4) ** 2) / (epochs / 4)).sum(), 3 * examples) > FALSE_ALARM
    pairs = [np.bincount(4 * where[:, i] + where[:, j], minlength=16) for i in range(5) for j in range(i)]
    pairs.append(np.bincount(4 * where[:-1, 0] + where[1:, 0], minlength=16))  # of an example in two epochs
    assert min(stats.chisquare(pair).pvalue for pair in pairs) > FALSE_ALARM / len(pairs)


def test_an_example_is_sampled_at_its_groups_steps_alone_independently_of_the_others() -> None:
    examples, batch_size, groups, rounds, keys = 12, 2, 3, 40, 300
    rate = groups * batch_size / examples
    found = np.zeros((keys, groups * rounds, examples), dtype=bool)
    for number in range(keys):
        batches = CyclicBatches(examples, batch_size, NoiseKey.from_seed(number, "groups"), groups)
        for step in range(groups * rounds):
            indices = batches.indices(step)
            assert (np.diff(indices) > 0).all()
            found[number, step, indices] = True
    by_group = found.reshape(keys, rounds, groups, examples)
    taken = by_group.any(1)
    assert (taken.sum(1) == 1).all(), "each example in the steps of one group, and 40 rounds hardly miss one"
    group = taken.argmax(1)
    singles = np.stack([(group == one).sum(0) for one in range(groups)])
    assert stats.chi2.sf(((singles - keys / groups) ** 2 / (keys / groups)).sum(), 2 * examples) > FALSE_ALARM
    pairs = [np.bincount(groups * group[:, i] + group[:, j], minlength=9) for i in range(5) for j in range(i)]
    assert min(stats.chisquare(pair).pvalue for pair in pairs) > FALSE_ALARM / len(pairs)
    own = np.take_along_axis(by_group, group[:, None, None, :], axis=2)[:, :, 0]  # [keys, rounds, examples]
    z = (own.sum((0, 1)) - keys * rounds * rate) / np.sqrt(keys * rounds * rate * (1 - rate))
    assert stats.chi2.sf((z**2).sum(), examples) > FALSE_ALARM
    between = np.corrcoef(own.reshape(-1, examples).T)[np.triu_indices(examples, 1)] * np.sqrt(keys * rounds)
    assert stats.chi2.sf((between**2).sum(), len(between)) > FALSE_ALARM
    serial = np.corrcoef(own[:, :-1].ravel(), own[:, 1:].ravel())[0, 1] * np.sqrt(own[:, 1:].size)
    assert abs(serial) < 4


def test_one_example_more_moves_no_other_to_another_group() -> None:
    """At the rate of one plan, the others' draws have the same law; here, they are in the same groups."""
    few, more = (CyclicBatches(examples, examples / 4, KEY, 4) for examples in (400, 401))
    groups = [
        set(np.concatenate([one.indices(step) for step in range(2, 2 + 4 * 40, 4)]).tolist()) for one in (few, more)
    ]
    assert groups[0] == groups[1] - {400} and len(groups[0]) > 50


def test_steps_on_groups_in_turn_cost_their_rounds() -> None:
    step = planned("cyclic_poisson").step()
    assert step is not None and step.bands == 3 and step.sampling_probability == pytest.approx(0.3)
    for count, rounds in ((1, 1), (3, 1), (4, 2), (15, 5), (16, 6)):
        plain = replace(step, bands=None, count=rounds)
        for ask in (accountant.epsilon, accountant.delta):
            assert ask([replace(step, count=count)], 1e-3) == ask([plain], 1e-3)
        event = dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(0.3, dp_event.GaussianDpEvent(step.noise_multiplier)), rounds
        )
        theirs = PLDAccountant().compose(event).get_epsilon(1e-3)
        assert accountant.epsilon([replace(step, count=count)], 1e-3) == pytest.approx(theirs, rel=1e-9)
        renyi = RdpAccountant().compose(event).get_epsilon(1e-3)
        assert accountant.epsilon([replace(step, count=count)], 1e-3) <= renyi
    whole = replace(step, sampling_probability=1.0, count=7)
    assert whole.sampling == "cyclic_poisson" and accountant.epsilon([whole], 1e-3) == pytest.approx(
        accountant.epsilon([replace(whole, bands=None, count=3)], 1e-3)
    )
    record = accountant.to_record(step)
    assert record["bands"] == 3 and accountant.from_record(record) == step
    assert "bands" not in accountant.to_record(planned("poisson").step())  # type: ignore[arg-type]
    for wrong in (
        {"bins": 10, "sampling_probability": 0.1},
        {"kind": "laplace"},
        {"max_batch_size": 9, "dataset_size": 9},
    ):
        with pytest.raises(ValueError, match="training step"):
            replace(step, **wrong)  # type: ignore[arg-type]


def drawn_delta(coefficients: np.ndarray, q: float, epsilon: float, draws: int) -> float:
    """Delta at epsilon of one round of a banded release, by drawing it: b multiples of an example's share, noised.

    Args:
        coefficients: the share's size in each of the b steps, over the deviation of the noise.
    """
    generator = np.random.default_rng(5)
    noise = generator.normal(size=(draws, len(coefficients)))
    present = generator.random((draws, 1)) < q

    def loss(release: np.ndarray) -> np.ndarray:
        return np.logaddexp(np.log1p(-q), np.log(q) + release @ coefficients - (coefficients**2).sum() / 2)

    with_it = np.maximum(-np.expm1(epsilon - loss(noise + present * coefficients)), 0).mean()
    return max(float(with_it), float(np.maximum(-np.expm1(epsilon + loss(noise)), 0).mean()))


def test_a_round_of_a_banded_release_costs_what_is_accounted() -> None:
    """Monte Carlo of the joint law over b steps, an example's share in each: within 1% of the accountant's delta."""
    event = Event(kind="gaussian", what="step", noise_multiplier=1.1, sampling_probability=0.3, bands=4, count=4)
    one = strategy(4, 24)
    shares = np.array(one.coefficients) / one.coefficients[0] / one.norm / 1.1  # noise of deviation sigma |a|
    for epsilon in (0.3, 0.8):
        drawn = drawn_delta(shares, 0.3, epsilon, 2_000_000)
        assert drawn == pytest.approx(accountant.delta([event], epsilon), rel=0.01)
    longer = drawn_delta(shares * one.norm, 0.3, 0.8, 200_000)  # of columns that are not normalised
    assert longer > 1.3 * accountant.delta([event], 0.8)


def test_numbers_below_a_bound_are_uniform_and_uneven_words_are_drawn_again() -> None:
    drawn = below(KEY.stream("below"), 60_000, 7)
    assert stats.chisquare(np.bincount(drawn.astype(int), minlength=7)).pvalue > FALSE_ALARM
    bound = (1 << 63) + 1  # half of the words would be uneven
    drawn = below(KEY.stream("below", 1), 4_000, bound)
    assert (drawn < bound).all() and stats.kstest(drawn / float(bound), "uniform").pvalue > FALSE_ALARM


def test_a_reader_that_is_ahead_by_an_epoch_gets_the_same_batches() -> None:
    batches, ordered = AllocatedBatches(50, 10, KEY), AllocatedBatches(50, 10, KEY)
    expected = [ordered.indices(step) for step in range(15)]
    for step in (4, 5, 4, 6, 14, 3, 10):
        assert np.array_equal(batches.indices(step), expected[step])


@pytest.mark.parametrize("sampling", PROVEN)
def test_a_plan_draws_the_batches_that_it_accounts_for(sampling: str) -> None:
    plan = planned(sampling)
    assert plan.sampling == sampling == plan.step().sampling == plan.ledger().sampling  # type: ignore[union-attr]
    kinds = {
        "poisson": PoissonBatches, "truncated_poisson": TruncatedBatches, "balls_in_bins": AllocatedBatches,
        "cyclic_poisson": CyclicBatches,
    }  # fmt: skip
    assert type(plan.batches(0, KEY)) is kinds[sampling]
    assert plan.epsilon is not None and 0.3 < plan.epsilon <= 1.0
    record = plan.ledger().to_json()
    assert record["sampling"] == sampling and SAMPLERS[sampling].statement in record["statements"]
    assert Ledger.from_json(record).to_json() == record


@pytest.mark.parametrize("sampling", PROVEN)
def test_a_ledger_of_one_sampler_takes_no_event_of_another(sampling: str) -> None:
    ledger = planned(sampling).ledger()
    for other in set(PROVEN) - {sampling}:
        with pytest.raises(UserError, match=f"sampled as {other}, and this ledger's are {sampling}"):
            ledger.spend(planned(other).step())  # type: ignore[arg-type]
        forged = ledger.to_json() | {"sampling": other}
        with pytest.raises(UserError, match="accounted for batches sampled as"):
            Ledger.from_json(forged)


def test_training_refuses_a_ledger_and_a_batch_of_another_sampler() -> None:
    for sampling, other in zip(PROVEN, (*PROVEN[1:], PROVEN[0]), strict=True):
        with pytest.raises(UserError, match="The ledger belongs to another plan"):
            made(planned(sampling), ledger=planned(other).ledger())
    training, foreign = made(planned("balls_in_bins")), made(planned("poisson"))
    with pytest.raises(UserError, match="does not hold the examples drawn for step 0"):
        training.step(foreign.read(foreign.request(0)))


def test_a_state_does_not_go_on_under_another_sampler() -> None:
    state = made(planned("balls_in_bins")).state_dict()
    with pytest.raises(UserError, match="under another plan"):
        made(planned("poisson")).load_state_dict(state)


@pytest.mark.parametrize("sampling", PROVEN)
def test_a_resumed_training_draws_the_batches_of_one_that_was_not_interrupted(sampling: str) -> None:
    whole, stopped = made(planned(sampling)), made(planned(sampling))
    for batch in whole:
        whole.step(batch)
    for batch in stopped:
        stopped.step(batch)
        if stopped.steps_done == 12:  # in the second epoch
            break
    resumed = made(planned(sampling))
    resumed.load_state_dict(stopped.state_dict())
    for batch in resumed:
        resumed.step(batch)
    assert resumed.steps_left == 0 and resumed.ledger.epsilon() == planned(sampling).epsilon
    assert all(
        torch.equal(one, other) for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    )


def test_noise_is_calibrated_for_the_sampler() -> None:
    arguments = {"examples": 200, "batch_size": 20, "steps": 15, "epsilon": 1.0, "delta": 1e-3}
    plan = dpfest.plan(DPSGD(), sampling="balls_in_bins", **arguments)  # type: ignore[arg-type]
    assert plan.epsilon is not None and 0.999 < plan.epsilon <= 1.0


@pytest.mark.parametrize("sampling", ["balls_in_bins", "cyclic_poisson"])
def test_samplers_that_bound_how_often_an_example_takes_part_have_no_branches(sampling: str) -> None:
    training = made(planned(sampling))
    with pytest.raises(UserError, match="would take it again"):
        training.fork(3)
    with pytest.raises(UserError, match="would take it again"):
        made(planned(sampling)).load_state_dict(training.state_dict(), steps=3, taken=0)
    training.step(training.read(training.request(0)))
    with pytest.raises(UserError, match="would take it again"):
        made(planned(sampling), training.ledger)
    assert made(planned("truncated_poisson")).fork(3)["granted"] == 3


def test_of_a_truncated_run_no_batch_exceeds_the_size_and_by_default_none_is_ever_cut() -> None:
    training = made(planned("truncated_poisson", max_batch_size=21))
    sizes = [len(training.indices(step)) for step in range(15)]
    assert max(sizes) == 21 and sizes.count(21) > 1
    size = default_max_batch_size([(10**6, 500)], 2_048, delta=1e-6)
    assert 500 * stats.binom.sf(size - 1, 10**6, 2048e-6) <= 1e-8 < 500 * stats.binom.sf(size - 2, 10**6, 2048e-6)
    assert planned("truncated_poisson").sampler == TruncatedPoisson(default_max_batch_size([(200, 15)], 20, 1e-3))


def test_periods_of_a_stream_share_a_size_and_pay_for_it_on_their_own_examples() -> None:
    for sampling in ("truncated_poisson", "balls_in_bins"):
        plan = planned(sampling, examples=(200, 310), steps=None, epochs=1)
        steps = [plan.step(number) for number in range(2)]
        assert all(step is not None and step.sampling == sampling for step in steps)
        if sampling == "balls_in_bins":
            assert [step.bins for step in steps if step] == [10, 16]
        else:
            assert [step.dataset_size for step in steps if step] == [200, 310]
        assert plan.ledger(2).epsilon() <= 1.0
        assert not np.array_equal(plan.batches(0, KEY).indices(0), plan.batches(1, KEY).indices(0))


@pytest.mark.parametrize(("sigma", "q", "most"), [(1.0, 0.05, 110), (3.0, 0.3, 610)])
def test_truncation_costs_no_more_than_dp_accountings_own_event(sigma: float, q: float, most: int) -> None:
    """Its bound charges the examples that replace another one a little more than ours does; both exceed Poisson's."""
    event = truncated(sigma, q, most, 2_000)
    grid = 1e-3
    ours = event.once(grid).self_compose(50).get_epsilon_for_delta(1e-5)
    theirs = pld.from_truncated_subsampled_gaussian_mechanism(2_001, q, most, sigma, grid).self_compose(50)
    poisson = replace(event, max_batch_size=None, dataset_size=None).once(grid).self_compose(50)
    assert poisson.get_epsilon_for_delta(1e-5) < ours <= theirs.get_epsilon_for_delta(1e-5) * 1.001


def worst_case_of_truncation(size: int, most: int, q: float, sigma: float, epsilon: float) -> tuple[float, float]:
    """Both divergences of one truncated step on ``size`` other examples, all -1, and the canary, 1, exactly."""

    def law(canary: bool, x: np.ndarray) -> np.ndarray:
        total = np.zeros_like(x)
        for others in range(size + 1):
            chance = stats.binom.pmf(others, size, q)
            total_without = chance * (1 - q if canary else 1) * stats.norm.pdf(x, -min(others, most), sigma)
            total += total_without
            if canary:
                drawn = others + 1
                kept = min(1.0, most / drawn)
                with_it, without_it = -(min(drawn, most) - 1) + 1, -min(drawn, most)
                total += chance * q * kept * stats.norm.pdf(x, with_it, sigma)
                total += chance * q * (1 - kept) * stats.norm.pdf(x, without_it, sigma)
        return total

    x = np.linspace(-most - 10 * sigma - 2, 10 * sigma + 3, 40_001)
    one, other = law(True, x), law(False, x)
    step = x[1] - x[0]
    removed = np.maximum(one - math.exp(epsilon) * other, 0).sum() * step
    return removed, np.maximum(other - math.exp(epsilon) * one, 0).sum() * step


@pytest.mark.parametrize("most", [3, 5, 8])
def test_no_truncated_step_of_examples_that_oppose_the_canary_exceeds_the_bound(most: int) -> None:
    """An attack: an example that replaces its opposite moves the sum by 2. Without that, the bound would be broken."""
    size, q, sigma = 10, 0.4, 0.8
    event = truncated(sigma, q, most, size)
    poisson = replace(event, max_batch_size=None, dataset_size=None)
    broken = False
    for epsilon in (0.2, 0.8, 1.5, 2.5):
        reached = max(worst_case_of_truncation(size, most, q, sigma, epsilon))
        assert reached <= accountant.delta([event], epsilon, 1e-3) * (1 + 1e-6)
        broken = broken or reached > accountant.delta([poisson], epsilon, 1e-3)
    if most == 3:
        assert broken, "an accountant that ignores the truncation is wrong"


def test_combinations_that_are_not_accounted_are_refused_in_a_sentence() -> None:
    for sampling in ("truncated_poisson", "balls_in_bins"):
        with pytest.raises(UserError, match=f"sampling={sampling} is accounted for Gaussian releases alone"):
            planned(sampling, algorithm=Exponential(rows_per_step=3))
        combined = replace(planned(sampling), algorithm=AdaFEST()).step()  # map and gradient share the sample
        assert combined is not None and combined.map_noise_multiplier and combined.sampling == sampling
    for arguments, words in (
        ({"fidelity": "paper"}, "sampling='balls_in_bins' does not fit fidelity='paper': choose shuffled"),
        ({"max_batch_size": 200}, "max_batch_size=200 applies to sampling=truncated_poisson alone"),
    ):
        with pytest.raises(UserError, match=words):
            planned("balls_in_bins", **arguments)
    with pytest.raises(UserError, match="max_batch_size=19 must be at least batch_size=20"):
        planned("truncated_poisson", max_batch_size=19)
    with pytest.raises(UserError, match="does not fit fidelity='rigorous': choose poisson or"):
        planned("shuffled")
    with pytest.raises(UserError, match="does not fit"):
        replace(planned("balls_in_bins"), fidelity="paper")
    for wrong in (
        {"bands": 2, "steps_per_epoch": 3},
        {"bins": 7},
        {"max_batch_size": 9},
        {"bins": 10, "steps_per_epoch": 3},
    ):
        with pytest.raises(ValueError, match="training step"):
            replace(planned("poisson").step(), **wrong)  # type: ignore[type-var]


def test_where_batches_do_not_divide_the_examples_an_epoch_has_one_more() -> None:
    plan = planned("balls_in_bins", examples=210, steps=None, epochs=2)
    step = plan.step()
    assert step is not None and step.bins == 11 and step.sampling_probability == 1 / 11 and plan.steps == 21
    batches = BallsInBins().batches(210, 20, KEY)
    assert sum(len(batches.indices(place)) for place in range(11)) == 210
