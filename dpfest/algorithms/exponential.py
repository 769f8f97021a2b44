"""DP-SGD with exponential selection: the baseline that draws rows by the norm of their gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from dpfest.accounting.accountant import Event
from dpfest.algorithms.algorithm import PrivateAlgorithm, stated
from dpfest.errors import UserError
from dpfest.gradients.clipped_sum import clipped_sum
from dpfest.gradients.parts import Rows, Shard
from dpfest.gradients.tables import Survivors
from dpfest.noise.gaussian import ROUNDING_ALLOWANCE
from dpfest.selection.exponential import draw_rows

if TYPE_CHECKING:
    from dpfest.gradients.batch import LogicalBatch


@dataclass(frozen=True)
class Exponential(PrivateAlgorithm):
    """DP-SGD with exponential selection (Zhang et al., 2021): rows drawn by the norm of their gradient.

    Attributes:
        selection_clipping_norm: ``S1``, to which an example's embedding gradient is clipped before rows are scored.
        rows_per_step: ``m``, number of rows drawn in each step.
        noise_ratio: ``r``, which splits the budget as in DP-AdaFEST: m draws at a small epsilon cost as much as a
            Gaussian of noise multiplier ``1 / (sqrt(m) epsilon)``, so a row costs ``1 / (r * sigma_2 * sqrt(m))``.

    Formal guarantee: a row's utility, the norm of the clipped sum, has sensitivity ``S1`` under add-or-remove-one
    adjacency, so the m largest utilities under Gumbel noise of scale ``2 * S1 / epsilon_0`` are m draws of the
    exponential mechanism without replacement, each ``epsilon_0``-DP given those before it (Durfee and Rogers, 2019).
    The scale is larger by ``ROUNDING_ALLOWANCE``, far more than what rounding adds to the sensitivity.
    """

    joint: ClassVar[bool] = True
    name: str = "exponential"
    selection_clipping_norm: float = 1.0
    rows_per_step: int = 100
    noise_ratio: float = 5.0

    def measure(
        self, batch: LogicalBatch, rows: Rows, shards: Sequence[Shard], cost: Event | None
    ) -> Sequence[Tensor | None]:
        """Return the norm of each touched row's summed gradient, of examples clipped to ``S1``.

        Sums are float64: what the rounding of the others' sum moves when one example is added or removed is below
        2^-52 of it.
        """
        touched = [Survivors(shard.layout, shard.touched()) for shard in shards]
        norm, quantum = self.selection_clipping_norm, rows.quantum(0.0)
        sums = clipped_sum(batch, rows.mask(touched), norm, dtype=torch.float64, quantum=quantum, with_dense=False)
        of_shards, _ = rows.reduce(sums, touched)
        return [torch.cat([torch.linalg.vector_norm(table, dim=1) for table in own.tables]) for own in of_shards]

    def survivors(self, shard: Shard, measured: Tensor | None, cost: Event | None, step: int) -> Tensor | None:
        """Return the drawn rows."""
        assert measured is not None
        epsilon = stated(self, cost, "epsilon_per_draw")
        chosen = draw_rows(
            shard.touched().cpu().numpy(),
            measured.cpu().numpy(),
            universe=shard.layout.total_rows,
            count=self.rows_per_step,
            scale=2 * self.selection_clipping_norm * (1 + ROUNDING_ALLOWANCE) / epsilon,
            stream=shard.key.stream("exponential selection", step),
        )
        return torch.from_numpy(chosen).to(shard.device)

    def step_event(self, noise_multiplier: float, sampling_probability: float) -> Event:
        """Return the m draws together with a Gaussian release of the gradient on the drawn rows."""
        cost = 1 / (self.noise_ratio * noise_multiplier * math.sqrt(self.rows_per_step))
        gradient = super().step_event(noise_multiplier, sampling_probability)
        return replace(gradient, kind="exponential_selection", draws=self.rows_per_step, epsilon_per_draw=cost)

    def refuse_tables(self, rows: int) -> None:
        """Refuse to draw more rows than there are."""
        if self.rows_per_step > rows:
            raise UserError(f"rows_per_step={self.rows_per_step} is more than the {rows} rows of all tables.")
