"""tab_lora: the best reductions of DP-AdaFEST and of LoRA on the embedding table, the paper's beside ours."""

from __future__ import annotations

from reports.artifact import Artifact, Content
from reports.comparison import Population, best_reduction
from reports.published import TAB_LORA
from reports.reduction_curve import by_epsilon, without_reference
from reports.tables import Column, Table
from reports.texts import untestable
from reports.wording import metric, multiple, number, rule, settings_text

RULES = TAB_LORA.columns


def content(population: Population) -> Content:
    epsilon = population.main_epsilon
    caption = (
        f"The best embedding gradient size reduction whose loss of validation {metric(population)} against the best "
        "DP-SGD stays within a threshold: DP-AdaFEST, and DP-SGD on two factors of low rank in the table's stead, "
        "which reduce by |V|·d / (r·(|V| + d)). The paper's numbers are of "
        f"{TAB_LORA.data}."
        f"{untestable(population)}"
    )
    epsilons = [] if epsilon is None else [epsilon]
    panels = by_epsilon(population, epsilons)
    reference = panels[0].reference if panels else None
    columns = [Column("loss", "loss ≤", number)]
    for name in RULES:
        columns += [
            Column(name, rule(name), multiple),
            Column(f"{name}_settings", "settings"),
            Column(f"{name}_paper", f"{rule(name)}, the paper", "{:.2f}×".format),
            Column(f"{name}_difference", f"{rule(name)}, ours − paper", "{:+,.2f}×".format),
        ]
    table = Table(columns)
    for loss, published in TAB_LORA.rows.items():
        row: list[float | str | None] = [loss]
        for name, paper in zip(RULES, published, strict=True):
            best = best_reduction(population.of(name, epsilon), reference, loss) if reference else None
            ours = (best.reduction, settings_text(best, population)) if best else (None, None)
            row += [*ours, paper, best.reduction - paper if best else None]
        table.rows.append(row)
    return Content(caption, table=table, missing=without_reference(panels), epsilons=epsilons)


ARTIFACT = Artifact(
    "tab_lora",
    "LoRA on the embedding table",
    content,
    experiment="text",
    rules=("dpsgd", *RULES),
    figure=False,
    texts=("text",),
    clicks=False,
)
