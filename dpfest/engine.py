"""One private step: per-example norms, mask, clip, sum, noise on the surviving rows.

Every algorithm runs through :meth:`PrivateEngine.gradient`; what tells them apart is the rule for which embedding
rows survive (:mod:`dpfest.algorithms`).  The order is the paper's (Ghazi et al., 2023, Algorithm 1): rows that do not
survive are zeroed in every example's gradient *before* the whole gradient, surviving rows and dense parameters
together, is clipped to ``C2``; noise of standard deviation ``C2 * sigma_2`` goes on every surviving row, touched or
not, and on every dense parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpfest.accounting import Event
from dpfest.algorithms import Algorithm, StepContext
from dpfest.capture import Recorder, Recording
from dpfest.errors import UserError
from dpfest.gaussian import add_gaussian, charged_deviation
from dpfest.lazy import LazyNoise, learning_rates
from dpfest.noise import NoiseKey
from dpfest.reading import MicroBatch
from dpfest.survivors import Contributions
from dpfest.tables import Survivors, Table, TableLayout

ROUNDING_ALLOWANCE = 2.0**-10
"""Of ``C2``, charged to the gradient's sensitivity: by how much the rounding of the others' part may move when one
example comes or goes.  docs/PRIVACY.md has what was measured, and crafted data that pass it in float32."""


@dataclass
class RowGradient:
    """Noised gradient of one table: ``values [s, dim]`` at local ``rows [s]``, or at every row where rows is None."""

    rows: Tensor | None
    values: Tensor


@dataclass
class NoisedGradient:
    """What a step releases, divided by the expected batch size.

    Attributes:
        dense: gradient of each dense parameter, by name.
        tables: gradient of each table, in the order of the layout.
        rows_per_table: rows with a noised gradient in each table, those whose noise is pending among them.
        pending: standard deviation of the noise that every row of every table still lacks: 0 unless it is lazy.
    """

    dense: dict[str, Tensor]
    tables: list[RowGradient]
    rows_per_table: list[int]
    pending: float


def noise_of(step: Event | None, batch_size: int) -> dict[str, Any]:
    """Keyword arguments of :class:`PrivateEngine` for what a step spends.

    A step without privacy (None) has no noise, and averages over the batch's own size.
    """
    return {
        "gradient_noise_multiplier": (step.gradient_noise_multiplier if step else None) or 0.0,
        "map_noise_multiplier": step.map_noise_multiplier if step else None,
        "epsilon_per_row": step.epsilon_per_draw if step else None,
        "expected_batch_size": float(batch_size) if step else None,
    }


class Diagnostics(NamedTuple):
    """What a step saw on the way; private.  The batch's size, and its mean loss (nan where it is empty)."""

    examples: int
    loss: float


class PrivateEngine:
    """Turns batches into noised gradients.

    Args:
        model: its trainable parameters must all lie in supported layers (:class:`dpfest.capture.Recorder`).
        algorithm: the rule and its clipping norm.
        loss_fn: ``loss_fn(model, batch)`` runs the model and returns the per-example losses ``[b]``; no example may
            influence another's loss (:mod:`dpfest.trial`).
        key: where the noise and the forward pass's draws come from.
        gradient_noise_multiplier: ``sigma_2``; 0 for no noise.
        expected_batch_size: divisor of the noised sum; None divides by the actual size, which is private.
        map_noise_multiplier: ``sigma_1``, for the rules that draw a noisy map.
        epsilon_per_row: cost of one drawn row, for exponential selection.
        selected: sorted distinct global rows ``[k]``, for the rules that train within a set chosen beforehand.
        sum_dtype: type in which clipped gradients are summed; None for the model's own.

    Formal guarantee: on a batch that is a Poisson sample at rate ``q``, the pair (map, gradient) that a step of
    DP-AdaFEST releases is dominated by one Gaussian mechanism of multiplier ``(sigma_1^-2 + sigma_2^-2)^(-1/2)``
    subsampled at ``q``, under adding or removing one example; a rule that reads no batch is dominated by ``sigma_2``
    alone.  Under lazy noise a gradient is no release: its tables' noise is :attr:`NoisedGradient.pending`, and
    :class:`dpfest.lazy.LazyNoise` keeps the account.
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
    ) -> None:
        self.recorder = Recorder(model, loss_fn, key)
        holders = [layer for layer in self.recorder.layers.values() if isinstance(layer, Table)]
        self.lazy = LazyNoise(self.recorder.tables, holders) if algorithm.lazy else None
        self.recorder.lazy = self.lazy
        self.algorithm, self.expected_batch_size = algorithm, expected_batch_size
        self.device, self.dtype = self.recorder.device, self.recorder.dtype
        self.sum_dtype = sum_dtype or self.dtype
        self.selected = None if selected is None else selected.to(self.device)
        if selected is not None and len(selected):
            ordered = bool((selected[1:] > selected[:-1]).all())
            if not (ordered and selected[0] >= 0 and selected[-1] < self.layout.total_rows):
                raise UserError(
                    f"The selected rows must be sorted, distinct and in 0 .. {self.layout.total_rows - 1}, the model's "
                    "rows in the order of its tables."
                )
        self.map_noise_multiplier, self.epsilon_per_row = map_noise_multiplier, epsilon_per_row
        coordinates = self.layout.coordinates + sum(p.numel() for p in self.recorder.dense_parameters.values())
        sensitivity = algorithm.clipping_norm * (1 + ROUNDING_ALLOWANCE)
        self.deviation = (
            charged_deviation(gradient_noise_multiplier, sensitivity, coordinates)
            if gradient_noise_multiplier > 0
            else 0.0
        )

    @property
    def layout(self) -> TableLayout:
        """The numbering of the model's embedding rows."""
        return self.recorder.layout

    @property
    def key(self) -> NoiseKey:
        """Of all that is drawn."""
        return self.recorder.key

    @key.setter
    def key(self, key: NoiseKey) -> None:
        self.recorder.key = key

    def gradient(self, microbatches: Sequence[MicroBatch], step: int) -> tuple[NoisedGradient, Diagnostics]:
        """The noised gradient of one logical batch, with one mask draw for all its micro-batches.

        Args:
            microbatches: none for an empty batch.  With several, a rule that reads the batch costs an extra forward
                pass each.
            step: number of the step; the same step under the same key draws the same noise.
        """
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
            add_gaussian(sums.flat_dense, self.key.stream("dense noise", step), self.deviation)
            if not self.lazy:
                add_gaussian(sums.flat_rows, self.key.stream("row noise", step), self.deviation)
        divisor = self.expected_batch_size or max(batch.examples, 1)
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
            self.lazy.apply([(found.rows, found.values) for found in gradient.tables], gradient.pending, rates)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def fill(self, gradient: NoisedGradient) -> None:
        """Set ``.grad`` of every trainable parameter.

        A table's is sparse, or None where no row of it survived or :meth:`dpfest.lazy.LazyNoise.apply` takes the step.
        """
        for name, parameter in self.recorder.dense_parameters.items():
            parameter.grad = gradient.dense[name]
        for table, found in zip(self.recorder.tables.values(), gradient.tables, strict=True):
            weight, rows = table.weight, found.rows
            if rows is None:
                weight.grad = found.values
            elif len(rows) and not self.lazy:
                weight.grad = torch.sparse_coo_tensor(
                    rows.unsqueeze(0), found.values, weight.shape, is_coalesced=True, check_invariants=False
                )
            else:
                weight.grad = None


class LogicalBatch:
    """A logical batch that rules can question; each question costs a pass over it.

    A single micro-batch is run once and its recording kept; several are run anew in each pass, so that no more than
    one micro-batch's activations are held at a time.

    Attributes:
        examples: their number.
    """

    def __init__(self, engine: PrivateEngine, microbatches: Sequence[MicroBatch], step: int) -> None:
        self._engine, self._step = engine, step
        self._microbatches = [part for part in microbatches if len(part.examples)]
        self.examples = sum(len(part.examples) for part in self._microbatches)
        self._only = self._record(self._microbatches[0]) if len(self._microbatches) == 1 else None

    def _record(self, part: MicroBatch, backward: bool = True) -> Recording:
        return self._engine.recorder.record(part.data, part.examples, self._step, backward=backward)

    def recordings(self) -> Iterator[Recording]:
        """The recording of each micro-batch, in order, after its backward pass."""
        for part in self._microbatches:
            recording = self._only or self._record(part)
            recording.backward()
            yield recording

    def contributions(self) -> Contributions:
        """Who touched what."""
        if self._only is not None:
            found = self._only.lookups
            return Contributions(found.rows, found.row_of, found.example, self.examples)
        empty = torch.empty(0, dtype=torch.int64, device=self._engine.device)
        rows, row_of, example = [empty], [empty], [empty]
        touched = examples = 0
        for part in self._microbatches:
            found = self._record(part, backward=False).lookups
            example.append(found.example + examples)
            row_of.append(found.row_of + touched)
            rows.append(found.rows)
            touched += len(found.rows)
            examples += len(part.examples)
        distinct, place = torch.unique(torch.cat(rows), return_inverse=True)
        return Contributions(distinct, place[torch.cat(row_of)], torch.cat(example), examples)

    def clipped_row_norms(self, clipping_norm: float) -> tuple[Tensor, Tensor]:
        """Touched rows, sorted ``[u]``, and the norm of each one's sum of per-example embedding gradients, ``[u]``.

        Every example's embedding gradient is clipped to ``clipping_norm`` first.
        """
        touched = self.contributions().rows
        sums = ClippedSum(self._engine, Survivors(self._engine.layout, touched), clipping_norm, with_dense=False)
        for recording in self.recordings():
            sums.add(recording)
        return touched, torch.cat([torch.linalg.vector_norm(table, dim=1) for table in sums.rows])


class ClippedSum:
    """The sum of masked, clipped per-example gradients, without noise.

    Args:
        engine: of the model.
        survivors: the rows that are not zeroed.
        clipping_norm: l2 norm to which each example's masked gradient is clipped (infinite for no clipping); None for
            the algorithm's.
        with_dense: whether the dense parameters' gradient belongs to the norm and the sum.

    Attributes:
        rows: each table's sum ``[s, dim]``, parts of ``flat_rows``.
        dense: each dense parameter's sum, parts of ``flat_dense``.
        norms: of the clipped gradients, added up: float.
        example_norms: of the masked gradients before they are clipped, ``[b]`` of each micro-batch.
    """

    def __init__(
        self,
        engine: PrivateEngine,
        survivors: Survivors,
        clipping_norm: float | None = None,
        *,
        with_dense: bool = True,
    ) -> None:
        self._survivors, self._with_dense = survivors, with_dense
        self._clipping_norm = engine.algorithm.clipping_norm if clipping_norm is None else clipping_norm
        parameters: list[Tensor] = [*engine.recorder.dense_parameters.values()] if with_dense else []
        self._parameters, self._shapes = parameters, [parameter.shape for parameter in parameters]
        self._dtype = engine.dtype
        self.flat_rows, self.flat_dense = (
            torch.zeros(sum(map(math.prod, shapes)), device=engine.device, dtype=engine.sum_dtype)
            for shapes in (survivors.shapes, self._shapes)
        )
        self._name_parts()
        self.norms = 0.0
        self.example_norms: list[Tensor] = []

    def add(self, recording: Recording) -> None:
        """Mask each example's gradient, clip it and add it; after the recording's backward pass."""
        pairs = recording.lookups.masked(self._survivors)
        factors = recording.factors if self._with_dense else []
        squared_norms = recording.losses.detach().new_zeros(len(recording.losses), dtype=recording.recorder.dtype)
        for layer in factors:
            squared_norms += layer.squared_norms()
        pairs.add_squared_norms(squared_norms)
        broken = ~squared_norms.isfinite()
        if bool(broken.any()):  # a gradient without a norm cannot be clipped: it counts as zero
            squared_norms.masked_fill_(broken, torch.inf)
            for part in (recording.lookups, *recording.factors):
                part.drop(broken)
        norms = squared_norms.sqrt()
        weight = (self._clipping_norm / norms).clamp_max(1.0).nan_to_num(nan=0.0)
        self.norms += float((weight * norms).nan_to_num(nan=0.0).sum())
        self.example_norms.append(norms)
        pairs.add_weighted_sums(weight, self.rows)
        for layer in factors:
            layer.add_weighted_sums(weight, self.dense)

    def finish(self, divisor: float) -> None:
        """Divide the sums, and round them to the model's type."""
        self.flat_rows = self.flat_rows.div_(divisor).to(self._dtype)
        self.flat_dense = self.flat_dense.div_(divisor).to(self._dtype)
        self._name_parts()

    def _name_parts(self) -> None:
        self.rows = _parts(self.flat_rows, self._survivors.shapes)
        self.dense = dict(zip(self._parameters, _parts(self.flat_dense, self._shapes), strict=True))


def _parts(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    sizes = [math.prod(shape) for shape in shapes]
    return [part.view(tuple(shape)) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
