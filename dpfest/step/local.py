"""Rows that lie in this process: one shard of all rows, under the run's own key."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from dpfest.gradients.batch import LogicalBatch
from dpfest.gradients.capture import Recorder
from dpfest.gradients.clipped_sum import ClippedSum
from dpfest.gradients.parts import DenseSums, RowGradient, RowSums, Shard, split
from dpfest.gradients.reading import MicroBatch
from dpfest.gradients.tables import Survivors, Table
from dpfest.noise.key import NoiseKey
from dpfest.step.lazy import LazyNoise


class LocalRows:
    """See :class:`dpfest.gradients.parts.Rows`.

    Args:
        recorder: of the model.
        selected: DP-FEST's set, sorted distinct global rows; None without one.
        sum_dtype: dtype of the sums of clipped gradients.
    """

    joint = True
    roundings = 1.0

    def __init__(self, recorder: Recorder, selected: Tensor | None, sum_dtype: torch.dtype) -> None:
        self._recorder, self.selected, self.sum_dtype = recorder, selected, sum_dtype

    @property
    def key(self) -> NoiseKey:
        """The run's key."""
        return self._recorder.key

    def lazy_noise(self) -> LazyNoise:
        """Return what draws the tables' noise when a row is next read."""
        recorder = self._recorder
        holders = [layer for layer in recorder.layers.values() if isinstance(layer, Table)]
        recorder.lazy = LazyNoise(recorder.tables, holders)
        return recorder.lazy

    def batch(self, microbatches: Sequence[MicroBatch], step: int) -> LogicalBatch:
        """Return a batch of these examples."""
        return LogicalBatch(self._recorder, microbatches, step, pads=True)

    def ask(self, batch: LogicalBatch) -> list[Shard]:
        """See :meth:`dpfest.gradients.parts.Rows.ask`."""
        recorder = self._recorder
        return [
            Shard(recorder.layout, recorder.key, recorder.device, self.selected, lambda: batch.contributions().rows)
        ]

    def readable(self) -> AbstractContextManager[Any]:
        """See :meth:`dpfest.gradients.parts.Rows.readable`."""
        return nullcontext()

    def total(self, values: Tensor) -> list[Tensor]:
        """See :meth:`dpfest.gradients.parts.Rows.total`."""
        return [values]

    def mask(self, chosen: Sequence[Survivors]) -> Survivors:
        """See :meth:`dpfest.gradients.parts.Rows.mask`."""
        (survivors,) = chosen
        return survivors

    def quantum(self, grid: float) -> float:
        """See :meth:`dpfest.gradients.parts.Rows.quantum`: the noise itself rounds to its grid."""
        return 0.0

    def reduce(self, sums: ClippedSum, chosen: Sequence[Survivors]) -> tuple[list[RowSums], DenseSums]:
        """See :meth:`dpfest.gradients.parts.Rows.reduce`."""
        return [RowSums(sums.survivors, sums.flat_rows)], DenseSums(sums.flat_dense, 0)

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """See :meth:`dpfest.gradients.parts.Rows.totals`."""
        return list(numbers)

    def joined(self, shards: Sequence[RowSums], divisor: float) -> list[RowGradient]:
        """See :meth:`dpfest.gradients.parts.Rows.joined`; padding rows get zeros."""
        (sums,) = shards
        values = split(sums.flat.div_(divisor).to(self._recorder.dtype), sums.survivors.shapes)
        for table, local, value in zip(self._recorder.tables.values(), sums.survivors.local, values, strict=True):
            if table.padding_idx is not None:  # never looked up, so its noise would only disturb the model
                if local is None:
                    value[table.padding_idx] = 0
                else:
                    value.masked_fill_((local == table.padding_idx).unsqueeze(1), 0)
        return [RowGradient(local, value) for local, value in zip(sums.survivors.local, values, strict=True)]

    def joined_dense(self, sums: DenseSums, divisor: float) -> dict[str, Tensor]:
        """See :meth:`dpfest.gradients.parts.Rows.joined_dense`."""
        return named_dense(self._recorder, sums.flat.div_(divisor).to(self._recorder.dtype))


def named_dense(recorder: Recorder, flat: Tensor) -> dict[str, Tensor]:
    """Return the gradient of each dense parameter, by name, from all of them end to end."""
    parameters = recorder.dense_parameters
    return dict(zip(parameters, split(flat, [parameter.shape for parameter in parameters.values()]), strict=True))
