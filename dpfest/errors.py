"""The exception whose message is for the user, and the numbers that every argument of their kind must be."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any


class UserError(ValueError):
    """A mistake that the user can correct: a wrong setting, a bad file, a model or a plan that cannot be used.

    Its message is a full sentence: what was wrong, where (a file and line, an argument, a layer), what to do. The
    command line prints the message alone and ends with exit status 2.
    """


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
