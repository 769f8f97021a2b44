"""tab_streaming: AUC by streaming period and ε, for DP-SGD and without privacy, the paper's and ours."""

from __future__ import annotations

from reports.algorithms import label
from reports.entry import Content, Inputs
from reports.published import TAB_STREAMING, beside
from reports.tables import Column, Table
from reports.wording import metric, number, utility

EPSILONS = (1.0, 3.0, 8.0)  # the paper's


def content(inputs: Inputs) -> Content:
    population = inputs.population
    name = metric(population)
    epsilons = sorted({*EPSILONS, *population.epsilons})
    columns, missing = [Column("period", "period (days)")], []
    for epsilon in (*epsilons, None):
        at = "non-private" if epsilon is None else f"ε = {number(epsilon)}"
        short = _name(epsilon)
        columns += [
            *beside(short, at, utility),
            Column(f"{short}_error", f"{at}, standard error of ours", utility),
        ]
    table = Table(columns)
    for days in sorted({*TAB_STREAMING.rows, *population.periods}):
        row: list[float | int | None] = [days]
        for epsilon in (*epsilons, None):
            algorithm = "nonprivate" if epsilon is None else "dpsgd"
            best = population.at(days).best(algorithm, epsilon)
            row += TAB_STREAMING.beside(days, _name(epsilon), best.test if best else None)
            row.append(best.error if best else None)
            if best is None and days in population.periods and epsilon in (None, *population.epsilons):
                at = "" if epsilon is None else f" at ε = {number(epsilon)}"
                missing.append(f"No {label(algorithm)} run{at} with a period of {days} days yet.")
        table.rows.append(row)
    caption = (
        f"Test {name} on the held-out days after training on a stream in periods of the given length, with DP-SGD and "
        "without privacy, for the setting that is best on validation."
    )
    return Content(caption, table=table, missing=missing)


def _name(epsilon: float | None) -> str:
    """Return the column of an ε in the paper's table."""
    return "nonprivate" if epsilon is None else f"epsilon_{number(epsilon)}"
