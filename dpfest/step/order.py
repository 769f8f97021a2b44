"""One private step: the only place of its order.

The order is the paper's (Ghazi et al., 2023, Algorithm 1): choose rows; zero all others in every example's gradient;
clip the whole gradient, surviving rows and dense parameters together, to ``C2``; sum; add noise of standard deviation
``C2 * sigma_2`` to every coordinate of every surviving row, touched or not, and of every dense parameter. What follows
is post-processing.

One process is one shard that holds all rows under the run's own key. Where rows lie, and when their noise is drawn, is
a matter of the parts (:mod:`dpfest.gradients.parts`); which rows survive, of the algorithm
(:mod:`dpfest.algorithms.rules`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from dpfest.accounting.accountant import Event
from dpfest.algorithms.algorithm import INDEPENDENT, Algorithm
from dpfest.errors import UserError
from dpfest.gradients.batch import LogicalBatch
from dpfest.gradients.clipped_sum import clipped_sum
from dpfest.gradients.parts import Diagnostics, Noise, NoisedGradient, Rows, Shard
from dpfest.gradients.tables import Survivors


def private_step(
    batch: LogicalBatch,
    algorithm: Algorithm,
    rows: Rows,
    noise: Noise,
    cost: Event | None,
    expected_batch_size: float | None,
    check: Callable[[], None] = lambda: None,
) -> tuple[NoisedGradient, Diagnostics]:
    """Return the noised gradient of a batch, and private diagnostics.

    Args:
        batch: what this process holds of it.
        algorithm: its choice of rows, and ``C2``.
        rows: where rows lie.
        noise: on the gradient.
        cost: the event that is accounted for, with the noise multipliers of the choice of rows; None without a
            guarantee.
        expected_batch_size: divisor of the noised sum; None divides by the actual size, which is private.
        check: refuses the batch; called when its rows can be looked up, before anything is drawn.

    Formal guarantee: see :class:`dpfest.step.engine.PrivateEngine`.
    """
    step = batch.step
    shards = rows.ask(batch)
    noise.settle(shards, rows.key)
    with rows.readable():
        check()
        measured = algorithm.measure(batch, rows, shards, cost)
        chosen = [
            _chosen(algorithm, noise, shard, found, cost, step) for shard, found in zip(shards, measured, strict=True)
        ]
        quantum = rows.quantum(noise.grid)
        sums = clipped_sum(batch, rows.mask(chosen), algorithm.clipping_norm, dtype=rows.sum_dtype, quantum=quantum)
    own, dense = rows.reduce(sums, chosen)
    for shard, of_rows in zip(shards, own, strict=True):
        noise.on_rows(shard, of_rows, step)
    noise.on_dense(dense, rows.key, step)

    if noise.deviation > 0:
        own = [algorithm.kept(_blind(at), one, noise.deviation, step) for at, one in zip(shards, own, strict=True)]
    counts = [sum(shape[0] for shape in shapes) for shapes in zip(*(one.survivors.shapes for one in own), strict=True)]
    *per_table, units, examples, loss, broken = rows.totals(
        [*counts, batch.units, batch.examples, sums.loss, sums.broken]
    )
    divisor = expected_batch_size or max(units, 1.0)
    release = NoisedGradient(
        dense=rows.joined_dense(dense, divisor),
        tables=rows.joined(own, divisor),
        rows_per_table=list(batch.recorder.layout.rows) if noise.deferred else [int(count) for count in per_table],
        pending=noise.deviation / divisor if noise.deferred else 0.0,
    )
    return release, Diagnostics(int(examples), loss / examples if examples else math.nan, int(broken))


def _chosen(
    algorithm: Algorithm, noise: Noise, shard: Shard, measured: Tensor | None, cost: Event | None, step: int
) -> Survivors:
    """Return the survivors of a shard, as far as the step itself must noise them.

    Where every row survives, and those that no example touched (noise alone) are drawn later or by the algorithm, they
    are left to that.
    """
    seen = _blind(shard) if algorithm.choice == INDEPENDENT else shard
    rows = algorithm.survivors(seen, measured, cost, step)
    if rows is None and (noise.deferred or algorithm.draws_untouched):
        rows = shard.touched()
    return Survivors(shard.layout, rows)


def _blind(shard: Shard) -> Shard:
    """Return the shard without what the batch touches in it."""
    return shard._replace(touched=_untold)


def _untold() -> Tensor:
    raise UserError(
        "An algorithm asks what the batch touches where nothing pays for the answer: where its choice of rows is "
        "independent of the batch, or in kept(). Let its choice be BY_EVENT, and state the cost in its step_event."
    )
