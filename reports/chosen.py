"""Choices among settings: on validation, over the seeds that they share; what they lose on test."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable

from reports.runs import Run, distinctive
from reports.setting import Setting


def _validation(setting: Setting) -> float:
    return setting.validation


def pareto(settings: Iterable[Setting], utility: Callable[[Setting], float] = _validation) -> list[Setting]:
    """Return the frontier of utility (by default on validation) and reduction, from the densest setting on: those that
    no other one equals or beats in both."""
    frontier: list[Setting] = []
    for setting in sorted(settings, key=lambda s: (utility(s), s.reduction, s.key), reverse=True):
        if not frontier or setting.reduction > frontier[-1].reduction:
            frontier.append(setting)
    return frontier


def loss_on_validation(setting: Setting, reference: Setting) -> float:
    """Return the validation utility that a setting loses against a reference, over the seeds that both have (over all
    of each, if they share none): seeds differ, so that others would favour one of them."""
    return _loss(setting, reference, lambda run: run.validation)


def loss_on_test(setting: Setting, reference: Setting) -> float:
    """Return the same for test utility."""
    return _loss(setting, reference, lambda run: run.test)


def _loss(setting: Setting, reference: Setting, utility: Callable[[Run], float]) -> float:
    return over_common_seeds(reference, setting, utility) - over_common_seeds(setting, reference, utility)


def over_common_seeds(one: Setting, other: Setting, value: Callable[[Run], float]) -> float:
    """Return the mean of a value of one setting over the seeds that another one has, too; over all if it has none."""
    seeds = one.by_seed.keys() & other.by_seed.keys() or one.by_seed.keys()
    return statistics.fmean(statistics.fmean(map(value, one.by_seed[seed])) for seed in seeds)


def best_reduction(settings: Iterable[Setting], reference: Setting, loss: float) -> Setting | None:
    """Return the setting of largest reduction whose *validation* loss against `reference` is at most `loss`, or None.

    The choice does not use the test split, on which the chosen setting is reported.
    """
    # Tolerance for rounding of a loss that equals the threshold.
    within = [s for s in settings if loss_on_validation(s, reference) <= loss + 1e-12]
    return max(within, key=lambda s: (s.reduction, s.validation, s.key), default=None)


def but_for_selection(setting: Setting, *names: str) -> str:
    """Return all settings but these of the selection, a key for settings that differ only in them."""
    settings = distinctive(setting.runs[0])
    for name in names:
        settings.get("algorithm", {}).get("selection", {}).pop(name, None)
    return json.dumps([settings, setting.epsilon], sort_keys=True, default=str)
