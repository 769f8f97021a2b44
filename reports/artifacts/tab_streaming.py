"""tab_streaming: AUC by streaming period and ε, for DP-SGD and without privacy, the paper's beside ours."""

from __future__ import annotations

from reports.artifact import Artifact, Content
from reports.comparison import Population
from reports.stream_claims import longer_periods
from reports.tables import Column, Table
from reports.wording import metric, number, rule, utility

EPSILONS = (1.0, 3.0, 8.0, None)
# On Criteo-1TB, by period, in the order of EPSILONS.
PUBLISHED = {
    1: (0.7313, 0.7323, 0.7345, 0.7846),
    2: (0.7313, 0.7324, 0.7346, 0.7848),
    4: (0.7314, 0.7326, 0.7352, 0.7847),
    8: (0.7316, 0.7328, 0.7352, 0.7820),
    16: (0.7318, 0.7331, 0.7356, 0.7848),
    18: (0.7320, 0.7332, 0.7358, 0.7848),
}


def content(population: Population) -> Content:
    name = metric(population)
    epsilons = sorted({*EPSILONS[:-1], *population.epsilons})
    columns, missing = [Column("period", "period (days)")], []
    for epsilon in (*epsilons, None):
        label = "non-private" if epsilon is None else f"ε = {number(epsilon)}"
        short = "nonprivate" if epsilon is None else f"epsilon_{number(epsilon)}"
        columns += [
            Column(short, label, utility),
            Column(f"{short}_error", "± (standard error)", utility),
            Column(f"{short}_paper", f"{label}, the paper on Criteo-1TB", utility),
        ]
    table = Table(columns)
    for days in sorted({*PUBLISHED, *population.periods}):
        row: list[float | int | None] = [days]
        for epsilon in (*epsilons, None):
            algorithm = "nonprivate" if epsilon is None else "dpsgd"
            best = population.at(days).best(algorithm, epsilon)
            published = dict(zip(EPSILONS, PUBLISHED.get(days, ()), strict=False)).get(epsilon)
            row += [None, None, published] if best is None else [best.test, best.error, published]
            if best is None and days in population.periods and epsilon in (None, *population.epsilons):
                at = "" if epsilon is None else f" at ε = {number(epsilon)}"
                missing.append(f"No {rule(algorithm)} run{at} with a period of {days} days yet.")
        table.rows.append(row)
    caption = (
        f"Test {name} on the held-out days after training on a stream in periods of so many days, for DP-SGD and "
        "without privacy: of the setting that is best on validation. The paper's numbers are of other data; its claim "
        "is in how they move with the period."
    )
    return Content(caption, table=table, missing=missing, notes=longer_periods(population))


ARTIFACT = Artifact(
    "tab_streaming",
    "Utility by streaming period",
    content,
    experiment="streaming",
    rules=("nonprivate", "dpsgd"),
    figure=False,
    streams=True,
)
