"""tab_frozen: accuracy with trained and with frozen word embeddings, by ε, the paper's and ours."""

from __future__ import annotations

from collections.abc import Sequence

from reports.algorithms import label
from reports.entry import Content, Inputs
from reports.published import NAMES, TAB_FROZEN
from reports.setting import Setting
from reports.tables import Column, Table
from reports.wording import generated, metric, number, signed, utility


def content(inputs: Inputs) -> Content:
    population = inputs.population
    name = metric(population)
    # Compare with the paper's numbers for the same task, or else with all of them.
    tasks = [task for task in TAB_FROZEN.columns if task == population.dataset] or TAB_FROZEN.columns
    table = Table(
        [
            Column("algorithm", "algorithm", label),
            Column("epsilon", "ε", number),
            Column("test", f"test {name}", utility),
            Column("error", "± (standard error)", utility),
            Column("seeds", "seeds"),
            *(
                column
                for task in tasks
                for column in (
                    Column(f"{task}_paper", f"paper, {NAMES[task]}", utility),
                    Column(f"{task}_difference", f"ours − paper, {NAMES[task]}", signed),
                )
            ),
        ]
    )
    missing = []
    for epsilon in sorted({e for _, e in TAB_FROZEN.rows if e is not None} | set(population.epsilons)):
        pair = {algorithm: population.best(algorithm, epsilon) for algorithm in ("dpsgd", "frozen")}
        for algorithm, best in pair.items():
            table.rows.append(_row(algorithm, epsilon, best, tasks))
            if best is None:
                missing.append(f"No {label(algorithm)} run at ε = {number(epsilon)} yet.")
    table.rows.insert(0, _row("nonprivate", None, population.best("nonprivate", None), tasks))
    caption = (
        f"Test {name} of DP-SGD with trained and with frozen word embeddings (LoRA and classifier are trained in "
        f"both), for the setting that is best on validation.{generated(population)}"
    )
    return Content(caption, table=table, missing=missing)


def _row(
    algorithm: str, epsilon: float | None, best: Setting | None, tasks: Sequence[str]
) -> list[float | str | int | None]:
    ours = (None, None, None) if best is None else (best.test, best.error, len(best.by_seed))
    row: list[float | str | int | None] = [algorithm, epsilon, *ours]
    for task in tasks:
        paper, _, difference = TAB_FROZEN.beside((algorithm, epsilon), task, ours[0])
        row += [paper, difference]
    return row
