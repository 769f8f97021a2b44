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
from typing import Any

import torch
from torch import Tensor, nn

from dpfest.algorithms import Algorithm, StepContext
from dpfest.capture import LookupsVary, Recorder, Recording
from dpfest.errors import UserError
from dpfest.lazy import LazyNoise
from dpfest.noise import NoiseKey
from dpfest.survivors import Contributions
from dpfest.tables import Survivors, TableLayout


@dataclass
class RowGradient:
    """Noised gradient of one table: ``values [s, dim]`` at local ``rows [s]``, or at every row where rows is None."""

    rows: Tensor | None
    values: Tensor


@dataclass
class NoisedGradient:
    """What a step releases, averaged over the batch, and what it saw on the way.

    Attributes:
        dense: gradient of each dense parameter, by name.
        tables: gradient of each table, in the order of the layout.
        rows_per_table: rows with a noised gradient in each table, those whose noise is owed among them.
        owed: standard deviation of the noise that every row of every table is still owed: 0 unless it is lazy.
        examples, loss: the batch's size and mean loss (nan where it is empty).  Private: no part of the release.
    """

    dense: dict[str, Tensor]
    tables: list[RowGradient]
    rows_per_table: list[int]
    owed: float
    examples: int
    loss: float


class PrivateEngine:
    """Turns batches into noised gradients.

    Args:
        model: its trainable parameters must all lie in supported layers (:class:`dpfest.capture.Recorder`).
        algorithm: the rule and its clipping norm.
        losses: ``losses(batch)`` runs the model and returns the per-example losses ``[b]``; no example may
            influence another's loss.
        key: where the noise comes from.
        gradient_noise_multiplier: ``sigma_2``; 0 for no noise.
        expected_batch_size: divisor of the noised sum; None divides by the actual size, which is private.
        map_noise_multiplier: ``sigma_1``, for the rules that draw a noisy map.
        epsilon_per_row: cost of one drawn row, for exponential selection.
        selected: sorted distinct global rows ``[k]``, for the rules that train within a set chosen beforehand.

    Formal guarantee: on a batch that is a Poisson sample at rate ``q``, the pair (map, gradient) that a step of
    DP-AdaFEST releases is dominated by one Gaussian mechanism of multiplier
    ``(sigma_1^-2 + sigma_2^-2)^(-1/2)`` subsampled at ``q``, under adding or removing one example; a rule that reads
    no batch is dominated by ``sigma_2`` alone.  Under lazy noise a gradient is no release: its tables' noise is
    :attr:`NoisedGradient.owed`, and :class:`dpfest.private.PrivateTraining` keeps the account.
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        losses: Callable[[Any], Tensor],
        key: NoiseKey,
        *,
        gradient_noise_multiplier: float,
        expected_batch_size: float | None,
        map_noise_multiplier: float | None = None,
        epsilon_per_row: float | None = None,
        selected: Tensor | None = None,
    ) -> None:
        self.recorder = Recorder(model)
        self.lazy = LazyNoise(list(self.recorder.tables.values())) if algorithm.lazy else None
        self.recorder.before_read = self.lazy.read if self.lazy else None
        self.algorithm, self.losses, self.key = algorithm, losses, key
        self.gradient_noise_multiplier = gradient_noise_multiplier
        self.expected_batch_size = expected_batch_size
        self.device, self.dtype = self.recorder.device, self.recorder.dtype
        self.selected = None if selected is None else selected.to(self.device)
        if selected is not None and len(selected):
            ordered = bool((selected[1:] > selected[:-1]).all())
            if not (ordered and selected[0] >= 0 and selected[-1] < self.layout.total_rows):
                raise UserError(
                    f"The selected rows must be sorted, distinct and in 0 .. {self.layout.total_rows - 1}, the model's "
                    "rows in the order of its tables."
                )
        self.map_noise_multiplier, self.epsilon_per_row = map_noise_multiplier, epsilon_per_row

    @property
    def layout(self) -> TableLayout:
        """The numbering of the model's embedding rows."""
        return self.recorder.layout

    def gradient(self, microbatches: Sequence[Any], step: int) -> NoisedGradient:
        """The noised gradient of one logical batch, with one mask draw for all its micro-batches.

        Args:
            microbatches: none for an empty batch.  With several, a rule that reads the batch costs an extra forward
                pass each, as far as the model's last look-up where their number does not vary.
            step: number of the step; the same step under the same key draws the same noise.
        """
        if self.lazy:
            self.lazy.begin(self.key, step)
        try:
            return self._gradient(microbatches, step)
        except LookupsVary:  # nothing is released yet: the same draws serve anew
            self.recorder.table_calls = 0
            return self._gradient(microbatches, step)

    def _gradient(self, microbatches: Sequence[Any], step: int) -> NoisedGradient:
        parameters = self.recorder.dense_parameters
        shapes = [parameter.shape for parameter in parameters.values()]
        batch = LogicalBatch(self, microbatches)
        context = StepContext(
            step, self.key, self.layout, self.device, self.selected, self.map_noise_multiplier, self.epsilon_per_row
        )
        survivors = Survivors(self.layout, self.algorithm.survivors(batch, context))
        divisor = self.expected_batch_size or max(batch.examples, 1)
        sigma = self.gradient_noise_multiplier
        deviation = self.algorithm.clipping_norm * sigma / divisor if sigma > 0 else 0.0
        rows = self._noise("row noise", step, survivors.shapes, 0.0 if self.lazy else deviation)
        dense = self._noise("dense noise", step, shapes, deviation)
        sums: dict[Tensor, Tensor] = dict(zip(parameters.values(), dense, strict=True))

        examples, loss = 0, 0.0
        for recording in batch.recordings():
            recording.backward()
            weight = clip_and_sum(recording, survivors, self.algorithm.clipping_norm, rows, divisor, dense=True)
            for factors in recording.factors:
                factors.add_weighted_sums(weight, sums)
            examples += len(weight)
            loss += float(recording.losses.detach().sum())

        for table, local, value in zip(self.recorder.tables.values(), survivors.local, rows, strict=True):
            if table.padding_idx is not None:  # never looked up, so its noise would only disturb the model
                value[table.padding_idx if local is None else local == table.padding_idx] = 0
        tables = [RowGradient(local, value) for local, value in zip(survivors.local, rows, strict=True)]
        noised = list(self.layout.rows) if self.lazy else [len(value) for value in rows]
        owed = deviation if self.lazy else 0.0
        mean_loss = loss / examples if examples else math.nan
        return NoisedGradient(dict(zip(parameters, dense, strict=True)), tables, noised, owed, examples, mean_loss)

    def fill(self, gradient: NoisedGradient) -> None:
        """Set ``.grad`` of every trainable parameter: of a table sparse, and None where no row of it survived."""
        for name, parameter in self.recorder.dense_parameters.items():
            parameter.grad = gradient.dense[name]
        for table, found in zip(self.recorder.tables.values(), gradient.tables, strict=True):
            weight, rows = table.weight, found.rows
            if rows is None:
                weight.grad = found.values
            elif len(rows):
                weight.grad = torch.sparse_coo_tensor(
                    rows.unsqueeze(0), found.values, weight.shape, is_coalesced=True, check_invariants=False
                )
            else:
                weight.grad = None

    def record(self, batch: Any, *, lookups_only: bool = False) -> Recording:
        """Run the forward pass of one micro-batch and keep its factors, or run it as far as it looks rows up."""
        with self.recorder.record(lookups_only=lookups_only) as recording:
            recording.losses = self.losses(batch)
        recording.look_up()
        return recording

    def _noise(self, purpose: str, step: int, shapes: Sequence[Sequence[int]], deviation: float) -> list[Tensor]:
        """Gaussian noise of this standard deviation in the given shapes, from one draw; zeros where there is none."""
        sizes = [math.prod(shape) for shape in shapes]
        if deviation > 0:
            flat = self.key.normal(purpose, step, sum(sizes), self.device, deviation).to(self.dtype)
        else:
            flat = torch.zeros(sum(sizes), device=self.device, dtype=self.dtype)
        return [part.view(tuple(shape)) for part, shape in zip(flat.split(sizes), shapes, strict=True)]


class LogicalBatch:
    """A logical batch that rules can question; each question costs a pass over it.

    ``examples`` is their number, once a rule has asked for the contributions or where there is but one micro-batch.

    A single micro-batch is run once and its recording kept; several are run anew in each pass, so that no more than
    one micro-batch's activations are held at a time.
    """

    def __init__(self, engine: PrivateEngine, microbatches: Sequence[Any]) -> None:
        self._engine, self._microbatches = engine, microbatches
        self._only = engine.record(microbatches[0]) if len(microbatches) == 1 else None
        self.examples = len(self._only.losses) if self._only else 0

    def recordings(self) -> Iterator[Recording]:
        """The recording of each micro-batch, in order."""
        if self._only is not None:
            yield self._only
        else:
            yield from (self._engine.record(batch) for batch in self._microbatches)

    def contributions(self) -> Contributions:
        """Who touched what."""
        if self._only is not None:
            found = self._only.lookups
            return Contributions(found.rows, found.row_of, found.example, self.examples)
        empty = torch.empty(0, dtype=torch.int64, device=self._engine.device)
        rows, row_of, example = [empty], [empty], [empty]
        touched = examples = 0
        with torch.no_grad():
            for batch in self._microbatches:
                recording = self._engine.record(batch, lookups_only=True)
                found = recording.lookups
                example.append(found.example + examples)
                row_of.append(found.row_of + touched)
                rows.append(found.rows)
                touched += len(found.rows)
                examples += recording.examples
        self.examples = examples
        distinct, place = torch.unique(torch.cat(rows), return_inverse=True)
        return Contributions(distinct, place[torch.cat(row_of)], torch.cat(example), examples)

    def clipped_row_norms(self, clipping_norm: float) -> tuple[Tensor, Tensor]:
        """Touched rows, sorted ``[u]``, and the norm ``[u]`` of each one's sum of per-example embedding gradients,
        every example's embedding gradient clipped to ``clipping_norm`` first."""
        touched = self.contributions().rows
        survivors = Survivors(self._engine.layout, touched)
        sums = [torch.zeros(shape, device=self._engine.device, dtype=self._engine.dtype) for shape in survivors.shapes]
        for recording in self.recordings():
            recording.backward()
            clip_and_sum(recording, survivors, clipping_norm, sums, 1.0, dense=False)
        return touched, torch.cat([torch.linalg.vector_norm(table, dim=1) for table in sums])


def clip_and_sum(
    recording: Recording,
    survivors: Survivors,
    clipping_norm: float,
    rows: list[Tensor],
    divisor: float,
    *,
    dense: bool,
) -> Tensor:
    """Mask each example's gradient, clip it, divide it, and add the embedding part onto ``rows``.

    Args:
        recording: after its backward pass.
        survivors: the rows that are not zeroed.
        clipping_norm: l2 norm to which each example's masked gradient is clipped; infinite for no clipping.
        rows: each table's ``[s, dim]``, added to in place.
        divisor: of the sum.
        dense: whether the dense parameters' gradient belongs to the norm.

    Returns:
        The weight of each example, ``[b]``, with which the dense parameters are to be summed: at most 1 / divisor.
    """
    pairs = recording.lookups.masked(survivors)
    squared_norms = recording.losses.detach().new_zeros(len(recording.losses), dtype=recording.recorder.dtype)
    for factors in recording.factors if dense else ():
        squared_norms += factors.squared_norms()
    pairs.add_squared_norms(squared_norms)
    broken = ~squared_norms.isfinite()
    if bool(broken.any()):  # a gradient without a norm cannot be clipped: it counts as zero
        squared_norms.masked_fill_(broken, torch.inf)
        for part in (recording.lookups, *recording.factors):
            part.drop(broken)
    weight = (clipping_norm / squared_norms.sqrt()).clamp_max(1.0).nan_to_num(nan=0.0) / divisor
    pairs.add_weighted_sums(weight, rows)
    return weight
