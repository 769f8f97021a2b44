"""frontier: every rule's whole frontier at every ε, with what each setting spent and scored."""

from __future__ import annotations

from reports.artifact import Artifact, Content
from reports.comparison import Population, pareto
from reports.settings_table import RULES, in_order, settings_table
from reports.texts import generated
from reports.wording import metric


def content(population: Population) -> Content:
    name = metric(population)
    frontier = [s for epsilon, rule in in_order(population) for s in pareto(population.of(rule, epsilon))]
    caption = (
        "The frontier of every rule: the settings that no other setting of the rule beats in both "
        f"validation {name} and reduction. Settings are chosen on the validation split; test {name} is only "
        "reported (mean over seeds). Losses are against the DP-SGD setting that is best on validation at "
        "the same ε. Reduction is embedding parameters over mean non-zero coordinates of the noised "
        "embedding gradient a step; ∞ means that no embedding is updated."
    )
    return Content(caption + generated(population), table=settings_table(population, frontier))


ARTIFACT = Artifact(
    "frontier",
    "Every rule's frontier",
    content,
    experiment="comparison",
    rules=RULES,
    figure=False,
    texts=("text",),
)
