"""The algorithms: for each, its settings and its one rule, which embedding rows survive a step.

An algorithm is one small class.  ``survivors`` names the sorted global rows that the step's gradient may touch; the
engine (:mod:`dpfest.engine`) zeroes all others in every example's gradient, clips, sums, and noises every survivor,
so a rule is sound when its *choice* is paid for: chosen beforehand (DP-SGD, DP-FEST, frozen), or by a mechanism
that the ledger accounts (DP-AdaFEST's noisy map, exponential selection).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from dpfest.noise import NoiseKey
from dpfest.survivors import draw_rows, surviving_rows
from dpfest.tables import TableLayout
from dpfest.topk import SelectionConfig

if TYPE_CHECKING:
    from dpfest.engine import LogicalBatch


@dataclass(frozen=True)
class StepContext:
    """What a rule may use beside the batch: the step's number, the key, and what the budget granted.

    Attributes:
        selected: sorted global rows of DP-FEST's set, or None.
        map_noise_multiplier: ``sigma_1``, or None.
        epsilon_per_row: cost of one row drawn by the exponential mechanism, or None.
    """

    step: int
    key: NoiseKey
    layout: TableLayout
    device: torch.device
    selected: Tensor | None = None
    map_noise_multiplier: float | None = None
    epsilon_per_row: float | None = None


@dataclass
class Algorithm:
    """What every algorithm has: a name and a rule.

    Attributes:
        private: whether the step clips and adds noise.
        clipping_norm: ``C2``, the l2 norm to which an example's masked gradient is clipped.
        selection: how rows are chosen before training, where they are.
        lazy: whether the tables' noise is drawn when a row is next read (:mod:`dpfest.lazy`).
        sparse: whether the tables' gradients are.
    """

    name: str = ""
    private: ClassVar[bool] = False
    lazy: ClassVar[bool] = False
    sparse: ClassVar[bool] = True
    clipping_norm: ClassVar[float] = math.inf
    selection: ClassVar[SelectionConfig | None] = None

    def survivors(self, batch: LogicalBatch, context: StepContext) -> Tensor | None:
        """Global rows that survive, sorted distinct int64 ``[s]``; None for every row."""
        raise TypeError(f"{type(self).__name__} has no rule")


@dataclass
class Nonprivate(Algorithm):
    """No clipping, no noise: the rows that the batch touched.  No guarantee."""

    name: str = "nonprivate"

    def survivors(self, batch: LogicalBatch, context: StepContext) -> Tensor | None:
        """The touched rows."""
        return batch.contributions().rows


@dataclass
class PrivateAlgorithm(Algorithm):
    """An algorithm that clips and adds noise."""

    private: ClassVar[bool] = True
    clipping_norm: float = 1.0  # type: ignore[misc]

    def __post_init__(self) -> None:
        """Every number but the threshold must be a finite number greater than zero."""
        for name, value in vars(self).items():
            if isinstance(value, int | float) and name != "threshold":
                positive(f"algorithm.{name}", value)


@dataclass
class DPSGD(PrivateAlgorithm):
    """DP-SGD (Abadi et al., 2016): every row of every table is noised in every step.

    Attributes:
        noise: ``dense``, or ``lazy`` for the same law under plain SGD at the cost of the rows that are read.
    """

    name: str = "dpsgd"
    noise: str = "dense"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise not in ("dense", "lazy"):
            raise ValueError(f"algorithm.noise={self.noise} must be dense or lazy")
        self.lazy = self.sparse = self.noise == "lazy"  # type: ignore[misc]

    def survivors(self, batch: LogicalBatch, context: StepContext) -> Tensor | None:
        """Every row; under lazy noise those touched, as all others have no gradient of their own."""
        return batch.contributions().rows if self.lazy else None


@dataclass
class Frozen(PrivateAlgorithm):
    """Embeddings keep their initial values; only the dense parameters are trained.  The control of every comparison."""

    name: str = "frozen"

    def survivors(self, batch: LogicalBatch, context: StepContext) -> Tensor | None:
        """No row."""
        return torch.empty(0, dtype=torch.int64, device=context.device)


@dataclass
class FEST(PrivateAlgorithm):
    """DP-FEST (Ghazi et al., 2023, section 3.1): train only the rows of ``selection``, made before training."""

    name: str = "fest"
    selection: SelectionConfig = field(default_factory=SelectionConfig)  # type: ignore[misc]

    def survivors(self, batch: LogicalBatch, context: StepContext) -> Tensor | None:
        """The selected rows, touched or not."""
        assert context.selected is not None
        return context.selected


@dataclass
class AdaFEST(PrivateAlgorithm):
    """DP-AdaFEST (Ghazi et al., 2023, Algorithm 1): rows whose noisy contribution reaches a threshold, a batch.

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
        if math.isnan(self.threshold):
            raise ValueError("algorithm.threshold=nan must be a number")

    def survivors(self, batch: LogicalBatch, context: StepContext) -> Tensor | None:
        """Rows that pass the noisy threshold; within the selected set where there is one."""
        assert context.map_noise_multiplier is not None
        found, universe = batch.contributions(), context.layout.total_rows
        if context.selected is not None:  # the map counts selected rows only
            found, universe = found.within(context.selected), len(context.selected)
        kept = surviving_rows(
            found,
            context.key.stream("map", context.step),
            universe=universe,
            threshold=self.threshold,
            contribution_clipping_norm=self.contribution_clipping_norm,
            map_noise_multiplier=context.map_noise_multiplier,
        )
        return kept if context.selected is None else context.selected[kept]


@dataclass
class AdaFESTPlus(AdaFEST):
    """DP-AdaFEST+ (Ghazi et al., 2023, section 4.2): DP-AdaFEST within the set that DP-FEST selected."""

    name: str = "adafest_plus"
    selection: SelectionConfig = field(default_factory=SelectionConfig)  # type: ignore[misc]


@dataclass
class Exponential(PrivateAlgorithm):
    """DP-SGD with exponential selection (Zhang et al., 2021): rows drawn by their gradient's norm.

    Attributes:
        selection_clipping_norm: ``S1``, to which an example's embedding gradient is clipped before rows are ranked.
        rows_per_step: ``m``, rows drawn in each step.
        noise_ratio: the draw's share of the budget, as DP-AdaFEST's: the cost of one row is
            ``1 / (noise_ratio * sigma_2 * sqrt(m))``.

    Formal guarantee: a row's utility, the norm of the clipped sum, moves by at most ``S1`` when one example comes or
    goes, so the m largest utilities under Gumbel noise of scale ``2 * S1 / epsilon_0`` are m draws of the exponential
    mechanism without replacement, each ``epsilon_0``-DP given those before it (Durfee and Rogers, 2019).
    """

    name: str = "exponential"
    selection_clipping_norm: float = 1.0
    rows_per_step: int = 100
    noise_ratio: float = 5.0

    def survivors(self, batch: LogicalBatch, context: StepContext) -> Tensor | None:
        """The rows drawn."""
        assert context.epsilon_per_row is not None
        rows, norms = batch.clipped_row_norms(self.selection_clipping_norm)
        chosen = draw_rows(
            rows.cpu().numpy(),
            norms.double().cpu().numpy(),
            universe=context.layout.total_rows,
            count=self.rows_per_step,
            scale=2 * self.selection_clipping_norm / context.epsilon_per_row,
            stream=context.key.stream("exponential selection", context.step),
        )
        return torch.from_numpy(chosen).to(context.device)


def positive(key: str, value: float) -> None:
    """Refuse a setting that is not a finite number greater than zero, by its key."""
    if not 0 < value < math.inf:
        raise ValueError(f"{key}={value} must be a finite number greater than 0")


ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind for kind in (Nonprivate, DPSGD, FEST, AdaFEST, AdaFESTPlus, Exponential, Frozen)
}
"""Every algorithm by its name."""
