"""tab_frozen: accuracy with word embeddings trained and frozen, by ε, the paper's beside ours."""

from __future__ import annotations

from reports.artifact import Artifact, Content
from reports.comparison import Population, Setting
from reports.published import TAB_FROZEN
from reports.tables import Column, Table
from reports.texts import untestable
from reports.wording import metric, number, rule, utility

TASKS = {"sst2": "SST-2", "qnli": "QNLI"}


def content(population: Population) -> Content:
    name = metric(population)
    table = Table(
        [
            Column("rule", "rule", rule),
            Column("epsilon", "ε", number),
            Column("test", f"test {name}", utility),
            Column("error", "± (standard error)", utility),
            Column("seeds", "seeds"),
            *(Column(task, f"the paper, {title}", "{:.2%}".format) for task, title in TASKS.items()),
            Column("difference", "ours − the paper on this task", "{:+.2%}".format),
        ]
    )
    missing = []
    for epsilon in sorted({e for _, e in TAB_FROZEN.rows if e is not None} | set(population.epsilons)):
        pair = {algorithm: population.best(algorithm, epsilon) for algorithm in ("dpsgd", "frozen")}
        for algorithm, best in pair.items():
            table.rows.append(_row(algorithm, epsilon, best, population.dataset))
            if best is None:
                missing.append(f"No {rule(algorithm)} run at ε = {number(epsilon)} yet.")
    table.rows.insert(0, _row("nonprivate", None, population.best("nonprivate", None), population.dataset))
    caption = (
        f"Test {name} of DP-SGD with the word embeddings trained, and frozen (LoRA and classifier are trained in "
        f"both): of the setting that is best on validation.{untestable(population)}"
    )
    return Content(caption, table=table, missing=missing)


def _row(algorithm: str, epsilon: float | None, best: Setting | None, task: str) -> list[float | str | int | None]:
    paper = {name: TAB_FROZEN.value((algorithm, epsilon), name) for name in TASKS}
    ours = (None, None, None) if best is None else (best.test, best.error, len(best.runs))
    own = paper.get(task)
    difference = None if best is None or own is None else best.test - own
    return [algorithm, epsilon, *ours, *paper.values(), difference]


ARTIFACT = Artifact(
    "tab_frozen",
    "Word embeddings trained and frozen",
    content,
    experiment="text",
    rules=("nonprivate", "dpsgd", "frozen"),
    figure=False,
    texts=("text",),
    clicks=False,
)
