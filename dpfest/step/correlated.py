"""Noise on rows that is correlated over steps: independent draws, filtered by a banded strategy in whole numbers.

With ``a_k`` of :class:`dpfest.accounting.bands.Strategy`, a power of two g and independent ``z_t ~ N(0, (s |a|)^2)``,
rounded to multiples of ``g 2^-BITS``, a row's noise in step t is

    n_t = round(z_t - sum_{k=1}^{b-1} a_k n_{t-k}),

a multiple of g, with n = 0 before a period's first step. Halves are rounded up: ``x + round(n) = round(x + n)`` must
hold of them too, as it does not where they go to the even side. So all is exact: for sums X on the grid g, what a step
releases is ``X_t + n_t = round(Y_t - sum_k a_k (X_{t-k} + n_{t-k}))``, where ``Y_t = X_t + sum_k a_k X_{t-k} +
z_t``: a function of a rounded Gaussian release of Y and of earlier outputs.

The filter needs the noise of the b - 1 steps before: 4 bytes a coordinate and step, in memory. Each step depends on all
before it, so that to draw again instead would take all draws of the period: 2.9 ns each, where 4 bytes from memory take
0.4. What is kept is a function of key and steps, so no checkpoint has it: where another step is asked for than the next
one (after a restart), all draws from the period's first step on are repeated, each at the cost of a step's noise.
docs/PERFORMANCE.md has times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from dpfest import kernels
from dpfest.accounting.bands import BITS, Strategy
from dpfest.errors import UserError
from dpfest.gradients.parts import RowSums, Shard
from dpfest.kernels import Floats, Whole32
from dpfest.noise.box_muller import BLOCK, Scratch
from dpfest.noise.gaussian import Blocks, add_whole, blocks_of, on_threads
from dpfest.noise.key import NoiseKey
from dpfest.step.step_noise import Independent

# A variate of 192 bits lies within 16.4 deviations, 2^(25 - BITS) units each: int32 holds the sum of so many.
_MOST_RESPONSE = 2.0 ** (31 - 25 + BITS) / 16.4 / 1.01
_NEVER = 1 << 62  # more steps than any


class Correlated(Independent):
    """Independent noise on dense parameters; on rows, noise that is correlated over steps.

    Args:
        deviation: s: of a dense coordinate's noise, and of a row's in the joint release (the sensitivity's own unit).
        strategy: of the rows.
        steps: of the period, at most.

    Formal guarantee: statement 2.8 of docs/PRIVACY.md. The rows must be the same in every step, which is enforced; an
    example may take part in one of any b consecutive steps, which is for
    :class:`dpfest.planning.other_samplers.CyclicPoisson`.

    Raises:
        ValueError: the filter could leave the range of its whole numbers.
    """

    def __init__(self, deviation: float, strategy: Strategy, steps: int) -> None:
        super().__init__(deviation)
        self.strategy, self.steps = strategy, steps
        if np.abs(strategy.response(min(steps, 1 << 20))).sum() > _MOST_RESPONSE:
            raise ValueError(f"the noise of coefficients {strategy.coefficients} may exceed 32 bits")
        self._rows: dict[NoiseKey, _Filter] = {}

    def settle(self, shards: Sequence[Shard], key: NoiseKey) -> None:
        """Forget the noise of shards that are no longer there."""
        present = {shard.key for shard in shards}
        self._rows = {key: one for key, one in self._rows.items() if key in present}

    def on_rows(self, shard: Shard, sums: RowSums, step: int) -> None:
        """See :meth:`dpfest.gradients.parts.Noise.on_rows`: one draw of the shard's key, filtered with those before.

        Raises:
            UserError: the rows are not those of the steps before.
        """
        rows = sums.survivors.rows
        if (known := self._rows.get(shard.key)) is None:
            known = self._rows[shard.key] = _Filter(self, sums)
        known.refuse_other(rows, sums.flat.numel())
        known.add(sums.flat, shard.key, step, self.strategy.grid(self.deviation))


class _Filter:
    """The noise of one shard's rows, step after step.

    Noise is a function of key and step alone, so each step draws b - 1 steps' noise of a share of the blocks, b - 1
    shares in turn: what a block needs of the past then comes from the cache, but once in b - 1 steps. A step's noise
    takes the place of that of b - 1 steps before.
    """

    def __init__(self, correlated: Correlated, sums: RowSums) -> None:
        strategy = correlated.strategy
        self._deviation, self._steps = correlated.deviation * strategy.norm, correlated.steps
        self._rows, self._count, self._places = sums.survivors.rows, sums.flat.numel(), sums.places
        weights = np.trim_zeros(np.array(strategy.coefficients[1:], dtype=np.float64), "b")
        weights = weights if len(weights) else np.zeros(1)
        self._lags = len(weights)
        self._weights = [np.roll(weights[::-1], slot) for slot in range(self._lags)]  # of each slot, by the oldest's
        self._past = np.empty((self._lags, self._count), dtype=np.int32)  # the noise of step t in slot t mod lags
        self._drawn = [0] * -(-self._count // BLOCK)  # steps of each block; _NEVER if what is there is of no use

    def refuse_other(self, rows: Tensor | None, count: int) -> None:
        """Raise UserError for other rows: their noise in earlier steps was none that this filter could take back."""
        same = rows is self._rows or (rows is not None and self._rows is not None and torch.equal(rows, self._rows))
        if not same or count != self._count:
            raise UserError("Noise is correlated over steps for a fixed set of rows, and this step has other rows.")

    def add(self, values: Tensor, key: NoiseKey, step: int, size: float) -> None:
        """Add the noise of a step, in units of ``size``, to contiguous ``values``: a function of key and step."""

        def work(begin: int, end: int, scratch: Scratch) -> None:
            @cache
            def of_step(number: int) -> Blocks:
                return blocks_of(key.stream("row noise", number), self._count, self._deviation, self._places)

            for block in range(begin, end):
                drawn = self._drawn[block]
                if drawn - self._lags > step:  # that of later steps took its place
                    drawn = 0
                if drawn <= step:
                    share = (block - begin) * self._lags // (end - begin)
                    ahead = step + 1 + (share - step - 1) % self._lags
                    self._draw(block, range(drawn, max(min(ahead, self._steps), step + 1)), of_step, scratch)
            part = slice(begin * BLOCK, min(end * BLOCK, self._count))
            add_whole(values.view(-1)[part], self._past[step % self._lags, part], size)

        on_threads(self._count, work)

    def _draw(self, block: int, steps: range, of_step: Callable[[int], Blocks], scratch: Scratch) -> None:
        """Draw a block's noise of steps that follow on those drawn, or are a period's first."""
        self._drawn[block] = _NEVER  # until all of it is written
        first = block * BLOCK
        if steps.start == 0:
            self._past[:, first : first + BLOCK] = 0
        for step in steps:
            slot = step % self._lags
            _filter_units(of_step(step).draw(block, scratch), self._past, first, slot, self._weights[slot])
        self._drawn[block] = steps.stop


def _filter_units(units: Floats, past: Whole32, first: int, slot: int, weights: Floats) -> None:
    """Replace the oldest noise by that of the next step, ``round((units - weights @ past) / 2^BITS)``, halves up.

    Args:
        units: whole numbers ``[n]``; are written over.
        past: noise of the steps before, ``[slots, count]``.
        first: number of the coordinate that ``units[0]`` is for.
        slot: place of the oldest.
        weights: coefficient of each slot, in units of ``2^-BITS``.
    """
    if kernels.library:
        return kernels.filter_units(units, past, first, slot, weights, BITS)
    part = past[:, first : first + len(units)]
    for weight, noise in zip(weights, part, strict=True):
        units -= weight * noise
    units += 2.0 ** (BITS - 1)
    units *= 2.0**-BITS
    part[slot] = np.floor(units, out=units)
