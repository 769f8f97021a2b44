"""Calibration: the least noise whose events meet a target. No guarantee rests on it: ledgers count the events anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from scipy.optimize import brentq

from dpfest.accounting.accountant import COARSE_INTERVAL, INTERVAL, Event, epsilon, least_delta, rounds_of
from dpfest.errors import UserError

LEAST_EPSILON, MOST_EPSILON = 100 * INTERVAL, 1e3
"""Range of targets: below, the grid's rounding asks for many times the needed noise; above, nothing is protected."""
MOST_DELTA = 0.1
"""Above, publishing each example unchanged with this probability would meet it."""
# Calibration aims this far (relative) below the target: another machine may round the other way.
_MARGIN = 5e-5
_LEAST_NOISE, _MOST_NOISE = 2.0**-4, 2.0**16


def calibrate(
    make_events: Callable[[float], Sequence[Event]], target: float, delta: float, *, rough: bool = False
) -> float:
    """Return the smallest noise multiplier, to six digits, whose events meet the target epsilon at ``delta``.

    Formal guarantee: ``epsilon(make_events(sigma), delta)`` at the default grid is at most the target.

    ``make_events``, a pure function, returns all events to compose at a noise multiplier. ``rough`` returns it to about
    half a percent, above or below, in a fraction of the time and without that guarantee: to compare, not to train with.

    Raises:
        UserError: the target is outside the range of the accountant, or of the noise.
    """
    first = [rounds_of(event) for event in make_events(1.0)]
    limits = {
        "epsilon": (LEAST_EPSILON, target, MOST_EPSILON),
        "delta": (least_delta(first), delta, MOST_DELTA),
    }
    for name, (least, value, most) in limits.items():
        if not least <= value <= most:
            raise UserError(
                f"{name}={value:.4g} must lie between {least:.2g} and {most:.2g}: below, the accountant's rounding "
                "over so many steps dominates, and above, no one is protected."
            )
    asked, goal = f"epsilon={target:.4g} at delta={delta:.3g}", target * (1 - _MARGIN)

    def excess(sigma: float, interval: float = INTERVAL) -> float:
        if sigma < _LEAST_NOISE:
            raise UserError(f"{asked} needs a noise multiplier under {_LEAST_NOISE:g}: lower one of them.")
        spent = epsilon(make_events(sigma), delta, interval)
        if sigma > _MOST_NOISE and spent > goal:
            raise UserError(
                f"{asked} cannot be met: the least that can be spent is {spent:.4g}. Raise epsilon, take fewer steps, "
                "or, where there is a selection, raise selection.noise_multiplier (gaussian) or lower "
                "selection.epsilon (laplace, gumbel) or selection.rows (gumbel), or, where a vocabulary is released, "
                "raise vocabulary.noise_multiplier."
            )
        return min(max(math.log(spent / goal), -50.0), 50.0) if spent > 0 else -50.0

    def root(start: float, factor: float, interval: float, tolerance: float) -> float:
        low = high = start
        while excess(high, interval) > 0:
            low, high = high, high * factor
        while excess(low, interval) <= 0:
            low, high = low / factor, low
        return brentq(excess, low, high, args=(interval,), xtol=tolerance * low, rtol=tolerance)

    # Search from above: with too little noise, the losses would fill the memory.
    start = math.sqrt(sum(event.count for event in first))
    if rough:  # small losses need a fine grid: over thousands of steps, its rounding adds up
        return root(start, 2.0, min(max(target * 1e-3, INTERVAL), COARSE_INTERVAL), 2e-3)
    sigma = root(root(start, 2.0, COARSE_INTERVAL, 1e-4), 1.003, INTERVAL, 1e-6)
    while excess(sigma := float(f"{sigma:.6g}")) > 0:
        sigma *= 1 + 5e-6
    return sigma
