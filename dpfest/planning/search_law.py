"""The law of the number of runs of a private search: how it is drawn, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real

import numpy as np
from scipy.optimize import brentq

from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event
from dpfest.accounting.search_cost import Floats, Repeats, by_profile, by_renyi
from dpfest.errors import UserError
from dpfest.noise.keystream import Keystream
from dpfest.noise.precise import precise

DISTRIBUTIONS = ("negative_binomial", "poisson")
MOST_RUNS = 10_000


@dataclass(frozen=True)
class Search:
    """The law of the number of runs K of a private search.

    Attributes:
        mean: the expected number of runs, E[K].
        distribution: ``negative_binomial``, truncated to K >= 1, or ``poisson`` (K may be 0: then nothing leaves).
        shape: of the negative binomial distribution: 1 is the geometric, 0 the logarithmic distribution. Smaller shapes
            spread more and cost less. Without effect for ``poisson``.

    Raises:
        UserError: a setting out of range.
    """

    mean: float
    distribution: str = "negative_binomial"
    shape: float = 0.0

    def __post_init__(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            raise UserError(f"distribution={self.distribution!r} must be one of {', '.join(DISTRIBUTIONS)}.")
        if not (isinstance(self.mean, Real) and 1 <= self.mean <= MOST_RUNS):
            raise UserError(f"mean={self.mean!r}, the expected number of runs, must lie between 1 and {MOST_RUNS:,}.")
        if not (isinstance(self.shape, Real) and 0 <= self.shape <= 100):
            raise UserError(f"shape={self.shape!r} must lie between 0 (logarithmic) and 100; 1 is geometric.")

    @property
    def law(self) -> str:
        """The law of K in words."""
        if self.distribution == "poisson":
            return f"a Poisson number of runs with mean {self.mean:g}"
        names = {0.0: "logarithmic", 1.0: "geometric"}
        law = names.get(self.shape, f"truncated negative binomial (shape {self.shape:g})")
        return f"a {law} number of runs with mean {self.mean:g}"

    @cached_property
    def gamma(self) -> float:
        """The parameter of the negative binomial distribution, in 0 .. 1, at which E[K] is ``mean``."""

        def excess(log_gamma: float) -> float:
            return math.log(_mean(log_gamma, self.shape) / self.mean)

        return math.exp(brentq(excess, -700 / max(1.0, self.shape), 0.0, xtol=1e-15, rtol=1e-14))

    @cached_property
    def repeats(self) -> Repeats:
        """What the bounds on the cost need of K."""
        mean = self.mean * (1 + 1e-9)  # above the mean at the gamma that was found

        def poisson(x: Floats) -> Floats:
            return mean * np.exp(-mean * x)

        def negative_binomial(x: Floats) -> Floats:
            return mean * (1 + (1 - self.gamma) / self.gamma * x) ** -(1 + self.shape)

        if self.distribution == "poisson":
            return Repeats(mean, poisson)
        return Repeats(mean, negative_binomial, self.gamma, self.shape)

    def number(self, stream: Keystream) -> int:
        """Draw K.

        Formal guarantee: within 2^-100 in total variation of the law of the float64 ``mean`` (or ``gamma``): the least
        k whose cumulative probability, in 320-bit arithmetic, reaches a uniform number of 192 bits.
        """
        first = stream.reserve(2)
        word = int(stream.at(first, 1)[0])
        with precise() as mp:
            left = mp.ldexp(2 * stream.extended(word, first) + 1, -193)
            if self.distribution == "poisson":
                k, mean = 0, mp.mpf(self.mean)
                term = mp.exp(-mean)
                while left > term:
                    left, k = left - term, k + 1
                    term *= mean / k
                return k
            if self.gamma == 1:
                return 1
            k, gamma, shape = 1, mp.mpf(self.gamma), mp.mpf(self.shape)
            term = (1 - gamma) / (mp.log(1 / gamma) if shape == 0 else (gamma**-shape - 1) / shape)
            while left > term:
                left -= term
                term *= (1 - gamma) * (k + shape) / (k + 1)
                k += 1
            return k

    def epsilon(self, runs: Sequence[Sequence[Event]], delta: float, interval: float = accountant.INTERVAL) -> float:
        """Return the epsilon of a search at ``delta``; inf if ``delta`` cannot be met.

        Args:
            runs: for each setting of the grid, what one run of it pays.
            delta: of the whole search.
            interval: spacing of the grid of privacy losses; a coarser one is quicker and less tight.

        Formal guarantee: an upper bound, the smaller of the two of :mod:`dpfest.accounting.search_cost`.
        """
        return min(by_profile(self.repeats, runs, delta, interval), by_renyi(self.repeats, runs, delta))


def _mean(log_gamma: float, shape: float) -> float:
    """Return the mean of the truncated negative binomial distribution."""
    if log_gamma == 0:
        return 1.0
    excess = math.expm1(-log_gamma)  # 1 / gamma - 1
    return excess / -log_gamma if shape == 0 else shape * excess / -math.expm1(shape * log_gamma)
