"""A model, an algorithm and its noise, put together for private steps (:func:`dpfest.step.order.private_step`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpfest import devices
from dpfest.accounting.accountant import Event
from dpfest.accounting.bands import strategy
from dpfest.algorithms.algorithm import Algorithm
from dpfest.errors import UserError
from dpfest.gradients.arithmetic import one_order
from dpfest.gradients.capture import Recorder
from dpfest.gradients.padding import usual_capacity
from dpfest.gradients.parts import Diagnostics, Noise, NoisedGradient, Rows
from dpfest.gradients.reading import MicroBatch
from dpfest.gradients.sites import resolved
from dpfest.gradients.tables import TableLayout
from dpfest.gradients.units import UnitConfig
from dpfest.noise.alone import OneProcess
from dpfest.noise.gaussian import ROUNDING_ALLOWANCE, charged_deviation, gaussian_grid
from dpfest.noise.key import CHACHA, NoiseKey
from dpfest.noise.places import RowPlaces
from dpfest.step.correlated import Correlated
from dpfest.step.lazy import learning_rates
from dpfest.step.local import LocalRows
from dpfest.step.order import private_step
from dpfest.step.step_noise import Deferred, Independent


class PrivateEngine(OneProcess):
    """Turns batches into noised gradients.

    Args:
        model: see :class:`dpfest.gradients.capture.Recorder` for what it may contain.
        algorithm: which rows survive, and the clipping norm.
        loss_fn: ``loss_fn(model, batch)`` runs the model and returns per-example losses ``[b]``; no example may
            influence another's loss (:mod:`dpfest.training.trial`).
        key: source of the noise and of the forward pass's random numbers.
        cost: the event that is charged for a step, with all its noise multipliers; None for no noise.
        expected_batch_size: divisor of the noised sum; None divides by the actual size, which is private.
        selected: sorted distinct global rows ``[k]``, for algorithms that train within a preselected set.
        sum_dtype: dtype in which clipped gradients are summed; None for the model's.
        unit: what is clipped and counted as one; None for each example. With it, a batch holds whole units.
        rows: makes the part that says where rows lie (:class:`dpfest.gradients.parts.Rows`).
        noise: on the gradient, in place of what ``cost`` states, which then has no say in it.
        steps: number of steps that are to be taken, of an algorithm whose noise is correlated over steps.

    Raises:
        UserError: the event states no noise of the gradient; the algorithm cannot choose rows where these lie; selected
            rows are not sorted, distinct and in range.

    Formal guarantee: on a batch that is a Poisson sample at rate ``q`` of examples (or units), the pair (map, gradient)
    released by a step of DP-AdaFEST is dominated, under add-or-remove-one adjacency of these, by one Gaussian mechanism
    of noise multiplier ``(sigma_1^-2 + sigma_2^-2)^(-1/2)`` subsampled at ``q``; for an algorithm whose choice of rows
    does not depend on the batch, by one of multiplier ``sigma_2``; with ``bands``, so do that step and the b - 1 after
    it together (:class:`dpfest.step.correlated.Correlated`). Under lazy noise a gradient is not a release: its
    tables' noise is :attr:`NoisedGradient.pending`, and :class:`dpfest.step.lazy.LazyNoise` tracks it.
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        key: NoiseKey,
        *,
        cost: Event | None,
        expected_batch_size: float | None,
        selected: Tensor | None = None,
        sum_dtype: torch.dtype | None = None,
        unit: UnitConfig | None = None,
        rows: Callable[[Recorder, Tensor | None, torch.dtype], Rows] = LocalRows,
        noise: Noise | None = None,
        steps: int | None = None,
    ) -> None:
        self.recorder = recorder = Recorder(model, loss_fn, key, unit)
        self.algorithm, self.cost, self.expected_batch_size = algorithm, cost, expected_batch_size
        self.device, self.dtype = recorder.device, recorder.dtype
        if key.cipher == CHACHA:
            RowPlaces(None, list(zip(recorder.layout.rows, recorder.layout.dims, strict=True)))  # refuses too many rows
        self.sum_dtype = sum_dtype or self.dtype
        if self.sum_dtype.itemsize < self.dtype.itemsize:
            raise UserError(f"sum_dtype={sum_dtype} is narrower than the model's {self.dtype}: sums could overflow.")
        self.selected = None if selected is None else _in_order(selected.to(self.device, torch.int64), self.layout)
        self.rows: Any = rows(recorder, self.selected, self.sum_dtype)
        if expected_batch_size and (parts := devices.serving(*recorder.trainable.values())):
            recorder.usual = usual_capacity(expected_batch_size)
            recorder.graphs = parts.Graphs(recorder) if devices.graphs(recorder.device) else None
        if algorithm.joint and not self.rows.joint:
            raise UserError(
                f"algorithm={algorithm.name} cannot be trained over ranks: it draws m rows from all tables jointly, by "
                "the norms of a clipped sum that must be complete before the first is drawn. Train it in one process."
            )
        self.lazy = self.rows.lazy_noise() if algorithm.lazy else None
        if self.lazy and type(algorithm).kept is not Algorithm.kept:
            raise UserError(
                f"algorithm={algorithm.name} keeps rows by their noised gradient, which lazy noise draws later."
            )
        if noise is None:
            noise = self._noise(cost, steps)
        self.noise = noise

    def _noise(self, cost: Event | None, steps: int | None) -> Noise:
        bands = self.algorithm.bands
        if cost is not None and bands != cost.bands:
            raise UserError(f"bands={bands} of the noise are not those of the event of a {cost.what}, {cost.bands}.")
        if cost is not None and bands is not None and steps is not None:
            rows = strategy(bands, steps)
            return Correlated(self._deviation(cost, rows.grid), rows, steps)
        if bands is not None:
            raise UserError(f"bands={bands} of correlated noise need the number of steps, steps=, and an event, cost=.")
        deviation = 0.0 if cost is None else self._deviation(cost)
        return Deferred(deviation, self.lazy) if self.lazy else Independent(deviation)

    def _deviation(self, cost: Event, grid_of: Callable[[float], float] = gaussian_grid) -> float:
        if cost.gradient_noise_multiplier is None:
            raise UserError(
                f"The event of a {cost.what} states no gradient_noise_multiplier: the step would add no noise, though "
                "it is charged for. Let the algorithm's step_event state it."
            )
        coordinates = self.layout.coordinates + sum(p.numel() for p in self.recorder.dense_parameters.values())
        return charged_deviation(
            cost.gradient_noise_multiplier,
            self.algorithm.clipping_norm * (1 + ROUNDING_ALLOWANCE),
            coordinates * self.rows.roundings**2,
            grid_of,
        )

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

    def gradient(
        self, microbatches: Sequence[MicroBatch], step: int, check: Callable[[], None] = lambda: None
    ) -> tuple[NoisedGradient, Diagnostics]:
        """Compute the noised gradient of one logical batch, with one draw of surviving rows for all its micro-batches.

        Args:
            microbatches: none for an empty batch. With several, an algorithm whose choice of rows depends on the batch
                costs an extra forward pass for each. Over ranks, this rank's parts; every rank calls it.
            step: step number; the same step under the same key draws the same noise.
            check: refuses the batch; called while its rows can be looked up, before anything is drawn.

        Returns:
            The release (over ranks, with the rows of this rank's shards), and private diagnostics of the whole batch.

        Raises:
            UserError: in another process than the engine's own; or a refusal of :mod:`dpfest.gradients.capture`.
        """
        self.refuse_another_process()
        attempt = partial(self._step, microbatches, step, check)
        return resolved(attempt) if self.rows.joint else attempt()  # ranks step together

    def _step(
        self, microbatches: Sequence[MicroBatch], step: int, check: Callable[[], None]
    ) -> tuple[NoisedGradient, Diagnostics]:
        with one_order(self.recorder.device):
            batch = self.rows.batch(microbatches, step)
            return private_step(
                batch, self.algorithm, self.rows, self.noise, self.cost, self.expected_batch_size, check
            )

    def update(self, gradient: NoisedGradient, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Take the optimisers' steps: post-processing of a release."""
        with one_order(self.recorder.device):  # the next step's release is a function of the weights
            stepped: set[int] = set()
            if (parts := devices.serving(*(table.weight for table in self.recorder.tables.values()))) and not self.lazy:
                stepped = parts.take_steps(list(self.recorder.tables.values()), gradient.tables, optimizers)
            self.fill(gradient, stepped)
            if self.lazy:
                rates = learning_rates(self.lazy.tables, optimizers)
                self.lazy.apply([(table.rows, table.values) for table in gradient.tables], gradient.pending, rates)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

    def fill(self, gradient: NoisedGradient, stepped: Collection[int] = ()) -> None:
        """Set ``.grad`` of every trainable parameter.

        A table's is sparse, or None if no row survived or :meth:`dpfest.step.lazy.LazyNoise.apply` updates the table.

        Args:
            gradient: the release.
            stepped: numbers of the tables whose step is taken already.
        """
        for parameter in self.recorder.frozen:
            parameter.grad = None  # a stale one is raw, and optimisers would apply it
        for name, parameter in self.recorder.dense_parameters.items():
            parameter.grad = gradient.dense[name]
        for number, (table, noised) in enumerate(zip(self.recorder.tables.values(), gradient.tables, strict=True)):
            weight, rows = table.weight, noised.rows
            if rows is None:
                weight.grad = noised.values
            elif len(rows) and not self.lazy and number not in stepped:
                weight.grad = torch.sparse_coo_tensor(
                    rows.unsqueeze(0), noised.values, weight.shape, is_coalesced=True, check_invariants=False
                )
            else:
                weight.grad = None


def _in_order(selected: Tensor, layout: TableLayout) -> Tensor:
    ordered = bool((selected[1:] > selected[:-1]).all())
    if len(selected) and not (ordered and selected[0] >= 0 and selected[-1] < layout.total_rows):
        raise UserError(
            f"The selected rows must be sorted, distinct and in 0 .. {layout.total_rows - 1}, the model's rows in the "
            "order of its tables."
        )
    return selected
