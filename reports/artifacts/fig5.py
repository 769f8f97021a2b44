"""fig5: AdaFEST against FEST with frequencies of the first day, of all days and of the stream, a panel a period."""

from __future__ import annotations

from reports.artifact import Artifact, Content
from reports.claims.streams import SOURCES
from reports.comparison import Population
from reports.reduction_curve import Panel, by_period, curve_caption, curve_figure, threshold_table, without_reference
from reports.tables import Column
from reports.wording import metric, rule

RULES = ("adafest", *SOURCES)
PERIOD = Column("period", "period (days)")


def content(population: Population) -> Content:
    panels = by_period(population, population.periods)
    return Content(
        curve_caption(population) + " Each panel is a streaming period: the model is trained on so many days at a "
        "time, as they come in, and judged on the held-out days.",
        curve_figure(panels, RULES),
        threshold_table(panels, RULES, metric(population), PERIOD),
        without_reference(panels) + absent(panels, RULES),
        sorted({panel.epsilon for panel in panels}),
    )


def absent(panels: list[Panel], rules: tuple[str, ...]) -> list[str]:
    """A sentence for every rule that some panel lacks."""
    lacking = {name: [p.where for p in panels if not p.population.of(name, p.epsilon)] for name in rules}
    return [f"No {rule(name)} runs at {', '.join(where)} yet." for name, where in lacking.items() if where]


ARTIFACT = Artifact(
    "fig5",
    "DP-AdaFEST against DP-FEST in streams",
    content,
    experiment="streaming",
    rules=("dpsgd", "frozen", "fest", "adafest"),
    streams=True,
)
