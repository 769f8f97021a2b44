"""What choosing the best of many runs costs: two bounds, against each other and the truth; and the search itself."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq

import dpfest
from dpfest import DPSGD, AdaFEST, Search, SearchPlan, plan_search, select_best
from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event
from dpfest.accounting.search_cost import Profile, by_profile, by_renyi, of_profile
from dpfest.noise.key import NoiseKey
from dpfest.planning.search import recount

Floats = NDArray[np.float64]

FALSE_ALARM = 1e-4
SEARCHES = (
    Search(10, "poisson"),
    Search(3, "poisson"),
    Search(10),
    Search(100),
    Search(30, shape=1.0),
    Search(5, shape=0.5),
)


def gaussian(sigma: float, q: float = 1.0, count: int = 1) -> Event:
    return Event(kind="gaussian", what="run", noise_multiplier=sigma, sampling_probability=q, count=count)


def generating(search: Search, x: Floats) -> Floats:
    """f, the generating function of the number of runs."""
    if search.distribution == "poisson":
        return np.exp(search.mean * (x - 1))
    g, shape = search.gamma, search.shape
    if shape == 0:
        return np.log1p(-(1 - g) * x) / math.log(g)
    return ((1 - (1 - g) * x) ** -shape - 1) / (g**-shape - 1)


def hockey_stick(p: Floats, q: Floats, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def profile_of(p: Floats, q: Floats) -> Profile:
    """The exact privacy profile of a mechanism with few outputs, up to its largest finite loss."""
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.abs(np.log(p) - np.log(q))
    top = float(losses[np.isfinite(losses)].max(initial=0.1))
    epsilons = np.linspace(0, top, 2001)
    return Profile(epsilons, np.array([max(hockey_stick(p, q, e), hockey_stick(q, p, e)) for e in epsilons]))


def best_of(f: Callable[[Floats], Floats], p: Floats, scores: Floats) -> Floats:
    """The distribution of the best output: that of its score, and within equal scores that of a run."""
    at_most = np.array([p[scores <= score].sum() for score in scores])
    below = np.array([p[scores < score].sum() for score in scores])
    equal = at_most - below
    return p * np.divide(f(at_most) - f(below), equal, out=np.zeros_like(p), where=equal > 0)


def mechanisms(count: int) -> list[tuple[Floats, Floats]]:
    """Pairs of distributions over four outputs; a third of them with outputs that only one of both has."""
    rng = np.random.default_rng(5)
    found = []
    for number in range(count):
        p = rng.dirichlet(np.full(4, 0.5))
        q = p * np.exp(rng.normal(0, 0.7, 4)) if number % 3 else rng.dirichlet(np.full(4, 0.3))
        if number % 3 == 0:
            q[0] = 0.0
        found.append((p, q / q.sum()))
    return found


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_no_order_of_the_outputs_costs_more_than_the_bound(search: Search) -> None:
    """Small mechanisms, all orders of their outputs with and without ties, both directions: exact."""
    f, orders = partial(generating, search), list(itertools.product(range(4), repeat=4))
    for number, (p, q) in enumerate(mechanisms(6)):
        one = profile_of(p, q)
        delta = (1e-4, 0.02, 0.3)[number % 3]
        bound = of_profile(search.repeats, one, delta)
        if not math.isfinite(bound):
            continue  # an output that only one world has, too likely for this delta
        for order in orders:
            scores = np.array(order, dtype=np.float64)
            worlds = best_of(f, p, scores), best_of(f, q, scores)
            assert max(hockey_stick(*worlds, bound), hockey_stick(*worlds[::-1], bound)) <= delta * (1 + 1e-9)


def test_a_number_of_runs_that_is_not_random_breaks_the_bound() -> None:
    """Ten runs whose best is the worst output: all ten had it, which shows its privacy loss ten times."""
    p, q, scores = (
        np.array([0.8, 0.2]),
        np.array([0.8 * math.exp(-0.2), 1 - 0.8 * math.exp(-0.2)]),
        np.array([0.0, 1.0]),
    )
    search, delta = Search(10), 1e-6
    bound = of_profile(search.repeats, profile_of(p, q), delta)
    drawn = [best_of(partial(generating, search), world, scores) for world in (p, q)]
    fixed = [best_of(lambda x: x**10, world, scores) for world in (p, q)]
    assert hockey_stick(drawn[0], drawn[1], bound) <= delta < 0.01 < hockey_stick(fixed[0], fixed[1], bound)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_no_search_by_a_gaussian_score_costs_more_than_either_bound(search: Search) -> None:
    """The score is the release itself, or its negative: more than a run costs, and less than the bounds."""
    sigma, delta = 1.5, 1e-5
    y, runs = np.linspace(-12, 13, 20_001), [[gaussian(sigma)]]
    bounds = by_profile(search.repeats, runs, delta), by_renyi(search.repeats, runs, delta)
    assert search.epsilon(runs, delta) == min(bounds)
    worst = 0.0
    for sign in (1, -1):
        worlds = []
        for mean in (0.0, 1.0):
            better = stats.norm.sf(sign * y, sign * mean, sigma)
            worlds.append(stats.norm.pdf(y, mean, sigma) * search.repeats.slope(better))
            none = math.exp(-search.mean) if search.distribution == "poisson" else 0.0
            assert float(np.trapezoid(worlds[-1], y)) == pytest.approx(1 - none, rel=1e-4)
        for one, other in (worlds, worlds[::-1]):

            def excess(epsilon: float, one: Floats = one, other: Floats = other) -> float:
                return float(np.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0), y)) - delta

            worst = max(worst, brentq(excess, 0, 40))
    assert accountant.epsilon(runs[0], delta) < worst <= min(bounds)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_the_profile_bound_is_at_most_the_papers(search: Search) -> None:
    """Koskela, Redberg and Wang (2024): delta_Q(epsilon - ln C) E[K] with one constant C."""
    for runs in ([gaussian(3.0)], [gaussian(0.7, 8192 / 10**6, 123)]):
        delta, e1 = 1e-6, np.linspace(0, 6, 601)
        profile = accountant.deltas(runs, e1)
        if search.distribution == "poisson":
            log_c = search.mean * profile[0]
        else:
            odds = (1 - search.gamma) / search.gamma
            log_c = float(((search.shape + 1) * np.log(np.exp(e1) + odds * profile)).min())
        papers = log_c + accountant.epsilon(runs, delta / search.mean)
        found = by_profile(search.repeats, [runs], delta)
        assert accountant.epsilon(runs, delta) < found <= papers * (1 + 1e-3)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_the_renyi_bound_is_dp_accountings(search: Search) -> None:
    events = [gaussian(8.0), gaussian(0.9, 0.01, 300)]
    runs: list[dp_event.DpEvent] = [dp_event.GaussianDpEvent(8.0)]
    runs.append(dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(0.9)), 300))
    shape = math.inf if search.distribution == "poisson" else search.shape
    accountant = RdpAccountant([order for order in DEFAULT_RDP_ORDERS if order == int(order)])
    accountant.compose(dp_event.RepeatAndSelectDpEvent(dp_event.ComposedDpEvent(runs), search.mean, shape))
    assert by_renyi(search.repeats, [events], 1e-6) == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-6)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0])
def test_purely_private_runs_cost_what_the_paper_proves(shape: float) -> None:
    """Papernot and Steinke (2022), Corollary 3: (2 + shape) epsilon, at any number of runs."""
    run = Event(kind="pure", what="run", epsilon_per_draw=0.5, draws=1)
    few, many = (Search(mean, shape=shape).epsilon([[run]], 1e-12) for mean in (20.0, 1000.0))
    assert 0.5 * (1 + shape) < few < many == pytest.approx((2 + shape) * 0.5, rel=6e-3)
    assert by_renyi(Search(20.0).repeats, [[run]], 1e-12) == math.inf  # dp_accounting knows no such event


def test_a_search_of_one_run_costs_a_run_and_more_runs_cost_more_but_less_than_all_of_them() -> None:
    training = [gaussian(0.7, 8192 / 10**6, 123)]
    one, all_ten = (accountant.epsilon(training * runs, 1e-6) for runs in (1, 10))
    assert Search(1).epsilon([training], 1e-6) == pytest.approx(one, rel=1e-3)
    assert Search(1, "poisson").epsilon([training], 1e-6) > one
    costs = [Search(mean).epsilon([training], 1e-6) for mean in (2, 10, 94)]
    assert one < costs[0] < costs[1] < costs[2] < all_ten
    assert costs[1] < Search(10, shape=1).epsilon([training], 1e-6) < Search(10, "poisson").epsilon([training], 1e-6)
    # Below what its grid can tell, the privacy loss distribution knows nothing, and the Renyi divergences do.
    tiny = by_renyi(Search(10).repeats, [training], 1e-30)
    assert by_profile(Search(10).repeats, [training], 1e-30) == math.inf > tiny == Search(10).epsilon([training], 1e-30)


def test_a_grid_costs_as_much_as_its_worst_setting() -> None:
    mild, harsh, search = [gaussian(4.0)], [gaussian(2.0)], Search(10)
    parts = [replace(gaussian(2.0), part=("period 1",)), replace(gaussian(4.0), part=("period 2",))]
    cost = search.epsilon([harsh], 1e-6)
    assert search.epsilon([mild], 1e-6) < cost
    assert search.epsilon([mild, harsh], 1e-6) == search.epsilon([parts], 1e-6) == cost


def test_deltas_are_those_of_the_accountant() -> None:
    events, epsilons = [gaussian(1.0, 0.02, 200), gaussian(20.0)], np.linspace(0, 5, 11)
    one_by_one = [accountant.delta(events, float(epsilon)) for epsilon in epsilons]
    assert accountant.deltas(events, epsilons) == pytest.approx(one_by_one, rel=1e-6, abs=1e-15)
    # And below 0, by the divergence in the other direction.
    p, q = np.array([0.2, 0.5, 0.3]), np.array([0.4, 0.1, 0.5])
    for epsilon in (-0.3, -1.0):
        exact = max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
        assert profile_of(p, q)(np.array([epsilon]))[0] == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(
    ("search", "law"),
    [
        (Search(6, "poisson"), stats.poisson(6)),
        (Search(6), stats.logser(1 - Search(6).gamma)),
        (Search(6, shape=1.0), stats.geom(1 / 6)),
        (Search(6, shape=2.5), stats.nbinom(2.5, Search(6, shape=2.5).gamma)),
    ],
    ids=["poisson", "logarithmic", "geometric", "negative_binomial"],
)
def test_the_number_of_runs_has_its_law(search: Search, law: Any) -> None:
    """A chi-square test at 10^-4 on 2,000 draws; the negative binomial distribution is truncated to 1 and above."""
    key, draws = NoiseKey.from_seed(7, str(search)), 2000
    numbers = np.array([search.number(key.stream("number of runs", draw)) for draw in range(draws)])
    truncated = search.distribution == "negative_binomial"
    k = np.arange(int(truncated), 13)
    chances = law.pmf(k) / (1 - law.pmf(0) * truncated)
    chances = np.append(chances, 1 - chances.sum())
    seen = np.append([(numbers == each).sum() for each in k], (numbers > k[-1]).sum())
    if truncated:
        assert numbers.min() == 1
        many = np.arange(1, 20_000)
        assert (law.pmf(many) * many).sum() / (1 - law.pmf(0)) == pytest.approx(6, rel=1e-6)
    keep = chances * draws > 5
    pooled = [np.append(each[keep], each[~keep].sum()) for each in (seen, chances * draws)]
    assert stats.chisquare(*(each[: keep.sum() + (pooled[1][-1] > 0)] for each in pooled)).pvalue > FALSE_ALARM
    assert Search(1).number(key.stream("one")) == 1


COMMON = {"examples": 50_000, "batch_size": 50_000, "steps": 50}  # unsampled, which is quickly accounted


def test_a_search_is_planned_for_its_whole_epsilon() -> None:
    settings = [partial(dpfest.plan, one, **COMMON) for one in (DPSGD(), AdaFEST(threshold=3, noise_ratio=2), DPSGD())]
    planned = plan_search(Search(8), settings, epsilon=2.0, delta=1e-5)
    assert [plan.algorithm.name for plan in planned.plans] == ["dpsgd", "adafest", "dpsgd"]
    assert 1.99 < planned.epsilon <= 2.0 and planned.delta == 1e-5
    assert 1.0 < planned.epsilon_of_run < 2.0 < planned.epsilon_of_all
    record = json.loads(json.dumps(planned.to_json()))
    assert record["epsilon"] == planned.epsilon and record["settings"] == 3
    ledger = json.loads(json.dumps(planned.plans[1].ledger(1).to_json())) | {"search": record}
    assert recount(ledger) == pytest.approx(planned.epsilon, rel=1e-9)
    with pytest.raises(ValueError, match="cannot have made this run"):
        recount(ledger | {"search": record | {"runs": record["runs"][:1]}})
    with pytest.raises(dpfest.UserError, match="search less"):
        plan_search(Search(1000), settings[:1], epsilon=0.02, delta=1e-5)


def plans(**changes: Any) -> tuple[dpfest.PrivacyPlan, ...]:
    settings = [{"steps": 50, **changes}, {"steps": 40}, {"steps": 30}]
    return tuple(dpfest.plan(DPSGD(), **{**COMMON, "epsilon": 1.0, "fixed_noise_seed": True, **s}) for s in settings)


def test_the_best_leaves_alone_and_settings_are_drawn_evenly() -> None:
    """A chi-square test at 10^-4 on the settings of 200 searches of six runs on average."""
    planned, drawn = SearchPlan(Search(6), plans(), 4.0), Counter[int]()
    for seed in range(200):
        made: list[tuple[int, float, bytes]] = []

        def run(plan: dpfest.PrivacyPlan, key: NoiseKey, made: list = made) -> tuple[float, int]:
            score = math.nan if plan.steps == 30 else float(len(made) % 3)
            made.append((plan.steps, score, key.secret))
            return score, len(made) - 1

        best = select_best(run, planned, noise_seed=seed)
        assert best is not None and best._fields == ("plan", "score", "result", "search")
        scores = [-math.inf if math.isnan(score) else score for _, score, _ in made]
        assert best.result == scores.index(max(scores)) and best.score == max(scores)
        assert best.plan.steps == made[best.result][0]
        assert len({secret for _, _, secret in made}) == len(made), "every run has a key of its own"
        key = planned.key_of(NoiseKey.from_seed(seed, "search"))
        assert [planned.plans[setting].steps for setting in planned.draws(key)] == [steps for steps, _, _ in made]
        drawn.update(steps for steps, _, _ in made)
    assert stats.chisquare([drawn[steps] for steps in (50, 40, 30)]).pvalue > FALSE_ALARM


def test_a_poisson_search_may_make_no_run() -> None:
    planned = SearchPlan(Search(1, "poisson"), plans(), 4.0)
    found = [select_best(lambda plan, key: (0.0, None), planned, noise_seed=seed) for seed in range(40)]
    assert None in found and any(found)


def returning(value: Any) -> Any:
    return select_best(lambda plan, key: value, SearchPlan(Search(2), plans(), 9.0), noise_seed=1)


def squares(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return ((model(batch[0]) - batch[1]) ** 2).sum(1)


def test_runs_are_trained_under_the_searchs_keys() -> None:
    torch.manual_seed(0)
    table, x = torch.randn(64, 3), torch.randint(0, 20, (64,))
    settings = {"epsilon": 1.0, "delta": 1e-3, "examples": 64, "batch_size": 64, "steps": 2, "fixed_noise_seed": True}
    planned = SearchPlan(Search(3), (dpfest.plan(DPSGD(), **settings),), 4.0)

    def run(plan: dpfest.PrivacyPlan, key: NoiseKey) -> tuple[float, torch.Tensor]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Embedding(20, 3, sparse=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = [(row, target) for row, target in zip(x, table, strict=True)]
        training = dpfest.make_private(model, optimizer, data, squares, plan=plan, key=key)
        for batch in training:
            training.step(batch)
        assert training.epsilon() < planned.epsilon
        weights = model[0].weight.detach()
        return -float(weights.norm()), (weights, training.ledger)

    best = select_best(run, planned, noise_seed=1)
    assert best is not None and best.result[0].shape == (20, 3)
    assert best.ledger(best.result[1])["epsilon"] == planned.epsilon


def test_a_model_is_wrapped_under_a_finished_plan_and_key() -> None:
    model, examples = torch.nn.Linear(2, 1), [(torch.ones(2), torch.ones(1))] * 40
    optimizer, key = torch.optim.SGD(model.parameters(), lr=0.1), NoiseKey.fresh()
    plan = dpfest.plan(DPSGD(), epsilon=2.0, delta=1e-3, examples=40, batch_size=20, steps=2)

    def private(**given: Any) -> dpfest.PrivateTraining:
        return dpfest.make_private(model, optimizer, given.pop("data", examples), squares, **given)

    training = private(plan=plan, key=key)
    assert training.plan is plan
    planned = private(algorithm=DPSGD(), epsilon=2.0, delta=1e-3, batch_size=20, steps=2, key=key)
    assert planned.plan == plan and np.array_equal(planned.indices(0), training.indices(0))
    for given, message in (
        ({"plan": plan, "epsilon": 1.0, "sampling": "balls_in_bins"}, "The plan says sampling, epsilon already"),
        ({"plan": 3.0}, "plan must be what .* returns, not a float"),
        ({"plan": plan, "data": examples[:39]}, "for 40 examples in 1 periods, and the data set has 39"),
        ({"plan": plan, "noise_seed": 1}, "derives from a seed: plan with fixed_noise_seed"),
        ({"plan": plan, "noise_seed": 1, "key": key}, "not both"),
        ({"algorithm": DPSGD(), "epsilon": 1.0, "steps": 1}, "^Give batch_size="),
        ({"epsilon": 1.0, "batch_size": 1, "steps": 1}, "^algorithm=None must be"),
    ):
        with pytest.raises(dpfest.UserError, match=message):
            private(**given)  # type: ignore[arg-type]


def test_the_release_says_what_the_choice_cost() -> None:
    planned = SearchPlan(Search(6), plans(), 4.0)
    best = select_best(lambda plan, key: (0.5, plan.ledger()), planned, noise_seed=1)
    assert best is not None and best.result.epsilon() == 0.0, "nothing was spent yet"
    ledger = json.loads(json.dumps(best.ledger(best.result)))
    assert ledger["epsilon"] == ledger["sound_epsilon"] == best.epsilon == planned.epsilon > best.plan.epsilon
    assert ledger["target_epsilon"] == 4.0 and recount(ledger) == pytest.approx(best.epsilon, rel=1e-9)
    assert "the best on validation of a logarithmic number of runs with mean 6 over 3" in ledger["statements"][-1]
    assert best.ledger(best.result.to_json()) == best.ledger(best.result)
    (other,) = plans(steps=20)[:1]
    with pytest.raises(dpfest.UserError, match="not of a run of this search"):
        best.ledger(other.ledger())


def test_a_search_that_was_cut_off_draws_the_same_again_under_its_key_alone() -> None:
    def made(key: NoiseKey | None, planned: SearchPlan, cut: int | None = None) -> list[tuple[int, bytes]]:
        runs: list[tuple[int, bytes]] = []

        def run(plan: dpfest.PrivacyPlan, key: NoiseKey) -> tuple[float, None]:
            if len(runs) == cut:
                raise MemoryError
            runs.append((plan.steps, key.secret))
            return 0.0, None

        with contextlib.suppress(MemoryError):
            select_best(run, planned, key=key)
        return runs

    settings = tuple(replace(plan, fixed_noise_seed=False) for plan in plans())
    planned, key = SearchPlan(Search(6, shape=20), settings, 4.0), NoiseKey(bytes(range(32)))
    whole = made(key, planned)
    assert len(whole) > 2 and made(key, planned, cut=2) == whole[:2] and made(key, planned) == whole
    other = made(key, replace(planned, target_epsilon=4.5))
    assert not {secret for _, secret in whole} & {secret for _, secret in other}, "another search, other noise"
    assert made(None, planned)[0][1] != made(None, planned)[0][1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Search(0.5), "^mean=0.5, the expected number of runs, must lie between 1 and 10,000"),
        (lambda: Search(math.nan), "^mean=nan"),
        (lambda: Search("3"), "^mean='3', the expected number of runs, must lie between"),  # type: ignore[arg-type]
        (lambda: Search(3, shape=None), "^shape=None must lie between"),  # type: ignore[arg-type]
        (lambda: plan_search(Search(5), None, epsilon=1.0), "^settings=None must be a list"),  # type: ignore[arg-type]
        (lambda: plan_search(Search(5), [None], epsilon=1.0), r"^settings=\[None\] must be a list"),  # type: ignore[list-item]
        (lambda: plan_search(Search(5), [print], epsilon="1"), "^epsilon='1', the target"),  # type: ignore[arg-type]
        (lambda: plan_search(5, [lambda **_: plans()[0]], epsilon=1.0), "^search=5 must be a dpfest.Search"),  # type: ignore[arg-type]
        (lambda: plan_search(Search(5), [lambda **_: None], epsilon=1.0), "^A setting gave None"),  # type: ignore[arg-type, list-item]
        (lambda: select_best(print, plans(), noise_seed=1), "not a tuple"),  # type: ignore[arg-type]
        (lambda: returning(None), "returned None: it must return a pair"),
        (lambda: returning((1.0, 2, 3)), "returned a tuple: it must return a pair"),
        (lambda: returning((None, 0)), "returned None as its score"),
        (lambda: returning(("0.5", 0)), "returned a str as its score"),
        (lambda: returning((torch.zeros(2), 0)), "returned a Tensor as its score"),
        (
            lambda: select_best(print, SearchPlan(Search(2), plans(), 9.0), noise_seed=1, key=NoiseKey.fresh()),
            "not both",
        ),  # type: ignore[arg-type]
        (lambda: Search(5, "fixed"), "^distribution='fixed' must be one of negative_binomial, poisson"),
        (lambda: Search(5, shape=-0.5), r"^shape=-0.5 must lie between 0 \(logarithmic\) and 100"),
        (lambda: SearchPlan(Search(5), (), 1.0), "^The grid is empty"),
        (lambda: plan_search(Search(5), [], epsilon=1.0), "^The grid is empty"),
        (lambda: SearchPlan(Search(5), plans(examples=60_000), 1.0), "share the examples and delta"),
        (lambda: SearchPlan(Search(5), plans(fixed_noise_seed=False), 1.0), "fixed noise seed, or none"),
        (lambda: SearchPlan(Search(5), plans(fidelity="paper"), 1.0), "fidelity=paper has no proven epsilon"),
        (
            lambda: SearchPlan(Search(5), (dpfest.plan(dpfest.Nonprivate(), **COMMON),), 1.0),
            "^nonprivate with fidelity=rigorous has no proven epsilon",
        ),
        (lambda: select_best(print, SearchPlan(Search(50), plans(), 1.0), noise_seed=1), "past its target 1"),  # type: ignore[arg-type]
        (lambda: select_best(print, SearchPlan(Search(2), plans(), 9.0)), "go together"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_searched_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(dpfest.UserError, match=message):
        make()
