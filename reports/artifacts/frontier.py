"""frontier: each algorithm's frontier at every ε, with cost and utility of each setting."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from reports.algorithms import label, ordered
from reports.chosen import loss_on_test, loss_on_validation, pareto
from reports.comparison import Population
from reports.entry import Content, Inputs
from reports.setting import Setting
from reports.tables import Column, Table
from reports.wording import delta, epsilon, flag, generated, metric, multiple, number, settings_text, signed, utility


def content(inputs: Inputs) -> Content:
    population = inputs.population
    name = metric(population)
    groups = itertools.groupby(in_order(population), key=lambda setting: (setting.epsilon, setting.algorithm))
    frontier = [setting for _, settings in groups for setting in pareto(settings)]
    caption = (
        "The frontier of each algorithm: the settings that no other setting of the algorithm beats in both "
        f"validation {name} and reduction. Settings are chosen on the validation split; test {name} is only "
        "reported (mean over seeds). Losses are against the DP-SGD setting that is best on validation at "
        "the same ε. Reduction is embedding parameters over mean non-zero coordinates of the noised "
        "embedding gradient per step; ∞ means that no embedding is updated."
    )
    caption += _constant(population)
    return Content(caption + generated(population), table=settings_table(population, frontier))


def _constant(population: Population) -> str:
    """Return what a log loss is compared with."""
    if population.constant_loss is None:
        return ""
    return (
        f" The best constant probability has a log loss of {utility(population.constant_loss)}: a larger one is of "
        "probabilities that are worse than none. Platt scaling fits two numbers to the validation split."
    )


def settings_table(population: Population, settings: Iterable[Setting]) -> Table:
    """Return a table with one row per setting: test utility, and the validation utility that it was chosen by."""
    name = metric(population)
    columns = [
        Column("epsilon", "target ε", number),
        Column("algorithm", "algorithm", label),
        Column("settings", "settings"),
        Column("validation", f"validation {name}", utility),
        Column("test", f"test {name}", utility),
        Column("test_spread", "± over seeds", utility),
        Column("seeds", "seeds"),
        Column("log_loss", "test log loss", utility),
        Column("calibrated_loss", "after Platt scaling", utility),
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


def in_order(population: Population) -> list[Setting]:
    """Return all settings by ε, those without privacy first, and by algorithm."""
    names = ordered(setting.algorithm for setting in population.settings)
    return [s for epsilon in (None, *population.epsilons) for name in names for s in population.of(name, epsilon)]


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
        len(setting.by_seed),
        setting.losses.own,
        setting.losses.calibrated,
        setting.reduction,
        None if reference is None else loss_on_validation(setting, reference),
        None if reference is None else loss_on_test(setting, reference),
        population.worse_than_frozen(setting) if controlled else None,
        max((run.epsilon for run in setting.runs if run.epsilon is not None), default=None),
        first.delta,
        first.noise_multiplier,
        first.fidelity if private else None,
        first.sampling or None,
    )
