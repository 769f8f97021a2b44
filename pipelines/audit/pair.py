"""The worst-case pair of batches, and how one step of the engine makes hundreds of draws of it.

The pair.  Neighbouring batches differ in one example, the canary.  It touches one embedding row and one coordinate of
a dense layer, with a gradient far beyond the clipping norm in both: whether its row survives or not, what is left of
its gradient after the mask is clipped to exactly C2, and lies along a known direction.  No other example touches the
row, unless the threshold asks for them: then as many hold it, with gradients of zero, as let the canary decide
whether its count reaches the threshold (and then the row is never untouched, and an audit blind to what is done with
untouched rows).  So the map, the row and the dense gradient of *one* step are released together, each at its full
sensitivity.

The release.  Of one replica: whether its row survived, whether that came without noise (exactly zero), and the
projection of (row, dense coordinate) on the canary's direction, which is sufficient for the gradient.

Replicas.  A step holds `REPLICAS` such rows, each with its own canary, which a fair coin puts in or leaves out.  The
coins of the others have the same law in both worlds of a replica, so its release obeys the claim (differential privacy
is preserved by mixing).  Clipping acts on each example alone, the map and the noise on each row alone, and no two
replicas share a row or a coordinate: releases of one step are independent, given that noise on distinct coordinates
is, and steps draw fresh noise.

Exponential selection is the exception: m rows are drawn from all, so replicas compete.  Given the smallest score that
was drawn, the others are independent events conditioned on their number, which are negatively associated
(Joag-Dev and Proschan, 1983, Theorem 2.8): counts spread less than binomial ones, and the interval is too wide and not
too narrow.  That the score varies from step to step is left out of this argument; a test measures the spread of the
counts over steps.  (One draw a step would need 10^5 steps.)  The canary moves one utility of many, which is far from
the worst case of m draws, so this bound is loose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfest.algorithms import AdaFEST, Algorithm
from dpfest.engine import NoisedGradient, PrivateEngine
from dpfest.errors import UserError
from dpfest.noise import NoiseKey
from dpfest.reading import MicroBatch
from pipelines.audit.bound import Draws

REPLICAS = 512
"""Replicas of the pair in one step."""

ROWS = 2 * REPLICAS
"""Rows of the table: replicas have the odd ones, which are DP-FEST's set; nobody touches the even ones."""

DROPPED, SILENT, NOISED = range(3)
"""Kinds of release: the row did not survive; it did, with a gradient of exactly zero; it did."""

_OVERSHOOT = 10.0  # the canary's gradient over the clipping norm
_MOST_BYSTANDERS = 50

Batch = tuple[Tensor, Tensor, Tensor]
"""Row ``[b]``, dense input ``[b, REPLICAS]``, scale of the gradient ``[b]``."""

After = Callable[[NoisedGradient, Tensor], None]
"""Changes a release in place, given the rows that the batch touched."""


class Model(nn.Module):
    """The smallest model with a table and a dense layer: one weight a row, one a replica."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 1)
        self.dense = nn.Linear(REPLICAS, 1, bias=False)

    def forward(self, row: Tensor, inputs: Tensor) -> Tensor:
        """One score an example, ``[b]``."""
        return (self.table(row) + self.dense(inputs)).squeeze(1)


class Pair:
    """Draws releases of one algorithm in both worlds.

    Args:
        algorithm: its settings.
        noise: noise arguments of :class:`dpfest.engine.PrivateEngine`.
        key: of the noise and of the coins.
        after: what is done to a release before it is looked at; None for nothing.
        device: where the engine runs.

    Raises:
        UserError: the threshold needs more examples a row than an audit can hold.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        noise: Mapping[str, Any],
        key: NoiseKey,
        after: After | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self._bystanders = bystanders(algorithm)
        self._key, self._after = key, after
        self._scale = _OVERSHOOT * algorithm.clipping_norm
        self._rows = 2 * torch.arange(REPLICAS, device=device) + 1
        self._inputs = torch.eye(REPLICAS, device=device)
        model = Model().to(device)

        def losses(model: nn.Module, batch: Batch) -> Tensor:
            row, inputs, scale = batch
            return scale * model(row, inputs)

        selected = self._rows if algorithm.selection else None
        self._engine = PrivateEngine(model, algorithm, losses, key, selected=selected, **noise)

    def draws(self, count: int) -> Draws:
        """About ``count`` releases in each world, and as many steps as that takes."""
        steps = [self._step(step) for step in range(math.ceil(2 * count / REPLICAS))]
        world, kind, value = (np.concatenate(parts) for parts in zip(*steps, strict=True))
        return Draws(world, kind, value)

    def _step(self, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        coins = self._key.stream("audit coins", step).words(REPLICAS) < np.uint64(1 << 63)
        batch = self._batch(torch.from_numpy(coins).to(self._rows.device))
        gradient, _ = self._engine.gradient([MicroBatch(np.arange(len(batch[0])), batch)], step)
        if self._after is not None:
            self._after(gradient, torch.unique(batch[0]))
        kind, value = self._release(gradient)
        return coins, kind.cpu().numpy(), value.cpu().numpy()

    def _batch(self, present: Tensor) -> Batch:
        """The canaries that are present, then everyone's bystanders."""
        held = self._rows.repeat(self._bystanders)
        canaries = int(present.sum())
        inputs = self._inputs.new_zeros(canaries + len(held), REPLICAS)
        inputs[:canaries] = self._inputs[present]
        scale = self._inputs.new_zeros(len(inputs))
        scale[:canaries] = self._scale
        return torch.cat([self._rows[present], held]), inputs, scale

    def _release(self, gradient: NoisedGradient) -> tuple[Tensor, Tensor]:
        """Kind and projected value of every replica's release, ``[REPLICAS]`` each."""
        (table,) = gradient.tables
        (dense,) = gradient.dense.values()
        dense = dense.flatten()
        rows = torch.arange(ROWS, device=dense.device) if table.rows is None else table.rows
        survived = torch.zeros(ROWS, dtype=torch.bool, device=dense.device)
        survived[rows] = True
        values = dense.new_zeros(ROWS)
        values[rows] = table.values.flatten()
        row, alive = values[self._rows], survived[self._rows]
        kind = torch.where(alive, torch.where(row == 0, SILENT, NOISED), DROPPED)
        return kind, torch.where(alive, (row + dense) / math.sqrt(2), dense)


def bystanders(algorithm: Algorithm) -> int:
    """Examples besides the canary that hold its row, so that its count is over the threshold with it alone.

    Raises:
        UserError: they are too many, or the threshold is infinite.
    """
    if not isinstance(algorithm, AdaFEST):
        return 0
    share = min(1.0, algorithm.contribution_clipping_norm)
    if not -math.inf < algorithm.threshold / share <= _MOST_BYSTANDERS:
        raise UserError(
            f"algorithm.threshold={algorithm.threshold:g} is out of an audit's reach, up to {_MOST_BYSTANDERS} "
            f"examples a row at algorithm.contribution_clipping_norm={algorithm.contribution_clipping_norm:g}: set "
            "another; the law of the map depends on count minus threshold alone."
        )
    return max(0, math.ceil(algorithm.threshold / share) - 1)
