"""tab_frozen: accuracy with word embeddings trained and frozen, by ε, the paper's beside ours."""

from __future__ import annotations

from reports.artifact import Artifact, Content
from reports.comparison import Population, Setting
from reports.published_text import FROZEN
from reports.tables import Column, Table
from reports.texts import GENERATED, untestable
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
        ]
    )
    missing, notes = [], []
    for epsilon in sorted({e for _, e in FROZEN if e is not None} | set(population.epsilons)):
        pair = {algorithm: population.best(algorithm, epsilon) for algorithm in ("dpsgd", "frozen")}
        for algorithm, best in pair.items():
            table.rows.append(_row(algorithm, epsilon, best))
            if best is None:
                missing.append(f"No {rule(algorithm)} run at ε = {number(epsilon)} yet.")
        if pair["dpsgd"] and pair["frozen"] and population.dataset != GENERATED:
            notes.append(_difference(epsilon, pair["dpsgd"], pair["frozen"]))
    table.rows.insert(0, _row("nonprivate", None, population.best("nonprivate", None)))
    caption = (
        f"Test {name} of DP-SGD with the word embeddings trained, and frozen (LoRA and classifier are trained in "
        f"both): of the setting that is best on validation.{untestable(population)}"
    )
    return Content(caption, table=table, missing=missing, notes=notes)


def _row(algorithm: str, epsilon: float | None, best: Setting | None) -> list[float | str | int | None]:
    paper = FROZEN.get((algorithm, epsilon), {})
    ours = (None, None, None) if best is None else (best.test, best.error, len(best.runs))
    return [algorithm, epsilon, *ours, *(paper.get(task) for task in TASKS)]


def _difference(epsilon: float, trained: Setting, frozen: Setting) -> str:
    gain, error = trained.test - frozen.test, (trained.error**2 + frozen.error**2) ** 0.5
    said = "more than noise" if abs(gain) > 2 * error else "within twice the standard error of a difference"
    return f"At ε = {number(epsilon)}, training the word embeddings gains {gain:+.4f} ({said}, {error:.4f})."


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
