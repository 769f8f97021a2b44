"""fig3: best reduction at utility-loss thresholds against the best DP-SGD, at one ε (in the paper 1)."""

from __future__ import annotations

from reports.artifact import Artifact, Content
from reports.comparison import Population
from reports.reduction_curve import by_epsilon, curve_caption, curve_figure, threshold_table, without_reference
from reports.texts import generated
from reports.wording import metric

RULES = ("fest", "adafest", "exponential")


def content(population: Population) -> Content:
    epsilons = [population.main_epsilon] if population.main_epsilon is not None else []
    panels = by_epsilon(population, epsilons)
    return Content(
        curve_caption(population) + generated(population),
        curve_figure(panels, RULES),
        threshold_table(panels, RULES, metric(population)),
        without_reference(panels),
        epsilons=epsilons,
    )


ARTIFACT = Artifact(
    "fig3",
    "Best reduction at utility-loss thresholds",
    content,
    experiment="comparison",
    rules=("dpsgd", "frozen", *RULES),
    texts=("text",),
)
