"""fig4: FEST, AdaFEST and both combined: best reduction at utility-loss thresholds, a panel an ε."""

from __future__ import annotations

from reports.artifact import Artifact, Content
from reports.comparison import Population
from reports.reduction_curve import curve_caption, curve_figure, threshold_table, without_reference

RULES = ("fest", "adafest", "adafest_plus")


def content(population: Population) -> Content:
    epsilons = population.epsilons
    return Content(
        curve_caption(population),
        curve_figure(population, RULES, epsilons),
        threshold_table(population, RULES, epsilons),
        without_reference(population, epsilons),
    )


ARTIFACT = Artifact(
    "fig4",
    "The combined rule against either alone",
    content,
    experiment="comparison",
    rules=("dpsgd", "frozen", *RULES),
)
