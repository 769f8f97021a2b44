"""The worst-case pair of neighbouring batches, of which one step of the engine makes hundreds of draws.

The pair.  Neighbouring batches differ in one example, the canary.  It touches one embedding row and one coordinate of a
dense layer, with gradients far beyond the clipping norm in both.  Whether or not its row survives, the rest of its
gradient after the mask is therefore clipped to exactly C2, along a known direction.  No other example touches the row,
unless the threshold requires it: then other examples with zero gradients touch it, just as many that the canary decides
whether its count reaches the threshold.  (Then the row is never untouched, and the audit cannot see what happens to
untouched rows.)  The map, the row and the dense gradient of *one* step are thus released together, each at its full
sensitivity.

The release.  For each replica: whether its row survived, whether it has no noise (exactly zero), and the projection of
(row, dense coordinate) on the canary's direction, a sufficient statistic of the gradient.

The unit.  Where the unit of privacy is not an example, the canary is a unit of as many such examples as a step reads of
one.  Clipped together they weigh as one example does; clipped each on its own they would weigh as many.

Correlated noise.  With `bands` a release is that of b steps from a training's first on, in the first of which the
canary takes part: its row moves in all of them.  The rows' releases are filtered back, Y_t = sum_k a_k O_{t-k}, in
which the canary has the share a_t; their sum weighted with these shares is a sufficient statistic.

Replicas.  A step holds `REPLICAS` such rows, each with its own canary, which a fair coin includes or leaves out.  The
coins of the other replicas have the same law in both worlds of a replica, so its release obeys the claim (differential
privacy is preserved by mixing).  Clipping acts on each example separately, map and noise act on each row separately,
and no two replicas share a row or a coordinate.  Releases of one step are therefore independent if noise on distinct
coordinates is; steps draw fresh noise.

Exponential selection is the exception: m rows are drawn from all, so replicas compete.  Given the smallest score drawn,
the draws of the others are independent events conditioned on their number, which are negatively associated (Joag-Dev
and Proschan, 1983, Theorem 2.8): counts spread less than binomial ones, so the interval is too wide rather than too
narrow. This argument ignores that the smallest score varies between steps; a test measures the spread of the counts
over steps. (One draw per step would need 10^5 steps.)  The canary moves one utility of many, far from the worst case of
m draws, so the bound is loose.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dpfest.accounting.accountant import Event
from dpfest.accounting.bands import strategy
from dpfest.algorithms.adafest import AdaFEST
from dpfest.algorithms.algorithm import Algorithm
from dpfest.errors import UserError
from dpfest.gradients.parts import NoisedGradient
from dpfest.gradients.reading import MicroBatch
from dpfest.gradients.units import UnitConfig
from dpfest.noise.key import NoiseKey
from dpfest.step.engine import PrivateEngine
from pipelines.audit.bound import Draws

REPLICAS = 512
"""Replicas of the pair in one step."""

ROWS = 2 * REPLICAS
"""Rows of the table: odd rows belong to replicas and form DP-FEST's set; no example touches the even ones."""

DROPPED, SILENT, NOISED = range(3)
"""Kinds of release: the row did not survive; it survived with a gradient of exactly zero; it survived with noise."""

_OVERSHOOT = 10.0  # the canary's gradient over the clipping norm
_MOST_BYSTANDERS = 50

Batch = tuple[Tensor, Tensor, Tensor]
"""Row ``[b]``, dense input ``[b, REPLICAS]``, scale of the gradient ``[b]``."""

After = Callable[[NoisedGradient, Tensor], None]
"""Changes a release in place, given the rows that the batch touched."""


class Model(nn.Module):
    """The smallest model with a table and a dense layer: one weight per row and one per replica."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 1)
        self.dense = nn.Linear(REPLICAS, 1, bias=False)

    def forward(self, row: Tensor, inputs: Tensor) -> Tensor:
        """Return one score per example, ``[b]``."""
        return (self.table(row) + self.dense(inputs)).squeeze(1)


class _Release(NamedTuple):
    """Kind, row and dense coordinate of every replica's release, ``[REPLICAS]`` each."""

    kind: Tensor
    row: Tensor
    dense: Tensor


class Pair:
    """Draws releases of one algorithm in both worlds.

    Args:
        algorithm: settings of the algorithm.
        cost: the event whose noise the engine adds.
        key: key of the noise and of the coins.
        device: device of the engine.
        unit: the unit of privacy; None for an example.
        ignored: whether the engine clips and counts each example of a unit on its own.
        noise: changes the event whose noise the engine adds.
        after: changes a release before it is examined; None for no change.
        spoil: changes the engine.
        every_step: whether canaries take part in all steps over which noise is correlated.

    Raises:
        UserError: the threshold needs more examples per row than an audit can hold.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        cost: Event,
        key: NoiseKey,
        device: torch.device | str = "cpu",
        unit: UnitConfig | None = None,
        ignored: bool = False,
        noise: Callable[[Event], Event] = lambda event: event,
        after: After | None = None,
        spoil: Callable[[PrivateEngine], None] = lambda engine: None,
        every_step: bool = False,
    ) -> None:
        self._unit, self._ignored, self._every_step = unit, ignored, every_step
        shares = strategy(algorithm.bands, algorithm.bands).coefficients if algorithm.bands else (1,)
        self._shares = [share / shares[0] for share in shares]
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
        clipped = None if ignored else unit
        self._engine = PrivateEngine(
            model, algorithm, losses, key, cost=noise(cost), expected_batch_size=1.0, selected=selected, unit=clipped,
            steps=len(shares),
        )  # fmt: skip
        spoil(self._engine)

    def draws(self, count: int) -> Draws:
        """Return about ``count`` releases in each world, from as many steps as that takes."""
        steps = [self._step(step) for step in range(math.ceil(2 * count / REPLICAS))]
        world, kind, value = (np.concatenate(parts) for parts in zip(*steps, strict=True))
        return Draws(world, kind, value)

    def _step(self, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        coins = self._key.stream("audit coins", step).words(REPLICAS) < np.uint64(1 << 63)
        batch = self._batch(torch.from_numpy(coins).to(self._rows.device))
        own = [self._microbatch(batch, int(coins.sum()))]
        if len(self._shares) == 1:
            releases = [self._released(own, step)]
        else:
            self._engine.key = self._key.derive("audited steps", step)
            releases = [self._released(own if not t or self._every_step else [], t) for t in range(len(self._shares))]
        kind, dense = releases[0].kind, releases[0].dense
        row = self._filtered_back([one.row for one in releases])
        value = torch.where(kind == DROPPED, dense, (row + dense) / math.sqrt(2))
        return coins, kind.cpu().numpy(), value.cpu().numpy()

    def _released(self, microbatches: list[MicroBatch], step: int) -> _Release:
        gradient, _ = self._engine.gradient(microbatches, step)
        if self._after is not None:
            touched = [part.data[0] for part in microbatches]
            self._after(gradient, torch.unique(torch.cat([self._rows[:0], *touched])))
        return self._release(gradient)

    def _filtered_back(self, rows: list[Tensor]) -> Tensor:
        """Return what the rows' releases of consecutive steps say of a canary in the first: of the row's deviation."""
        shares = torch.tensor(self._shares, dtype=rows[0].dtype, device=rows[0].device)
        released = torch.stack(rows)
        joint = [(shares[: t + 1, None] * released[: t + 1].flip(0)).sum(0) for t in range(len(rows))]
        return (shares[:, None] * torch.stack(joint)).sum(0) / shares.square().sum()

    def _microbatch(self, batch: Batch, canaries: int) -> MicroBatch:
        """Return a batch whose first examples are canaries: units of several examples, if that is the unit."""
        numbers = np.arange(len(batch[0]))
        if self._unit is None:
            return MicroBatch(numbers, batch)
        of = np.repeat(numbers, np.where(numbers < canaries, self._unit.max_examples, 1))
        row, inputs, scale = (part[torch.from_numpy(of).to(part.device)] for part in batch)
        return MicroBatch(np.arange(len(of)), (row, inputs, scale), None if self._ignored else of)

    def _batch(self, present: Tensor) -> Batch:
        """Return the canaries that are present, then the bystanders of all replicas."""
        held = self._rows.repeat(self._bystanders)
        canaries = int(present.sum())
        inputs = self._inputs.new_zeros(canaries + len(held), REPLICAS)
        inputs[:canaries] = self._inputs[present]
        scale = self._inputs.new_zeros(len(inputs))
        scale[:canaries] = self._scale
        return torch.cat([self._rows[present], held]), inputs, scale

    def _release(self, gradient: NoisedGradient) -> _Release:
        """Return every replica's release of one step."""
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
        return _Release(kind, row, dense)


def bystanders(algorithm: Algorithm) -> int:
    """Return the number of other examples that touch the canary's row, so that the canary decides whether its count
    reaches the threshold.

    Raises:
        UserError: they are too many, or the threshold is infinite.
    """
    if not isinstance(algorithm, AdaFEST):
        return 0
    share = min(1.0, algorithm.contribution_clipping_norm)
    if not -math.inf < algorithm.threshold / share <= _MOST_BYSTANDERS:
        raise UserError(
            f"algorithm.threshold={algorithm.threshold:g} cannot be audited: an audit holds up to {_MOST_BYSTANDERS} "
            f"examples per row at algorithm.contribution_clipping_norm={algorithm.contribution_clipping_norm:g}. Set a "
            "smaller one: the law of the map depends only on count minus threshold."
        )
    return max(0, math.ceil(algorithm.threshold / share) - 1)
