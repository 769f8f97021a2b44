"""private_search: what it costs to choose among the runs, and what private searches reach at one ε for all."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event, from_record
from dpfest.planning.search_law import MOST_RUNS, Search
from pipelines.runs.release import LEDGER
from reports.comparison import Population
from reports.costs import Costs
from reports.entry import Content, Inputs
from reports.runs import Run
from reports.tables import Column, Table
from reports.wording import epsilon, metric, number, utility

COMMAND = "dpfest sweep experiment=private_search"


def content(inputs: Inputs) -> Content:
    population = inputs.population
    name = metric(population)
    caption = (
        "The price of choosing. Every table and figure that chooses among runs on validation states the ε of one run. "
        "Beside it: ε if all of the runs at that target were released (plain composition), and ε of a private search "
        "that makes as many runs on average (logarithmic number) and releases the best, at the same noise. Then the "
        f"test {name} of the setting that is best on validation, a choice that its ε does not cover, and that of "
        "private searches whose whole ε is the target, with the ε of one of their runs. Validation and test rows are "
        "not covered by any ε, nor is a grid that was chosen by looking at the same data. Searches: "
        f"{COMMAND}."
    )
    table = Table(
        [
            Column("epsilon", "ε of one run", number),
            *([Column("period", "period, days")] if population.periods else []),
            Column("runs", "runs"),
            Column("composed", "ε of all runs, released", epsilon),
            Column("searched", "ε of a private search", epsilon),
            Column("test", f"test {name}, choice not covered", utility),
            Column("search_test", f"test {name}, private search at that ε", utility),
            Column("search_spread", "± over searches", utility),
            Column("searches", "searches"),
            Column("run_epsilon", "ε of one of its runs", epsilon),
        ]
    )
    for target in population.epsilons:
        if population.periods:
            periods = [(days, population.at(days)) for days in population.periods]
            table.rows.extend(
                (target, days, *_row(of, target, inputs.costs)) for days, of in periods if target in of.epsilons
            )
        else:
            table.rows.append((target, *_row(population, target, inputs.costs)))
    return Content(caption, table=table)


def _row(population: Population, target: float, costs: Costs) -> Sequence[float | int | None]:
    private = [run for run in population.runs if run.target_epsilon == target]
    composed, searched = cost(population, private, costs)
    settings = [setting for setting in population.settings if setting.epsilon == target]
    best = max(settings, key=lambda setting: (setting.validation, setting.key))
    periods = {run.period for run in private}
    found = [run for run in population.searched if run.target_epsilon == target and run.period in periods]
    tests = [run.test for run in found]
    return (
        len(private),
        composed,
        searched,
        best.test,
        statistics.fmean(tests) if tests else None,
        statistics.stdev(tests) if len(tests) > 1 else None,
        len(tests),
        max((run.search["epsilon_of_run"] for run in found if run.search), default=None),
    )


def cost(population: Population, runs: Sequence[Run], costs: Costs) -> tuple[float | None, float | None]:
    """Return the ε of releasing all of these runs, and of a private search that makes as many on average; None if it is
    unknown, or counted as the paper does. Upper bounds within 1%."""
    paid = [events(run) for run in runs]
    deltas = {run.delta for run in runs}
    delta = deltas.pop() if len(deltas) == 1 else None
    if population.fidelity != "rigorous" or delta is None or not all(paid) or len(runs) > MOST_RUNS:
        return None, None
    if any(event.bins or event.bands for run in paid for event in run):  # whose counts do not add up over runs
        return None, None
    counts: Counter[Event] = Counter()
    alike = len({run.period for run in runs}) == 1  # or periods of one name are of different days
    for event in (event for run in paid for event in run):
        counts[replace(event, count=1, part=event.part if alike else ())] += event.count
    everything = tuple(replace(event, count=count) for event, count in counts.items())
    distinct, mean = tuple(dict.fromkeys(paid)), float(len(runs))
    interval = accountant.COARSE_INTERVAL
    return (
        costs.of("composed", [delta, *everything], lambda: accountant.epsilon(everything, delta, interval)),
        costs.of("searched", [delta, mean, *distinct], lambda: Search(mean).epsilon(distinct, delta, interval)),
    )


def events(run: Run) -> tuple[Event, ...]:
    """Return what a run paid, without what does not change the cost; empty if its ledger does not say."""
    ledger = run.released(LEDGER) or {}
    return tuple(_cost_alone(json.dumps(record, sort_keys=True)) for record in ledger.get("planned", ()))


@cache
def _cost_alone(record: str) -> Event:
    return accountant.cost_alone(from_record(json.loads(record)))
