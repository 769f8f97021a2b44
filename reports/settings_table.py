"""The table of settings that `frontier` and fig8 share: what each one was, spent and scored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from reports.comparison import Population, Setting
from reports.tables import Column, Table
from reports.wording import delta, epsilon, flag, metric, multiple, number, rule, settings_text, signed, utility

RULES = ("nonprivate", "dpsgd", "fest", "adafest", "adafest_plus", "exponential", "frozen")


def settings_table(population: Population, settings: Iterable[Setting]) -> Table:
    """One row a setting: test utility beside the validation utility that it was chosen by."""
    name = metric(population)
    columns = [
        Column("epsilon", "target ε", number),
        Column("rule", "rule", rule),
        Column("settings", "settings"),
        Column("validation", f"validation {name}", utility),
        Column("test", f"test {name}", utility),
        Column("test_spread", "± over seeds", utility),
        Column("seeds", "seeds"),
        Column("reduction", "reduction", multiple),
        Column("validation_loss", "validation loss vs DP-SGD", signed),
        Column("test_loss", "test loss vs DP-SGD", signed),
        Column("worse_than_frozen", "worse than frozen", flag),
        Column("epsilon_spent", "ε spent", epsilon),
        Column("delta", "δ", delta),
        Column("noise_multiplier", "σ₂", lambda value: f"{value:.4g}"),
        Column("fidelity", "fidelity"),
        Column("sampling", "sampling"),
    ]
    settings = list(settings)
    rows = [_row(population, setting) for setting in settings]
    return Table(columns, rows, heads=3, runs=[setting.runs[0].anchor for setting in settings])


def in_order(population: Population) -> list[tuple[float | None, str]]:
    """(ε, rule) pairs in the order in which tables list them; rules unknown here come last."""
    others = sorted({s.algorithm for s in population.settings} - set(RULES))
    return [(epsilon, rule_) for epsilon in (None, *population.epsilons) for rule_ in (*RULES, *others)]


def _row(population: Population, setting: Setting) -> Sequence[Any]:
    private = setting.epsilon is not None
    reference = population.best("dpsgd", setting.epsilon) if private else None
    controlled = private and setting.algorithm != "frozen" and population.best("frozen", setting.epsilon) is not None
    first = setting.runs[0]
    return (
        setting.epsilon,
        setting.algorithm,
        settings_text(setting, population),
        setting.validation,
        setting.test,
        setting.spread,
        len(setting.runs),
        setting.reduction,
        None if reference is None else reference.validation - setting.validation,
        None if reference is None else reference.test - setting.test,
        population.worse_than_frozen(setting) if controlled else None,
        max((run.epsilon for run in setting.runs if run.epsilon is not None), default=None),
        first.delta,
        first.noise_multiplier,
        first.fidelity if private else None,
        first.sampling or None,
    )
