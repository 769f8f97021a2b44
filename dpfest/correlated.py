"""Noise on rows that is correlated over steps: independent draws, filtered by a banded strategy in whole numbers.

With ``a_k`` of :class:`dpfest.bands.Strategy`, a power of two g and independent ``z_t ~ N(0, (s |a|)^2)``, rounded to
multiples of ``g 2^-BITS``, a row's noise in step t is

    n_t = round(z_t - sum_{k=1}^{b-1} a_k n_{t-k}),

a multiple of g, with n = 0 before a period's first step. Halves are rounded up: ``x + round(n) = round(x + n)`` must
hold of them too, as it does not where they go to the even side. So all is exact: for sums X on the grid g, what a step
releases is ``X_t + n_t = round(Y_t - sum_k a_k (X_{t-k} + n_{t-k}))``, where ``Y_t = X_t + sum_k a_k X_{t-k} +
z_t``: a function of a rounded Gaussian release of Y and of earlier outputs.

The filter needs the noise of the b - 1 steps before: 4 bytes a coordinate and step, in memory. It is a function of key
and steps, so no checkpoint has it: where another step is asked for than the next one (after a restart), all draws from
the period's first step on are repeated, each at the cost of a step's noise. On two busy cores that is 7 ns a coordinate
with 2 bands, 12 with 4 and 17 with 8 or 16, where independent noise takes 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfest.bands import BITS, Strategy
from dpfest.errors import UserError
from dpfest.gaussian import add_whole, draw_blocks
from dpfest.kernels import Floats
from dpfest.noise import NoiseKey
from dpfest.parts import RowSums, Shard
from dpfest.step_noise import Independent

# A variate of 192 bits lies within 16.4 deviations, 2^(25 - BITS) units each: int32 holds the sum of so many.
_MOST_RESPONSE = 2.0 ** (31 - 25 + BITS) / 16.4 / 1.01


class Correlated(Independent):
    """Independent noise on dense parameters; on rows, noise that is correlated over steps.

    Args:
        deviation: s: of a dense coordinate's noise, and of a row's in the joint release (the sensitivity's own unit).
        strategy: of the rows.
        steps: of the period, at most.

    Formal guarantee: statement 2.8 of docs/PRIVACY.md. The rows must be the same in every step, which is enforced; an
    example may take part in one of any b consecutive steps, which is for :class:`dpfest.sampling.CyclicPoisson`.

    Raises:
        ValueError: the filter could leave the range of its whole numbers.
    """

    def __init__(self, deviation: float, strategy: Strategy, steps: int) -> None:
        super().__init__(deviation)
        self.strategy = strategy
        if np.abs(strategy.response(min(steps, 1 << 20))).sum() > _MOST_RESPONSE:
            raise ValueError(f"the noise of coefficients {strategy.coefficients} may exceed 32 bits")
        self._rows: dict[bytes, _Filter] = {}

    def settle(self, shards: Sequence[Shard], key: NoiseKey) -> None:
        """Forget the noise of shards that are no longer there."""
        present = {shard.key.secret for shard in shards}
        self._rows = {secret: one for secret, one in self._rows.items() if secret in present}

    def on_rows(self, shard: Shard, sums: RowSums, step: int) -> None:
        """See :meth:`dpfest.parts.Noise.on_rows`: one draw of the shard's key, filtered with those before.

        Raises:
            UserError: the rows are not those of the steps before.
        """
        secret, rows = shard.key.secret, sums.survivors.rows
        if (known := self._rows.get(secret)) is None:
            known = self._rows[secret] = _Filter(self.strategy, self.deviation, rows, sums.flat.numel())
        known.refuse_other(rows, sums.flat.numel())
        add_whole(sums.flat, known.noise(shard.key, step), self.strategy.grid(self.deviation))


class _Filter:
    """The noise of one shard's rows, step after step."""

    def __init__(self, strategy: Strategy, deviation: float, rows: Tensor | None, count: int) -> None:
        self._weights = [float(a) for a in strategy.coefficients[1:]]
        self._deviation, self._rows, self._count = deviation * strategy.norm, rows, count
        self._restart()

    def _restart(self) -> None:
        self._next = 0
        self._past: deque[NDArray[np.int32]] = deque(maxlen=len(self._weights))  # the latest first

    def refuse_other(self, rows: Tensor | None, count: int) -> None:
        """Raise UserError for other rows: their noise in earlier steps was none that this filter could take back."""
        same = rows is self._rows or (rows is not None and self._rows is not None and torch.equal(rows, self._rows))
        if not same or count != self._count:
            raise UserError("Noise is correlated over steps for a fixed set of rows, and this step has other rows.")

    def noise(self, key: NoiseKey, step: int) -> NDArray[np.int32]:
        """Return the noise of a step, in units of the grid, ``[count]``: a function of key and step."""
        if not self._next - 1 <= step:
            self._restart()
        try:
            while self._next <= step:
                self._past.appendleft(self._filtered(key, self._next))
                self._next += 1
        except BaseException:  # half of a step's noise may have been written over that of another
            self._restart()
            raise
        return self._past[0]

    def _filtered(self, key: NoiseKey, step: int) -> NDArray[np.int32]:
        full = len(self._past) == len(self._weights)
        found = self._past[-1] if full else np.empty(self._count, dtype=np.int32)  # the oldest is needed no more

        def use(start: int, units: Floats, scratch: Floats) -> None:
            part = slice(start, start + len(units))
            for weight, past in zip(self._weights, self._past, strict=False):  # none before the first step
                np.multiply(past[part], weight, out=scratch)
                units -= scratch
            units += 2.0 ** (BITS - 1)
            units *= 2.0**-BITS
            np.floor(units, out=units)
            found[part] = units

        draw_blocks(key.stream("row noise", step), self._count, self._deviation, use)
        return found
