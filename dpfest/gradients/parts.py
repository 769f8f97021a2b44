"""What a private step is made of: its shards and their sums, and the parts that a path supplies.

:func:`dpfest.step.order.private_step` holds the order of a step. A path (one process, ranks, lazy noise) supplies where
rows lie (:class:`Rows`) and when their noise is drawn (:class:`Noise`), and no order of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dpfest.gradients.tables import Survivors, Table, TableLayout
from dpfest.noise.key import NoiseKey
from dpfest.noise.places import RowPlaces

if TYPE_CHECKING:
    from dpfest.gradients.batch import LogicalBatch
    from dpfest.gradients.clipped_sum import ClippedSum
    from dpfest.gradients.reading import MicroBatch


class Shard(NamedTuple):
    """Rows that one place decides about and noises, under a key of their own; one process has one, of all rows.

    Attributes:
        layout: its tables; rows are numbered within it.
        key: of everything random in it.
        device: where its rows lie.
        selected: its part of DP-FEST's set, sorted ``[k]``; None without a set.
        touched: returns its rows that the batch touches, sorted distinct int64 ``[u]``. May cost a forward pass.
    """

    layout: TableLayout
    key: NoiseKey
    device: torch.device
    selected: Tensor | None
    touched: Callable[[], Tensor]


@dataclass
class RowSums:
    """A shard's sums of clipped gradients: a value for every coordinate of its surviving rows.

    Attributes:
        survivors: the rows.
        flat: their values, table by table and row by row, ``[coordinates]``.
    """

    survivors: Survivors
    flat: Tensor

    @property
    def places(self) -> RowPlaces:
        """What each value is the noise of."""
        return RowPlaces(self.survivors.rows, self.survivors.shapes)

    @property
    def tables(self) -> list[Tensor]:
        """Each table's values, views of ``flat``, ``[s, dim]``."""
        return split(self.flat, self.survivors.shapes)


class DenseSums(NamedTuple):
    """Consecutive coordinates of the dense parameters' sum, from number ``first`` on."""

    flat: Tensor
    first: int


@dataclass
class RowGradient:
    """Noised gradient of one table: ``values [s, dim]`` at local ``rows [s]``, or at every row if rows is None."""

    rows: Tensor | None
    values: Tensor


@dataclass
class NoisedGradient:
    """The release of one step: noised gradient divided by the expected batch size.

    Attributes:
        dense: gradient of each dense parameter, by name.
        tables: gradient of each table, in the order of the layout.
        rows_per_table: number of rows with a noised gradient in each table, including rows whose noise is pending.
        pending: standard deviation of the noise pending on every row of every table; 0 unless noise is lazy.
    """

    dense: dict[str, Tensor]
    tables: list[RowGradient]
    rows_per_table: list[int]
    pending: float


class Diagnostics(NamedTuple):
    """Private by-products of a step.

    Attributes:
        examples: the actual batch size.
        loss: mean loss; nan for an empty batch.
        without_gradient: examples (or units) whose gradient was not finite, and counted as zero.
    """

    examples: int
    loss: float
    without_gradient: int = 0


class Due(Protocol):
    """The tables' noise that is still to be drawn: :class:`dpfest.step.lazy.LazyNoise`, or that of a rank."""

    def use(self, key: NoiseKey) -> None:
        """Draw from this key from now on."""

    def settle(self, shards: Sequence[Shard]) -> None:
        """Draw what is due on the rows that shards are asked for."""


class DueAtLookUps(Due, Protocol):
    """Noise that is drawn as look-ups read rows, in one process (:class:`dpfest.step.lazy.LazyNoise`)."""

    names: list[str]
    tables: list[Table]
    settling: bool
    looking_up: bool
    read: Callable[[int, Tensor], None]


class Rows(Protocol):
    """Where the tables' rows lie, and how values and sums travel between them and the examples.

    Attributes:
        joint: whether one shard holds all rows.
        roundings: how often a coordinate of a sum is rounded, in roundings to the noise's grid.
        selected: DP-FEST's set, whole, in global rows.
        sum_dtype: dtype in which the clipped gradients of a micro-batch are summed.
    """

    joint: bool
    roundings: float
    selected: Tensor | None
    sum_dtype: torch.dtype

    @property
    def key(self) -> NoiseKey:
        """The run's own."""

    def batch(self, microbatches: Sequence[MicroBatch], step: int) -> LogicalBatch:
        """Return a batch of what this process reads."""

    def lazy_noise(self) -> Any:
        """Return what draws the tables' noise when a row is next read, as :class:`~dpfest.step.lazy.LazyNoise`."""

    def ask(self, batch: LogicalBatch) -> list[Shard]:
        """Return own shards, with what the examples of all processes touch in them."""

    def readable(self) -> AbstractContextManager[None]:
        """A context in which the batch can look its rows up."""

    def total(self, values: Tensor) -> list[Tensor]:
        """Sum over all processes a value of each row that this process's batch touches, float64 ``[u]``.

        Returns:
            For each own shard, the sums at its touched rows.
        """

    def mask(self, chosen: Sequence[Survivors]) -> Survivors:
        """Return which of the rows that this process's batch touches survive, from own shards' survivors."""

    def quantum(self, grid: float) -> float:
        """Return the power of two to which a micro-batch's sums are rounded before they are added up; 0 for none.

        Args:
            grid: of the noise; 0 without noise.
        """

    def reduce(self, sums: ClippedSum, chosen: Sequence[Survivors]) -> tuple[list[RowSums], DenseSums]:
        """Sum over all processes: return own shards' sums at their survivors, and own coordinates of the dense sum."""

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums of some numbers over all processes."""

    def joined(self, shards: Sequence[RowSums], divisor: float) -> list[RowGradient]:
        """Return the gradient of each of this process's tables: own shards' values over the divisor."""

    def joined_dense(self, sums: DenseSums, divisor: float) -> dict[str, Tensor]:
        """Return the gradient of each dense parameter, by name, the same in every process."""


class Noise(Protocol):
    """The noise of a step's gradient.

    Attributes:
        deviation: standard deviation in every coordinate of the undivided sum; 0 for none.
        deferred: whether the tables' noise is drawn after the step.
    """

    deviation: float
    deferred: bool

    @property
    def grid(self) -> float:
        """Power of two of which the noise is a multiple; 0 without noise."""

    def settle(self, shards: Sequence[Shard], key: NoiseKey) -> None:
        """Draw what is still due on rows that the batch touches, before their values leave their shard."""

    def on_rows(self, shard: Shard, sums: RowSums, step: int) -> None:
        """Add noise to every coordinate of the sums, in place."""

    def on_dense(self, sums: DenseSums, key: NoiseKey, step: int) -> None:
        """Add noise to every coordinate of the dense sums, in place."""


def split(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return consecutive parts of a flat tensor as views of these shapes."""
    parts = flat.split([math.prod(shape) for shape in shapes])
    return [part.view(tuple(shape)) for part, shape in zip(parts, shapes, strict=True)]
