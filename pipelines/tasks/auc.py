"""Area under the ROC curve in fixed memory, for any number of scores."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pipelines.tasks.calibration import Scores
from pipelines.tasks.diverged import Diverged

_KEPT_BITS = 20


def refuse_not_finite(scores: NDArray[np.floating]) -> None:
    """Raise Diverged if a score is not finite."""
    if not np.isfinite(scores).all():
        raise Diverged(
            "The model gives scores that are not finite: lower optimizer.dense.learning_rate or "
            "optimizer.tables.learning_rate."
        )


class RocAuc:
    """Counts scores per label in 2^20 bins and ranks the bins.

    A bin holds the float32 scores with the same sign, exponent and 11 leading bits of the fraction: they differ by less
    than 1 part in 2,000 and count as equal, which changes the area in its seventh digit.
    """

    def __init__(self) -> None:
        self.counts = np.zeros((2, 1 << _KEPT_BITS), np.int64)

    def add(self, labels: NDArray[np.floating], scores: NDArray[np.float32]) -> None:
        """Add examples: labels (0 or 1) and scores of shape [n] each.

        Raises:
            Diverged: a score is not finite.
        """
        refuse_not_finite(scores)
        bits = np.ascontiguousarray(scores + np.float32(0)).view(np.uint32)  # -0.0 becomes 0.0
        # Order floats as unsigned integers: flip all bits of negative ones, and the sign bit of others.
        ordered = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
        np.add.at(self.counts, (labels.astype(np.int64), ordered >> (32 - _KEPT_BITS)), 1)

    @property
    def scores(self) -> Scores:
        """The scores counted, each as the middle of its bin."""
        bins = np.flatnonzero(self.counts.any(axis=0))
        ordered = (bins.astype(np.uint32) << (32 - _KEPT_BITS)) | np.uint32(1 << (31 - _KEPT_BITS))
        bits = np.where(ordered >> 31, ordered & np.uint32((1 << 31) - 1), ~ordered)
        return Scores(bits.view(np.float32).astype(np.float64), *self.counts[:, bins])

    @property
    def examples(self) -> int:
        """Number of examples."""
        return int(self.counts.sum())

    @property
    def value(self) -> float | None:
        """Probability that a positive scores above a negative one, ties counted half; None without one of each."""
        return self.estimate[0]

    @property
    def estimate(self) -> tuple[float | None, float | None]:
        """The value, and its standard error over a finite sample (Hanley and McNeil, 1982, equation 1)."""
        bins = np.flatnonzero(self.counts.any(axis=0))
        negative, positive = self.counts[:, bins]
        negatives, positives = int(negative.sum()), int(positive.sum())
        if not negatives * positives:
            return None, None
        below = np.cumsum(negative) - negative
        auc = float((positive * (below + 0.5 * negative)).sum() / (negatives * positives))
        both_positive, both_negative = auc / (2 - auc), 2 * auc**2 / (1 + auc)
        variance = auc * (1 - auc)
        variance += (positives - 1) * (both_positive - auc**2) + (negatives - 1) * (both_negative - auc**2)
        return auc, math.sqrt(variance / (positives * negatives))
