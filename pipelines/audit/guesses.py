"""Lower bounds on epsilon from guesses about many canaries in one training run.

m canaries are each included by a fair coin; an attacker who sees the release makes r guesses about coins of his choice
and abstains from the others; v of them are right.  How large v can be, but for a probability of 1 - confidence, is
bounded under a hypothesis about the mechanism; more right guesses refute the hypothesis.

- :func:`epsilon_at_delta`: the hypothesis is (epsilon, delta)-DP and nothing else (Steinke, Nasr and Jagielski, 2023,
  "Privacy auditing with one (1) training run", theorem 5.2).
- :func:`refutes`: the hypothesis is a whole trade-off curve (Mahloujifar, Melis and Chaudhuri, 2024, "Auditing
  f-differential privacy in one run", theorem 9), tighter, since a curve says more than one of its points.

Proof of the second, in the form computed here.  The hypothesis: whatever the other coins, P(S) <= g(P'(S)) for every
set S of releases, where P and P' are the laws of the release with one coin flipped, and g is concave and increasing.
Let c be the number of right guesses, p_i = P(c = i), T = {i, i + 1, ...}, and j a canary drawn uniformly.  Given the
coins x, let S be the releases from which j is guessed rightly and c is in T; with j's coin flipped, the same releases
guess j wrongly and c is one less.  Averaged over x and j, by Jensen's inequality,

    sum_{l >= i} (l / m) p_l  <=  g( sum_{l >= i} ((r - l + 1) / m) p_{l-1} ).                                   (1)

If all guesses say "included", S is empty unless j's coin is heads, so both sides average over half of the coins: (1)
holds with m / 2 in the place of m, and is stronger.  In terms of the tails h_i = P(c >= i), (1) reads

    h_{i-1}  >=  (m g^{-1}((i h_i + s_i) / m) + h_i + s_i) / (r - i + 1),     s_i = h_{i+1} + h_{i+2} + ...      (2)

whose right-hand side grows with h_i and s_i.  So a law with h_v = a has tails at least those that (2) gives from
h_v = a, s_v = 0 downwards; if one exceeds 1, then P(c >= v) < a.

Both tests reject for all v from some number on.  A search over hypotheses therefore costs no confidence: of those that
hold, the one that rejects first decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

CONFIDENCE = 0.95
"""Of an audit."""
_MOST, _DIGITS = 50.0, 1e-3  # range and precision of the search over epsilon


class Curve(Protocol):
    """A hypothesis: any set of probability p in a neighbouring world has at most probability g(p) in this one."""

    def least(self, probability: float) -> float:
        """Return g^{-1}: the least probability of a set in the neighbouring world, given that in this one."""
        ...


@dataclass(frozen=True)
class Guesses:
    """The result of an attack on one run.

    Attributes:
        canaries: m, each included by a fair coin.
        made: r, number of guesses, fixed before the run.
        right: v, number of right ones.
        one_sided: whether all of them say "included".
    """

    canaries: int
    made: int
    right: int
    one_sided: bool


def epsilon_at_delta(guesses: Guesses, delta: float, confidence: float) -> float:
    """Return the epsilon that the guesses refute at ``delta``, to 0.001.

    Formal guarantee: if the mechanism is (epsilon, delta)-DP, the result exceeds epsilon with probability at most
    ``1 - confidence``.
    """

    def refuted(epsilon: float) -> bool:
        return p_value(guesses, epsilon, delta) <= 1 - confidence

    least, most = 0.0, _MOST
    if not refuted(least):
        return 0.0
    while most - least > _DIGITS:
        middle = (least + most) / 2
        least, most = (middle, most) if refuted(middle) else (least, middle)
    return least


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return the bound of theorem 5.2 on the probability of so many right guesses under (epsilon, delta)-DP.

    With W ~ Binomial(r, 1 / (1 + exp(-epsilon))), the right guesses under randomised response, it is
    ``P(W >= v) + 2 m delta max_i P(v > W >= v - i) / i``.
    """
    r, v = guesses.made, guesses.right
    if v == 0:
        return 1.0
    honest = 1 / (1 + np.exp(-epsilon))
    below = np.cumsum(binom.pmf(np.arange(v - 1, -1, -1), r, honest))
    worst = float(np.max(below / np.arange(1, v + 1)))
    return min(1.0, float(binom.sf(v - 1, r, honest)) + 2 * guesses.canaries * delta * worst)


def refutes(guesses: Guesses, curve: Curve, confidence: float) -> bool:
    """Return whether the guesses refute that the mechanism obeys the curve.

    Formal guarantee: if it does, the answer is True with probability at most ``1 - confidence``.
    """
    canaries = guesses.canaries / 2 if guesses.one_sided else guesses.canaries
    tail, above = 1 - confidence, 0.0  # h_i and s_i
    for i in range(guesses.right, 0, -1):
        least = (canaries * curve.least((i * tail + above) / canaries) + tail + above) / (guesses.made - i + 1)
        if least > 1:
            return True
        if least <= tail:  # the tails have stopped growing: (2) gives no more than h_i from here on
            return False
        above, tail = above + tail, least
    return False


@dataclass(frozen=True)
class Points:
    """A curve known by points of a privacy profile that holds in both directions: delta at each epsilon >= 0.

    Each point says ``P(S) <= delta + exp(epsilon) P'(S)``, and of the complements ``1 - P'(S) <= delta + exp(epsilon)
    (1 - P(S))``.  Fewer points make a weaker hypothesis, which is harder to refute.
    """

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]

    def least(self, probability: float) -> float:
        """Return the least probability in the neighbouring world that all points allow."""
        ratios = np.exp(self.epsilons)
        allowed = max(
            float(((probability - self.deltas) / ratios).max()),
            float((1 - self.deltas - ratios * (1 - probability)).max()),
        )
        return max(allowed, 0.0)
