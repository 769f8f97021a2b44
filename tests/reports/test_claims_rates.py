"""How often a claim is decided wrongly, 5 times in 100 at most, and what the tests can tell.

Rates below are of the seeds that these tests fix. A decision is wrong where it is false of the true utilities, which
lie where it is hardest: just where the claim begins to be true, or false. What takes seconds for a hundred cases has
few of them by default, enough to tell bounds that ignore the number of settings or of panels, and many under `slow`.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from scipy import stats

from reports.claims.ahead import Ahead
from reports.claims.along import Trend
from reports.claims.curves import Curve
from reports.claims.estimate import CROSSES, FAILS, HOLDS, INCONCLUSIVE, OPEN, Difference, Sample
from reports.claims.logic import Above, All, Any, between, equivalent, verdict
from reports.claims.register import CLAIMS
from reports.comparison import Panel, Population, by_epsilon
from reports.entry import Inputs
from reports.reading import load_runs
from reports.runs import Run
from reports.setting import Setting
from tests.reports.synthetic import write_run

Make = Callable[..., Setting]


def most(cases: int) -> int:
    """The most wrong decisions of so many: 5%, and two standard errors."""
    return math.floor(0.05 * cases + 2 * math.sqrt(0.05 * 0.95 * cases))


MOST = most(300)


def cases(few: int, many: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cases", [few, pytest.param(many, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder, "dpsgd", test=0.75)
    return load_runs(folder)[0][0]


def maker(run: Run, drawn: random.Random, spread: float, seeds: int, test_error: float = 0.0002) -> Make:
    """Settings with a true loss, whose runs scatter by `spread`; on validation and on test rows training did the same,
    so that what is chosen by one is flattered in the other."""

    def make(algorithm: str, loss: float, reduction: float, seeds: int = seeds, times: float = 1.0) -> Setting:
        trained = [0.75 - loss + drawn.gauss(0, times * spread) for _ in range(seeds)]
        one = replace(run, algorithm=algorithm, test_error=test_error, coordinates=run.parameters / reduction)
        runs = [replace(one, seed=seed, test=utility, validation=utility) for seed, utility in enumerate(trained)]
        return Setting(f"{algorithm} {drawn.random()}", tuple(runs))

    return make


def population(settings: Sequence[Setting]) -> Population:
    return Population("nycflights", "pctr", "rigorous", "demo", "", 1, tuple(settings))


def ahead(settings: Sequence[Setting]) -> str:
    (panel,) = by_epsilon(population(settings), [1.0])
    return Ahead("adafest", ("fest",))(panel, 1).verdict


def said(claim: str, settings: Sequence[Setting]) -> str:
    """The verdict of the register on a claim, on these settings alone."""
    (row,) = [row for row in CLAIMS if row.id == claim]
    judged = row.judged(Inputs([population(settings)]))
    assert judged is not None
    (result,) = judged["datasets"].values()
    return result["verdict"]


@pytest.mark.parametrize("spread", [0.0005, 0.001, 0.002, 0.005])
def test_one_seed_tells_equal_settings_apart_in_at_most_five_percent(spread: float, run: Run) -> None:
    """However small the error of the test rows is: with 0.0002, 5% at a spread of 0.005, and none at 0.002."""
    make = maker(run, random.Random(0), spread, seeds=1)
    one, other = make("adafest", 0, 10), make("dpsgd", 0, 1)
    sample = Sample([one, other])
    assert stats.norm.sf(between(sample, one, other).at().half / (2**0.5 * spread)) <= 0.05
    # Nine settings, and the DP-SGD that did best of five, which all are equal.
    verdicts = []
    for _ in range(200):
        settings = [make("dpsgd", 0, 1) for _ in range(5)] + [make("adafest", 0, 10) for _ in range(9)]
        verdicts.append(said("adafest_beats_dpsgd", settings))
    assert verdicts.count(OPEN) >= 0.95 * len(verdicts)


@pytest.mark.parametrize("seeds", [1, 2])
def test_below_three_seeds_means_and_trends_have_the_assumed_scatter_too(seeds: int, run: Run) -> None:
    """Runs that hardly scatter among themselves: 0.005 is assumed of each, and the test rows' error beside it."""
    make = maker(run, random.Random(0), 1e-6, seeds)
    line = {float(days): make("dpsgd", -0.001 * days, 1) for days in (1, 2, 4)}
    found = Trend(Sample(line.values()), [line])
    assert found.rises == OPEN
    one_run = (0.005**2 / seeds + 0.0002**2) ** 0.5
    assert found.whole.at().half == pytest.approx(stats.norm.ppf(0.95) * 2**0.5 * one_run)


def test_one_seed_decides_what_no_training_again_would_undo(run: Run) -> None:
    make = maker(run, random.Random(0), 0.001, seeds=1, test_error=0.003)
    rivals = [make("dpsgd", 0, 1), *(make("exponential", 0.05, m) for m in (10, 100))]
    assert said("exponential_fails", rivals) == HOLDS
    assert said("exponential_fails", [*rivals, make("exponential", 0.02, 1000)]) == OPEN
    assert said("exponential_fails", [*rivals, make("exponential", -0.03, 1000)]) == FAILS


def test_one_seed_decides_nothing_of_a_metric_whose_scatter_nobody_has_seen(run: Run) -> None:
    make = maker(replace(run, metric="accuracy"), random.Random(0), 0.001, seeds=1)
    assert said("exponential_fails", [make("dpsgd", 0, 1), make("exponential", 0.4, 10)]) == OPEN


@pytest.mark.parametrize("seeds", [1, 3, 5])
@cases(20, 60)
def test_the_luckiest_of_a_hundred_settings_is_not_ahead_more_than_five_times_in_a_hundred(
    cases: int, seeds: int, run: Run
) -> None:
    """All lose 0.0115 where they cut 600,000 times, as DP-FEST does there, which is ahead at less."""
    make = maker(run, random.Random(seeds), 0.003, seeds)
    found = []
    for _ in range(cases):
        fest = [make("fest", loss, cut) for loss, cut in ((0, 10), (0.001, 100), (0.002, 1e3), (0.0115, 6e5))]
        sparse = [make("adafest", 0.0115, 6e5) for _ in range(100)]
        found.append([make("dpsgd", 0, 1), *fest, *sparse])
    verdicts = [ahead(settings) for settings in found]
    assert verdicts.count(HOLDS) + verdicts.count(CROSSES) <= 0.05 * cases
    far = [said("adafest_half_a_million", settings) for settings in found]
    assert far.count(HOLDS) <= 0.05 * cases


@pytest.mark.parametrize(("seeds", "times"), [(3, 1.0), (5, 1.0), (5, 3.0)])
def test_the_best_of_many_equal_settings_is_above_the_reference_in_five_percent(
    seeds: int, times: float, run: Run
) -> None:
    """Twenty settings equal to a reference, whose scatter is theirs or three times theirs. That the one that seems best
    is above it is shown in 3.7%, 5.3% and 7.0% of 300 cases (among twelve in 4.0%, 5.3% and 6.3% of 1,000): where the
    scatter differs so much and no F-test sees it, in somewhat more than 5%."""
    make = maker(run, random.Random(seeds), 0.004, seeds)
    better = 0
    for _ in range(300):
        reference, *settings = make("dpsgd", 0, 1, times=times), *(make("adafest", 0, 10) for _ in range(20))
        sample = Sample([reference, *settings])
        contrasts = [between(sample, setting, reference) for setting in settings]
        better += verdict(Any([Above(contrast) for contrast in contrasts])) == HOLDS
    assert better <= MOST


def test_settings_at_the_margin_are_equivalent_in_at_most_five_percent(run: Run) -> None:
    """The first of three is worse by the margin exactly, which is missed in 4.3% of 300 cases (of 2,000: 4.0%)."""
    make = maker(run, random.Random(0), 0.001, seeds=5)
    same = 0
    for _ in range(300):
        reference, *settings = make("dpsgd", 0, 1), *(make("adafest", loss, 10) for loss in (0.005, 0, 0))
        sample = Sample([reference, *settings])
        same += verdict(All([equivalent(between(sample, s, reference), 0.005) for s in settings])) == HOLDS
    assert 0 < same <= MOST


def test_one_run_is_not_judged_by_the_scatter_of_another_algorithm(run: Run) -> None:
    """Three DP-SGD settings of five seeds that hardly scatter, one run of DP-AdaFEST that does: a difference, up
    or down, is shown in 6.7% of 300 cases without any (of 2,000: 7.0%; by DP-SGD's scatter in 70%)."""
    make = maker(run, random.Random(0), 0.005, seeds=5)
    shown = 0
    for _ in range(300):
        rivals, one = [make("dpsgd", 0, 1, times=0.1) for _ in range(3)], make("adafest", 0, 10, seeds=1)
        contrast = between(Sample([*rivals, one]), one, rivals[0])
        shown += verdict(Above(contrast)) != OPEN
    assert shown <= 2 * MOST
    assert between(Sample(rivals), rivals[0], rivals[0]).at() == Difference(0.0, 0.0)


def test_a_rise_is_missed_or_made_up_in_at_most_five_percent(run: Run) -> None:
    """Utilities that are equal do not rise, which is shown in 1.7% of 300 cases, nor fall, in 7.0% (of 2,000: 1.0% and
    5.1%)."""
    make = maker(run, random.Random(0), 0.004, seeds=5)
    found = []
    for _ in range(300):
        line = {float(days): make("dpsgd", 0, 1) for days in (1, 2, 4, 8, 18)}
        found.append(Trend(Sample(line.values()), [line]).rises)
    assert found.count(HOLDS) <= MOST and found.count(FAILS) <= MOST


@cases(100, 300)
def test_a_fall_at_one_of_three_epsilons_is_made_up_in_at_most_five_percent(cases: int, run: Run) -> None:
    """Utilities that are equal in all periods fall at none, which is shown in 5.7% of 300 cases (of 2,000: 4.8%); were
    each ε tested at 5%, it would be in 14.7%."""
    make = maker(run, random.Random(0), 0.004, seeds=5)
    found = []
    for _ in range(cases):
        settings = []
        for days, epsilon in itertools.product((1, 4, 18), (1.0, 3.0, 8.0)):
            one = make("dpsgd", 0, 1)
            runs = [replace(each, target_epsilon=epsilon, period=days) for each in one.runs]
            settings.append(Setting(one.key, tuple(runs)))
        found.append(said("private_rises_with_period", settings))
    assert found.count(FAILS) <= most(cases)


def test_the_choice_of_frozen_embeddings_counts(run: Run) -> None:
    """One seed, twenty settings of frozen embeddings, all as good as the algorithm: that it is worse than the best of
    them is shown in 2.5% of 200 cases, that it is no better in 3.0%; uncounted, in 16.5% and 19.5%."""
    make = maker(run, random.Random(1), 0.005, seeds=1)
    lost, refuted = [], []
    for _ in range(200):
        rivals = [make("dpsgd", 0, 1), *(make("frozen", 0.005, 1) for _ in range(20))]
        lost.append(said("exponential_fails", [*rivals, make("exponential", 0.005, 10)]))
        refuted.append(said("significant_reduction", [*rivals, make("adafest", 0.0049, 50)]))
    assert lost.count(HOLDS) <= most(200) and refuted.count(FAILS) <= most(200)


def test_settings_without_a_common_seed_are_judged_by_counting_the_choice(run: Run) -> None:
    """Twenty settings have seeds 0 and 1, twenty others 2 to 4, and all equal DP-SGD: that the best of them exceeds it
    is shown in 2.0% of 200 cases; were those of other seeds judged by the seeds that chose them, in 10.5%."""
    make = maker(run, random.Random(1), 0.004, seeds=5)
    found = []
    for _ in range(200):
        early = [make("adafest", 0, 10, seeds=2) for _ in range(20)]
        late = [Setting(s.key, s.runs[2:]) for s in (make("adafest", 0, 10) for _ in range(20))]
        found.append(said("adafest_beats_dpsgd", [make("dpsgd", 0, 1), *early, *late]))
    assert found.count(HOLDS) <= most(200)


@cases(100, 200)
def test_a_text_that_is_cut_less_than_four_click_data_sets_is_rarely_cut_more(cases: int, run: Run) -> None:
    """Each is cut 1,000 times at a loss just below 0.001, the text 100 times at none: that it is cut less is refuted
    in 1.5% of 200 cases; were each tested at 5%, in 10.5%."""
    make = maker(run, random.Random(3), 0.0003, seeds=5)

    def panel(*cuts: tuple[float, float]) -> Panel:
        settings = [make("dpsgd", 0, 1), *(make("adafest", loss, cut) for loss, cut in (*cuts, (0.2, 1e4)))]
        return by_epsilon(population(settings), [1.0])[0]

    refuted = 0
    for _ in range(cases):
        text, clicks = panel((0, 100)), [panel((0, 50), (0.00099, 1000)) for _ in range(4)]
        refuted += any(Ahead("adafest", ("adafest",))((one, text), len(clicks)).verdict == FAILS for one in clicks)
    assert refuted <= most(cases)


def test_what_is_chosen_and_then_confirmed_is_known_more_closely(run: Run) -> None:
    """Of 29 settings with a scatter of 0.004, five seeds told one's loss to ± 0.0117 when bounds had to hold for all of
    them. Chosen on two seeds, confirmed on five others: ± 0.0043; on three others, of five in all: ± 0.0055."""
    make = maker(run, random.Random(0), 0.004, seeds=2)
    grid = [make("adafest", 0.001 * place, 10) for place in range(27)]
    for more, least, most in ((5, 0.0036, 0.0050), (3, 0.0046, 0.0064)):
        one, reference = make("adafest", 0, 10, seeds=2 + more), make("dpsgd", 0, 1, seeds=2 + more)
        sample = Sample([*grid, one, reference])
        assert sorted(sample.choosing) == [0, 1]
        assert least < between(sample, one, reference).at(29).half < most


def test_further_seeds_of_some_settings_decide_no_less(run: Run) -> None:
    """Of five seeds two choose and three confirm, however many more some settings have: were all five to choose, none
    that all settings share would be left to confirm."""
    make = maker(run, random.Random(0), 0.001, seeds=5)
    few = [make("adafest", 0.001 * place, 10) for place in range(20)]
    for more, choose in ((5, {0, 1}), (10, {0, 1}), (1, {0})):
        reference = make("dpsgd", 0, 1, seeds=more)
        sample = Sample([*few, reference])
        assert sample.choosing == choose
        assert between(sample, few[0], few[1]).at(20) == between(sample, few[0], few[1]).at(1)


def test_settings_are_paired_by_seed(run: Run) -> None:
    """What a seed does to all settings alike is no scatter of their differences."""
    make, drawn = maker(run, random.Random(0), 0.0001, seeds=5), random.Random(1)
    moved = [drawn.gauss(0, 0.01) for _ in range(5)]

    def move(setting: Setting) -> Setting:
        runs = [replace(one, test=one.test + moved[one.seed]) for one in setting.runs]
        return Setting(setting.key, tuple(runs))

    settings = [move(make("adafest", loss, 10)) for loss in (0.0, 0.001, 0.002)]
    contrast = between(Sample(settings), settings[0], settings[1])
    assert contrast.at().half < 0.0003 and contrast.at().value == pytest.approx(0.001, abs=0.0003)


def test_a_setting_that_scatters_more_than_others_is_not_pooled_with_them(run: Run) -> None:
    make = maker(run, random.Random(3), 0.0005, seeds=7)
    calm = [make("adafest", 0, 10) for _ in range(8)]
    wild = make("dpsgd", 0, 1, times=20)
    sample = Sample([*calm, wild])
    assert between(sample, wild, calm[0]).at().half > 2 * between(sample, calm[1], calm[0]).at().half


def test_runs_of_different_seeds_are_compared_as_single_runs_are(run: Run) -> None:
    make = maker(run, random.Random(0), 0.0001, seeds=5)
    for loss, expected in ((0.003, OPEN), (0.03, HOLDS)):
        one, other = make("adafest", loss, 10), make("dpsgd", 0, 1)
        later = Setting(other.key, tuple(replace(run, seed=run.seed + 5) for run in other.runs))
        assert verdict(Above(between(Sample([one, later]), later, one))) == expected


def test_ten_seeds_tell_who_is_ahead(run: Run) -> None:
    make = maker(run, random.Random(0), 0.002, seeds=10)
    fest = [make("fest", loss, cut) for loss, cut in ((0, 10), (0.001, 100), (0.03, 1e3))]
    sparse = [make("adafest", 0, 1e4), make("adafest", 0.03, 1e5)]
    assert ahead([make("dpsgd", 0, 1), *fest, *sparse]) == HOLDS
    assert ahead([make("dpsgd", 0, 1), *fest, make("adafest", 0.03, 1e5), make("adafest", 0.0, 5)]) == FAILS


def test_five_seeds_tell_who_is_ahead_of_fest_at_its_end(run: Run) -> None:
    """DP-FEST with one row cuts 900 times at no loss, DP-AdaFEST 20,000 times at 0.001: beyond its end, DP-FEST is
    frozen embeddings, which lose 0.03. At a scatter of 0.002 it is decided in all of 40 cases; were k no end, in
    none."""
    make = maker(run, random.Random(0), 0.002, seeds=5)

    def decided(k: int) -> list[str]:
        found = []
        for _ in range(40):
            fest = [make("fest", loss, cut) for loss, cut in ((0, 10), (0, 100), (0, 900))]
            last = tuple(
                replace(one, hyperparameters={"algorithm": {"selection": {"rows": k, "split": "joint"}}})
                for one in fest[-1].runs
            )
            sparse = [make("adafest", loss, cut) for loss, cut in ((0.001, 1e3), (0.001, 2e4), (0.03, 1e5))]
            controls = [make("dpsgd", 0, 1), make("frozen", 0.03, math.inf)]
            settings = [*controls, *fest[:-1], Setting(fest[-1].key, last), *sparse]
            found.append(ahead(settings))
        return found

    assert decided(1).count(HOLDS) >= 38
    assert set(decided(2)) <= {OPEN, INCONCLUSIVE}


def test_a_reduction_is_shown_that_is_not_reached_in_at_most_five_percent(run: Run) -> None:
    """Losses rise from 0 at 10× to 0.01 at 1,000×, so 0.005 is reached at 100×; that more is reached is shown in 2.7%
    of 300 cases, and 60× or more in a quarter."""
    make = maker(run, random.Random(0), 0.001, seeds=5)
    shown = []
    for _ in range(300):
        reference = make("dpsgd", 0, 1)
        settings = [make("adafest", loss, cut) for loss, cut in ((0, 10), (0.0025, 32), (0.005, 100), (0.01, 1e3))]
        curve = Curve("adafest", settings, Sample([reference, *settings]), reference)
        shown.append(curve.reach(0.005).shown)
    assert sum(cut > 101 for cut in shown) <= MOST and sum(cut >= 60 for cut in shown) >= 60


def test_crossing_curves_are_told_from_curves_that_are_one(run: Run) -> None:
    """Two algorithms that are equally good at all reductions: one is said to be ahead in 2.5% of 400 cases, the other
    in 3.0%, with ten seeds in 5.0% and 4.3%; were it ahead of the other's curve alone, in 6.0% to 8.5%. Where they do
    cross, by 0.0055 at each end, it is told in most of 20."""
    make = maker(run, random.Random(0), 0.002, seeds=5)

    def compared(cases: int, *others: tuple[float, float]) -> list[str]:
        found = []
        for _ in range(cases):
            one = [make("fest", loss, cut) for loss, cut in equal]
            other = [make("adafest", loss, cut) for loss, cut in others]
            found.append(ahead([make("dpsgd", 0, 1), make("frozen", 0.05, math.inf), *one, *other]))
        return found

    equal = (0.0, 10), (0.006, 100), (0.012, 1e3)
    same = compared(100, *equal)
    assert max(same.count(HOLDS), same.count(FAILS)) + same.count(CROSSES) <= most(100)
    assert compared(20, (0.0055, 10), (0.006, 100), (0.0065, 1e3)).count(CROSSES) >= 15
