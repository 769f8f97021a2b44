"""Composition over millions of steps, and at deltas below what an ordinary convolution can tell from its own rounding.

A convolution by FFT errs by about 2^-52 a step, *absolutely*: over 1.6 million steps by more than a delta of 3e-10 can
bear. Here losses are tilted first (Esscher, 1932): with P the law of the loss, K = log E exp(lambda L) its cumulant
generating function over all steps and P' the law proportional to exp(lambda L) P,

    delta(eps) = E (1 - exp(eps - L))+ = exp(K - lambda eps) E' exp(-lambda (L - eps)) (1 - exp(eps - L))+,

so that rounding counts relative to exp(K - lambda eps), the Chernoff bound, which at the right lambda is a small
multiple of delta itself (as for the contour of Alghamdi et al., 2023).

Every number is an upper bound:

1. **Grid.** Between two grid points, probabilities under P *and* under Q are kept (connect the dots: Doroshenko et al.,
   2022), computed as differences of normal probabilities from the nearer tail, relatively exact; what these and the
   split itself may round away is moved to the upper point. What lies beyond the last point counts as an infinite loss.
2. **Period.** The FFT's length is finite: losses that differ by its period are added up, each at the weight of the
   one in the window, which is more than that of those above. What lies above counts with its Chernoff bound as well.
3. **Rounding.** With u = 2^-53, the computed transform of a vector of length n misses the exact one by at most
   7 u log2(n) of its l2 norm (Higham, 2002, theorem 24.2). That bound goes through the powers and the way back, and is
   charged on delta by the inequality of Cauchy and Schwarz. The few heaviest cells, of which a law at a low rate almost
   consists, are transformed one by one, to the last bits.

The grid's spacing is such that the dots add about a thousandth to epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtr, ndtri_exp

from dpfest.errors import UserError

Floats = NDArray[np.float64]

_U = 2.0**-53
_FINEST, _COARSEST = 1e-7, 1e-4
_SPREAD = 0.001  # of epsilon
_BEYOND = 1e-7  # share of delta that may lie beyond the last grid point, in all steps together
_MOST_CELLS = 1 << 24
_BEYOND_MEMORY = "So little noise over so many steps is beyond the accountant: lower epsilon, or the steps."
_MOST_TILTS, _CHARGED = 5, 0.02  # tilts tried until rounding has at most this share of delta
_TILTS = (math.log(1e-2), math.log(1e5))
_HEAVIEST = 4  # cells that are transformed one by one: most of a law at a low rate lies in two


@dataclass(frozen=True)
class Steps:
    """Some steps alike: ``count`` Gaussians of a noise multiplier on Poisson samples at ``rate``.

    Attributes:
        doubled: probability of a coin, which is seen, that shows twice the sensitivity.
    """

    count: int
    noise_multiplier: float
    rate: float
    doubled: float = 0.0


@dataclass(frozen=True)
class _Cells:
    """A law of losses on the grid: ``mass`` at ``first``, ``first + 1``, ... spacings, and ``beyond`` at infinity.

    ``steepest`` bounds how far a loss moves, in units of 2^-53, when its place moves by one of its own.
    """

    first: int
    mass: Floats
    beyond: float
    count: int
    steepest: float


def epsilon(steps: Sequence[Steps], delta: float) -> float:
    """Return an upper bound of the epsilon at ``delta`` of all steps together, within half a percent of it.

    Raises:
        UserError: there is too little noise for so many steps: a composition would fill the memory.
    """
    removed = _one_way(steps, delta, added=False, least=0.0)
    return max(removed, _one_way(steps, delta, added=True, least=removed))


def _one_way(steps: Sequence[Steps], delta: float, added: bool, least: float) -> float:
    """Return the bound in one direction of adjacency; any smaller than ``least`` is as good."""
    beyond = delta * _BEYOND / sum(one.count for one in steps)
    law = _Law(steps, _COARSEST, added, beyond)
    best, tilt = law.chernoff(delta)
    if best <= least:
        return best
    tilt, guess = law.saddle(delta, tilt)
    for _ in range(_MOST_TILTS):
        spacing = min(law.spacing, _spacing(steps, tilt, guess, added))
        law = law if spacing == law.spacing else _Law(steps, spacing, added, beyond)
        found, charged = _Composed(law, tilt, guess).epsilon(delta)
        best = min(best, found)
        if best <= least or charged <= _CHARGED:
            break
        tilt, guess = law.tilt_at(best), best
    return best


class _Law:
    """What the steps lose, one by one, on a grid of a spacing; in one direction of adjacency."""

    def __init__(self, steps: Sequence[Steps], spacing: float, added: bool, beyond: float) -> None:
        self.spacing = spacing
        self.cells = [_cells(one, spacing, added, beyond) for one in steps]
        if sum(len(one.mass) for one in self.cells) > _MOST_CELLS:
            raise UserError(_BEYOND_MEMORY)
        self._losses = [spacing * (one.first + np.arange(len(one.mass))) for one in self.cells]

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """Return K and its first two derivatives, up to rounding."""
        total = np.zeros(3)
        for cells, losses in zip(self.cells, self._losses, strict=True):
            log_moment = self.log_moment(cells, tilt)
            weights = cells.mass * np.exp(tilt * losses - log_moment)
            mean = float(weights @ losses)
            total += cells.count * np.array([log_moment, mean, float(weights @ np.square(losses - mean))])
        return float(total[0]), float(total[1]), float(total[2])

    def log_moment(self, cells: _Cells, tilt: float) -> float:
        """Return K of one step."""
        losses = self.spacing * (cells.first + np.arange(len(cells.mass), dtype=np.float64))
        return _log_sum(tilt * losses, cells.mass)

    def chernoff(self, delta: float) -> tuple[float, float]:
        """Return the Chernoff bound of epsilon, and its tilt; what lies beyond the grid has its part of delta."""
        rest = delta - sum(cells.count * cells.beyond for cells in self.cells)

        def bound(log_tilt: float) -> float:
            tilt = math.exp(log_tilt)
            return (self.cumulants(tilt)[0] - math.log(rest)) / tilt

        found = minimize_scalar(bound, bounds=_TILTS, method="bounded", options={"xatol": 0.02})
        tilt = math.exp(found.x)
        return max(float(found.fun) * (1 + 1e-12) + self.drift(tilt) / tilt, 0.0), tilt

    def drift(self, tilt: float) -> float:
        """Return how far K may be off: what relative errors of masses and losses become over all steps."""
        found = 0.0
        for cells, losses in zip(self.cells, self._losses, strict=True):
            exponents = tilt * losses
            weights = cells.mass * np.exp(exponents - self.log_moment(cells, tilt))
            found += cells.count * (8 + float(np.abs(exponents) @ weights) + 2 * tilt * cells.steepest) * 4 * _U
        return found

    def saddle(self, delta: float, near: float) -> tuple[float, float]:
        """Return tilt and epsilon at which the saddle-point approximation has this delta; ``near`` if there is none."""

        def excess(log_tilt: float) -> float:
            tilt = math.exp(log_tilt)
            k, first, second = self.cumulants(tilt)
            size = k - tilt * first - math.log(tilt * (tilt + 1)) - math.log(2 * math.pi * max(second, 1e-300)) / 2
            return size - math.log(delta)

        middle = math.log(near)
        places = [middle - 3, middle - 1, middle - 0.3, middle, middle + 0.3, middle + 1, middle + 2]
        values = list(map(excess, places))
        for low, high, above, below in zip(places, places[1:], values, values[1:], strict=False):
            if above > 0 >= below:
                near = math.exp(brentq(excess, low, high, xtol=1e-2))
                break
        return near, max(self.cumulants(near)[1], 0.0)

    def tilt_at(self, epsilon: float) -> float:
        """Return the tilt of the least Chernoff bound of the delta at an epsilon."""

        def bound(log_tilt: float) -> float:
            return self.cumulants(math.exp(log_tilt))[0] - math.exp(log_tilt) * epsilon

        return math.exp(minimize_scalar(bound, bounds=_TILTS, method="bounded", options={"xatol": 0.01}).x)


class _Composed:
    """The law of all steps together, tilted; its delta is an upper bound everywhere, and tight about an epsilon."""

    def __init__(self, law: _Law, tilt: float, epsilon: float) -> None:
        spacing = law.spacing
        total, _, variance = law.cumulants(tilt)
        wide = max(24 * math.sqrt(variance), 60 / tilt, 4 * spacing)
        size = 1 << max(10, math.ceil(math.log2(wide / spacing)))
        if size > _MOST_CELLS:
            raise UserError(_BEYOND_MEMORY)
        transform_error = 7 * _U * math.log2(size)
        spectrum = np.ones(size // 2 + 1, dtype=complex)
        above, missed = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
        for cells in law.cells:
            places = cells.first + np.arange(len(cells.mass))
            exponents = tilt * spacing * places
            weights = cells.mass * np.exp(exponents - law.log_moment(cells, tilt))
            folded = np.bincount(places % size, weights=weights, minlength=size)
            heaviest = np.argpartition(folded, -_HEAVIEST)[-_HEAVIEST:]
            one = _transform_of(heaviest, np.asarray(folded[heaviest], float), size)
            folded[heaviest] = 0.0
            one += rfft(folded)
            # |one - exact| in any frequency
            error = transform_error * math.sqrt(size) * float(np.linalg.norm(folded)) + 4 * _HEAVIEST * _U
            with np.errstate(divide="ignore"):
                spectrum *= np.exp(cells.count * np.log(one))
            reach = np.maximum(np.abs(one) + error, 1e-300)
            above += cells.count * np.log(reach)
            missed += cells.count * (error / reach + 8 * _U)  # r^n - (r - error)^n <= n error r^(n - 1)
        composed = irfft(spectrum, size)
        back = transform_error * float(np.linalg.norm(composed)) * (1 + 1e-6)
        forth = math.sqrt(2) * float(np.linalg.norm(np.exp(np.minimum(above, 50.0)) * missed)) / size  # Parseval
        # A delta weighs the cell that is m spacings above by exp(-tilt m h) min(1, (m + 1) h), and by Cauchy and
        # Schwarz the errors of all cells by no more than the l2 norms of these weights and of the errors.
        ratio = math.exp(-2 * tilt * spacing)
        weighed = min(1 / (1 - ratio), spacing**2 * (1 + ratio) / (1 - ratio) ** 3)
        self._charge = 1.001 * (forth + back) * math.sqrt(weighed)
        self._beyond = sum(cells.count * cells.beyond for cells in law.cells)

        # The window reaches far enough up for what lies above it to be nothing.
        start = max(math.floor((epsilon - wide / 3) / spacing), 0)
        places = start + np.arange(size)
        self._near, self._losses = epsilon, spacing * places
        self._weights = np.exp(np.minimum(-tilt * (self._losses - epsilon), 700.0))
        masses = np.maximum(composed[places % size], 0.0)
        self._sums = self._from_above(masses * self._weights)
        factor = math.exp(min(law.drift(tilt), 1.0)) * (1 + 1e-9)
        self._log_scale = math.log(factor) + total - tilt * epsilon
        self._rest = self._beyond + factor * math.exp(min(total - tilt * spacing * (start + size), 0.0))

    def _from_above(self, scaled: Floats) -> tuple[Floats, Floats]:
        """Return the sums from each loss on, of masses and of masses under the other law."""
        other = scaled * np.exp(-(self._losses - self._near))
        above, below = (np.append(np.cumsum(each[::-1])[::-1], 0.0) for each in (scaled, other))
        return above, below

    def epsilon(self, delta: float) -> tuple[float, float]:
        """Return the least epsilon whose delta is at most this, and which share of it is charged for rounding."""
        if delta <= self._rest or self._log_scale > 700:
            return math.inf, 1.0
        target = (delta - self._rest) / math.exp(self._log_scale)
        above, below = self._sums
        # Delta at the grid's points falls: the first that meets the target ends the cell in which it is met.
        charge = self._charge * self._weights
        values = above[1:] - np.exp(self._losses - self._near) * below[1:] + charge
        met = int(np.argmax(values <= target))
        if values[met] > target:
            return math.inf, 1.0
        found, charged = float(self._losses[met]), float(charge[max(met - 1, 0)])
        if below[met] > 0 and met > 0:
            found = min(found, self._near + math.log(max((above[met] - target + charged) / below[met], 1e-300)))
        return max(0.0, found), charged / target


def _spacing(steps: Sequence[Steps], tilt: float, epsilon: float, added: bool) -> float:
    """Return a spacing at which connecting the dots adds about ``_SPREAD`` of epsilon, all steps together.

    A loss x between grid points a and b becomes one of them, of the same mean under both laws: K grows by about
    ``tilt^2 / 2`` times the mean of ``(x - a) (b - x)``, and epsilon by that over the tilt.
    """
    laws = []
    for one in steps:
        sigma = one.noise_multiplier
        t = np.linspace(-12 * sigma, 12 * sigma + 1, 8001)
        losses = np.log1p(one.rate * np.expm1((2 * t - 1) / (2 * sigma**2))) if one.rate < 1 else (t - 0.5) / sigma**2
        log_weights = -np.square(t / sigma) / 2 + (losses * (-tilt if added else 1 + tilt))
        weights = np.exp(log_weights - log_weights.max())
        laws.append((one.count, losses, weights / weights.sum()))

    def added_epsilon(spacing: float) -> float:
        found = 0.0
        for count, losses, weights in laws:
            above = losses - spacing * np.floor(losses / spacing)
            found += count * tilt / 2 * float(weights @ (above * (spacing - above)))
        return found

    spacing = _COARSEST
    while spacing > _FINEST and added_epsilon(spacing) > _SPREAD * epsilon:
        spacing /= 2
    return spacing


def _cells(steps: Steps, spacing: float, added: bool, beyond: float) -> _Cells:
    """Return the law of one step's loss on the grid; at most ``beyond`` of it counts as infinite."""
    plain = _gaussian_cells(steps.noise_multiplier, steps.rate, spacing, added, beyond)
    least = steps.noise_multiplier / (1 if steps.doubled == 0 else 2)
    steepest = (1 + 40 * least) / least**2  # |t L'(t)| <= |t| / sigma^2, and no double's tail reaches 40 deviations
    if steps.doubled == 0:
        return _Cells(*plain, steps.count, steepest)
    twice = _gaussian_cells(steps.noise_multiplier / 2, steps.rate, spacing, added, beyond)
    first = min(plain[0], twice[0])
    mass = np.zeros(max(plain[0] + len(plain[1]), twice[0] + len(twice[1])) - first)
    for chance, (start, own, _) in ((1 - steps.doubled, plain), (steps.doubled, twice)):
        mass[start - first : start - first + len(own)] += chance * own
    return _Cells(first, mass, plain[2] + steps.doubled * twice[2], steps.count, steepest)


def _gaussian_cells(sigma: float, rate: float, spacing: float, added: bool, beyond: float) -> tuple[int, Floats, float]:
    """Return the first grid point, the masses from it on, and what counts as infinite.

    With Q = N(0, sigma^2), without the example, and P = (1 - q) Q + q N(1, sigma^2), with it, the loss of P against Q
    at t is L(t) = log(1 - q + q exp((2 t - 1) / (2 sigma^2))), and increases; that of Q against P is -L(t).
    """
    reach = -float(ndtri_exp(math.log(beyond)))  # beyond so many deviations lies that share
    top = 1 + reach * sigma
    highest = float(
        np.logaddexp(math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate) + (2 * top - 1) / (2 * sigma**2))
    )
    lowest = math.log1p(-rate) if rate < 1 else (2 * (-reach * sigma) - 1) / (2 * sigma**2)
    first, last = math.floor(lowest / spacing), math.ceil(highest / spacing)
    if last - first > _MOST_CELLS:
        raise UserError(_BEYOND_MEMORY)
    losses = spacing * np.arange(first, last + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = np.expm1(losses) / rate
        cuts = np.where(inner > -1, sigma**2 * np.log1p(np.maximum(inner, -1)) + 0.5, -np.inf)
    cuts[0] = -np.inf
    without, slack_without = _between(cuts / sigma)
    present, slack_present = _between((cuts - 1) / sigma)
    mixed = (1 - rate) * without + rate * present
    slack_mixed = (1 - rate) * slack_without + rate * slack_present
    above_without, above_present = float(ndtr(-cuts[-1] / sigma)), float(ndtr(-(cuts[-1] - 1) / sigma))
    if added:  # losses -L: the cells in the other order
        down = -np.arange(first, last + 1)[::-1]
        masses = _split(without[::-1], mixed[::-1], slack_without[::-1], slack_mixed[::-1], down, spacing)
        masses[0] += above_without  # losses below the lowest point are raised to it
        return int(down[0]), masses, 0.0
    masses = _split(mixed, without, slack_mixed, slack_without, np.arange(first, last + 1), spacing)
    return first, masses, ((1 - rate) * above_without + rate * above_present) * (1 + 1e-12)


def _between(cuts: Floats) -> tuple[Floats, Floats]:
    """Return the standard normal probabilities between consecutive cuts, and bounds of their errors."""
    low, high = cuts[:-1], cuts[1:]
    upper = low > 0
    first, second = ndtr(np.where(upper, -low, high)), ndtr(np.where(upper, -high, low))
    found = np.maximum(first - second, 0.0)
    # scipy's ndtr is within 8 units of the exact value; a cut that is off by a unit moves it by phi * |cut| * u.
    bounded = np.where(np.isfinite(low), np.abs(low), 0.0) + np.where(np.isfinite(high), np.abs(high), 0.0)
    return found, first * (16 + 4 * np.square(bounded)) * _U


def _split(p: Floats, q: Floats, slack_p: Floats, slack_q: Floats, points: NDArray[np.int64], spacing: float) -> Floats:
    """Split the mass ``p`` of each cell between its ends, so that its mass ``q`` under the other law is kept too."""
    low, high = spacing * points[:-1], spacing * points[1:]
    width = -np.expm1(low - high)  # 1 - exp(-spacing)
    missed = (p - q * np.exp(low) + slack_p + slack_q * np.exp(np.minimum(low, 700.0))) / width
    upper = np.clip(missed + 8 * _U * p / width, 0.0, p + slack_p)
    masses = np.zeros(len(points))
    masses[1:] += upper
    masses[:-1] += np.maximum(p + slack_p - upper, 0.0)
    return masses


def _transform_of(places: NDArray[np.int_], masses: Floats, size: int) -> NDArray[np.complex128]:
    """Return the transform of a few cells, each term to the last bit or two."""
    frequencies = np.arange(size // 2 + 1)
    found = np.zeros(size // 2 + 1, dtype=complex)
    for place, mass in zip(places.tolist(), masses.tolist(), strict=True):
        turn = (place * frequencies) % size  # whole numbers below 2^52
        found += mass * np.exp(turn * (-2j * math.pi / size))
    return found


def _log_sum(exponents: Floats, weights: Floats) -> float:
    """Return log sum(weights exp(exponents))."""
    largest = float(exponents[weights > 0].max())
    return largest + math.log(float(weights @ np.exp(np.minimum(exponents - largest, 0.0))))
