"""Every claim of the register but those of streams: it holds on runs in which it is so, fails where it is not, and is
open on too few."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reports.build import build
from reports.claims.claim import DECIDED, DIFFERS, PARTLY, Finding, together
from reports.claims.estimate import CROSSES, FAILS, HOLDS, INCONCLUSIVE, OPEN, Sample, Verdict
from reports.claims.places import seeds_of
from reports.claims.register import CLAIMS, judge, shown_by
from reports.comparison import populations
from reports.entry import Inputs
from reports.reading import load_runs
from reports.text import markdown
from tests.reports.judged import (
    BASE,
    FEW,
    MANY,
    Spec,
    adafest,
    drawn,
    fest,
    found,
    grid,
    named,
    plus,
    verdicts,
    write,
    write_texts,
)
from tests.reports.synthetic import PARAMETERS, write_bench, write_run
from tests.reports.synthetic_texts import write_text_run

CLICKS: dict[str, tuple[list[Spec], list[Spec]]] = {
    "adafest_ahead_of_fest": (
        [*FEW, *MANY],
        [fest(300, 0.03, 9e4), fest(3000, 0.002, 9e3), adafest(50, 0.03, 500.0), adafest(5, 0.002, 50.0)],
    ),
    "gradient_sparse": ([("nonprivate", {}, -0.06, 11.0)], [("nonprivate", {}, -0.06, 9.0)]),
    "significant_reduction": (
        [adafest(5, 0.003, 12.0), adafest(50, 0.03, 5e4)],
        [adafest(5, 0.006, 12.0), adafest(1, 0.0, 9.0)],
    ),
    "fest_ahead_of_exponential": ([*FEW, *drawn(0.002, 30.0)], [*FEW, *drawn(0.001, 300.0)]),
    "adafest_ahead_of_exponential": ([*MANY, *drawn(0.002, 30.0)], [*MANY, *drawn(0.001, 3e4)]),
    "combined_ahead_of_both": (
        [*FEW, *MANY, plus(50, 0.03, 3e5), plus(5, 0.002, 3e4)],
        [*FEW, *MANY, plus(50, 0.03, 3e5), plus(5, 0.002, 3e3)],
    ),
    "exponential_fails": (
        [("exponential", {"rows_per_step": m}, 0.04 - m / 1e4, 1e4 / m) for m in (10, 100)],
        [("exponential", {"rows_per_step": m}, 0.04 - m / 2000, 1e4 / m) for m in (10, 70)],
    ),
    "adafest_beats_dpsgd": (
        [adafest(1, -0.004, 3.0), adafest(50, 0.02, 1e4)],
        [adafest(1, 0.004, 1.5), adafest(50, -0.02, 1e4)],  # the sparse one does not count here
    ),
    "larger_ratio_better": (
        grid((1, 5, 0.005, 90), (10, 5, 0.001, 50), (1, 20, 0.009, 900), (10, 20, 0.005, 500)),
        grid((1, 5, 0.001, 90), (10, 5, 0.005, 50), (1, 20, 0.005, 900), (10, 20, 0.009, 500)),
    ),
    "ratio_five_or_ten": (
        grid((1, 2, 0.005, 60), (1, 5, 0.006, 90), (5, 5, 0.002, 70), (10, 20, 0.004, 500)),
        grid((1, 5, 0.001, 90), (5, 5, 0.004, 70), (10, 20, 0.004, 500)),
    ),
    "larger_ratio_denser": (
        grid((1, 5, 0.005, 90), (10, 5, 0.001, 50), (1, 20, 0.009, 900), (10, 20, 0.005, 500)),
        grid((1, 5, 0.005, 90), (10, 5, 0.001, 50), (1, 20, 0.009, 900), (10, 20, 0.005, 950)),
    ),
    "small_threshold_harmless": (
        grid((5, 5, 0.001, 90), (5, 10, 0.002, 300), (5, 40, 0.02, 900), (5, 80, 0.05, 9e3)),
        grid((1, 5, 0.001, 90), (1, 10, 0.012, 300), (5, 5, 0.001, 90), (5, 10, 0.002, 300), (5, 40, 0.02, 900)),
    ),
    "larger_threshold_sparser": (
        grid((5, 5, 0.001, 90), (5, 10, 0.002, 80), (5, 80, 0.05, 9e3)),
        grid((5, 5, 0.001, 90), (5, 10, 0.002, 70), (5, 80, 0.05, 60)),
    ),
    "cliff_worse_at_small_ratio": (
        grid((1, 5, 0.001, 90), (1, 80, 0.06, 9e3), (10, 5, 0.001, 50), (10, 80, 0.02, 5e3)),
        grid((1, 5, 0.001, 90), (1, 80, 0.02, 9e3), (10, 5, 0.001, 50), (10, 80, 0.06, 5e3)),
    ),
    "optimum_inside": (
        grid((1, 5, 0.006, 90), (10, 5, 0.001, 50), (1, 20, 0.009, 900), (10, 20, 0.002, 500), (10, 80, 0.05, 9e3)),
        grid((1, 5, 0.001, 90), (10, 5, 0.001, 50), (1, 20, 0.002, 900), (10, 20, 0.003, 500), (10, 80, 0.05, 9e3)),
    ),
    "large_threshold_cliff": (
        grid((5, 5, 0.001, 90), (5, 10, 0.002, 300), (5, 80, 0.05, 9e3)),
        grid((5, 5, 0.001, 90), (5, 10, 0.002, 300), (5, 1024, 0.003, 9e3)),
    ),
}


AT_EVERY_EPSILON = ("combined_ahead_of_both",)


@pytest.mark.parametrize("claim", CLICKS)
def test_a_claim_of_click_data_holds_where_it_is_so_and_fails_where_it_is_not(claim: str, tmp_path: Path) -> None:
    for verdict, specs in zip((HOLDS, FAILS), CLICKS[claim], strict=True):
        for epsilon in (1.0, 3.0, 8.0) if claim in AT_EVERY_EPSILON else (1.0,):
            write(tmp_path / verdict, [*BASE, *specs], epsilon=epsilon)
        assert found(tmp_path / verdict, claim)["verdict"] == verdict


def test_curves_that_cross_say_where(tmp_path: Path) -> None:
    """DP-FEST loses 0.002 at 100× and 0.018 at 10,000×, DP-AdaFEST 0.008 and 0.0095: between these, they meet where
    0.002 + 0.016 x = 0.008 + 0.0015 x, at x = 12/29 of the way in the logarithm."""
    curves = [fest(3000, 0.002, 100.0), fest(300, 0.018, 1e4), adafest(5, 0.008, 100.0), adafest(50, 0.0095, 1e4)]
    write(tmp_path, [*BASE, *curves])
    claim = found(tmp_path, "adafest_ahead_of_fest")
    assert claim["verdict"] == CROSSES
    (panel,) = claim["datasets"]["nycflights"]["panels"].values()
    *where, side = panel["crossing"]
    assert where == pytest.approx([100 * 100 ** (12 / 29), 0.008 + 0.0015 * 12 / 29], abs=1e-3) and side == "beyond"
    assert "cross at 672×, a loss of 0.0086" in claim["evidence"]


def test_an_algorithm_is_compared_between_its_settings_too(tmp_path: Path) -> None:
    """At DP-AdaFEST's 1,000× DP-FEST, tried at 100× and 10,000×, is taken to lose 0.01."""
    write(tmp_path, [*BASE, fest(3000, 0.0, 100.0), fest(300, 0.02, 1e4), adafest(5, 0.009, 1e3)])
    claim = found(tmp_path, "adafest_ahead_of_fest")
    assert claim["verdict"] == HOLDS
    assert "at 1,000×: AUC lost 0.0090 against 0.0100 (lead +0.0010 ± 0.0000)" in claim["evidence"]


def test_a_claim_holds_in_part_where_it_does_at_one_epsilon_and_not_at_another(tmp_path: Path) -> None:
    behind = [fest(3000, 0.002, 9e3), fest(300, 0.03, 9e4), adafest(5, 0.008, 50.0), adafest(50, 0.03, 500.0)]
    for epsilon, specs in ((1.0, [*FEW, *MANY]), (3.0, behind)):
        write(tmp_path, [*BASE, *specs], epsilon=epsilon)
    claim = found(tmp_path, "adafest_ahead_of_fest")
    panels = claim["datasets"]["nycflights"]["panels"]
    assert claim["verdict"] == PARTLY
    assert {where: panel["verdict"] for where, panel in panels.items()} == {"ε = 1": HOLDS, "ε = 3": FAILS}


SIZES = ("gradient_sparse", "larger_ratio_denser", "larger_threshold_sparser")
"""Claims of sizes, which are counted over all steps."""


@pytest.mark.parametrize("claim", [claim for claim in CLICKS if claim not in SIZES])
def test_one_seed_decides_no_difference_that_other_test_rows_would_make(claim: str, tmp_path: Path) -> None:
    near = [(name, settings, loss / 4, cut) for name, settings, loss, cut in [*BASE, *CLICKS[claim][0]]]
    write(tmp_path, near, seeds=(0,))
    assert found(tmp_path, claim)["verdict"] in (OPEN, INCONCLUSIVE)


def test_what_the_paper_says_of_criteo_is_not_refuted_by_other_data_or_settings(tmp_path: Path) -> None:
    searched: list[Spec] = [
        ("adafest", {"noise_ratio": ratio, "threshold": tau, "contribution_clipping_norm": norm}, loss, cut)
        for ratio, tau, norm, loss, cut in ((1, 5, 1, 0.001, 4e5), (5, 50, 5, 0.006, 6e5))
    ]
    searched += [
        ("adafest_plus", {"noise_ratio": ratio, "threshold": tau, "selection": {"rows": k, "source": None}}, loss, cut)
        for ratio, tau, k, loss, cut in ((1, 5, 100, 0.001, 9e5), (5, 50, 300, 0.02, 2e6))
    ]
    write(tmp_path / "criteo", [*BASE, *searched], dataset="criteo_kaggle")
    write(tmp_path / "other", [*BASE, *searched])
    write(tmp_path / "narrow", [*BASE, adafest(50, 0.006, 6e5), plus(50, 0.02, 2e6)], dataset="criteo_kaggle")
    write(tmp_path / "so", [*BASE, adafest(50, 0.003, 6e5), plus(50, 0.004, 2e6)])
    for claim in ("adafest_half_a_million", "combined_million"):
        assert found(tmp_path / "criteo", claim)["verdict"] == FAILS
        for folder in ("other", "narrow"):
            judged = found(tmp_path / folder, claim)
            assert judged["verdict"] == INCONCLUSIVE and "does not refute it" in judged["evidence"]
        assert found(tmp_path / "so", claim)["verdict"] == HOLDS


def test_an_algorithm_that_was_not_tried_sparser_is_neither_behind_nor_ahead(tmp_path: Path) -> None:
    write(tmp_path, [*BASE, fest(3000, 0.002, 90.0), *MANY])
    assert verdicts(tmp_path)["adafest_ahead_of_fest"] == INCONCLUSIVE  # DP-FEST loses nothing yet where its grid ends
    evidence = found(tmp_path, "adafest_ahead_of_fest")["evidence"]
    assert "DP-FEST (k/p a table) was not tried sparser: sweep smaller algorithm.selection.rows." in evidence
    write(tmp_path, [fest(300, 0.03, 900.0)])
    assert verdicts(tmp_path)["adafest_ahead_of_fest"] == HOLDS


def test_a_verdict_that_untried_settings_could_change_says_so(tmp_path: Path) -> None:
    """An algorithm that is behind may be ahead beyond its sparsest setting, if that one loses little."""
    ahead = [*BASE, adafest(5, 0.001, 50.0), adafest(50, 0.0015, 500.0)]
    for lost, could in ((0.004, True), (0.03, False)):
        write(tmp_path / str(lost), [*ahead, fest(3000, 0.003, 50.0), fest(300, lost, 500.0)])
        (judged,) = found(tmp_path / str(lost), "adafest_ahead_of_fest")["datasets"].values()
        assert (judged["verdict"], judged["as_tried"]) == (HOLDS, could)
        assert ("Untried settings could change this verdict." in judged["evidence"]) == could


def test_one_row_a_table_is_where_fest_ends_and_not_where_its_grid_does(tmp_path: Path) -> None:
    """13 tables: int(k/13) is 1 up to k = 25, and nothing sparser can be advised."""
    write(tmp_path / "end", [*BASE, fest(25, 0.0005, 5000.0), *MANY])
    claim = found(tmp_path / "end", "adafest_ahead_of_fest")
    assert claim["verdict"] == FAILS  # beyond any doubt DP-FEST cuts 5,000 times where DP-AdaFEST loses more
    assert "≥" not in claim["evidence"] and "sweep" not in claim["evidence"]
    write(tmp_path / "ahead", [*BASE, fest(25, 0.0005, 500.0), adafest(5, 0.0005, 5e3), adafest(50, 0.03, 5e4)])
    assert verdicts(tmp_path / "ahead")["adafest_ahead_of_fest"] == HOLDS
    write(tmp_path / "open", [*BASE, fest(26, 0.0005, 500.0), adafest(5, 0.0005, 5e3), adafest(50, 0.03, 5e4)])
    assert verdicts(tmp_path / "open")["adafest_ahead_of_fest"] == INCONCLUSIVE


def test_a_claim_that_no_seeds_can_decide_says_what_would(tmp_path: Path) -> None:
    write(tmp_path, [*BASE, fest(3000, 0.002, 90.0), *MANY])
    said = {claim["id"]: claim["evidence"] for claim in judge(Inputs(populations(load_runs(tmp_path)[0]), tmp_path))}
    assert "None of 2 settings is below 100×, the smallest 5,000×" in said["adafest_beats_dpsgd"]
    assert "the largest 50,000× (sweep larger algorithm.threshold)" in said["adafest_half_a_million"]
    assert "privacy=paper" in said["corrections_cost_no_utility"]


@pytest.mark.parametrize(
    ("claim", "so", "open_"),
    [
        (  # the better ratio is also denser than each setting of the other
            "ratio_five_or_ten",
            grid((1, 5, 0.001, 90), (5, 5, 0.004, 70)),
            grid((1, 2, 0.001, 20), (1, 5, 0.003, 90), (5, 5, 0.004, 70)),
        ),
        (  # at the smaller ratio, utility has dropped before the smaller τ
            "cliff_worse_at_small_ratio",
            grid((1, 5, 0.001, 90), (1, 80, 0.02, 9e3), (10, 5, 0.001, 50), (10, 80, 0.06, 5e3)),
            grid((1, 5, 0.02, 90), (1, 80, 0.04, 9e3), (10, 5, 0.001, 50), (10, 80, 0.06, 5e3)),
        ),
        (  # no setting of the leader is as dense as the rival's
            "combined_ahead_of_both",
            [adafest(1, 0.001, 8), adafest(9, 0.03, 900), fest(300, 0.03, 800), plus(1, 0.02, 4), plus(9, 0.03, 600)],
            [adafest(1, 0.001, 8), adafest(9, 0.03, 900), fest(300, 0.03, 800), plus(1, 0.02, 40), plus(9, 0.03, 600)],
        ),
        ("adafest_beats_dpsgd", [adafest(1, 0.004, 1.5)], [adafest(1, 0.004, 3.0)]),
    ],
)
def test_what_the_grid_leaves_out_refutes_nothing(
    claim: str, so: list[Spec], open_: list[Spec], tmp_path: Path
) -> None:
    write(tmp_path / "so", [*BASE, *so])
    refuted = found(tmp_path / "so", claim)
    assert refuted["verdict"] == FAILS
    if claim in ("ratio_five_or_ten", "adafest_beats_dpsgd"):
        assert "Untried settings could change this verdict." in refuted["evidence"]
    write(tmp_path / "open", [*BASE, *open_])
    assert found(tmp_path / "open", claim)["verdict"] == INCONCLUSIVE


def test_a_grid_of_small_reductions_names_its_sparsest_setting(tmp_path: Path) -> None:
    write(tmp_path, [*BASE, adafest(5, 0.0, 4.0), fest(3000, 0.0, 3.0)])
    claim = found(tmp_path, "significant_reduction")
    assert claim["verdict"] == INCONCLUSIVE
    assert "None of 2 settings is above 10×, the largest 4× (sweep larger algorithm.threshold)" in (claim["evidence"])


def test_a_line_of_ratios_is_tested_by_its_own_steps(tmp_path: Path) -> None:
    """At τ = 5 utility rises over 1, 5 and 10; at τ = 20, where 5 was not tried, it falls."""
    rising = [(1.0, 5.0, 0.02, 9.0), (5.0, 5.0, 0.01, 9.0), (10.0, 5.0, 0.0, 9.0)]
    write(tmp_path / "falls", [*BASE, *grid(*rising, (1.0, 20.0, 0.0, 9.0), (10.0, 20.0, 0.005, 9.0))])
    assert verdicts(tmp_path / "falls")["larger_ratio_better"] == FAILS
    interleaved = [(1.0, 5.0, 0.02, 9.0), (10.0, 5.0, 0.01, 9.0), (5.0, 20.0, 0.02, 9.0), (20.0, 20.0, 0.01, 9.0)]
    write(tmp_path / "interleaved", [*BASE, *grid(*interleaved)])
    assert verdicts(tmp_path / "interleaved")["larger_ratio_better"] == HOLDS


def test_a_claim_is_open_if_more_seeds_may_refute_it_anywhere() -> None:
    def verdict(*of_each: str) -> str:
        return together({str(place): Finding(Verdict(one), "") for place, one in enumerate(of_each)}).verdict

    assert verdict(INCONCLUSIVE, OPEN, HOLDS) == OPEN and verdict(INCONCLUSIVE, HOLDS) == INCONCLUSIVE
    assert verdict(INCONCLUSIVE, OPEN, FAILS) == FAILS and verdict(HOLDS, HOLDS) == HOLDS and verdict() == OPEN


def test_a_ratio_is_not_ahead_of_ratios_that_were_tried_sparser_only(tmp_path: Path) -> None:
    write(tmp_path, [*BASE, *grid((1, 5, 0.005, 90), (5, 5, 0.002, 70), (10, 20, 0.004, 500))])
    claim = found(tmp_path, "ratio_five_or_ten")
    assert claim["verdict"] == INCONCLUSIVE and "has no setting as dense as the better one" in claim["evidence"]
    write(tmp_path, grid((1, 2, 0.005, 60)))
    claim = found(tmp_path, "ratio_five_or_ten")  # ratios between 1 and 5 were not tried
    assert claim["verdict"] == HOLDS and claim["datasets"]["nycflights"]["as_tried"]


@pytest.mark.parametrize(("batch_size", "verdict"), [(2048, FAILS), (512, OPEN)])
def test_sparsity_without_privacy_is_that_of_batches_of_the_private_size(
    batch_size: int, verdict: str, tmp_path: Path
) -> None:
    """Smaller batches touch fewer rows, and those of this run have the higher utility."""
    write(tmp_path, BASE)
    for size, test, reduction in ((512, 0.8, 50.0), (batch_size, 0.7, 9.0)):
        write_run(
            *(tmp_path, "nonprivate"),
            test=test,
            coordinates=PARAMETERS / reduction,
            batch_size=size,
            epsilon=None,
            settings={"of": reduction},
        )
    assert verdicts(tmp_path)["gradient_sparse"] == verdict


def test_exponential_selection_is_judged_where_as_much_was_tried_as_at_the_main_epsilon(tmp_path: Path) -> None:
    two = [("exponential", {"rows_per_step": rows}, 0.05, 900.0) for rows in (30, 300)]
    write(tmp_path, [*BASE, *two])
    write(tmp_path, [*BASE, ("exponential", {"rows_per_step": 30}, 0.0, 900.0)], epsilon=3.0)
    claim = found(tmp_path, "exponential_fails")
    assert claim["verdict"] == HOLDS and claim["evidence"].startswith("nycflights, ε = 1, seeds 0, 1, 2: Of 2 ")
    assert "ε = 3" not in claim["evidence"]


def test_the_two_fidelities_are_compared_at_settings_that_both_have(tmp_path: Path) -> None:
    write(tmp_path, [*BASE, fest(3000, 0.01, 90.0), fest(30, 0.03, 900.0)])
    write(tmp_path, [fest(3000, 0.001, 90.0)], fidelity="paper")
    assert verdicts(tmp_path)["corrections_cost_no_utility"] == FAILS
    write(tmp_path, [fest(30_000, 0.0, 9.0)])  # a better setting of one way alone
    assert verdicts(tmp_path)["corrections_cost_no_utility"] == FAILS


def test_a_claim_that_fails_in_one_of_several_panels_needs_wider_bounds(tmp_path: Path) -> None:
    for seed, moved in enumerate((0.0, 0.002, -0.001, 0.001)):
        write_run(tmp_path, "dpsgd", test=0.72, seed=seed)
        write_run(tmp_path, "frozen", test=0.69 + moved, coordinates=0.0, seed=seed)
    settings = populations(load_runs(tmp_path)[0])[0].settings
    weights = [(1.0, settings[0]), (-1.0, settings[1])]
    one, three = (Sample(settings, panels).contrast(weights) for panels in (1, 3))
    assert three.value == one.value and three.half > 1.5 * one.half


@pytest.mark.parametrize(("turned", "verdict"), [(None, HOLDS), (3.0, OPEN)])
def test_a_claim_about_every_epsilon_is_shown_at_each_alone_and_refuted_at_all_together(
    turned: float | None, verdict: str, tmp_path: Path
) -> None:
    """The gain, 0.002 or at one ε its negative, lies between the bounds at 5% and at 5% / 3; nothing was chosen."""
    for epsilon, (seed, moved) in itertools.product((1.0, 3.0, 8.0), enumerate((0.0, 0.002, -0.001, 0.001))):
        gain = -0.002 if epsilon == turned else 0.002
        write_run(tmp_path, "dpsgd", test=0.72, seed=seed, epsilon=epsilon)
        write_run(tmp_path, "frozen", test=0.7195 - gain + moved, coordinates=0.0, seed=seed, epsilon=epsilon)
    settings = [s for s in populations(load_runs(tmp_path)[0])[0].settings if s.epsilon == 1.0]
    weights = [(1.0, settings[0]), (-1.0, settings[1])]
    alone, together = (Sample(settings, panels).contrast(weights, chosen=False) for panels in (1, 3))
    assert alone.half < abs(alone.value) < together.half
    assert verdicts(tmp_path)["training_embeddings_helps_clicks"] == verdict


@pytest.mark.parametrize(("frozen", "verdict"), [(0.09, "holds"), (0.03, "inconclusive")])
def test_where_nothing_is_cut_at_the_papers_losses_wider_ones_decide_that_frozen_embeddings_do_not_reach(
    frozen: float, verdict: str, tmp_path: Path
) -> None:
    exponential = ("exponential", {"rows_per_step": 30}, frozen + 0.02, 4.0)
    write(tmp_path, [("dpsgd", {}, 0.0, 1.0), ("frozen", {}, frozen, float("inf")), adafest(5, 0.014, 8), exponential])
    assert found(tmp_path, "adafest_ahead_of_exponential")["verdict"] == verdict


def test_where_untrained_embeddings_do_as_well_no_algorithm_can_be_ahead(tmp_path: Path) -> None:
    write(tmp_path, [BASE[0], ("frozen", {}, -0.01, float("inf")), fest(300, 0.0, 900.0), adafest(5, 0.0, 5e3)])
    claim = found(tmp_path, "adafest_ahead_of_fest")
    assert claim["verdict"] == INCONCLUSIVE and "on such data none can be ahead" in claim["evidence"]


def test_seeds_are_named_only_where_all_settings_have_them(tmp_path: Path) -> None:
    write(tmp_path, [*BASE, *FEW])
    write(tmp_path, list(MANY), seeds=(0,))
    claim = found(tmp_path, "adafest_ahead_of_fest")
    assert "1 to 3 seeds per setting" in claim["evidence"] and "seeds 0, 1, 2" not in claim["evidence"]


def test_a_seed_that_ran_twice_is_one_seed() -> None:
    """As without privacy, where runs at several ε are runs of one setting."""
    once, twice = (
        SimpleNamespace(runs=runs, by_seed={run.seed: runs for run in runs})
        for runs in ([SimpleNamespace(seed=seed) for seed in of] for of in ((0, 1, 2), (0, 0, 1, 1, 2, 2)))
    )
    assert seeds_of([once, twice]) == "seeds 0, 1, 2"  # type: ignore[list-item]


def test_no_cliff_among_thresholds_far_below_the_batch_decides_nothing(tmp_path: Path) -> None:
    write(tmp_path, [*BASE, *grid((5, 5, 0.001, 90), (5, 10, 0.002, 300))])
    assert verdicts(tmp_path)["large_threshold_cliff"] == INCONCLUSIVE


@pytest.mark.parametrize(("norm", "verdict"), [(1.0, FAILS), (4.0, INCONCLUSIVE)])
def test_a_cliff_is_missed_only_where_the_threshold_came_to_half_of_what_a_row_collects(
    norm: float, verdict: str, tmp_path: Path
) -> None:
    """13 tables and batches of 2,048: with C₁ = 1 a row collects 2,048/√13 = 568, with C₁ = 4 all 2,048."""
    settings = {"noise_ratio": 5.0, "contribution_clipping_norm": norm}
    flat = [("adafest", settings | {"threshold": tau}, 0.001, cut) for tau, cut in ((5.0, 90.0), (300.0, 9e3))]
    write(tmp_path, [*BASE, *flat])
    assert found(tmp_path, "large_threshold_cliff")["verdict"] == verdict


@pytest.mark.parametrize(("frozen", "verdict"), [(0.004, HOLDS), (0.03, FAILS)])
def test_exponential_selection_fails_where_frozen_embeddings_lose_less(
    frozen: float, verdict: str, tmp_path: Path
) -> None:
    base: list[Spec] = [("dpsgd", {}, 0.0, 1.0), ("frozen", {}, frozen, float("inf"))]
    write(tmp_path, [*base, ("exponential", {"rows_per_step": 10}, 0.008, 300.0)])
    claim = found(tmp_path, "exponential_fails")
    assert claim["verdict"] == verdict
    assert claim["datasets"]["nycflights"]["as_tried"] == (verdict == HOLDS)


def test_datasets_have_verdicts_and_intervals_of_their_own(tmp_path: Path) -> None:
    """Two on which embeddings matter, one on which they do not, generated texts, and none of a stream."""
    write(tmp_path, [*BASE, *FEW, *MANY], dataset="journey")
    write(
        tmp_path,
        [*BASE, fest(300, 0.0005, 5e4), fest(30, 0.04, 9e5), adafest(5, 0.0005, 5e3), MANY[0]],
        dataset="names",
    )
    write(tmp_path, [BASE[0], ("frozen", {}, -0.01, float("inf")), fest(300, 0.0, 900.0), adafest(5, 0.0, 5e3)])
    write_texts(tmp_path, [*BASE, *FEW, *MANY], dataset="text_synthetic")
    claim = found(tmp_path, "adafest_ahead_of_fest")
    said = {name: of["verdict"] for name, of in claim["datasets"].items()}
    assert said == {"journey": HOLDS, "names": FAILS, "nycflights": INCONCLUSIVE, "text_synthetic": INCONCLUSIVE}
    assert claim["verdict"] == DIFFERS and claim["evidence"].startswith("Holds on journey; does not hold on names; ")
    interval = claim["datasets"]["journey"]["interval"]
    assert interval["of"] == "lead in AUC" and interval["low"] == pytest.approx(0.028)
    assert "journey, ε = 1, seeds 0, 1, 2: " in claim["datasets"]["journey"]["evidence"]
    (one,) = [
        c for c in judge(Inputs(populations(load_runs(tmp_path)[0]), tmp_path)) if c["id"] == "significant_reduction"
    ]
    assert one["datasets"]["journey"]["verdict"] == HOLDS


def test_settings_in_which_no_row_survives_leave_no_interval_that_json_lacks(tmp_path: Path) -> None:
    none = float("inf")
    write(tmp_path, [*BASE, adafest(500, 0.03, none), fest(25, 0.002, 900.0), *drawn(0.002, none)], seeds=(0, 1, 2))
    write(tmp_path, [*grid((1, 5, 0.0, 9.0), (5, 5, 0.0, none), (10, 5, 0.0, none))])
    judged = judge(Inputs(populations(load_runs(tmp_path)[0]), tmp_path))
    json.dumps(judged, allow_nan=False)


def test_texts_are_cut_less_than_clicks(tmp_path: Path) -> None:
    write(tmp_path, [*BASE, *MANY])
    write_texts(tmp_path, [*BASE, adafest(50, 0.002, 50.0), adafest(500, 0.04, 200.0)])
    assert found(tmp_path, "texts_cut_less")["datasets"]["sst2"]["verdict"] == HOLDS
    write_texts(tmp_path, [adafest(100, 0.0005, 1e5), adafest(1000, 0.04, 1e6)])
    claim = found(tmp_path, "texts_cut_less")["datasets"]["sst2"]
    assert claim["verdict"] == FAILS and "DP-AdaFEST on nycflights is behind DP-AdaFEST on sst2" in claim["evidence"]


def test_texts_are_compared_with_clicks_at_their_own_epsilon(tmp_path: Path) -> None:
    write(tmp_path, [*BASE, *MANY])
    write_texts(tmp_path, [*BASE, adafest(100, 0.0005, 1e5), adafest(1000, 0.04, 1e6)], epsilon=3.0)
    claim = found(tmp_path, "texts_cut_less")
    assert claim["verdict"] == OPEN and "on click data at ε = 3" in claim["evidence"]
    write(tmp_path, [*BASE, *MANY], epsilon=3.0)
    claim = found(tmp_path, "texts_cut_less")
    assert claim["verdict"] == FAILS and ": ε = 3, nycflights: DP-AdaFEST on nycflights is behind" in claim["evidence"]


def test_a_claim_for_every_epsilon_fails_at_one(tmp_path: Path) -> None:
    for epsilon in (1.0, 3.0):
        write(tmp_path, BASE, epsilon=epsilon)
    claim = found(tmp_path, "training_embeddings_helps_clicks")
    assert claim["verdict"] == OPEN and "none was run at ε = 8" in claim["evidence"]
    write(tmp_path / "so", BASE)
    for epsilon in (3.0, 8.0):
        write(tmp_path / "so", BASE, epsilon=epsilon)
    assert found(tmp_path / "so", "training_embeddings_helps_clicks")["verdict"] == HOLDS
    write(tmp_path, [("dpsgd", {}, 0.0, 1.0), ("frozen", {}, -0.01, float("inf"))], epsilon=8.0)
    assert verdicts(tmp_path)["training_embeddings_helps_clicks"] == FAILS


@pytest.mark.parametrize(("lost", "verdict"), [(0.02, HOLDS), (-0.001, HOLDS), (-0.02, FAILS)])
def test_the_two_fidelities_stand_side_by_side(lost: float, verdict: str, tmp_path: Path) -> None:
    write(tmp_path, [*BASE, *MANY])
    assert verdicts(tmp_path)["corrections_cost_no_utility"] == INCONCLUSIVE
    write(tmp_path, [("dpsgd", {}, lost, 1.0)], fidelity="paper")
    assert verdicts(tmp_path)["corrections_cost_no_utility"] == verdict


def test_the_two_fidelities_are_held_against_each_other_on_all_data_that_have_both(tmp_path: Path) -> None:
    for dataset, lost in (("nycflights", 0.001), ("criteo_kaggle", -0.02)):
        write(tmp_path, [("dpsgd", {}, 0.0, 1.0)], dataset=dataset)
        write(tmp_path, [("dpsgd", {}, lost, 1.0)], dataset=dataset, fidelity="paper")
    claim = found(tmp_path, "corrections_cost_no_utility")
    assert claim["verdict"] == DIFFERS
    assert {name: of["verdict"] for name, of in claim["datasets"].items()} == {
        "nycflights": HOLDS,
        "criteo_kaggle": FAILS,
    }
    assert claim["evidence"].startswith("Does not hold on criteo_kaggle; holds on nycflights. ")
    assert all(f"{name}, ε = 1, seeds 0, 1, 2: " in claim["evidence"] for name in ("nycflights", "criteo_kaggle"))
    assert claim["evidence"].count("DP-SGD at ε = 1, 0.72") == 2


@pytest.mark.parametrize(
    ("sizes", "verdict"),
    [((100, 300, 900), HOLDS), ((100, 101, 102), OPEN), ((900, 300, 1000), FAILS), ((900, 300, 100), FAILS)],
)
def test_density_is_decided_by_the_rows_that_were_counted(sizes: tuple[int, ...], verdict: str, tmp_path: Path) -> None:
    for ratio, coordinates in zip((1.0, 5.0, 10.0), sizes, strict=True):
        tables = [{"name": "one", "rows": 10_000, "dim": 10, "rows_mean": coordinates / 10}]
        write_run(
            tmp_path, "adafest", test=0.72, settings={"threshold": 5.0, "noise_ratio": ratio}, steps=20,
            embedding_gradient={"parameters": PARAMETERS, "coordinates_mean": coordinates, "tables": tables},
        )  # fmt: skip
    assert verdicts(tmp_path)["larger_ratio_denser"] == verdict


@pytest.mark.parametrize(("cut", "verdict"), [(5000.0, HOLDS), (5.0, FAILS)])
def test_claims_of_texts(cut: float, verdict: str, tmp_path: Path) -> None:
    specs: list[Spec] = [("lora_embedding", {"rank": rank}, 0.032 / rank, 757 / rank) for rank in (1, 16)]
    base: list[Spec] = [("dpsgd", {}, 0.0, 1.0), ("frozen", {}, 0.02, float("inf"))]
    sparse = adafest(500, 0.04, 1e6)
    write_texts(tmp_path, [*base, *specs, adafest(5, 0.002, cut), sparse])
    write_texts(tmp_path, [*base, adafest(5, 0.002, 500.0), sparse], dataset="xnli", tokens=250_002)
    said = verdicts(tmp_path)
    assert said["lora_behind"] == verdict
    # In the smaller vocabulary 5,000 times against 500 in the larger, or 5.
    assert said["larger_vocabulary_gains_more"] == (FAILS if verdict == HOLDS else HOLDS)


@pytest.mark.parametrize(
    ("dataset", "lost", "verdict"),
    [
        ("sst2", 0.02, HOLDS),
        ("sst2", 0.001, FAILS),
        ("sst2", -0.02, FAILS),
        ("sst2_phrases", 0.001, FAILS),
        ("sst2_halves", 0.001, FAILS),
        ("qnli", 0.001, HOLDS),
        ("qqp", 0.001, HOLDS),
    ],
)
def test_training_the_word_embeddings_helps_or_not(dataset: str, lost: float, verdict: str, tmp_path: Path) -> None:
    """The paper's gains are at least 0.0021 on SST-2, 0.0006 on QNLI; it tells none of QQP."""
    for epsilon in (1.0, 3.0, 8.0):
        specs: list[Spec] = [("dpsgd", {}, 0.0, 1.0), ("frozen", {}, lost, float("inf"))]
        write_texts(tmp_path, specs, dataset, epsilon=epsilon)
    claim = found(tmp_path, "training_embeddings_helps")
    assert claim["verdict"] == verdict
    assert ("The least gain in the paper's table" in claim["evidence"]) == (verdict == FAILS)
    assert claim["datasets"][dataset]["as_tried"]  # frozen embeddings have one setting


def test_a_gain_over_tuned_frozen_embeddings_is_not_one_on_the_settings_tried(tmp_path: Path) -> None:
    for epsilon in (1.0, 3.0, 8.0):
        slower: Spec = ("frozen", {"learning_rate": 0.5}, 0.05, float("inf"))
        write_texts(tmp_path, [("dpsgd", {}, 0.0, 1.0), ("frozen", {}, 0.02, float("inf")), slower], epsilon=epsilon)
    claim = found(tmp_path, "training_embeddings_helps")
    assert claim["verdict"] == HOLDS and not claim["datasets"]["sst2"]["as_tried"]


@pytest.mark.parametrize(
    ("gain", "validation", "verdict"),
    [(0.01, 0.9, OPEN), (0.01, 0.7, HOLDS), (-0.004, 0.9, FAILS), (-0.004, 0.7, FAILS)],
)
def test_of_several_settings_the_chosen_one_must_be_shown_or_each_refuted(
    gain: float, validation: float, verdict: str, tmp_path: Path
) -> None:
    """One rate loses: if validation prefers it, it does not refute what another rate shows."""
    for epsilon, (seed, moved) in itertools.product((1.0, 3.0, 8.0), enumerate((0.0, 0.002, -0.001, -0.001))):
        shared: dict[str, Any] = {"dataset": "sst2_halves", "epsilon": epsilon, "seed": seed}
        write_text_run(tmp_path, "frozen", test=0.8 + moved, reduction=None, **shared)
        shared |= {"reduction": 1.0}
        write_text_run(tmp_path, "dpsgd", test=0.79 + 0.5 * moved, validation=validation, **shared)
        rate = {"learning_rate": 1.5}
        write_text_run(tmp_path, "dpsgd", test=0.8 + gain + 0.5 * moved, settings=rate, **shared)
    claim = found(tmp_path, "training_embeddings_helps")
    assert claim["verdict"] == verdict
    of_all = f"{abs(gain):.4f} ± " in claim["evidence"] and "Of 2 settings, that with" in claim["evidence"]
    assert of_all == (verdict != HOLDS)


def test_less_than_an_epoch_refutes_no_gain_of_the_word_embeddings(tmp_path: Path) -> None:
    for epsilon in (1.0, 3.0, 8.0):
        specs: list[Spec] = [("dpsgd", {}, 0.0, 1.0), ("frozen", {}, 0.001, float("inf"))]
        write_texts(tmp_path, specs, epsilon=epsilon, examples=2048 * 128 + 1)
    claim = found(tmp_path, "training_embeddings_helps")
    assert claim["verdict"] == INCONCLUSIVE
    assert "after less than one epoch, so this does not refute it: raise train.steps" in claim["evidence"]


@pytest.mark.parametrize(("lost", "verdict"), [(0.03, HOLDS), (0.004, OPEN), (-0.01, OPEN)])
def test_half_a_million_counts_only_where_frozen_embeddings_lose_more(
    lost: float, verdict: str, tmp_path: Path
) -> None:
    write(tmp_path, [BASE[0], ("frozen", {}, lost, float("inf")), adafest(5, 0.002, 6e5)], dataset="criteo_kaggle")
    assert found(tmp_path, "adafest_half_a_million")["verdict"] == verdict


@pytest.mark.parametrize(("least", "verdict"), [(50.0, FAILS), (3000.0, INCONCLUSIVE)])
def test_significant_reductions_are_refuted_only_where_small_ones_were_tried(
    least: float, verdict: str, tmp_path: Path
) -> None:
    write(tmp_path, [*BASE, adafest(5, 0.02, least), adafest(500, 0.025, 1e5)])
    claim = found(tmp_path, "significant_reduction")
    assert claim["verdict"] == verdict
    assert ("The smallest tried is 3,000×" in claim["evidence"]) == (verdict == INCONCLUSIVE)
    assert claim["datasets"]["nycflights"]["as_tried"] == (verdict == FAILS)


@pytest.mark.parametrize("of", ["text", "clicks"])
def test_no_reduction_counts_where_frozen_embeddings_lose_nothing(of: str, tmp_path: Path) -> None:
    """DP-AdaFEST with an endless threshold is frozen embeddings, so it could be ahead of everything there."""
    lora: Spec = ("lora_embedding", {"rank": 1}, 0.0, 757.0)
    worthless: list[Spec] = [BASE[0], ("frozen", {}, 0.0, float("inf"))]
    rivals = [adafest(500, 0.0, 1e5), fest(300, 0.0, 900.0)]
    write_texts(tmp_path, [*(worthless if of == "text" else BASE), *rivals, lora])
    write(tmp_path, [*(worthless if of == "clicks" else BASE), adafest(5, 0.0, 10.0), adafest(500, 0.02, 1e6)])
    judged = judge(Inputs(populations(load_runs(tmp_path)[0]), tmp_path))
    for claim in ("texts_cut_less", *(["lora_behind", "adafest_ahead_of_fest"] if of == "text" else [])):
        one = named(judged, claim)["datasets"]["sst2"]
        assert one["verdict"] == INCONCLUSIVE, claim
        assert "none can be ahead" in one["evidence"]


@pytest.mark.parametrize(("lost", "verdict"), [(0.012, HOLDS), (0.008, INCONCLUSIVE), (0.004, INCONCLUSIVE)])
def test_a_lead_counts_only_within_losses_that_frozen_embeddings_exceed(
    lost: float, verdict: str, tmp_path: Path
) -> None:
    """60 times against 24 times within 0.01 only."""
    frozen: Spec = ("frozen", {}, lost, float("inf"))
    write(tmp_path, [BASE[0], frozen, adafest(5, 0.009, 60.0), fest(300, 0.009, 24.0), fest(30, 0.03, 900.0)])
    assert found(tmp_path, "adafest_ahead_of_fest")["datasets"]["nycflights"]["verdict"] == verdict


def test_generated_texts_test_no_claim(tmp_path: Path) -> None:
    write_texts(tmp_path, [*BASE, *MANY, ("lora_embedding", {"rank": 4}, 0.03, 2.0)], dataset="text_synthetic")
    judged = {c["id"]: c for c in judge(Inputs(populations(load_runs(tmp_path)[0]), tmp_path))}
    for claim in ("lora_behind", "training_embeddings_helps", "larger_vocabulary_gains_more"):
        assert judged[claim]["verdict"] == INCONCLUSIVE and "generated" in judged[claim]["evidence"]


def test_under_an_artifact_stands_what_its_own_runs_say(tmp_path: Path) -> None:
    write(tmp_path, [*BASE, *FEW, *MANY])
    write_texts(tmp_path, [*BASE, *FEW, *MANY], dataset="text_synthetic")
    everything = populations(load_runs(tmp_path)[0])
    said = {
        p.dataset: named(shown_by("fig3", Inputs(everything, tmp_path, p)), "adafest_ahead_of_fest") for p in everything
    }
    assert said["nycflights"]["verdict"] == HOLDS and said["nycflights"]["evidence"].startswith("nycflights, ")
    assert "generated" in said["text_synthetic"]["evidence"]
    assert found(tmp_path, "adafest_ahead_of_fest")["verdict"] == HOLDS


def test_the_evidence_of_a_claim_tested_at_one_epsilon_names_no_other(tmp_path: Path) -> None:
    for epsilon in (1.0, 3.0):
        write(tmp_path, [*BASE, *FEW, *MANY, *drawn(0.04, 300.0)], epsilon=epsilon)
    assert "ε = 1, seeds" in found(tmp_path, "significant_reduction")["evidence"]
    assert "ε = 1, 3, seeds" in found(tmp_path, "exponential_fails")["evidence"]


def test_runs_whose_numbers_have_no_meaning_test_no_claim(tmp_path: Path) -> None:
    write(tmp_path, [*BASE, *FEW, *MANY], profile="smoke")
    assert set(verdicts(tmp_path).values()) == {OPEN, INCONCLUSIVE}


@pytest.mark.parametrize(("dense", "verdict"), [(0.5, HOLDS), (0.02, FAILS), (None, OPEN)])
def test_claims_of_time(dense: float | None, verdict: str, tmp_path: Path) -> None:
    times = {
        (name, rows): seconds for rows in (10**6, 10**7) for name, seconds in (("dpsgd", dense), ("adafest", 0.002))
    }
    write_bench(tmp_path, "embedding", times, "adafest")
    said = verdicts(tmp_path / "runs", tmp_path)
    assert (said["wallclock_ten_million"], said["wallclock_criteo"]) == (verdict, verdict)


@pytest.mark.parametrize(
    ("turns", "fastest", "verdict", "said"),
    [
        # t(0.975, 2) = 4.3027; the standard error is at most ln(0.5 / 0.49) / (2 √2): a factor of 1.0312 either way.
        (3, 0.49, HOLDS, "250× (95%: 242 to 258); 3 turns on "),
        (3, 0.1, OPEN, "95%: 21.6 to 2,890"),
        (1, 0.5, OPEN, "95%: unknown); 1 turn"),
    ],
)
def test_an_unsteady_turn_leaves_a_claim_of_time_open(
    turns: int, fastest: float, verdict: str, said: str, tmp_path: Path
) -> None:
    write_bench(tmp_path, "embedding", {("dpsgd", 10**7): 0.5, ("adafest", 10**7): 0.002}, "adafest")
    path = tmp_path / "bench" / "embedding.json"
    written = json.loads(path.read_text())
    written["records"][0] |= {"min_seconds": fastest, "repeats": turns}
    path.write_text(json.dumps(written))
    claim = found(tmp_path, "wallclock_ten_million")
    assert claim["verdict"] == verdict and said in claim["evidence"]


Seconds = tuple[float, float, float]  # of a step: DP-SGD, plain PyTorch with dense gradients, and with sparse ones


@pytest.mark.parametrize(
    ("small", "large", "verdict"),
    [
        ((0.02, 0.005, 0.001), (0.2, 0.05, 0.001), HOLDS),
        ((0.2, 0.05, 0.001), (0.02, 0.005, 0.001), FAILS),
        ((0.02, 0.005, 0.001), (0.2, 0.195, 0.001), FAILS),  # only the update grows: 180 ms more, the noise 10 ms less
        ((0.02, 0.005, 0.001), (0.2, 0.005, 0.002), FAILS),  # only the noise grows
    ],
)
def test_both_sources_of_the_speed_up_must_grow_with_the_table(
    small: Seconds, large: Seconds, verdict: str, tmp_path: Path
) -> None:
    times: dict[tuple[str, int], float | None] = {}
    for rows, seconds in ((10**5, small), (10**6, large)):
        names = ("dpsgd", "pytorch dense", "pytorch sparse")
        times |= {(name, rows): time for name, time in zip(names, seconds, strict=True)} | {("adafest", rows): 0.002}
    write_bench(tmp_path, "embedding", times, "adafest")
    assert found(tmp_path, "speed_has_two_sources")["verdict"] == verdict


def test_sources_that_were_not_timed_apart_leave_the_claim_open(tmp_path: Path) -> None:
    times: dict[tuple[str, int], float | None] = {}
    for rows in (10**5, 10**6):
        times |= {("dpsgd", rows): 1e-6 * rows, ("adafest", rows): 0.002, ("pytorch sparse", rows): 0.001}
    write_bench(tmp_path, "embedding", times, "adafest")
    claim = found(tmp_path, "speed_has_two_sources")
    assert claim["verdict"] == OPEN and "dpfest bench embedding" in claim["evidence"]


def test_the_register_is_in_the_report_and_under_the_artifacts_that_show_a_claim(tmp_path: Path, undrawn: None) -> None:
    runs, report = tmp_path / "runs", tmp_path / "report"
    write(runs, [*BASE, *FEW, *MANY, *drawn(0.04, 300.0)], seeds=(0, 1))
    build(runs, report, only=["fig3"])
    claims = json.loads((report / "report.json").read_text(encoding="utf-8"))["claims"]
    assert [claim["id"] for claim in claims] == [claim.id for claim in CLAIMS]
    assert all(claim["verdict"] in (*DECIDED, OPEN, INCONCLUSIVE) and claim["evidence"] for claim in claims)
    listed = (report / "tables" / "claims.md").read_text(encoding="utf-8")
    section = (report / "tables" / "fig3.md").read_text(encoding="utf-8")
    (mine,) = [claim for claim in claims if claim["id"] == "exponential_fails"]
    assert (
        markdown(mine["evidence"]) in listed
        and markdown(mine["evidence"]) in section
        and "seeds 0, 1" in mine["evidence"]
    )
    written = (report / "tables" / "claims.csv").read_bytes()
    assert written.startswith(b"id,statement,where,paper,verdict")
    assert "among (Bonferroni)" in (report / "index.html").read_text(encoding="utf-8")
    build(runs, report, only=["fig8"])
    assert (report / "tables" / "claims.csv").read_bytes() == written


def test_every_claim_stands_once_and_says_where_the_paper_makes_it() -> None:
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    assert not any("tab:" in claim.where for claim in CLAIMS)  # a reader of the paper sees numbers
    assert all(claim.where and claim.artifacts and claim.statement.endswith(".") for claim in CLAIMS)
