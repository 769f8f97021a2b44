"""Periods: which examples, or units, are trained on together, and in how many steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from dpfest.errors import UserError, whole_number
from dpfest.gradients.units import identifiers_of


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
