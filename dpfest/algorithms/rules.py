"""The private algorithms by name, and those whose choice of rows needs no mechanism of its own.

:mod:`dpfest.algorithms.algorithm` says what an algorithm is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from dpfest.accounting.accountant import Event
from dpfest.accounting.bands import refuse_bands
from dpfest.algorithms.adafest import AdaFEST, AdaFESTPlus
from dpfest.algorithms.algorithm import INDEPENDENT, PrivateAlgorithm
from dpfest.algorithms.exponential import Exponential
from dpfest.errors import UserError
from dpfest.gradients.parts import RowSums, Shard
from dpfest.selection.thresholding import keep_long_rows
from dpfest.selection.topk import SelectionConfig


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


ALGORITHMS: dict[str, type[PrivateAlgorithm]] = {
    kind.name: kind for kind in (DPSGD, Threshold, FEST, AdaFEST, AdaFESTPlus, Exponential, Frozen)
}
"""Every private algorithm by name."""
