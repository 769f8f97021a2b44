"""fig4: FEST, AdaFEST and both combined: best reduction at utility-loss thresholds, a panel an ε."""

from __future__ import annotations

from reports.artifact import Artifact, Content
from reports.comparison import Population
from reports.reduction_curve import by_epsilon, curve_caption, curve_figure, threshold_table, without_reference
from reports.wording import metric

RULES = ("fest", "adafest", "adafest_plus")


def content(population: Population) -> Content:
    panels = by_epsilon(population, population.epsilons)
    return Content(
        curve_caption(population),
        curve_figure(panels, RULES),
        threshold_table(panels, RULES, metric(population)),
        without_reference(panels),
    )


ARTIFACT = Artifact(
    "fig4",
    "The combined rule against either alone",
    content,
    experiment="comparison",
    rules=("dpsgd", "frozen", *RULES),
)
