"""Exact Bernoulli trials by the gaps between successes, and the exponential variates that these are made of.

Each variate is decided in float64 if the error of float64 and of 64 random bits cannot change it, and otherwise in
:mod:`dpfest.noise.precise`, with 128 more bits. The bounds allow numpy's and the C library's ``log`` and ``log1p`` an
error of four units in the last place.

Formal guarantee: each variate is within 2^-100 in total variation of its exact law, given a keystream of independent
uniform bits (:mod:`dpfest.noise.key`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpfest.noise.keystream import Keystream
from dpfest.noise.precise import exponential, precise

Floats = NDArray[np.float64]

_AT_ONCE = 1 << 20  # gaps held in memory at a time


def exponentials(words: NDArray[np.uint64]) -> tuple[Floats, Floats]:
    """Return standard exponential variates ``-ln U``, one per word, and error bounds: ``[n]`` both.

    ``U`` lies in the interval ``word / 2^64 + [0, 2^-64]``; :func:`dpfest.noise.precise.exponential` narrows it down.
    """
    uniform = words.astype(np.float64)
    uniform *= 2.0**-64
    with np.errstate(divide="ignore"):  # a word of zero: any error is possible
        value = -np.log(uniform)
        error = 2.0**-63 / uniform
    error += 2.0**-52
    error += 2.0**-50 * value
    return value, error


def bernoulli(stream: Keystream, trials: int, probability: float) -> NDArray[np.int64]:
    """Return the trials that succeed, each independently with ``probability``: sorted, from 0, in O(successes).

    The number of failures before a success is ``floor(ln U / ln(1 - probability))``: it is at least k iff
    ``U <= (1 - probability)^k``. The law is that of one coin per trial, for the float64 ``probability`` itself.

    Formal guarantee: exact, within 2^-100 per success.

    Raises:
        ValueError: more than 2^52 trials; a probability outside 0 .. 1.
    """
    if not (0 <= probability <= 1 and 0 <= trials <= 1 << 52):
        raise ValueError(f"{trials} trials of probability {probability}: use at most 2^52, and a number from 0 to 1.")
    if probability == 1:
        return np.arange(trials)
    successes, last = [np.empty(0)], -1.0  # whole numbers, exact in float64 while below 2^53
    while probability > 0 and last < trials:
        expected = (trials - last) * probability
        count = min(int(expected + 4 * math.sqrt(expected)) + 4, _AT_ONCE)
        gaps = _geometric(stream, count, probability, trials)
        positions = last + np.cumsum(gaps + 1)
        successes.append(positions[positions < trials])
        last = positions[-1]
    return np.concatenate(successes).astype(np.int64)


def _geometric(stream: Keystream, count: int, probability: float, most: int) -> Floats:
    """Return numbers of failures before a success; those above ``most`` are only known to be above it."""
    first = stream.reserve(count)
    words = stream.at(first, count)
    rate = -math.log1p(-probability)
    waits, error = exponentials(words)
    with np.errstate(over="ignore", invalid="ignore"):
        waits /= rate
        error /= rate
        error += 2.0**-50 * waits
        whole = np.floor(waits)
        sure = ((waits - whole >= error) | (whole == 0)) & (whole + 1 - waits > error) | (waits - error > most + 1)
    for place in np.flatnonzero(~sure).tolist():
        with precise() as mp:
            wait = exponential(stream, int(words[place]), first + place) / -mp.log1p(-mp.mpf(probability))
            whole[place] = float(mp.floor(wait))
    return whole
