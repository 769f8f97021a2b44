"""tab_lora: the best reductions of DP-AdaFEST and of LoRA on the embedding table, the paper's and ours."""

from __future__ import annotations

from reports.algorithms import label
from reports.artifacts.best_reduction import without_reference
from reports.chosen import best_reduction
from reports.comparison import by_epsilon
from reports.entry import Content, Inputs
from reports.published import TAB_LORA, beside
from reports.tables import Column, Table
from reports.wording import generated, metric, multiple, number, settings_text


def content(inputs: Inputs) -> Content:
    population = inputs.population
    epsilon = population.main_epsilon
    caption = (
        f"The best embedding gradient size reduction whose loss of validation {metric(population)} against the best "
        "DP-SGD stays within a threshold, for DP-AdaFEST and for DP-SGD on two low-rank factors in place of the table, "
        f"whose reduction is |V|·d / (r·(|V| + d)). The paper's numbers are at ε = 1.{generated(population)}"
    )
    epsilons = [] if epsilon is None else [epsilon]
    panels = by_epsilon(population, epsilons)
    reference = panels[0].reference if panels else None
    columns = [Column("loss", "loss ≤", number)]
    for name in TAB_LORA.columns:
        columns += [*beside(name, label(name), multiple), Column(f"{name}_settings", f"{label(name)}, settings")]
    table = Table(columns)
    for loss in TAB_LORA.rows:
        row: list[float | str | None] = [loss]
        for name in TAB_LORA.columns:
            best = best_reduction(population.of(name, epsilon), reference, loss) if reference else None
            row += TAB_LORA.beside(loss, name, best.reduction if best else None)
            row.append(settings_text(best, population) if best else None)
        table.rows.append(row)
    return Content(caption, table=table, missing=without_reference(panels), epsilons=epsilons)
