"""The private algorithms, one small class each; :mod:`dpfest.algorithms.algorithm` says what an algorithm is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from dpfest.accounting.accountant import Event, split_noise
from dpfest.accounting.bands import refuse_bands
from dpfest.algorithms.algorithm import INDEPENDENT, Algorithm, PrivateAlgorithm
from dpfest.errors import UserError
from dpfest.gradients.clipped_sum import clipped_sum
from dpfest.gradients.parts import Rows, RowSums, Shard
from dpfest.gradients.tables import Survivors
from dpfest.noise.gaussian import ROUNDING_ALLOWANCE, gaussian_grid
from dpfest.selection.survivors import draw_rows, surviving_rows
from dpfest.selection.thresholding import keep_long_rows
from dpfest.selection.topk import SelectionConfig

if TYPE_CHECKING:
    from dpfest.gradients.batch import LogicalBatch


@dataclass(frozen=True)
class DPSGD(PrivateAlgorithm):
    """DP-SGD (Abadi et al., 2016): every row of every table is noised in every step.

    Attributes:
        noise: ``dense``, or ``lazy``: the same distribution under plain SGD, at the cost of the rows that are read.
        bands: number of consecutive steps over which the noise of rows is correlated, so that less of it accumulates
            (:mod:`dpfest.accounting.bands`); None for independent noise.
    """

    name: str = "dpsgd"
    noise: str = "dense"
    bands: int | None = field(default=None, repr=False)  # type: ignore[misc]  # a plan's sampler shows it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise not in ("dense", "lazy"):
            raise ValueError(f"noise={self.noise} must be dense or lazy")
        refuse_bands(self.bands)
        if self.bands is not None and self.lazy:
            raise UserError(
                f"bands={self.bands} correlates the noise of all rows over steps, and noise=lazy draws a row's when it "
                "is next read: choose noise=dense, or leave bands out."
            )

    @property
    def lazy(self) -> bool:  # type: ignore[override]
        """Whether noise is drawn when a row is next read."""
        return self.noise == "lazy"

    sparse = lazy
    choice: ClassVar[str] = INDEPENDENT

    def survivors(self, shard: Shard, measured: Tensor | None, cost: Event | None, step: int) -> Tensor | None:
        """Return None, for every row."""
        return None


@dataclass(frozen=True)
class Threshold(PrivateAlgorithm):
    """DP-SGD of whose noised gradient a step applies only the rows that noise alone rarely makes so long.

    The baseline of every choice of rows that is paid for: which rows are applied follows from DP-SGD's own release, at
    no cost. Rows of one table are compared with the norm that noise alone reaches with probability ``false_rate``.

    Attributes:
        false_rate: probability with which a row that no example touched is applied, the same in every table; a step
            applies at least this share of all rows, on average. 1 is DP-SGD.
        rule: ``hard`` applies the rows as they are, ``soft`` shortens them by the norm that they had to reach.

    Formal guarantee: the rows and values that a step applies are post-processing of one release of DP-SGD at the same
    noise (:mod:`dpfest.selection.thresholding`).
    """

    draws_untouched: ClassVar[bool] = True
    name: str = "threshold"
    false_rate: float = 0.01
    rule: str = "hard"

    def __post_init__(self) -> None:
        if not (isinstance(self.false_rate, Real) and 1e-30 <= self.false_rate <= 1):
            raise ValueError(f"false_rate={self.false_rate} must be a probability from 1e-30 to 1")
        super().__post_init__()
        if self.rule not in ("hard", "soft"):
            raise ValueError(f"rule={self.rule} must be hard or soft")

    def survivors(self, shard: Shard, measured: Tensor | None, cost: Event | None, step: int) -> Tensor | None:
        """Return None, for every row."""
        return None

    def step_event(self, noise_multiplier: float, sampling_probability: float) -> Event:
        """Return one Gaussian release of every row, of which :meth:`kept` is a function."""
        return super().step_event(noise_multiplier, sampling_probability)

    def kept(self, shard: Shard, noised: RowSums, deviation: float, step: int) -> RowSums:
        """Return the rows, touched or not, whose noised norm reaches that of their table."""
        survivors, values = keep_long_rows(
            shard.layout,
            noised.survivors,
            noised.tables,
            deviation,
            false_rate=self.false_rate,
            shrink=self.rule == "soft",
            stream=shard.key.stream("untouched rows", step),
            noise=shard.key.stream("row noise", step),
        )
        return RowSums(survivors, torch.cat([table.reshape(-1) for table in values]))


@dataclass(frozen=True)
class Frozen(PrivateAlgorithm):
    """Embeddings keep their initial values; only the dense parameters are trained. The control of every comparison."""

    choice: ClassVar[str] = INDEPENDENT
    name: str = "frozen"

    def survivors(self, shard: Shard, measured: Tensor | None, cost: Event | None, step: int) -> Tensor | None:
        """Return no row."""
        return torch.empty(0, dtype=torch.int64, device=shard.device)


@dataclass(frozen=True)
class FEST(PrivateAlgorithm):
    """DP-FEST (Ghazi et al., 2023, section 3.1): train only the rows selected before training by ``selection``.

    Attributes:
        bands: see :class:`DPSGD`; of the selected rows.
    """

    choice: ClassVar[str] = INDEPENDENT
    name: str = "fest"
    selection: SelectionConfig = field(default_factory=SelectionConfig)  # type: ignore[misc]
    bands: int | None = field(default=None, repr=False)  # type: ignore[misc]  # a plan's sampler shows it

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_bands(self.bands)

    def survivors(self, shard: Shard, measured: Tensor | None, cost: Event | None, step: int) -> Tensor | None:
        """Return the selected rows, touched or not."""
        if shard.selected is None:
            raise UserError(f"{self.name} trains selected rows alone: give selected=, from dpfest.select(...).")
        return shard.selected


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
        sigma = _stated(self, cost, "map_noise_multiplier")
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
        epsilon = _stated(self, cost, "epsilon_per_draw")
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


def _stated(algorithm: Algorithm, cost: Event | None, name: str) -> float:
    """Return what the event of a step must state for the algorithm's choice of rows."""
    if (value := getattr(cost, name, None)) is None:
        raise UserError(f"{algorithm.name} chooses rows with {name}=, which its step's event must state.")
    return float(value)


ALGORITHMS: dict[str, type[PrivateAlgorithm]] = {
    kind.name: kind for kind in (DPSGD, Threshold, FEST, AdaFEST, AdaFESTPlus, Exponential, Frozen)
}
"""Every private algorithm by name."""
