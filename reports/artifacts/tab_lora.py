"""tab_lora: the best reductions of DP-AdaFEST and of LoRA on the embedding table, the paper's beside ours."""

from __future__ import annotations

from reports.artifact import Artifact, Content
from reports.comparison import Population, Setting, best_reduction
from reports.published_text import LORA, LOSSES
from reports.reduction_curve import by_epsilon, without_reference
from reports.tables import Column, Table
from reports.texts import GENERATED, untestable
from reports.wording import metric, multiple, number, rule, settings_text

RULES = tuple(LORA)


def content(population: Population) -> Content:
    epsilon = population.main_epsilon
    caption = (
        f"The best embedding gradient size reduction whose loss of validation {metric(population)} against the best "
        "DP-SGD stays within a threshold: DP-AdaFEST, and DP-SGD on two factors of low rank in the table's stead, "
        "which reduce by |V|·d / (r·(|V| + d)). The paper's numbers are of RoBERTa on SST-2 at ε = 1."
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
        ]
    table, pairs = Table(columns), []
    for place, loss in enumerate(LOSSES):
        row: list[float | str | None] = [loss]
        found = [best_reduction(population.of(name, epsilon), reference, loss) if reference else None for name in RULES]
        for name, best in zip(RULES, found, strict=True):
            ours = (best.reduction, settings_text(best, population)) if best else (None, None)
            row += [*ours, LORA[name][place]]
        pairs.append((found[0], found[1]))
        table.rows.append(row)
    notes = [] if population.dataset == GENERATED or reference is None else [_claim(pairs)]
    return Content(caption, table=table, missing=without_reference(panels), epsilons=epsilons, notes=notes)


def _claim(pairs: list[tuple[Setting | None, Setting | None]]) -> str:
    ours = [(a.reduction if a else 0.0, b.reduction if b else 0.0) for a, b in pairs]
    if all(a > b for a, b in ours):
        return "The paper's claim holds here: at each loss, DP-AdaFEST reduces more than LoRA."
    worse = [number(loss) for loss, (a, b) in zip(LOSSES, ours, strict=True) if a <= b]
    return (
        f"The paper's claim does not hold here: at a loss of {', '.join(worse)}, DP-AdaFEST reduces no more than LoRA."
    )


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
