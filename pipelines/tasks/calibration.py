"""From scores to probabilities: Platt scaling, log loss and reliability, of scores counted in bins.

All are functions of the counts of :class:`pipelines.tasks.auc.RocAuc`, whose bins are narrower than 1 part in 2,000, so
that they need no second pass over the rows and no memory in proportion to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

Floats = NDArray[np.float64]
GROUPS = 10
"""Groups of a reliability curve, each of a tenth of the examples by score."""


@dataclass(frozen=True)
class Platt:
    """Two numbers that make a score x a probability: 1 / (1 + exp(-(scale x + shift))) (Platt, 1999)."""

    scale: float
    shift: float


FIT: Literal["fit"] = "fit"
Calibration = Platt | Literal["fit"] | None
"""Whether a Platt scaling is fitted on rows (:data:`FIT`), applied to them, or neither."""


@dataclass(frozen=True)
class Scores:
    """Scores in increasing order, with the numbers of examples of either label that have them.

    Attributes:
        values: float64 ``[k]``, natural logarithms of the odds.
        negative, positive: int64 ``[k]``.
    """

    values: Floats
    negative: NDArray[np.int64]
    positive: NDArray[np.int64]

    @property
    def constant_loss(self) -> float | None:
        """Mean log loss of the best probability for all, the share of positive labels; None without rows."""
        return _entropy(int(self.negative.sum()), int(self.positive.sum()))

    def loss(self, platt: Platt) -> float | None:
        """Return the mean log loss after Platt scaling; None without rows."""
        examples = int(self.negative.sum() + self.positive.sum())
        if not examples:
            return None
        logits = platt.scale * self.values + platt.shift
        return float(self.positive @ np.logaddexp(0, -logits) + self.negative @ np.logaddexp(0, logits)) / examples

    def platt(self) -> Platt | None:
        """Return the Platt scaling of least log loss against softened labels; None without one of each label.

        Softened labels, (n + 1) / (n + 2) of n positive ones and 1 / (m + 2) of m negative ones, keep the scale finite
        where scores tell all labels apart.
        """
        negatives, positives = int(self.negative.sum()), int(self.positive.sum())
        if not negatives * positives:
            return None
        width = (
            float(np.sqrt((self.positive + self.negative) @ np.square(self.values) / (negatives + positives))) or 1.0
        )
        x, count = self.values / width, self.negative + self.positive
        wanted = self.positive * (positives + 1) / (positives + 2) + self.negative / (negatives + 2)
        examples = negatives + positives

        def loss(numbers: Floats) -> tuple[float, Floats]:
            logits = numbers[0] * x + numbers[1]
            value = (count @ np.logaddexp(0, logits) - wanted @ logits) / examples
            excess = (count * expit(logits) - wanted) / examples
            return float(value), np.array([excess @ x, excess.sum()])

        start = np.array([width, np.log(positives / negatives)])
        scale, shift = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-9}).x.tolist()
        return Platt(scale / width, shift)

    def reliability(self, platt: Platt | None) -> list[list[float | None]]:
        """Return, of each tenth of the examples by score, the share of positive labels and the mean probability.

        Returns:
            Lists of the number of examples, the share, the mean of the model's own probabilities, and that after Platt
            scaling (None without).
        """
        count = self.negative + self.positive
        ends = np.cumsum(count)
        if not len(ends):
            return []
        group = np.minimum((ends - count / 2) * GROUPS // ends[-1], GROUPS - 1).astype(np.int64)
        found: list[list[float | None]] = []
        for number in np.unique(group).tolist():
            inside = group == number
            weights, examples = count[inside], int(count[inside].sum())
            means = [
                None if one is None else float(weights @ expit(one.scale * self.values[inside] + one.shift)) / examples
                for one in (Platt(1.0, 0.0), platt)
            ]
            found.append([examples, float(self.positive[inside].sum()) / examples, *means])
        return found


def _entropy(negatives: int, positives: int) -> float | None:
    examples = negatives + positives
    if not examples:
        return None
    shares = np.array([count / examples for count in (negatives, positives) if count])
    return float(-(shares @ np.log(shares)))
