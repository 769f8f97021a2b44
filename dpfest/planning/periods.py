"""Periods: which examples, or units, are trained on together, and in how many steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from dpfest.errors import UserError
from dpfest.gradients.units import identifiers_of

MOST_STEPS = 10**9
"""Of a period; more would outlast every machine, and the numbers with which they are accounted."""


@dataclass(frozen=True)
class Period:
    """Examples (or units) that are trained on together: N_p of them in T_p steps.

    Attributes:
        noise_multiplier: sigma of its steps; None without privacy.
        days: days of a stream, from 0; None if the data are not a stream.
    """

    examples: int
    steps: int
    days: range | None = None
    noise_multiplier: float | None = None


def periods_of(examples: int | Sequence[int], length: int | None, batch_size: int) -> list[Period]:
    """Return the periods of these examples, with their steps still 0."""
    if isinstance(examples, Integral):
        if length is not None:
            raise UserError(f"period={length} applies to streams only: give examples= as a list, one number per day.")
        if batch_size > whole_number("examples", examples):
            raise UserError(
                f"batch_size={batch_size} must lie between 1 and the {examples} training examples (or units of "
                "privacy, where one is set)."
            )
        return [Period(int(examples), 0)]
    if not isinstance(examples, list | tuple) or not all(isinstance(day, Integral) for day in examples):
        kind = type(examples).__name__
        raise UserError(f"examples= is a number, len(dataset), or for a stream a list, one per day; not a {kind}.")
    return _of_days(lambda days: int(sum(examples[day] for day in days)), len(examples), length, batch_size, "examples")


def periods_of_units(days: Sequence[Any], length: int | None, batch_size: int) -> list[Period]:
    """Return the periods of a stream of units, whose identifiers are given by day; with their steps still 0."""
    return _of_days(lambda some: distinct_units([days[day] for day in some]), len(days), length, batch_size, "units")


def distinct_units(days: Sequence[Any]) -> int:
    """Return the number of units in these days."""
    if any(isinstance(day, Integral) for day in days):
        raise UserError(
            "Of a stream with a unit, examples= is a list with the identifiers of each day's units, not their number: "
            "a unit in two days of a period counts once."
        )
    return len(np.unique(np.concatenate([np.unique(identifiers_of(day)) for day in days]))) if days else 0


def _of_days(count: Callable[[range], int], total: int, length: int | None, batch_size: int, what: str) -> list[Period]:
    length = 1 if length is None else whole_number("period", length)
    periods = []
    for first in range(0, total, length):
        days = range(first, min(first + length, total))
        periods.append(Period(count(days), 0, days))
        if periods[-1].examples < batch_size:
            words = f"day {first}" if len(days) == 1 else f"days {first}-{days[-1]}"
            raise UserError(
                f"Period {len(periods)} ({words}) has {periods[-1].examples:,} {what}, fewer than a batch of "
                f"batch_size={batch_size}: lower it, or raise period={length}."
            )
    return periods


def training_steps(examples: int, batch_size: int, *, epochs: float | None = None, steps: int | None = None) -> int:
    """Return T: ``steps``, or ceil(epochs * examples / batch_size). Raises UserError unless exactly one is given."""
    if (steps is None) == (epochs is None):
        raise UserError(f"Give exactly one of steps={steps} and epochs={epochs}: the length of training.")
    total = (
        whole_number("steps", steps) if steps is not None else positive_number("epochs", epochs) * examples / batch_size
    )
    if not total <= MOST_STEPS:
        raise UserError(f"Training would take {total:.3g} steps, and no more than {MOST_STEPS:.0e} are planned.")
    return math.ceil(total)


def whole_number(name: str, value: Any) -> int:
    """Return a whole number of 1 or more; refuse anything else, by its name."""
    if not isinstance(value, Integral) or value < 1:
        raise UserError(f"{name}={value!r} must be a whole number, 1 or more.")
    return int(value)


def positive_number(name: str, value: Any) -> float:
    """Return a number above 0; refuse anything else, by its name."""
    if not isinstance(value, Real) or not float(value) > 0:
        raise UserError(f"{name}={value!r} must be a number above 0.")
    return float(value)
