"""Divergence: the one failure that a private search may count as the worst score.

Whatever decides which run a search releases must be covered by epsilon, and so must the failure of a run, if the search
goes on without it. Divergence is: it is a function of released weights, and of validation and test rows, which epsilon
does not cover. No other failure is. An error that a training batch can cause, such as one where an example's loss
overflows, would tell neighbouring data sets apart for sure: with that example every run would fail, without it none.
So steps do not fail where gradients overflow (such an example counts as zero,
:class:`dpfest.gradients.clipped_sum.ClippedSum`), and any other failure stops the search until the run is made.
"""

from __future__ import annotations

import math

from dpfest.errors import UserError


class Diverged(UserError):
    """The weights of a run are not finite, or neither are its scores on held-out rows."""


def refuse_infinite_loss(loss: float) -> None:
    """Refuse a loss over held-out rows that is not finite.

    Raises:
        Diverged: it is not.
    """
    if not math.isfinite(loss):
        raise Diverged(
            "The model's loss on held-out rows is not finite: lower optimizer.dense.learning_rate or "
            "optimizer.tables.learning_rate."
        )
