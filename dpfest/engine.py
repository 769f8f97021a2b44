"""One private step: contribution map, mask, per-example clipping, sum, noise on the surviving rows.

Every algorithm runs through :meth:`PrivateEngine.gradient`; algorithms differ only in which embedding rows survive
(:mod:`dpfest.algorithms`). The order is the paper's (Ghazi et al., 2023, Algorithm 1): rows that do not survive are
zeroed in every example's gradient *before* the whole gradient, surviving rows and dense parameters together, is clipped
to ``C2``; every surviving row, touched or not, and every dense parameter get noise of standard deviation
``C2 * sigma_2``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dpfest.accounting import Event
from dpfest.ahead import NoiseAhead
from dpfest.algorithms import Algorithm, StepContext
from dpfest.alone import OneProcess
from dpfest.capture import Recorder, Recording
from dpfest.errors import UserError
from dpfest.gaussian import ROUNDING_ALLOWANCE, add_gaussian, charged_deviation
from dpfest.lazy import LazyNoise, learning_rates
from dpfest.noise import NoiseKey
from dpfest.reading import MicroBatch
from dpfest.survivors import Contributions
from dpfest.tables import Survivors, Table, TableLayout
from dpfest.units import Groups, UnitConfig


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


def noise_of(step: Event | None, batch_size: int) -> dict[str, Any]:
    """Return the keyword arguments of :class:`PrivateEngine` for a step's privacy event.

    A non-private step (None) has no noise and averages over the actual batch size.
    """
    return {
        "gradient_noise_multiplier": _gradient_noise(step) if step else 0.0,
        "map_noise_multiplier": step.map_noise_multiplier if step else None,
        "epsilon_per_row": step.epsilon_per_draw if step else None,
        "expected_batch_size": float(batch_size) if step else None,
    }


def _gradient_noise(step: Event) -> float:
    if step.gradient_noise_multiplier is None:
        raise UserError(
            f"The event of a {step.what} states no gradient_noise_multiplier: the step would add no noise, though it "
            "is charged for. Let the algorithm's step_event state it."
        )
    return step.gradient_noise_multiplier


class Diagnostics(NamedTuple):
    """Private by-products of a step: actual batch size, and mean loss (nan for an empty batch)."""

    examples: int
    loss: float


class PrivateEngine(OneProcess):
    """Turns batches into noised gradients.

    Args:
        model: its trainable parameters must all lie in supported layers (:class:`dpfest.capture.Recorder`).
        algorithm: which rows survive, and the clipping norm.
        loss_fn: ``loss_fn(model, batch)`` runs the model and returns per-example losses ``[b]``; no example may
            influence another's loss (:mod:`dpfest.trial`).
        key: source of the noise and of the forward pass's random numbers.
        gradient_noise_multiplier: ``sigma_2``; 0 for no noise.
        expected_batch_size: divisor of the noised sum; None divides by the actual size, which is private.
        map_noise_multiplier: ``sigma_1``, for algorithms with a noisy contribution map.
        epsilon_per_row: cost of one drawn row, for exponential selection.
        selected: sorted distinct global rows ``[k]``, for algorithms that train within a preselected set.
        sum_dtype: dtype in which clipped gradients are summed; None for the model's.
        roundings: how often a coordinate of a sum is rounded, in roundings to the noise's grid.
        unit: what is clipped and counted as one; None for each example. With it, a batch holds whole units.

    Formal guarantee: on a batch that is a Poisson sample at rate ``q`` of examples (or units), the pair (map, gradient)
    released by a step of DP-AdaFEST is dominated, under add-or-remove-one adjacency of these, by one Gaussian mechanism
    of noise multiplier ``(sigma_1^-2 + sigma_2^-2)^(-1/2)`` subsampled at ``q``; for an algorithm whose choice of rows
    does not depend on the batch, by one of multiplier ``sigma_2``. Under lazy noise a gradient is not a release: its
    tables' noise is :attr:`NoisedGradient.pending`, and :class:`dpfest.lazy.LazyNoise` tracks it.
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        key: NoiseKey,
        *,
        gradient_noise_multiplier: float,
        expected_batch_size: float | None,
        map_noise_multiplier: float | None = None,
        epsilon_per_row: float | None = None,
        selected: Tensor | None = None,
        sum_dtype: torch.dtype | None = None,
        roundings: float = 1.0,
        unit: UnitConfig | None = None,
    ) -> None:
        self.privacy_unit = unit
        self.recorder = Recorder(model, loss_fn, key)
        self.lazy = self._lazy_noise() if algorithm.lazy else None
        self.algorithm, self.expected_batch_size = algorithm, expected_batch_size
        self.device, self.dtype = self.recorder.device, self.recorder.dtype
        self.sum_dtype = sum_dtype or self.dtype
        self._dense_noise = NoiseAhead("dense noise")
        if self.sum_dtype.itemsize < self.dtype.itemsize:
            raise UserError(f"sum_dtype={sum_dtype} is narrower than the model's {self.dtype}: sums could overflow.")
        self.selected = None if selected is None else selected.to(self.device, torch.int64)
        if selected is not None and len(selected):
            ordered = bool((selected[1:] > selected[:-1]).all())
            if not (ordered and selected[0] >= 0 and selected[-1] < self.layout.total_rows):
                raise UserError(
                    f"The selected rows must be sorted, distinct and in 0 .. {self.layout.total_rows - 1}, the model's "
                    "rows in the order of its tables."
                )
        if gradient_noise_multiplier > 0 and map_noise_multiplier is not None and not map_noise_multiplier > 0:
            raise UserError(f"map_noise_multiplier={map_noise_multiplier}: the map would choose rows without noise.")
        self.map_noise_multiplier, self.epsilon_per_row = map_noise_multiplier, epsilon_per_row
        coordinates = self.layout.coordinates + sum(p.numel() for p in self.recorder.dense_parameters.values())
        sensitivity = algorithm.clipping_norm * (1 + ROUNDING_ALLOWANCE)
        self.deviation = (
            charged_deviation(gradient_noise_multiplier, sensitivity, coordinates * roundings**2)
            if gradient_noise_multiplier > 0
            else 0.0
        )

    def _lazy_noise(self) -> Any:
        holders = [layer for layer in self.recorder.layers.values() if isinstance(layer, Table)]
        self.recorder.lazy = LazyNoise(self.recorder.tables, holders)
        return self.recorder.lazy

    def groups(self, part: MicroBatch) -> Groups | None:
        """Return the units of a micro-batch; None if examples are clipped each on its own.

        Raises:
            UserError: its examples lack units, are not in their order, or have them though the engine has none.
        """
        unit = self.privacy_unit
        if (unit is None) != (part.units is None):
            raise UserError(
                "A micro-batch has units exactly where its engine clips by unit: see PrivateTraining(..., units=)."
            )
        return None if unit is None or part.units is None else Groups(part.units, unit.combine, self.device)

    @property
    def layout(self) -> TableLayout:
        """Global numbering of the model's embedding rows."""
        return self.recorder.layout

    @property
    def key(self) -> NoiseKey:
        """Key from which everything random is drawn."""
        return self.recorder.key

    @key.setter
    def key(self, key: NoiseKey) -> None:
        self.recorder.key = key

    def gradient(self, microbatches: Sequence[MicroBatch], step: int) -> tuple[NoisedGradient, Diagnostics]:
        """Compute the noised gradient of one logical batch, with one draw of surviving rows for all its micro-batches.

        Args:
            microbatches: none for an empty batch. With several, an algorithm whose choice of rows depends on the batch
                costs an extra forward pass for each.
            step: step number; the same step under the same key draws the same noise.

        Raises:
            UserError: in another process than the engine's own; or a refusal of :mod:`dpfest.capture`.
        """
        self.refuse_another_process()
        if self.lazy:
            self.lazy.use(self.key)
        batch = LogicalBatch(self, microbatches, step)
        context = StepContext(
            step, self.key, self.layout, self.device, self.selected, self.map_noise_multiplier, self.epsilon_per_row
        )
        survivors = Survivors(self.layout, self.algorithm.survivors(batch, context))
        sums = ClippedSum(self, survivors)
        loss = 0.0
        for recording in batch.recordings():
            sums.add(recording)
            loss += float(recording.losses.detach().sum())
        if self.deviation > 0:
            self._dense_noise.add(sums.flat_dense, self.key, step, self.deviation)
            if not self.lazy:
                add_gaussian(sums.flat_rows, self.key.stream("row noise", step), self.deviation)
                if (kept := self.algorithm.kept(survivors, sums.rows, self.deviation, context)) is not None:
                    survivors = sums.replace_rows(*kept)
        divisor = self.expected_batch_size or max(batch.units, 1)
        sums.finish(divisor)
        for table, local, value in zip(self.recorder.tables.values(), survivors.local, sums.rows, strict=True):
            if table.padding_idx is not None:  # never looked up, so its noise would only disturb the model
                value[table.padding_idx if local is None else local == table.padding_idx] = 0
        release = NoisedGradient(
            dense=dict(zip(self.recorder.dense_parameters, sums.dense.values(), strict=True)),
            tables=[RowGradient(local, value) for local, value in zip(survivors.local, sums.rows, strict=True)],
            rows_per_table=list(self.layout.rows) if self.lazy else [len(value) for value in sums.rows],
            pending=self.deviation / divisor if self.lazy else 0.0,
        )
        return release, Diagnostics(batch.examples, loss / batch.examples if batch.examples else math.nan)

    def update(self, gradient: NoisedGradient, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Take the optimisers' steps: post-processing of a release."""
        self.fill(gradient)
        if self.lazy:
            rates = learning_rates(self.lazy.tables, optimizers)
            self.lazy.apply([(table.rows, table.values) for table in gradient.tables], gradient.pending, rates)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def fill(self, gradient: NoisedGradient) -> None:
        """Set ``.grad`` of every trainable parameter.

        A table's is sparse, or None if no row survived or :meth:`dpfest.lazy.LazyNoise.apply` updates the table.
        """
        for parameter in self.recorder.frozen:
            parameter.grad = None  # a stale one is raw, and optimisers would apply it
        for name, parameter in self.recorder.dense_parameters.items():
            parameter.grad = gradient.dense[name]
        for table, noised in zip(self.recorder.tables.values(), gradient.tables, strict=True):
            weight, rows = table.weight, noised.rows
            if rows is None:
                weight.grad = noised.values
            elif len(rows) and not self.lazy:
                weight.grad = torch.sparse_coo_tensor(
                    rows.unsqueeze(0), noised.values, weight.shape, is_coalesced=True, check_invariants=False
                )
            else:
                weight.grad = None


class LogicalBatch:
    """A logical batch that algorithms can query; each query costs a pass over it.

    A single micro-batch is run once and its recording kept; several are rerun in each pass, so that only one
    micro-batch's activations are in memory at a time.

    Attributes:
        examples: number of examples.
        identities: what is clipped as one, in the order of its numbers: examples, or units; int64 ``[u]``.
    """

    def __init__(self, engine: PrivateEngine, microbatches: Sequence[MicroBatch], step: int) -> None:
        self._engine, self._step = engine, step
        self._parts = [(part, engine.groups(part)) for part in microbatches if len(part.examples)]
        self.examples = sum(len(part.examples) for part, _ in self._parts)
        clipped = [part.examples if groups is None else groups.units for part, groups in self._parts]
        self.identities = np.concatenate([np.empty(0, np.int64), *clipped])
        if engine.privacy_unit and len(np.unique(self.identities)) < len(self.identities):
            raise UserError(
                f"A {engine.privacy_unit.name} is in two micro-batches of a batch: its parts would be clipped apart."
            )
        self._only = self._record(*self._parts[0]) if len(self._parts) == 1 else None

    def _record(self, part: MicroBatch, groups: Groups | None, backward: bool = True) -> Recording:
        return self._engine.recorder.record(part.data, part.examples, self._step, backward=backward, groups=groups)

    @property
    def units(self) -> int:
        """Number of examples, or units, that are clipped as one."""
        return len(self.identities)

    def recordings(self) -> Iterator[Recording]:
        """Yield the recording of each micro-batch, in order, after its backward pass."""
        for part in self._parts:
            recording = self._record(*part) if self._only is None else self._only
            recording.backward()
            yield recording

    def contributions(self) -> Contributions:
        """Return which example (or unit) touched which rows."""
        if self._only is not None:
            return _contributions(self._only)
        recorded = (self._record(*part, backward=False) for part in self._parts)
        return Contributions.joined(map(_contributions, recorded), self._engine.device)

    def clipped_row_norms(self, clipping_norm: float) -> tuple[Tensor, Tensor]:
        """Return the touched rows, sorted ``[u]``, and the l2 norm of each row's summed gradient, ``[u]``.

        Each example's embedding gradient is first clipped to ``clipping_norm``. Sums are float64: what the rounding of
        the others' sum moves when one example is added or removed is below 2^-52 of it.
        """
        touched, layout = self.contributions().rows, self._engine.layout
        sums = ClippedSum(
            self._engine, Survivors(layout, touched), clipping_norm, with_dense=False, dtype=torch.float64
        )
        for recording in self.recordings():
            sums.add(recording)
        return touched, torch.cat([torch.linalg.vector_norm(table, dim=1) for table in sums.rows])


def _contributions(recording: Recording) -> Contributions:
    lookups = recording.lookups
    return Contributions(lookups.rows, lookups.row_of, lookups.example, len(recording))


class ClippedSum:
    """The sum of masked, clipped per-example gradients, before noise.

    Args:
        engine: engine of the model.
        survivors: rows that are not zeroed.
        clipping_norm: l2 norm to which each example's (or unit's) masked gradient is clipped (inf: no clipping); None
            for the algorithm's.
        with_dense: whether dense parameters count in the norm and the sum.
        dtype: of the sums; None for the engine's ``sum_dtype``.

    Attributes:
        rows: each table's sum ``[s, dim]``, views of ``flat_rows``.
        dense: each dense parameter's sum, views of ``flat_dense``.
        norms: sum of the clipped gradients' norms, float.
        example_norms: norms of the masked gradients before clipping, ``[b]`` for each micro-batch.
    """

    def __init__(
        self,
        engine: PrivateEngine,
        survivors: Survivors,
        clipping_norm: float | None = None,
        *,
        with_dense: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._survivors, self._with_dense = survivors, with_dense
        self.clipping_norm = engine.algorithm.clipping_norm if clipping_norm is None else clipping_norm
        parameters: list[Tensor] = [*engine.recorder.dense_parameters.values()] if with_dense else []
        self._parameters, self._shapes = parameters, [parameter.shape for parameter in parameters]
        self._dtype = engine.dtype
        self.flat_rows, self.flat_dense = (
            torch.zeros(sum(map(math.prod, shapes)), device=engine.device, dtype=dtype or engine.sum_dtype)
            for shapes in (survivors.shapes, self._shapes)
        )
        self._name_parts()
        self.norms = 0.0
        self.example_norms: list[Tensor] = []

    def add(self, recording: Recording) -> None:
        """Mask, clip and add each example's (or unit's) gradient; call after the recording's backward pass."""
        pairs = recording.lookups.masked(self._survivors)
        factors = recording.factors if self._with_dense else []
        squared_norms = recording.losses.detach().new_zeros(len(recording), dtype=recording.recorder.dtype)
        for layer in factors:
            squared_norms += layer.squared_norms()
        pairs.add_squared_norms(squared_norms)
        if recording.overflowed is not None:  # an earlier sum of this recording has set them to zero
            squared_norms.masked_fill_(recording.overflowed, torch.inf)
        finite = math.isfinite(float(squared_norms.sum()))
        if not finite:  # a gradient whose norm is not finite cannot be clipped: it counts as zero
            broken = recording.overflowed = ~squared_norms.isfinite()
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

    def replace_rows(self, survivors: Survivors, rows: Sequence[Tensor]) -> Survivors:
        """Put other rows, with each table's sums ``[s, dim]``, in the place of the sums' rows; return the survivors."""
        self._survivors, self.flat_rows = survivors, torch.cat([table.reshape(-1) for table in rows])
        self._name_parts()
        return survivors

    def finish(self, divisor: float) -> None:
        """Divide the sums, and round them to the model's dtype."""
        self.flat_rows.div_(divisor)
        self.flat_dense.div_(divisor)
        if self.flat_rows.dtype != self._dtype:
            self.flat_rows, self.flat_dense = self.flat_rows.to(self._dtype), self.flat_dense.to(self._dtype)
            self._name_parts()

    def _name_parts(self) -> None:
        self.rows = _parts(self.flat_rows, self._survivors.shapes)
        self.dense = dict(zip(self._parameters, _parts(self.flat_dense, self._shapes), strict=True))


def _parts(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    sizes = [math.prod(shape) for shape in shapes]
    return [part.view(tuple(shape)) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
