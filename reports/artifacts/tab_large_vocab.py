"""tab_large_vocab: DP-AdaFEST's best reductions by the size of the vocabulary, the paper's beside ours."""

from __future__ import annotations

from reports.artifact import Artifact, Content
from reports.comparison import Population, best_reduction
from reports.published import TAB_LARGE_VOCAB
from reports.tables import Column, Table
from reports.texts import untestable, vocabulary
from reports.wording import metric, multiple, number

PAPER = ("RoBERTa on SST-2, 50k rows", "XLM-R on XNLI, 250k rows")


def content(populations: list[Population]) -> Content:
    """Of the population of the largest vocabulary, which comes first, beside the others of its kind of texts."""
    main = populations[0]
    epsilon = main.main_epsilon
    beside = [p for p in populations if (p.fidelity, p.profile) == (main.fidelity, main.profile)]
    beside = [p for p in beside if p.best("dpsgd", epsilon) and p.of("adafest", epsilon)]
    caption = (
        "DP-AdaFEST's best embedding gradient size reduction whose loss of validation "
        f"{metric(main)} against the best DP-SGD stays within a threshold, by rows of the word embedding. The paper's "
        f"numbers are at ε = 1.{untestable(main)}"
    )
    columns = [Column("loss", "loss ≤", number)]
    for place, population in enumerate(sorted(beside, key=vocabulary)):
        rows = vocabulary(population)
        columns.append(Column(f"ours_{place}", f"{population.dataset}, {rows:,} rows", multiple))
    columns += [Column(f"paper_{place}", f"the paper, {about}", "{:.2f}×".format) for place, about in enumerate(PAPER)]
    table = Table(columns)
    for loss, published in TAB_LARGE_VOCAB.rows.items():
        row: list[float | None] = [loss]
        for population in sorted(beside, key=vocabulary):
            reference = population.best("dpsgd", epsilon)
            assert reference is not None
            best = best_reduction(population.of("adafest", epsilon), reference, loss)
            row.append(best.reduction if best else None)
        table.rows.append([*row, *published])
    missing = [] if len(beside) > 1 else ["No runs on a smaller vocabulary yet: dpfest sweep experiment=text"]
    return Content(caption, table=table, missing=missing, epsilons=[] if epsilon is None else [epsilon])


ARTIFACT = Artifact(
    "tab_large_vocab",
    "Larger vocabularies",
    content,
    experiment="text_large_vocabulary",
    rules=("dpsgd", "adafest"),
    figure=False,
    texts=("large_text",),
    clicks=False,
    beside=True,
)
