"""A second accountant, which shares no line and no method with the library's: no grid of losses, no convolution.

The privacy loss L of a composition, under P, has the moment generating function M(z) = E exp(z L), the product of those
of its events. With (1 - exp(epsilon - L))+ written as an inverse Laplace transform, for every c > 0

    delta(epsilon) = E (1 - exp(epsilon - L))+ = 1 / (2 pi i) int M(z) exp(-z epsilon) / (z (z + 1)) dz,

z from c - i inf to c + i inf (the Fourier accountants of Koskela et al., 2020, and Zhu, Dong and Wang, 2022, on the
contour of Alghamdi et al., 2023: through the saddle point, where nothing cancels). M is integrated over the noise, by
the trapezoid rule, whose error falls exponentially in the number of points for such integrands. Nothing is rounded
upwards: the result is epsilon itself and no bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom

from dpfest.accounting.accountant import Event

Complex = NDArray[np.complexfloating]

POINTS, REACH = 1_001, 11.0


def epsilon(events: Sequence[Event], delta: float, near: float) -> float:
    """The largest epsilon at delta over what each kind of example pays for, and both directions of adjacency.

    Args:
        near: a guess, by which the contour is chosen; the result depends on it in its last digits alone.
    """
    parts = {event.part for event in events}
    paid = [[event for event in events if part[: len(event.part)] == event.part] for part in parts]
    return max(_one_way(*_without_failures(group, delta), near, added) for group in paid for added in (False, True))


def _without_failures(events: Sequence[Event], delta: float) -> tuple[list[Event], float]:
    """The other events, and what is left of delta for them where no failure has happened."""
    kept = math.prod((1 - (event.probability or 0.0)) ** event.count for event in events)
    return [event for event in events if event.kind != "failure"], (delta - (1 - kept)) / kept


def _one_way(events: Sequence[Event], delta: float, near: float, added: bool) -> float:
    def log_m(z: Complex) -> Complex:
        return sum(event.count * _log_mgf(event, z, added) for event in events)  # type: ignore[return-value]

    def size(z: complex) -> float:
        with np.errstate(all="ignore"):
            found = float((log_m(np.array([z])) - np.log(z * (z + 1))).real[0]) - z.real * near
        return found if found == found else math.inf

    c = min((complex(c) for c in np.geomspace(0.05, 200, 40)), key=size).real
    furthest = 1.0
    while size(c + 1j * furthest) > size(complex(c)) - 30:
        furthest *= 1.5
    count = max(600, int(12 * furthest))  # losses of up to 2 pi * 12 do not alias
    t = (np.arange(count) + 0.5) * (furthest / count)
    z = c + 1j * t
    known = log_m(z) - np.log(z * (z + 1))

    def excess(epsilon: float) -> float:
        value = np.exp(known - z * epsilon).real.sum() * (furthest / count) / math.pi
        return math.log(max(value, 1e-300) / delta)

    if excess(0.5 * near) < 0:  # the cheaper direction, or part: some other one decides
        return 0.0
    return float(brentq(excess, 0.5 * near, 2 * near, xtol=1e-9))


def _log_mgf(event: Event, z: Complex, added: bool) -> Complex:
    """log M of one of the event's ``count``: with the example removed (P has it), or added (Q has it)."""
    if event.max_batch_size is not None:  # a coin that is seen: the example is added, or replaces another one
        n, q, most = int(event.dataset_size or 0), event.sampling_probability, event.max_batch_size
        plain = replace(event, max_batch_size=None, dataset_size=None)
        heads = float(binom.sf(most - 1, n, q))
        replaced = replace(
            plain, noise_multiplier=float(event.noise_multiplier or 0) / 2, gradient_noise_multiplier=None
        )
        return np.log((1 - heads) * np.exp(_log_mgf(plain, z, added)) + heads * np.exp(_log_mgf(replaced, z, added)))
    if event.kind == "laplace":
        rate = 1 / float(event.noise_multiplier or 0)  # of the noise, in sensitivities; the pair is symmetric
        between = np.exp(z * rate) * (1 - np.exp(-(1 + 2 * z) * rate)) / (1 + 2 * z)
        return np.log((np.exp(z * rate) + np.exp(-(1 + z) * rate) + between) / 2)
    if event.kind == "pure":
        e = float(event.epsilon_per_draw or 0)
        one = 1 / (1 + math.exp(-e))
        return int(event.draws or 0) * np.log(one * np.exp(z * e) + (1 - one) * np.exp(-z * e))
    # Two noised releases of one sample are one in two dimensions: the losses add up within the sample.
    sigmas = [event.map_noise_multiplier, event.gradient_noise_multiplier]
    given = [s for s in sigmas if s] if all(sigmas) else [float(event.noise_multiplier or 0)]
    sigma = sum(s**-2 for s in given) ** -0.5
    shifts, weights = np.zeros(1), np.ones(1)
    if event.kind == "exponential_selection":
        e, m = float(event.epsilon_per_draw or 0), int(event.draws or 0)
        ones = np.arange(m + 1)
        shifts, weights = e * (2.0 * ones - m), binom.pmf(ones, m, 1 / (1 + math.exp(e)))
    # E_Q exp(w L), w = z + 1 for P against Q and -z for Q against P; Q is noise alone.
    w = -z if added else z + 1
    furthest = float(np.abs(w.real).max()) + 1
    x = np.linspace(-REACH * sigma - furthest * added, REACH * sigma + (1 if added else furthest), POINTS)
    density = np.exp(-((x / sigma) ** 2) / 2) * (x[1] - x[0]) / (sigma * math.sqrt(2 * math.pi))
    total = np.zeros(z.shape, dtype=complex)
    for shift, weight in zip(shifts, weights, strict=True):
        if weight > 1e-25:
            loss = np.log1p(event.sampling_probability * np.expm1(shift + (2 * x - 1) / (2 * sigma**2)))
            for start in range(0, len(z), 100):
                part = slice(start, start + 100)
                total[part] += weight * (np.expm1(np.outer(w[part], loss)) @ density)
    return np.log1p(total)
