"""tab_large_vocab: DP-AdaFEST's best reductions by the size of the vocabulary, the paper's and ours."""

from __future__ import annotations

from dataclasses import replace

from reports.chosen import best_reduction
from reports.comparison import Population
from reports.entry import Content, Inputs
from reports.published import TAB_LARGE_VOCAB, beside
from reports.tables import Column, Table
from reports.wording import generated, metric, multiple, number

PAPER = {"roberta": "RoBERTa on SST-2, 50,265 rows", "xlm_r": "XLM-R on XNLI, about 250,000 rows"}


def content(inputs: Inputs) -> Content:
    """Compare the population with a large vocabulary with the other text populations."""
    main = inputs.population
    epsilon = main.main_epsilon
    alike = [p for p in inputs.of("text", "large_text") if (p.fidelity, p.profile) == (main.fidelity, main.profile)]
    alike = [p for p in alike if p.best("dpsgd", epsilon) and p.of("adafest", epsilon)]
    caption = (
        "DP-AdaFEST's best embedding gradient size reduction whose loss of validation "
        f"{metric(main)} against the best DP-SGD stays within a threshold, by rows of the word embedding: each of our "
        f"vocabularies beside the paper's nearest one. The paper's numbers are at ε = 1.{generated(main)}"
    )
    pairs: list[tuple[str, Population | None]] = []
    for name, size in (("roberta", "text"), ("xlm_r", "large_text")):
        ours = sorted((p for p in alike if p.kind == size), key=lambda p: p.vocabulary)
        pairs += [(name, p) for p in ours] or [(name, None)]
    columns = [Column("loss", "loss ≤", number)]
    for place, (name, population) in enumerate(pairs):
        about = "no runs yet" if population is None else f"{population.dataset}, {population.vocabulary:,} rows"
        paper, own, difference = beside(f"{name}_{place}", "", multiple)
        columns += [
            replace(paper, heading=f"paper, {PAPER[name]}"),
            replace(own, heading=f"ours, {about}"),
            replace(difference, heading="ours − paper"),
        ]
    table = Table(columns)
    for loss in TAB_LARGE_VOCAB.rows:
        row: list[float | None] = [loss]
        for name, population in pairs:
            cut = None if population is None else _reduction(population, epsilon, loss)
            row += TAB_LARGE_VOCAB.beside(loss, name, cut)
        table.rows.append(row)
    missing = [] if len(alike) > 1 else ["No runs on a smaller vocabulary yet: dpfest sweep experiment=text"]
    return Content(caption, table=table, missing=missing, epsilons=[] if epsilon is None else [epsilon])


def _reduction(population: Population, epsilon: float | None, loss: float) -> float | None:
    reference = population.best("dpsgd", epsilon)
    best = best_reduction(population.of("adafest", epsilon), reference, loss) if reference else None
    return best.reduction if best else None
