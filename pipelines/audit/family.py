"""The family of hypotheses of a one-run audit: the claimed events under more or less noise.

The member at 0 is the claim itself, with the whole privacy loss distribution that the accountant composes; member k has
noise smaller by ``2^(k / 24)`` everywhere.  The audit reports the epsilon of the noisiest mechanism that the guesses do
not refute, to one member.  That epsilon is a lower bound for any mechanism whose trade-off curve is in the family; the
refutation of the claim (member 0) needs no such assumption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpfest.accounting import accountant
from dpfest.accounting.accountant import COARSE_INTERVAL, Event
from pipelines.audit.guesses import Guesses, Points, refutes

_A_DOUBLING = 24
_LEAST, _MOST = -5 * _A_DOUBLING, 2 * _A_DOUBLING
_POINTS = 128


class Family:
    """Trade-off curves of some events, by noise.

    Args:
        events: what the release is claimed to spend: Gaussian events.
        delta: at which an epsilon is stated.
    """

    def __init__(self, events: Sequence[Event], delta: float) -> None:
        self.events, self.delta = tuple(events), delta
        self._curves: dict[int, Points] = {}

    @cached_property
    def claim(self) -> float:
        """Epsilon of the events as they are claimed, at delta."""
        return self._epsilon(0)

    def refuted(self, guesses: Guesses, confidence: float) -> float:
        """Return the epsilon at delta of the noisiest member that the guesses do not refute, less one member; 0 if
        they refute none.

        It reaches ``claim`` if and only if the guesses refute the claimed events.
        """
        member, step = _LEAST, _A_DOUBLING
        if not refutes(guesses, self._curve(member), confidence):
            return 0.0
        while step:  # upwards, since members of little noise are slow to compose
            if member + step <= _MOST and refutes(guesses, self._curve(member + step), confidence):
                member += step
            else:
                step //= 2
        return self._epsilon(member)

    @cached_property
    def _epsilons(self) -> NDArray[np.float64]:
        """The points of all curves: on one grid, less noise makes a weaker curve, exactly."""
        return np.linspace(0, 4 + 3 * self.claim, _POINTS)

    def _curve(self, member: int) -> Points:
        if member not in self._curves:
            deltas = accountant.deltas(self._scaled(member), self._epsilons, COARSE_INTERVAL)
            self._curves[member] = Points(self._epsilons, np.minimum(deltas, 1.0))
        return self._curves[member]

    def _epsilon(self, member: int) -> float:
        return accountant.epsilon(self._scaled(member), self.delta, COARSE_INTERVAL)

    def _scaled(self, member: int) -> list[Event]:
        share = 2.0 ** (-member / _A_DOUBLING)
        costs = map(accountant.cost_alone, self.events)
        return [replace(cost, noise_multiplier=(cost.noise_multiplier or 0.0) * share) for cost in costs]
