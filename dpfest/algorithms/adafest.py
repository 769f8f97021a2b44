"""DP-AdaFEST and DP-AdaFEST+: rows are chosen in every batch by a noisy, thresholded contribution map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING

from torch import Tensor

from dpfest.accounting.accountant import Event, split_noise
from dpfest.algorithms.algorithm import PrivateAlgorithm, stated
from dpfest.gradients.parts import Rows, Shard
from dpfest.noise.gaussian import gaussian_grid
from dpfest.selection.survivors import surviving_rows
from dpfest.selection.topk import SelectionConfig

if TYPE_CHECKING:
    from dpfest.gradients.batch import LogicalBatch


@dataclass(frozen=True)
class AdaFEST(PrivateAlgorithm):
    """DP-AdaFEST (Ghazi et al., 2023, Algorithm 1): in each batch, rows whose noisy contribution reaches a threshold.

    Attributes:
        contribution_clipping_norm: ``C1``, the l2 norm to which an example's contribution map is clipped.
        threshold: ``tau``, in units of the clipped map; minus infinity keeps every row.
        noise_ratio: ``sigma_1 / sigma_2``.
    """

    name: str = "adafest"
    contribution_clipping_norm: float = 1.0
    threshold: float = 20.0
    noise_ratio: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.threshold, Real) or math.isnan(self.threshold):
            raise ValueError(f"threshold={self.threshold} must be a number")

    def measure(
        self, batch: LogicalBatch, rows: Rows, shards: Sequence[Shard], cost: Event | None
    ) -> Sequence[Tensor | None]:
        """Return the sums of the examples' clipped contribution maps at touched rows; 0 outside of a selected set."""
        grid = gaussian_grid(self._map_deviation(cost))
        return rows.total(batch.contributions().clipped(self.contribution_clipping_norm, grid, rows.selected))

    def survivors(self, shard: Shard, measured: Tensor | None, cost: Event | None, step: int) -> Tensor | None:
        """Return the rows that reach the noisy threshold, within the selected set if there is one."""
        assert measured is not None
        return surviving_rows(
            shard.touched(),
            measured,
            shard.key.stream("map", step),
            universe=shard.layout.total_rows,
            selected=shard.selected,
            threshold=self.threshold,
            deviation=self._map_deviation(cost),
        )

    def _map_deviation(self, cost: Event | None) -> float:
        sigma = stated(self, cost, "map_noise_multiplier")
        return sigma * self.contribution_clipping_norm

    def step_event(self, noise_multiplier: float, sampling_probability: float) -> Event:
        """Return one Gaussian release: map and gradient share a sample, combined before subsampling."""
        sigma_1, sigma_2 = split_noise(noise_multiplier, self.noise_ratio)
        combined = super().step_event(noise_multiplier, sampling_probability)
        return replace(combined, map_noise_multiplier=sigma_1, gradient_noise_multiplier=sigma_2)


@dataclass(frozen=True)
class AdaFESTPlus(AdaFEST):
    """DP-AdaFEST+ (Ghazi et al., 2023, section 4.2): DP-AdaFEST within the row set selected by DP-FEST."""

    name: str = "adafest_plus"
    selection: SelectionConfig = field(default_factory=SelectionConfig)  # type: ignore[misc]
