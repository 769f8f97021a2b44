"""Private top-k: what is selected, the law of the noise, what it costs, and the paper's claim refuted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats

from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event
from dpfest.algorithms.rules import FEST
from dpfest.errors import UserError
from dpfest.noise.gaussian import BLOCK, gaussian_grid
from dpfest.noise.key import NoiseKey
from dpfest.planning.fidelity import FIDELITIES
from dpfest.planning.plan import plan
from dpfest.selection import topk
from dpfest.selection.topk import SelectionConfig, noise_scales, rows_selected, selection_events
from dpfest.training.arguments import rows_of
from dpfest.training.histogram import counted

HISTOGRAMS = [np.array([5, 900, 7, 800, 3]), np.array([1, 2, 3]), np.array([0, 0, 0, 10_000])]


COUNTED = {"examples": 10**9, "rows_per_example": 1}


def select_rows(histograms, selection, stream, **settings):
    return topk.select_rows(histograms, selection, stream, **{**COUNTED, **settings})


def noisy_counts(histograms, selection, stream, **settings):
    return [block for _, block in topk.noisy_counts(histograms, selection, stream, **{**COUNTED, **settings})]


def stream(seed=0, step=0):
    return NoiseKey.from_seed(seed).stream("selection", step)


def config(mechanism, **settings):
    prior = "counts.npy" if mechanism == "public" else None
    return SelectionConfig(**{"mechanism": mechanism, "prior": prior, **settings})


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "gumbel", "public"])
def test_ids_are_global_sorted_and_as_many_as_asked(mechanism):
    settings = config(mechanism, rows=6, split="equal", noise_multiplier=0.1, epsilon=30.0)
    chosen = select_rows(HISTOGRAMS, settings, stream())
    assert chosen.rows.dtype == np.int64
    assert chosen.rows.tolist()[:2] == [1, 3]
    assert 11 in chosen.rows
    assert len(chosen.rows) == 6 and np.all(np.diff(chosen.rows) > 0)
    assert chosen.rows_per_feature == [2, 2, 2]


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "gumbel", "public"])
def test_jointly_the_most_frequent_rows_of_all_features_are_taken(mechanism):
    settings = config(mechanism, rows=3, split="joint", noise_multiplier=0.1, epsilon=30.0)
    chosen = select_rows(HISTOGRAMS, settings, stream())
    assert chosen.rows.tolist() == [1, 3, 11] and chosen.rows_per_feature == [2, 0, 1]


def test_a_share_is_capped_by_the_vocabulary_and_the_rest_is_not_spent_elsewhere():
    histograms = [np.zeros(size, dtype=np.int64) for size in (5, 3, 100)]
    equal = config("public", rows=13, split="equal")
    assert select_rows(histograms, equal, stream()).rows_per_feature == [4, 3, 4]
    assert rows_selected(equal, [5, 3, 100]) == 11 and rows_selected(config("public", rows=13), [5, 3, 100]) == 13
    for split in topk.SPLITS:
        assert len(select_rows(HISTOGRAMS, config("public", rows=10**6, split=split), stream()).rows) == 12


def test_a_split_that_is_not_said_is_joint_and_the_papers_under_its_fidelity():
    assert SelectionConfig().named(FIDELITIES["rigorous"], in_stream=False).split == "joint"
    assert SelectionConfig().named(FIDELITIES["paper"], in_stream=False).split == "equal"
    assert SelectionConfig(split="joint").named(FIDELITIES["paper"], in_stream=False).split == "joint"
    chosen = select_rows(HISTOGRAMS, config("public", rows=3), stream())
    assert chosen.rows.tolist() == [1, 3, 11]


def test_equal_public_counts_go_to_the_lower_id():
    chosen = select_rows([np.array([4, 9, 4, 4, 9, 1])], config("public", rows=4), stream())
    assert chosen.rows.tolist() == [0, 1, 2, 4]


def test_fewer_rows_than_features_are_refused_by_key():
    with pytest.raises(UserError, match=r"^selection\.rows=2 .* at least 3"):
        select_rows(HISTOGRAMS, config("gaussian", rows=2, split="equal"), stream())
    assert len(select_rows(HISTOGRAMS, config("gaussian", rows=2), stream()).rows) == 2


@pytest.mark.parametrize(
    "settings, key",
    [
        ({"mechanism": "gausian"}, "mechanism"),
        ({"rows": 0}, "rows"),
        ({"noise_multiplier": 0.09}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": 101.0}, "epsilon"),
        ({"split": "evenly"}, "split"),
        ({"mechanism": "public"}, "prior"),
        ({"prior": "counts.npy"}, "prior"),
    ],
)
def test_a_wrong_setting_is_named(settings, key):
    with pytest.raises(ValueError, match=rf"^{key}="):
        SelectionConfig(**settings)


def noise_of(mechanism, histograms, monkeypatch, **settings):
    """What is added to the counts; of Gumbel, whose scores are not released, the scale that its draws are made with."""
    if mechanism == "gumbel":
        scales = []
        monkeypatch.setattr(
            topk, "draw_rows", lambda *a, **given: (scales.append(given["scale"]), np.arange(given["count"]))[1]
        )
        select_rows(histograms, config(mechanism, **settings.pop("config")), stream(7), **settings)
        return np.array(scales)
    noisy = noisy_counts(histograms, config(mechanism, **settings.pop("config")), stream(7), **settings)
    return np.concatenate([one - counts for one, counts in zip(noisy, histograms, strict=True)])


@pytest.mark.parametrize(
    "mechanism, law",
    [
        # p = 4 features: l2-sensitivity 2 at multiplier 20; epsilon/p = 0.05 a feature.
        ("gaussian", stats.norm(0, 40.0)),
        ("laplace", stats.laplace(0, 20.0)),
    ],
)
def test_noise_has_the_law_that_is_accounted(mechanism, law, monkeypatch):
    """Kolmogorov-Smirnov on 40,000 draws: false alarm 1e-3 at the right scale; 1.2 times it is rejected."""
    noise = noise_of(mechanism, [np.arange(10_000)] * 4, monkeypatch, config=dict(rows=40, epsilon=0.2))
    assert len(noise) == 40_000
    assert stats.kstest(noise, law.cdf).pvalue > 1e-3
    for wrong in (1.2, 1 / 1.2):
        assert stats.kstest(noise / wrong, law.cdf).pvalue < 1e-6


def test_gumbel_draws_have_the_scale_that_is_accounted(monkeypatch):
    for split, draws in (("equal", 4), ("joint", 1)):
        settings = dict(rows=40, epsilon=0.2, split=split)
        scales = noise_of("gumbel", [np.zeros(10_000)] * 4, monkeypatch, config=settings)
        assert scales == pytest.approx(np.full(draws, 20.0))


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_released_counts_lie_on_a_grid_of_which_counts_are_multiples(mechanism):
    """So that no rounding and no float shows what a count was before its noise."""
    settings = config(mechanism, rows=5, noise_multiplier=31.0, epsilon=0.1)
    (low,) = noisy_counts([np.zeros(5000, dtype=np.int64)], settings, stream(3))
    (high,) = noisy_counts([np.full(5000, 3)], settings, stream(3))
    grid = gaussian_grid(31.0 if mechanism == "gaussian" else 10.0)
    assert grid < 1 and (low / grid == np.rint(low / grid)).all() and (high - low == 3).all()


@pytest.mark.parametrize("split", topk.SPLITS)
@pytest.mark.parametrize("mechanism", ["gaussian", "public"])
def test_blocks_of_a_feature_give_the_bits_of_the_whole(mechanism, split, monkeypatch):
    """Counts repeat, so that equal ones, of which the lower row wins, fall on both sides of a block's end."""
    counts = [np.random.default_rng(0).integers(0, 50, size) for size in (5 * BLOCK + 1001, 3, 2 * BLOCK)]
    settings, known = config(mechanism, rows=3 * 70_000, split=split), dict(examples=10**9)
    whole = select_rows(counts, settings, stream(5), **known).rows
    noised = np.concatenate(noisy_counts(counts, settings, stream(5), **known))
    monkeypatch.setattr(topk, "ROWS_AT_ONCE", 2 * BLOCK)
    assert len(noisy_counts(counts, settings, stream(5), **known)) == 3 + 1 + 1
    assert np.array_equal(np.concatenate(noisy_counts(counts, settings, stream(5), **known)), noised)
    assert np.array_equal(select_rows(counts, settings, stream(5), **known).rows, whole)
    dense = np.concatenate(counts).astype(float) if mechanism == "public" else noised
    if split == "joint":
        assert np.array_equal(whole, np.sort(np.argsort(-dense, kind="stable")[: 3 * 70_000]))
        return
    first = np.argsort(-dense[: len(counts[0])], kind="stable")[:70_000]
    assert np.array_equal(whole[:70_000], np.sort(first))


def test_noise_that_drowns_every_count_is_refused():
    with pytest.raises(UserError, match="which no count outweighs"):
        select_rows([np.zeros(10)], config("laplace", epsilon=1e-9, rows=1), stream())


@pytest.mark.parametrize("mechanism, factor", [("gaussian", math.sqrt(3)), ("laplace", 3.0), ("gumbel", 1.0)])
def test_examples_in_several_rows_get_the_noise_their_sensitivity_asks(mechanism, factor, monkeypatch):
    def spread(rows_per_example):
        counts, settings = [np.zeros(1000, dtype=np.int64)], dict(rows=5)
        return noise_of(mechanism, counts, monkeypatch, config=settings, rows_per_example=rows_per_example)

    np.testing.assert_allclose(spread(3), factor * spread(1), rtol=1e-4, atol=1e-4)


BOUNDS = [1, 5, 2]


@pytest.mark.parametrize("mechanism, scales", [("gaussian", [math.sqrt(8)] * 3), ("laplace", [1, 5, 2])])
def test_a_bound_of_each_feature_gives_the_noise_that_the_worst_example_asks(mechanism, scales, monkeypatch):
    """One category, a bag of five rows and one of two: an example moves 8 counts by 1, √8 in l2, by feature 1, 5, 2."""

    def spread(rows_per_example):
        counts, settings = [np.zeros(1000, dtype=np.int64)] * 3, dict(rows=5)
        noise = noise_of(mechanism, counts, monkeypatch, config=settings, rows_per_example=rows_per_example)
        return noise.reshape(3, 1000)

    one = spread(1) / (math.sqrt(3) if mechanism == "gaussian" else 1)
    np.testing.assert_allclose(spread(BOUNDS), np.array(scales)[:, None] * one, rtol=1e-4, atol=1e-4)


def test_no_example_moves_counts_by_more_than_the_noise_is_for():
    """Every histogram with one example more: what it adds, whatever it looks up, has the sensitivity of the noise."""
    offsets, rng = [0, 7, 47, 67], np.random.default_rng(3)
    for _ in range(200):
        rows = np.unique(rng.integers(0, 67, rng.integers(1, 60)))
        others = np.unique(np.stack([rng.integers(0, 9, 300), rng.integers(0, 67, 300)]), axis=1)
        without = counted(*others, offsets, BOUNDS)
        example = np.concatenate([others[0], np.full(len(rows), 9)])
        moved = np.split(counted(example, np.concatenate([others[1], rows]), offsets, BOUNDS) - without, offsets[1:-1])
        assert all(np.isin(move, (0, 1)).all() for move in moved)
        assert all(move.sum() <= most for move, most in zip(moved, BOUNDS, strict=True))
        assert (
            np.square(np.concatenate(moved)).sum()
            <= noise_scales(config("gaussian"), [7, 40, 20], BOUNDS)[0] ** 2 / 400
        )


def test_gumbel_draws_cost_what_is_accounted_though_an_example_moves_several_counts_of_a_feature():
    """Every bag that could be added to one feature of five rows, and every set of two rows that could be drawn."""
    share, k = 0.5, 2
    (event,) = selection_events(config("gumbel", epsilon=share, rows=k), [5])
    sets, worst = list(itertools.combinations(range(5), k)), 0.0
    for fewer in ([0, 0, 0, 0, 0], [4, 1, 0, 2, 0], [30, 0, 0, 8, 0]):
        p = np.array([_probability_of_set(fewer, s, share) for s in sets])
        for bag in itertools.chain.from_iterable(itertools.combinations(range(5), size) for size in range(1, 6)):
            more = np.array(fewer)
            more[list(bag)] += 1
            worst = max(worst, np.abs(np.log(p / [_probability_of_set(more, s, share) for s in sets])).max())
    assert 0.9 * k * share < worst <= k * share + 1e-9 and event.draws * event.epsilon_per_draw == k * share


@pytest.mark.parametrize("bounds", [0, [1, 0, 2], [1, 5]])
def test_bounds_that_are_none_are_refused(bounds):
    with pytest.raises(UserError, match="must be 1 or more, for each of 3 tables or for all"):
        select_rows([np.zeros(10)] * 3, config("gaussian"), stream(), examples=10, rows_per_example=bounds)


def test_a_count_beyond_the_bound_of_its_own_feature_is_refused():
    histograms, known = (
        [np.array([10]), np.array([25, 26]), np.array([0])],
        {"examples": 10, "rows_per_example": BOUNDS},
    )
    with pytest.raises(UserError, match="feature 1 counts 51 rows, more than 10 examples with rows_per_example=5"):
        select_rows(histograms, config("gaussian"), stream(), **known)


def test_events_cost_what_the_mechanism_costs():
    sizes = [1000, 2, 1000, 1000]
    assert selection_events(config("gaussian"), sizes) == [
        Event(kind="gaussian", what="row selection", noise_multiplier=20.0)
    ]
    assert selection_events(config("laplace", epsilon=0.2), sizes) == [
        Event(kind="laplace", what="row selection", noise_multiplier=20.0, count=4)
    ]
    # 10 rows from each feature, 2 where there are only 2; or 40 from all.
    for split, draws in (("equal", 32), ("joint", 40)):
        assert selection_events(config("gumbel", epsilon=0.2, rows=40, split=split), sizes) == [
            Event(kind="pure", what="row selection", epsilon_per_draw=0.05, draws=draws, claimed_epsilon=0.2)
        ]
    assert selection_events(config("public"), sizes) == []


def _probability_of_set(counts, wanted, epsilon):
    """That one-shot Gumbel top-k returns the set `wanted`: a sum over the orders in which it may be drawn."""
    weights = np.exp(epsilon * np.asarray(counts, float))
    total = 0.0
    for order in itertools.permutations(wanted):
        left, chance = weights.sum(), 1.0
        for row in order:
            chance *= weights[row] / left
            left -= weights[row]
        total += chance
    return total


def test_one_shot_gumbel_with_k_above_1_is_not_epsilon_dp_and_our_event_covers_it():
    """Neighbours that differ by one occurrence of row 0, which leads by far; the outcome leaves row 0 out."""
    epsilon, k = 0.5, 3
    fewer, more, outcome = [30, 0, 0, 0, 0], [31, 0, 0, 0, 0], (1, 2, 3)
    ratio = math.log(_probability_of_set(fewer, outcome, epsilon) / _probability_of_set(more, outcome, epsilon))
    assert ratio > epsilon * 2.99  # three times the claim
    assert ratio <= epsilon * k
    (event,) = selection_events(config("gumbel", epsilon=epsilon, rows=k), [5])
    assert event.kind == "pure" and event.claimed_epsilon == epsilon
    # (epsilon', delta) of our event holds for every outcome of these neighbours and of closer ones.
    for lead in (0, 2, 5):
        fewer, more = [lead, 0, 0, 0, 0], [lead + 1, 0, 0, 0, 0]
        sets = list(itertools.combinations(range(5), k))
        p = np.array([_probability_of_set(fewer, s, epsilon) for s in sets])
        q = np.array([_probability_of_set(more, s, epsilon) for s in sets])
        for level in (0.0, 0.5, 1.0, 1.4):
            spent = max(np.maximum(a - math.exp(level) * b, 0).sum() for a, b in ((p, q), (q, p)))
            assert spent <= accountant.delta([event], level) + 1e-12
    # The claim does not: delta = 0 at the claimed epsilon is broken.
    p, q = (
        _probability_of_set([2, 0, 0, 0, 0], outcome, epsilon),
        _probability_of_set([3, 0, 0, 0, 0], outcome, epsilon),
    )
    assert p > math.exp(epsilon) * q * 1.1


def test_joint_gumbel_draws_cost_what_is_accounted_though_an_example_moves_a_count_of_each_feature():
    """Rows 0 to 2 are one feature's and 3 to 5 another's; every example that could be added, every set of two rows."""
    share, k = 0.5, 2
    (event,) = selection_events(config("gumbel", epsilon=2 * share, rows=k, split="joint"), [3, 3])
    sets = list(itertools.combinations(range(6), k))
    worst = 0.0
    for fewer in ([0, 0, 0, 0, 0, 0], [4, 1, 0, 2, 0, 0], [9, 0, 0, 8, 0, 0]):
        p = np.array([_probability_of_set(fewer, s, share) for s in sets])
        for first, second in itertools.product(range(3), range(3, 6)):
            more = np.array(fewer)
            more[[first, second]] += 1
            q = np.array([_probability_of_set(more, s, share) for s in sets])
            worst = max(worst, np.abs(np.log(p / q)).max())
            for level in (0.0, 0.3, 0.7, 0.95):
                spent = max(np.maximum(a - math.exp(level) * b, 0).sum() for a, b in ((p, q), (q, p)))
                assert spent <= accountant.delta([event], level) + 1e-12
    assert share < worst <= k * share


def test_the_formula_of_the_counter_example_is_the_law_of_the_mechanism():
    """Chi-square over all 10 sets on 4,000 runs; false alarm 1e-3."""
    epsilon, counts = 0.5, np.array([3, 1, 0, 0, 2])
    settings = config("gumbel", epsilon=epsilon, rows=3)
    drawn = [tuple(select_rows([counts], settings, stream(3, step)).rows) for step in range(4000)]
    sets = list(itertools.combinations(range(5), 3))
    expected = [4000 * _probability_of_set(counts, s, epsilon) for s in sets]
    assert stats.chisquare([drawn.count(s) for s in sets], expected).pvalue > 1e-3


def test_unsigned_public_counts_rank_as_numbers() -> None:
    selection = SelectionConfig(mechanism="public", rows=2, prior="counts.npy")
    counts = [np.array([0, 5, 9, 0], dtype=np.uint32)]
    assert select_rows(counts, selection, stream()).rows.tolist() == [1, 2]


@pytest.mark.parametrize("rows", [2, 5, 20])
def test_laplace_is_least_private_where_one_row_takes_all_that_an_example_counts(rows: int) -> None:
    """An example that counts in `rows` rows moves each by one, under noise of scale rows / share: never more than the
    event that is accounted, one coordinate moved by `rows` under that noise."""
    share = 0.7
    spread = pld.from_laplace_mechanism(rows / share, value_discretization_interval=1e-4).self_compose(rows)
    event = next(iter(selection_events(SelectionConfig(mechanism="laplace", epsilon=share, rows=3), [10])))
    accounted = event.once(1e-4)
    for epsilon in (0.0, 0.1, 0.3, 0.5, 0.65, 0.7):
        assert spread.get_delta_for_epsilon(epsilon) <= accounted.get_delta_for_epsilon(epsilon) + 1e-9
    assert accounted.get_delta_for_epsilon(share + 1e-3) < 1e-12


def test_rows_of_another_selection_than_the_plans_are_refused_though_they_cost_the_same():
    made = select_rows(HISTOGRAMS, config("gaussian", rows=6, split="equal"), stream())
    for asked, match in (
        (config("gaussian", rows=3, split="equal"), "rows=6 and split=equal, and the plan says rows=3 and split=equal"),
        (config("gaussian", rows=6), "rows=6 and split=equal, and the plan says rows=6 and split=joint"),
    ):
        settings = {"epsilon": 1.0, "examples": 1000, "batch_size": 10, "steps": 1, "features": [5, 3, 4]}
        made_for = plan(FEST(selection=asked), calibrate=lambda *question: 5.0, **settings)
        with pytest.raises(UserError, match=match):
            rows_of(made, made_for)
