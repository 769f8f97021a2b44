"""The algorithms: for each, its settings and its one rule, which embedding rows survive a step.

An algorithm is one small class.  ``survivors`` names the sorted global rows that the step's gradient may touch; the
engine (:mod:`dpfest.engine`) zeroes all others in every example's gradient, clips, sums, and noises every survivor,
so a rule is sound when its *choice* is paid for: chosen beforehand (DP-SGD, DP-FEST, frozen), or by a mechanism
that the ledger accounts (DP-AdaFEST's noisy map, exponential selection).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpfest.noise import NoiseKey
from dpfest.survivors import clipped_contributions, surviving_rows
from dpfest.tables import TableLayout
from dpfest.topk import SelectionConfig


@dataclass(frozen=True)
class Contributions:
    """Distinct (example, global row) pairs of a logical batch: int64 ``[p]`` each, and the batch's size."""

    example: Tensor
    row: Tensor
    examples: int


class LogicalBatch(Protocol):
    """What a rule may ask of a batch; each question costs a pass over it, so ask only what is needed."""

    def contributions(self) -> Contributions:
        """Who touched what."""

    def clipped_row_norms(self, clipping_norm: float) -> tuple[Tensor, Tensor]:
        """Touched rows, sorted ``[u]``, and the norm ``[u]`` of each one's sum of per-example embedding gradients,
        every example's embedding gradient clipped to ``clipping_norm`` first."""


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
    """What every algorithm has: a name and a rule."""

    name: str = ""

    @property
    def private(self) -> bool:
        """Whether the step clips and adds noise."""
        return False

    @property
    def gradient_bound(self) -> float:
        """l2 norm to which an example's masked gradient is clipped; infinite for no clipping."""
        return math.inf

    @property
    def selects(self) -> SelectionConfig | None:
        """How the set of rows is chosen beforehand, where the algorithm has one."""
        return None

    def survivors(self, batch: LogicalBatch, context: StepContext) -> Tensor | None:
        """Global rows that survive, sorted distinct int64 ``[s]``; None for every row."""
        raise TypeError(f"{type(self).__name__} has no rule")


@dataclass
class PrivateAlgorithm(Algorithm):
    """An algorithm that clips and adds noise.

    Attributes:
        clipping_norm: ``C2``, the l2 norm to which an example's masked gradient is clipped.
    """

    clipping_norm: float = 1.0

    def __post_init__(self) -> None:
        positive("algorithm.clipping_norm", self.clipping_norm)

    @property
    def private(self) -> bool:
        """Always."""
        return True

    @property
    def gradient_bound(self) -> float:
        """``C2``."""
        return self.clipping_norm


@dataclass
class Nonprivate(Algorithm):
    """No clipping, no noise: the rows that the batch touched.  No guarantee."""

    name: str = "nonprivate"

    def survivors(self, batch: LogicalBatch, context: StepContext) -> Tensor | None:
        """The touched rows."""
        return torch.unique(batch.contributions().row)


@dataclass
class DPSGD(PrivateAlgorithm):
    """DP-SGD (Abadi et al., 2016): every row of every table is noised in every step."""

    name: str = "dpsgd"

    def survivors(self, batch: LogicalBatch, context: StepContext) -> Tensor | None:
        """Every row."""
        return None


@dataclass
class Frozen(PrivateAlgorithm):
    """Embeddings keep their initial values; only the dense parameters are trained.  The control of every comparison."""

    name: str = "frozen"

    def survivors(self, batch: LogicalBatch, context: StepContext) -> Tensor | None:
        """No row."""
        return torch.empty(0, dtype=torch.int64, device=context.device)


@dataclass
class FEST(PrivateAlgorithm):
    """DP-FEST (Ghazi et al., 2023, section 3.1): train only rows selected before training.

    Attributes:
        selection: how they are selected; its cost is composed with the training's.
    """

    name: str = "fest"
    selection: SelectionConfig = field(default_factory=SelectionConfig)

    @property
    def selects(self) -> SelectionConfig | None:
        """Its selection."""
        return self.selection

    def survivors(self, batch: LogicalBatch, context: StepContext) -> Tensor | None:
        """The selected rows, touched or not."""
        return context.selected


@dataclass
class AdaFEST(PrivateAlgorithm):
    """DP-AdaFEST (Ghazi et al., 2023, Algorithm 1): rows whose noisy contribution reaches a threshold, a batch.

    Attributes:
        contribution_clipping_norm: ``C1``, the l2 norm to which an example's contribution map is clipped.
        threshold: ``tau``, in units of the clipped map.
        noise_ratio: ``sigma_1 / sigma_2``.
    """

    name: str = "adafest"
    contribution_clipping_norm: float = 1.0
    threshold: float = 20.0
    noise_ratio: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("algorithm.contribution_clipping_norm", self.contribution_clipping_norm)
        if math.isnan(self.threshold):
            raise ValueError("algorithm.threshold=nan must be a number")
        positive("algorithm.noise_ratio", self.noise_ratio)

    def survivors(self, batch: LogicalBatch, context: StepContext) -> Tensor | None:
        """Rows that pass the noisy threshold; within the selected set where there is one."""
        assert context.map_noise_multiplier is not None
        touched = batch.contributions()
        example, row, universe = touched.example, touched.row, context.layout.total_rows
        if context.selected is not None:
            # The map counts selected rows only: a row is known by its rank within the set.
            row, inside = locate(context.selected, row)
            example, row, universe = example[inside], row[inside], len(context.selected)
        rows, sums = clipped_contributions(example, row, touched.examples, self.contribution_clipping_norm)
        kept = surviving_rows(
            rows,
            sums,
            universe=universe,
            threshold=self.threshold,
            contribution_clipping_norm=self.contribution_clipping_norm,
            map_noise_multiplier=context.map_noise_multiplier,
            touched_noise=context.key.normal("map noise", context.step, len(rows), context.device),
            generator=context.key.generator("untouched survivors", context.step),
        )
        return kept if context.selected is None else context.selected[kept]


@dataclass
class AdaFESTPlus(AdaFEST):
    """DP-AdaFEST+ (Ghazi et al., 2023, section 4.2): DP-AdaFEST within the set that DP-FEST selected."""

    name: str = "adafest_plus"
    selection: SelectionConfig = field(default_factory=SelectionConfig)

    @property
    def selects(self) -> SelectionConfig | None:
        """Its selection."""
        return self.selection


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

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("algorithm.selection_clipping_norm", self.selection_clipping_norm)
        positive("algorithm.rows_per_step", self.rows_per_step)
        positive("algorithm.noise_ratio", self.noise_ratio)

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
            generator=context.key.generator("exponential selection", context.step),
        )
        return torch.from_numpy(chosen).to(context.device)


def locate(rows: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Where ``wanted`` stands in sorted distinct ``rows``: (position, whether it is there at all)."""
    if len(rows) == 0:
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    position = torch.searchsorted(rows, wanted).clamp_max(len(rows) - 1)
    return position, rows[position] == wanted


def draw_rows(
    rows: np.ndarray,
    utilities: np.ndarray,
    *,
    universe: int,
    count: int,
    scale: float,
    generator: np.random.Generator,
) -> np.ndarray:
    """The ``count`` rows of largest utility + Gumbel(scale), where rows not named have utility 0.

    The largest Gumbel variates of the unnamed rows come from the order statistics of exponential spacings (Rényi,
    1953) and go to a uniform draw of those rows, so the cost is O(named + count) and not O(universe).

    Returns:
        Sorted global rows, int64 ``[min(count, universe)]``.
    """
    noisy = utilities + scale * generator.gumbel(size=len(rows))
    unnamed = universe - len(rows)
    others = min(count, unnamed)
    spacings = generator.standard_exponential(others) / (unnamed - np.arange(others))
    largest_gumbels = -scale * np.log(np.cumsum(spacings))
    ranks = generator.choice(unnamed, size=others, replace=False) if others else np.empty(0, dtype=np.int64)
    ranks = ranks + np.searchsorted(rows - np.arange(len(rows)), ranks, side="right")
    candidates = np.concatenate([rows, ranks])
    scores = np.concatenate([noisy, largest_gumbels])
    best = np.argpartition(-scores, count - 1)[:count] if count < len(scores) else np.arange(len(scores))
    return np.sort(candidates[best])


def positive(key: str, value: float) -> None:
    """Refuse a setting that is not a finite number greater than zero, by its key."""
    if not 0 < value < math.inf:
        raise ValueError(f"{key}={value} must be a finite number greater than 0")


ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind for kind in (Nonprivate, DPSGD, FEST, AdaFEST, AdaFESTPlus, Exponential, Frozen)
}
"""Every algorithm by its name."""
