"""All claims that runs can test: the paper's, in its order, then ours; and their verdicts."""

from __future__ import annotations

import math
from typing import Any

from reports.algorithms import SOURCES
from reports.claims import along, family, measured, places, reaches
from reports.claims.ahead import Ahead, optimum_inside
from reports.claims.claim import Claim
from reports.claims.estimate import NEARLY
from reports.claims.matched import Matched, by_accounting, by_source
from reports.claims.places import on
from reports.claims.reaches import Reaches
from reports.entry import Inputs
from reports.published import NAMES, TAB_FROZEN, TAB_LARGE_VOCAB, TAB_LORA, TAB_STREAMING, PublishedTable
from reports.tables import Column, Table
from reports.wording import number

STATIC = ("clicks", "text")
EACH, MAIN, AT_1 = on(*STATIC), on(*STATIC, at=places.main_epsilon), on(*STATIC, at=places.epsilon_of_one)
MAIN_CLICKS, MAIN_STREAM = on("clicks", at=places.main_epsilon), on("stream", at=places.main_epsilon)

SPARSE = ("fest_equal", "fest", "adafest", "adafest_plus_equal", "adafest_plus")
FIRST_DAY, STREAMING, ALL_DAYS = SOURCES
ON_KAGGLE = ("criteo_kaggle", "noise_ratio", "threshold")
"""Data of the paper's largest reductions, and hyper-parameters of DP-AdaFEST that it tunes on them, among others."""

FIG3, GRID, FRONTIER = ("fig3", "fig8", "frontier"), ("fig7", "fig9"), ("fig8", "frontier")


def _within(table: PublishedTable[float], one: str, other: str) -> str:
    """Return the paper's reductions by loss, of one column against another."""
    ours, theirs = (", ".join(f"{table.value(loss, name):.2f}×" for loss in table.rows) for name in (one, other))
    return f"{table.data}: within {', '.join(map(number, table.rows))} {ours} against {theirs}"


def _by_period(*columns: str) -> str:
    """Return the paper's AUC by period."""
    periods = ", ".join(map(str, TAB_STREAMING.rows))
    values = [", ".join(f"{TAB_STREAMING.value(days, name):.4f}" for days in TAB_STREAMING.rows) for name in columns]
    return f"{TAB_STREAMING.data}, periods of {periods} days: " + "; ".join(values)


def _by_epsilon() -> str:
    """Return the paper's accuracies with trained and with frozen word embeddings."""
    epsilons = (1.0, 3.0, 8.0)
    tasks = []
    for task in TAB_FROZEN.columns:
        of = [[TAB_FROZEN.value((name, at), task) for at in epsilons] for name in ("dpsgd", "frozen")]
        tasks.append(f"{NAMES[task]} {' and '.join(', '.join(map(str, values)) for values in of)}")
    return f"ε = {', '.join(map(number, epsilons))}, trained and frozen: {'; '.join(tasks)}"


CLAIMS: tuple[Claim, ...] = (
    Claim("gradient_sparse", "§2.1, figure 1b",
        "Without privacy the gradient of large embeddings is very sparse (here: nine in ten coordinates are zero, in "
        "batches of private training's size).",
        ("fig1b",), on(*STATIC, at=places.without_privacy), measured.sparse_without_privacy),
    Claim("significant_reduction", "§1, §4.2",
        "Significant reductions of the gradient (here: above 10×) are achievable with minimal loss of utility (here: "
        "below 0.005).",
        ("fig3", "frontier"), MAIN,
        Reaches(SPARSE, cut=(reaches.MUCH, math.inf), frozen=True, guard=reaches.if_cut_below(reaches.LITTLE))),
    Claim("adafest_ahead_of_fest", "§4.2, figure 3",
        "DP-AdaFEST cuts the gradient more than DP-FEST at the same level of utility.",
        FIG3, EACH, Ahead("adafest", ("fest_equal",)), partly=True),
    Claim("adafest_half_a_million", "§4.2, figure 3",
        "On Criteo-Kaggle, DP-AdaFEST cuts the gradient more than 5·10⁵ times at a loss of AUC below 0.005.",
        FIG3, MAIN_CLICKS, Reaches(
            ("adafest",), cut=(5e5, math.inf), control=True,
            guard=reaches.if_searched_on(*ON_KAGGLE, "contribution_clipping_norm"))),
    Claim("combined_million", "abstract, §4.2, figure 4",
        "DP-AdaFEST+ further improves the best reduction to more than 10⁶ times, at a comparable AUC (here: a loss "
        "below 0.005).",
        ("fig4", "frontier"), MAIN_CLICKS, Reaches(
            ("adafest_plus_equal",), cut=(1e6, math.inf), control=True,
            guard=reaches.if_searched_on(*ON_KAGGLE, "selection.rows"))),
    Claim("combined_ahead_of_both", "§4.2, figure 4",
        "DP-AdaFEST+ outperforms DP-FEST and DP-AdaFEST alone in the trade-off, for different values of ε.",
        ("fig4", "frontier"), on(*STATIC, every=True), Ahead("adafest_plus_equal", ("fest_equal", "adafest"))),
    Claim("exponential_fails", "§4.2, figures 3 and 8",
        "DP-SGD with exponential selection fails, in all configurations, to achieve a tolerable loss of utility (here: "
        "below 0.01).",
        FIG3, on(*STATIC, at=places.as_often_tried("exponential")),
        Reaches(("exponential",), reaches.TOLERABLE, frozen=True, never=True)),
    Claim("fest_ahead_of_exponential", "§4.2, appendix D.2.2, figure 8",
        "DP-FEST has a better trade-off than DP-SGD with exponential selection.",
        FIG3, EACH, Ahead("fest_equal", ("exponential",)), partly=True),
    Claim("adafest_ahead_of_exponential", "§4.2, appendix D.2.2, figure 8",
        "DP-AdaFEST has a better trade-off than DP-SGD with exponential selection.",
        FIG3, EACH, Ahead("adafest", ("exponential",)), partly=True),
    Claim("texts_cut_less", "§4.2, figure 3",
        "The best reduction is usually smaller for language tasks, whose vocabulary is condensed, than for clicks.",
        ("fig3",), places.texts_against_clicks("adafest"), Ahead("adafest", ("adafest",))),
    Claim("adafest_beats_dpsgd", "§3.4, §4.2",
        "DP-AdaFEST occasionally has a higher utility than DP-SGD when the reduction is minimal (here: below 100×).",
        ("fig8", "bias_variance"), MAIN,
        Reaches(("adafest",), 0.0, cut=(0.0, reaches.LITTLE), guard=reaches.if_cut_below(reaches.MINIMAL))),
    Claim("streaming_frequencies_suffice", "§4.3, figure 5",
        "In a stream, frequencies of the days so far are almost as good (here: within 0.005) for DP-FEST as those of "
        "all days.",
        ("fig5",), on("stream", at=places.all_epsilons),
        Matched((STREAMING, ALL_DAYS), by_source(STREAMING, ALL_DAYS, short_periods=True), -NEARLY)),
    Claim("streaming_ahead_of_first_day", "§4.3, figure 5",
        "In a stream, frequencies of the days so far are significantly better for DP-FEST than those of the first day.",
        ("fig5",), on("stream", at=places.all_epsilons),
        Matched((STREAMING, FIRST_DAY), by_source(STREAMING, FIRST_DAY))),
    Claim("adafest_twice_fest_in_streams", "§4.3, figure 5",
        "In streams, DP-AdaFEST cuts the gradient more than twice as much as DP-FEST at the same level of utility.",
        ("fig5",), on("stream", at=places.as_often_tried_periods("adafest")), Ahead("adafest", SOURCES, factor=2)),
    Claim("combined_ahead_in_streams", "§4.3, figure 6",
        "In streams, too, DP-AdaFEST+ outperforms either alone (period of one day, frequencies of the days so far).",
        ("fig6",), on("stream", at=places.shortest_period), Ahead("adafest_plus_equal", (STREAMING, "adafest"))),
    Claim("lora_behind", "§4.4, table 1",
        "On word embeddings, DP-AdaFEST cuts the gradient more than LoRA at similar levels of utility.",
        ("tab_lora",), on("text", at=places.epsilon_of_one), Ahead("adafest", ("lora_embedding",)),
        paper=_within(TAB_LORA, "adafest", "lora_embedding")),
    Claim("larger_vocabulary_gains_more", "§4.4, table 2",
        "DP-AdaFEST cuts the gradient more where the vocabulary is larger.",
        ("tab_large_vocab",), places.largest_vocabulary_against_smallest("adafest"), Ahead("adafest", ("adafest",)),
        paper=_within(TAB_LARGE_VOCAB, "xlm_r", "roberta")),
    Claim("larger_ratio_better", "§4.5, figures 7 and 9",
        "A larger σ₁/σ₂ leads to a higher utility.",
        GRID, MAIN, along.larger_ratio_better),
    Claim("ratio_five_or_ten", "§4.5, figure 7",
        "A σ₁/σ₂ of 5 or 10 delivers the best utility.",
        GRID, MAIN, reaches.five_or_ten_best),
    Claim("larger_ratio_denser", "§4.5, figures 7 and 9",
        "A larger σ₁/σ₂ leads to a denser gradient.",
        GRID, MAIN, measured.larger_ratio_denser),
    Claim("larger_threshold_sparser", "§4.5, figure 7",
        "A larger τ usually leads to a sparser gradient.",
        GRID, MAIN, measured.larger_threshold_sparser),
    Claim("small_threshold_harmless", "§4.5, figure 7",
        "While τ is small (here: up to the map's noise, C₁σ₁), raising it does not significantly change the utility "
        "(here: by 0.005).",
        GRID, MAIN, along.small_threshold_harmless),
    Claim("large_threshold_cliff", "§4.5, figure 7",
        "An excessively high τ causes a sharp drop of utility (here: above 0.01).",
        GRID, MAIN, along.large_threshold_cliff),
    Claim("cliff_worse_at_small_ratio", "§4.5, figure 7",
        "The drop at an excessively high τ is sharper where σ₁/σ₂ is small.",
        GRID, MAIN, along.cliff_worse_at_small_ratio),
    Claim("optimum_inside", "appendix D.2.2, figure 9",
        "The best settings have a high σ₁/σ₂ and a medium τ.",
        ("fig9",), MAIN, optimum_inside),
    Claim("wallclock_ten_million", "appendix D.2.1, table 4",
        "With a vocabulary of ten million rows, a step takes more than 150 times less time than DP-SGD's.",
        ("tab_wallclock", "speed"), places.bench, measured.Faster(10_000_000, 150)),
    Claim("wallclock_criteo", "appendix D.2.1, table 4",
        "With Criteo's 1.7 million rows, as stated here by the paper (its table 3 has 338,782), a step takes 20 to 40 "
        "times less time (tested: at least 20 at 10⁶ rows).",
        ("tab_wallclock", "speed"), places.bench, measured.Faster(1_000_000, 20)),
    Claim("speed_has_two_sources", "appendix D.2.1",
        "The speed-up has two sources that grow with the table: dense updates and dense noise.",
        ("tab_wallclock", "speed"), places.bench, measured.two_sources),
    Claim("private_rises_with_period", "appendix D.2.2, table 5",
        "The utility of DP-SGD rises with the streaming period, at every ε.",
        ("tab_streaming",), on("stream", every=True), along.Periods("dpsgd"),
        paper=_by_period("epsilon_1", "epsilon_3", "epsilon_8")),
    Claim("nonprivate_unmoved_by_period", "appendix D.2.2, table 5",
        "Without privacy, the utility is similar at all streaming periods.",
        ("tab_streaming",), on("stream", at=places.without_privacy), along.Periods("nonprivate", level=True),
        paper=_by_period("nonprivate")),
    Claim("private_moved_more", "§4.3, appendix D.2.2, table 5",
        "Private training gains more from longer periods than training without privacy does; the paper says that it is "
        "more vulnerable to shifts of the distribution (but in longer periods it also needs less noise per step).",
        ("tab_streaming",), MAIN_STREAM, along.private_moved_more),
    Claim("training_embeddings_helps", "§4.1.1, appendix D.2.3, table 6",
        "Training the word embeddings significantly improves private training over frozen ones, at every ε.",
        ("tab_frozen",), on("text", every=True),
        Reaches(("dpsgd",), 0.0, over="frozen", least=reaches.least_gain_of_training, guard=reaches.after_an_epoch),
        paper=_by_epsilon()),
    Claim("training_embeddings_helps_clicks", "not in the paper: the control of every comparison here",
        "On click data, too, training the embeddings privately is better than leaving them frozen, at every ε.",
        ("frontier", "fig8"),
        on("clicks", every=True), Reaches(("dpsgd",), 0.0, over="frozen", guard=reaches.after_an_epoch)),
    Claim("one_k_ahead_of_equal_shares", "not in the paper, which gives every table k/p rows",
        "The k most frequent rows of all tables, which cost the same, give DP-FEST a better trade-off than k/p rows of "
        "each table.",
        FIG3, on("clicks"), Ahead("fest", ("fest_equal",)), partly=True),
    Claim("adafest_ahead_of_one_k", "not in the paper",
        "DP-AdaFEST cuts the gradient more than DP-FEST with one k over all tables at the same level of utility.",
        FIG3, EACH, Ahead("adafest", ("fest",)), partly=True),
    Claim("fest_ahead_of_threshold", "not in the paper: the baseline whose choice of rows is free",
        "Selecting rows before training (DP-FEST) has a better trade-off than thresholding DP-SGD's own noised rows "
        "(at ε = 1).",
        FRONTIER, AT_1, Ahead("fest", ("threshold",))),
    Claim("adafest_ahead_of_threshold", "not in the paper: the baseline whose choice of rows is free",
        "Choosing rows by a noisy contribution map (DP-AdaFEST) has a better trade-off than thresholding DP-SGD's own "
        "noised rows (at ε = 1).",
        FRONTIER, AT_1, Ahead("adafest", ("threshold",))),
    Claim("fest_ahead_of_smaller_tables", "not in the paper: the baseline that chooses no rows",
        "Selecting rows before training (DP-FEST) has a better trade-off than DP-SGD on smaller tables, which have "
        "fewer hash buckets or dimensions (at ε = 1).",
        FRONTIER, AT_1, Ahead("fest", ("smaller_tables",))),
    Claim("adafest_ahead_of_smaller_tables", "not in the paper: the baseline that chooses no rows",
        "Choosing rows by a noisy contribution map (DP-AdaFEST) has a better trade-off than DP-SGD on smaller tables "
        "(at ε = 1).",
        FRONTIER, AT_1, Ahead("adafest", ("smaller_tables",))),
    Claim("corrections_cost_no_utility", "not in the paper: its accounting and the rigorous one side by side",
        "Correcting the paper's accounting costs no appreciable utility (here: 0.005).",
        ("corrections",), places.both_accountings,
        Matched(("rigorous accounting", "the paper's"), by_accounting, -NEARLY)),
)  # fmt: skip


def judge(evidence: Inputs) -> list[dict[str, Any]]:
    """Return every claim with its verdict, and whether it stands among all of them, as in report.json."""
    found = [judged for claim in CLAIMS if (judged := claim.judged(evidence))]
    family.mark(found)
    return found


def shown_by(artifact: str, evidence: Inputs) -> list[dict[str, Any]]:
    """Return the claims that an artifact shows, judged on the population that it is drawn from, if any."""
    return [judged for claim in CLAIMS if artifact in claim.artifacts and (judged := claim.judged(evidence))]


def table(judged: list[dict[str, Any]]) -> Table:
    """Return the register as a table."""
    names = ("id", "statement", "where", "paper", "verdict", "evidence", "artifacts")
    columns = [Column(name, name) for name in names]
    return Table(columns, [tuple(_cell(claim[name]) for name in names) for claim in judged])


def _cell(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else value
