"""fig3: best reduction at utility-loss thresholds against the best DP-SGD, at one ε (in the paper 1)."""

from __future__ import annotations

from reports.artifact import Artifact, Content
from reports.comparison import Population
from reports.reduction_curve import curve_caption, curve_figure, threshold_table, without_reference

RULES = ("fest", "adafest", "exponential")


def content(population: Population) -> Content:
    epsilons = [population.main_epsilon] if population.main_epsilon is not None else []
    return Content(
        curve_caption(population),
        curve_figure(population, RULES, epsilons),
        threshold_table(population, RULES, epsilons),
        without_reference(population, epsilons),
        epsilons,
    )


ARTIFACT = Artifact(
    "fig3",
    "Best reduction at utility-loss thresholds",
    content,
    experiment="comparison",
    rules=("dpsgd", "frozen", *RULES),
)
