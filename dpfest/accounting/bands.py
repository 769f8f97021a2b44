"""Banded strategies: how the noise of a row in one step takes back part of what it was in the steps before.

A strategy is a lower-triangular Toeplitz matrix C with b bands. Released of the tables' rows is ``C X + Z``, X the
clipped sums step by step and Z independent noise, from which ``X + C^-1 Z`` follows: each step's sum with noise that is
negatively correlated over steps, of which less accumulates in a row (Choquette-Choo et al., 2023, "(Amplified) Banded
Matrix Factorization"). What it costs: docs/PRIVACY.md, section 2.8.

C is stored as ``a_k = c_k / c_0``, multiples of 2^-BITS, so that noise is filtered in whole numbers
(:mod:`dpfest.step.correlated`). Rounding them so costs 0.1% of the accumulated noise at 8 bands and 0.4% at 32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.signal import lfilter

from dpfest.errors import UserError
from dpfest.noise.gaussian import gaussian_grid

BITS = 4
"""Coefficients are multiples of ``2^-BITS``, and rows' sums are rounded to a grid coarser by as much."""
MOST_BANDS = 64
_HORIZON = 1 << 14  # steps beyond which coefficients hardly change
_ACCUMULATED = 1 << 20  # steps beyond which the noise that accumulates hardly changes, relative to independent noise


@dataclass(frozen=True)
class Strategy:
    """A banded Toeplitz strategy.

    Attributes:
        coefficients: ``a_0 > a_1 >= ... >= a_{b-1} >= 0`` in units of ``2^-BITS``, whole numbers; ``a_0 = 2^BITS``.

    Formal guarantee: noise n of ``n_t = z_t - sum_k a_k n_{t-k}`` with z_t ~ N(0, (:attr:`norm` s)^2) makes what one
    contribution of norm 1 moves in the b steps from its own on a Gaussian mechanism of noise multiplier s. As the
    coefficients decrease, the filter is stable (Eneström and Kakeya): n stays within a fixed multiple of the largest z.

    Raises:
        ValueError: coefficients that are not such.
    """

    coefficients: tuple[int, ...]

    def __post_init__(self) -> None:
        first, *others = self.coefficients
        if not (first == 1 << BITS and others and first > others[0] and others == sorted(others, reverse=True)):
            raise ValueError(f"coefficients {self.coefficients} must decrease from {1 << BITS}, in whole numbers")
        if others[-1] < 0:
            raise ValueError(f"coefficients {self.coefficients} must not be negative")

    @property
    def bands(self) -> int:
        """Number of bands, b."""
        return len(self.coefficients)

    @cached_property
    def norm(self) -> float:
        """The l2 norm of ``(a_0, ..., a_{b-1})``, rounded up: a contribution's sensitivity over b steps."""
        return math.sqrt(sum(a * a for a in self.coefficients)) * (1 + 2.0**-50) / (1 << BITS)

    def grid(self, deviation: float) -> float:
        """Return the power of two to which sums of rows are rounded, for noise of this deviation over sensitivity 1."""
        return gaussian_grid(deviation * self.norm) * (1 << BITS)

    def response(self, steps: int) -> NDArray[np.float64]:
        """Return the share of a step's z that later steps' noise has, as many steps, ``[steps]``: of C^-1."""
        return _response(np.array(self.coefficients) / (1 << BITS), steps)

    def accumulated(self, steps: int) -> float:
        """Return the noise accumulated in a row relative to that of independent noise of the same noise multiplier.

        The root mean square over the first 1, 2, ..., ``steps`` steps, at a constant learning rate.
        """
        return _accumulated(np.array(self.coefficients) / (1 << BITS), min(steps, _ACCUMULATED))


@lru_cache(maxsize=256)
def strategy(bands: int, steps: int) -> Strategy:
    """Return the strategy of b bands under which least noise accumulates in a row over so many steps, about.

    The objective is the root mean square of the noise in prefix sums, ``|A C^-1| |C|``, by L-BFGS-B from the
    coefficients of ``1 / sqrt(1 - x)``, then rounded: a function of its arguments alone. A training of more than 2^14
    steps has the coefficients of 2^14.

    Args:
        bands: b, 2 to :data:`MOST_BANDS`, at most ``steps``.
        steps: T, of one period.

    Raises:
        UserError: bands are out of range.
    """
    refuse_bands(bands)
    if bands > steps:
        raise UserError(f"bands={bands} exceeds the number of steps, {steps}: {fewer(steps)}.")
    k = np.arange(1, bands)
    start = np.cumprod((2 * k - 1) / (2 * k))
    most = 1 - 2.0**-BITS
    found = minimize(
        lambda others: _accumulated(np.append(1.0, others), min(steps, _HORIZON)),
        start,
        method="L-BFGS-B",
        bounds=[(0.0, most)] * len(k),
    )
    whole = np.minimum.accumulate(np.rint(found.x * (1 << BITS)).astype(int))
    return Strategy((1 << BITS, *whole.tolist()))


def fewer(most: int) -> str:
    """Return what to do where at most so many bands are possible."""
    return f"choose bands={most} or fewer" if most > 1 else "leave bands out"


def refuse_bands(bands: object) -> None:
    """Raise UserError unless it is None, or a number of bands."""
    whole = isinstance(bands, int) and not isinstance(bands, bool)
    if bands is not None and not (whole and 2 <= bands <= MOST_BANDS):  # type: ignore[operator]
        raise UserError(f"bands={bands} must be a whole number from 2 to {MOST_BANDS}, or None for independent noise.")


def _response(coefficients: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    impulse = np.zeros(steps)
    impulse[0] = 1
    return lfilter([1.0], coefficients, impulse)


def _accumulated(coefficients: NDArray[np.float64], steps: int) -> float:
    prefix = np.cumsum(np.cumsum(_response(coefficients, steps)) ** 2)
    return math.sqrt(float(coefficients @ coefficients) * prefix.mean() / ((steps + 1) / 2))
