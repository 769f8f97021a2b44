"""fig6: both rules combined against either alone, in the shortest streaming period (in the paper one day)."""

from __future__ import annotations

from reports.artifact import Artifact, Content
from reports.artifacts.fig5 import PERIOD, absent
from reports.comparison import Population
from reports.reduction_curve import by_period, curve_caption, curve_figure, threshold_table, without_reference
from reports.wording import metric

RULES = ("fest/streaming", "adafest", "adafest_plus")


def content(population: Population) -> Content:
    panels = by_period(population, population.periods[:1])
    return Content(
        curve_caption(population) + " The model is trained on the days of one streaming period at a time, and "
        "frequencies are those of the days that have come in.",
        curve_figure(panels, RULES),
        threshold_table(panels, RULES, metric(population), PERIOD),
        without_reference(panels) + absent(panels, RULES),
        [panel.epsilon for panel in panels],
    )


ARTIFACT = Artifact(
    "fig6",
    "The combined rule in a stream",
    content,
    experiment="streaming",
    rules=("dpsgd", "frozen", "fest", "adafest", "adafest_plus"),
    streams=True,
)
