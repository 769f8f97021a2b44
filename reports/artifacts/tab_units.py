"""tab_units: utility by unit of privacy: a line, a basket, a household."""

from __future__ import annotations

from dataclasses import replace

from reports.algorithms import label, ordered
from reports.comparison import Population
from reports.entry import Content, Inputs
from reports.tables import Column, Table
from reports.wording import generated, metric, number, utility

UNITS = ("example", "basket", "household")
"""From the smallest; others follow."""


def content(inputs: Inputs) -> Content:
    """Return test utility of each algorithm for each unit and ε, at its best setting on validation."""
    population = inputs.population
    name = metric(population)
    table = Table(
        [
            Column("unit", "unit of privacy"),
            Column("units", "units", "{:,}".format),
            Column("epsilon", "ε", number),
            Column("algorithm", "algorithm", label),
            Column("test", f"test {name}", utility),
            Column("error", "± (standard error)", utility),
            Column("seeds", "seeds"),
            Column("over_frozen", "over frozen", "{:+.4f}".format),
            Column("batch", "units a batch", "{:,}".format),
            Column("most", "examples a unit"),
        ],
        heads=2,
    )
    missing = []
    for unit, group in _by_unit(population).items():
        for epsilon in population.epsilons:
            names = ordered({setting.algorithm for setting in population.settings} - {"nonprivate"})
            best = {name: group.best(name, epsilon) for name in names}
            frozen = best.get("frozen")
            for algorithm, setting in best.items():
                if setting is None:
                    missing.append(f"No {label(algorithm)} run at ε = {number(epsilon)} by {unit} yet.")
                    continue
                run = setting.runs[0]
                most = (run.hyperparameters.get("unit") or {}).get("max_examples")
                over = setting.test - frozen.test if frozen and algorithm != "frozen" else None
                measured = (setting.test, setting.error, len(setting.by_seed), over)
                table.rows.append((unit, run.examples, epsilon, algorithm, *measured, run.batch_size, most))
                table.runs.append(run.anchor)
    caption = (
        f"Test {name} on {population.dataset} where ε is that of adding or removing one line (example), one basket or "
        f"one household with all of its lines, for the setting that is best on validation.{generated(population)}"
    )
    return Content(caption, table=table, missing=missing)


def _by_unit(population: Population) -> dict[str, Population]:
    found = {setting.runs[0].unit or "example" for setting in population.settings}
    places = {unit: place for place, unit in enumerate(UNITS)}
    return {
        unit: replace(population, settings=tuple(s for s in population.settings if s.runs[0].unit == unit))
        for unit in sorted(found, key=lambda unit: (places.get(unit, len(UNITS)), unit))
    }
