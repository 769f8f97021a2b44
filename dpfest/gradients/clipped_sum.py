"""The sum of masked, clipped per-example gradients: mask, then clip, then add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dpfest import devices
from dpfest.gradients.arithmetic import full_precision
from dpfest.gradients.batch import LogicalBatch
from dpfest.gradients.capture import Recorder, Recording
from dpfest.gradients.factors import Factors
from dpfest.gradients.parts import split
from dpfest.gradients.tables import Survivors
from dpfest.noise.gaussian import BLOCK


class ClippedSum:
    """The sum of masked, clipped per-example gradients, before noise.

    Args:
        recorder: of the model.
        survivors: rows that are not zeroed.
        clipping_norm: l2 norm to which each example's (or unit's) masked gradient is clipped; inf for no clipping.
        with_dense: whether dense parameters count in the norm and the sum.
        dtype: of the sums; None for the model's.

    Attributes:
        rows: each table's sum ``[s, dim]``, views of ``flat_rows``.
        dense: each dense parameter's sum, views of ``flat_dense``.
        norms: sum of the clipped gradients' norms, float.
        example_norms: norms of the masked gradients before clipping, ``[b]`` for each micro-batch.
        loss: sum of the examples' losses, float.
        broken: number of examples (or units) whose gradient was not finite.
    """

    def __init__(
        self,
        recorder: Recorder,
        survivors: Survivors,
        clipping_norm: float,
        *,
        with_dense: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.survivors, self.clipping_norm, self._with_dense = survivors, clipping_norm, with_dense
        parameters: list[Tensor] = [*recorder.dense_parameters.values()] if with_dense else []
        shapes = [parameter.shape for parameter in parameters]
        self.flat_rows, self.flat_dense = (
            torch.zeros(sum(map(math.prod, each)), device=recorder.device, dtype=dtype or recorder.dtype)
            for each in (survivors.shapes, shapes)
        )
        self.rows = split(self.flat_rows, survivors.shapes)
        self.dense = dict(zip(parameters, split(self.flat_dense, shapes), strict=True))
        self.norms, self.loss, self.broken = 0.0, 0.0, 0
        self.example_norms: list[Tensor] = []

    def add(self, recording: Recording) -> None:
        """Mask, clip and add each example's (or unit's) gradient; call after the recording's backward pass."""
        with full_precision(self.flat_rows.device):
            self._add(recording)

    def _add(self, recording: Recording) -> None:
        pairs = recording.lookups.masked(self.survivors)
        factors = recording.factors if self._with_dense else []
        squared_norms = recording.losses.detach().new_zeros(len(recording), dtype=recording.recorder.dtype)
        parts = devices.serving(squared_norms)
        (parts.add_squared_norms if parts else _add_squared_norms)(pairs, factors, squared_norms)
        if recording.overflowed is not None:  # an earlier sum of this recording has set them to zero
            squared_norms.masked_fill_(recording.overflowed, torch.inf)
        finite = math.isfinite(float(squared_norms.sum()))
        if not finite:  # a gradient whose norm is not finite cannot be clipped: it counts as zero
            broken = recording.overflowed = ~squared_norms.isfinite()
            self.broken += int(broken.sum())
            squared_norms.masked_fill_(broken, torch.inf)
            for part in (recording.lookups, *recording.factors):
                part.drop(broken)
        norms = squared_norms.sqrt()
        weight, clipped = None, norms
        if not finite or self.clipping_norm < math.inf:
            weight = (self.clipping_norm / norms).clamp_max(1.0)
            clipped = weight * norms
        if weight is not None and not finite:  # inf / inf, and 0 * inf
            weight, clipped = weight.nan_to_num(nan=0.0), clipped.nan_to_num(nan=0.0)
        self.norms += float(clipped.sum())
        self.example_norms.append(norms)
        pairs.add_weighted_sums(weight, self.rows)
        for layer in factors:
            layer.add_weighted_sums(weight, self.dense)
        self.loss += float(recording.losses.detach().sum())


def _add_squared_norms(pairs: Any, factors: Sequence[Factors], squared_norms: Tensor) -> None:
    for layer in factors:
        squared_norms += layer.squared_norms()
    pairs.add_squared_norms(squared_norms)


def clipped_sum(
    batch: LogicalBatch,
    survivors: Survivors,
    clipping_norm: float,
    *,
    dtype: torch.dtype,
    quantum: float = 0.0,
    with_dense: bool = True,
) -> ClippedSum:
    """Return the :class:`ClippedSum` of all micro-batches of a batch.

    Args:
        batch: the batch.
        survivors: rows that are not zeroed.
        clipping_norm: ``C2``.
        dtype: of the sums; of each micro-batch's, where there is a quantum.
        quantum: power of two to whose multiples the sum of each micro-batch is rounded, so that the float64 sum of all
            is exact in any order; 0 for no rounding.
        with_dense: whether dense parameters count in the norm and the sum.
    """
    if not quantum:
        sums = ClippedSum(batch.recorder, survivors, clipping_norm, with_dense=with_dense, dtype=dtype)
        for recording in batch.recordings():
            sums.add(recording)
        return sums
    whole = ClippedSum(batch.recorder, survivors, clipping_norm, with_dense=with_dense, dtype=torch.float64)
    for recording in batch.recordings():
        sums = ClippedSum(batch.recorder, survivors, clipping_norm, with_dense=with_dense, dtype=dtype)
        sums.add(recording)
        for total, own in ((whole.flat_rows, sums.flat_rows), (whole.flat_dense, sums.flat_dense)):
            for low in range(0, len(own), BLOCK):  # a block stays in the cache for its three operations
                piece = own[low : low + BLOCK].mul_(1 / quantum).round_()
                total[low : low + BLOCK].add_(piece, alpha=quantum)  # a power of two: exact in any dtype
        whole.norms += sums.norms
        whole.loss += sums.loss
        whole.broken += sums.broken
    return whole
