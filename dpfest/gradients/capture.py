"""Recording of one forward and one backward pass: what clipping needs, without parameter gradients.

Within the call of a recorded layer its parameters are excluded from autograd, so the backward pass computes output
gradients only: the weight gradients of the ordinary backward pass are never formed; clipped ones replace them. A layer
with factors of its own (:mod:`dpfest.gradients.factors`) keeps its inputs for them; any other layer is run again by
example (:mod:`dpfest.gradients.module_gradients`). What autograd reaches in another way (bare parameters, tied tables,
look-ups that all examples share) is followed by :mod:`dpfest.gradients.outside`: the first pass shows whether there is
any.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfest.errors import UserError
from dpfest.gradients.draws import ExampleDraws
from dpfest.gradients.embeddings import Lookups
from dpfest.gradients.hooks import LayerHooks, drawing, own_parameters
from dpfest.gradients.padding import counts_examples, held_at
from dpfest.gradients.parts import DueAtLookUps
from dpfest.gradients.reading import MicroBatch
from dpfest.gradients.recording import Recording
from dpfest.gradients.sites import Again, Sites
from dpfest.gradients.tables import Table, TableLayout
from dpfest.gradients.units import Groups, UnitConfig
from dpfest.gradients.validation import HeldTensors, model_faults, refuse
from dpfest.noise.key import NoiseKey

__all__ = ["Recorder", "Recording"]


class RecordsByGraph(Protocol):
    """What starts the passes over a padded batch as one (:class:`dpfest.device.graph.Graphs`)."""

    def record(self, batch: Any, examples: NDArray[np.int64], step: int, capacity: int) -> Recording | None:
        """Return the recording of a micro-batch; None where it has to run eagerly."""


class Recorder:
    """The trainable layers of a model: its embedding tables and its dense layers.

    Args:
        model: any module that treats examples separately. Its trainable parameters may lie anywhere. Tables are those
            of ``nn.Embedding`` and ``nn.EmbeddingBag``, and several layers may share one. Layers of
            :data:`dpfest.gradients.factors.FACTORS` need no memory for single examples' gradients; of all else these
            are formed, ``[examples of a micro-batch, *shape]``, and where examples are not in the first dimension of
            what a function takes, one after another.
        loss_fn: ``loss_fn(model, batch)`` runs the model and returns per-example losses ``[b]``.
        key: source of the forward pass's random numbers.
        unit: what is clipped and counted as one; None for each example. With it, a batch holds whole units.

    Raises:
        UserError: names the :func:`dpfest.gradients.validation.model_faults`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        key: NoiseKey,
        unit: UnitConfig | None = None,
    ) -> None:
        refuse(model_faults(model))
        self.model, self.loss_fn, self.key, self.unit = model, loss_fn, key, unit
        self.layers = {
            name: module
            for name, module in model.named_modules()
            if any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        }
        self.tables: dict[str, Table] = {}
        self.table_of: dict[int, int] = {}
        for name, layer in self.layers.items():
            if isinstance(layer, Table) and layer.weight.requires_grad and id(layer.weight) not in self.table_of:
                self.table_of[id(layer.weight)] = len(self.tables)
                self.tables[name] = layer
        rows, dims = ([getattr(t, n) for t in self.tables.values()] for n in ("num_embeddings", "embedding_dim"))
        self.layout = TableLayout(tuple(self.tables), tuple(rows), tuple(dims))
        self.held = HeldTensors(model)
        self.trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.frozen = [p for p in model.parameters() if not p.requires_grad]
        self.dense_parameters = {name: p for name, p in self.trainable.items() if id(p) not in self.table_of}
        first = next(iter(self.trainable.values()))
        self.dtype, self.device = first.dtype, first.device
        self.lazy: DueAtLookUps | None = None  # applies pending noise to rows before they are looked up
        self.draws: bool | None = None  # whether the forward pass draws random numbers; None until one was run
        self.usual: int | None = None  # examples for which passes over padded batches have room, on a GPU
        self.graphs: RecordsByGraph | None = None  # of passes over padded batches, on a GPU
        self.recording: Recording | None = None  # the one in whose passes the layers' hooks are in place
        self.sites = Sites()
        own = own_parameters(model)
        self.hooks = [LayerHooks(self, name, model.get_submodule(name), each) for name, each in own.items()]
        self.sites.by_function = any(isinstance(hook.layer, Table) and not hook.is_plain for hook in self.hooks)

    def groups(self, part: MicroBatch) -> Groups | None:
        """Return the units of a micro-batch; None if examples are clipped each on its own.

        Raises:
            UserError: its examples lack units, are not in their order, or have them though none were announced.
        """
        if (self.unit is None) != (part.units is None):
            raise UserError(
                "A micro-batch has units exactly where its engine clips by unit: see PrivateTraining(..., units=)."
            )
        return None if self.unit is None or part.units is None else Groups(part.units, self.unit.combine, self.device)

    def record(
        self,
        batch: Any,
        examples: NDArray[np.int64],
        step: int,
        *,
        backward: bool = True,
        groups: Groups | None = None,
        known: Lookups | None = None,
        capacity: int | None = None,
    ) -> Recording:
        """Run the forward pass of one micro-batch and record it.

        Args:
            batch: argument of the loss function.
            examples: identifies its examples, int64 ``[b]``; their random numbers depend on it.
            step: step number.
            backward: False if only the look-ups are needed.
            groups: the examples' units; None if each is its own.
            known: the micro-batch's look-ups, where they were learnt before; None to find them.
            capacity: number of examples to which passes pad the micro-batch, where they can (:meth:`pads`).

        Raises:
            UserError: parameters were frozen, unfrozen or replaced since; or a refusal of
                :mod:`dpfest.gradients.validation`.
        """
        now = {id(parameter) for parameter in self.held.look().parameters if parameter.requires_grad}
        if now != {id(parameter) for parameter in self.trainable.values()}:
            raise UserError("The model's trainable parameters are no longer those that were wrapped: wrap it anew.")
        for name, parameter in self.trainable.items():
            if (parameter.dtype, parameter.device) != (self.dtype, self.device):
                raise UserError(
                    f"{name} is {parameter.dtype} on {parameter.device} now, and was {self.dtype} on {self.device} "
                    "when the model was wrapped: convert or move a model first, and then wrap it."
                )
        recording = self._run(batch, examples, step, backward, groups, capacity)
        recording.look_up(known)
        return recording

    def _run(
        self,
        batch: Any,
        examples: NDArray[np.int64],
        step: int,
        backward: bool,
        groups: Groups | None,
        capacity: int | None,
    ) -> Recording:
        first = not self.sites.complete  # back-propagates at once: what it shows decides which rows are touched
        while True:
            room = capacity if capacity and self.pads(batch, len(examples), groups) else None
            if self.graphs and room and backward and not first:
                started = self.graphs.record(batch, examples, step, room)
                if started is not None:
                    return started
            recording = Recording(self, backward or first, groups)
            held = None if room is None else held_at(batch, examples, room)
            try:
                if not recording.forward(batch, examples, step, held):
                    self.draws = True  # it drew for the first time
                    continue
                recording.check()
                if first:
                    recording.propagate()
                if room is None or self.pads(batch, len(examples), groups):
                    break
            except Again:
                continue
        if first:
            self.sites.settle()
        return recording

    def pads(self, batch: Any, count: int, groups: Groups | None) -> bool:
        """Return whether passes over a micro-batch of so many examples can be padded.

        All of it must count the examples; an example must be clipped on its own; and layers must be ``nn.Embedding``,
        or have factors of their own, in calls that count the examples as far as passes have shown.
        """
        sites, known = self.sites, all(hook.factors or isinstance(hook.layer, nn.Embedding) for hook in self.hooks)
        return groups is None and known and not (sites.others or sites.by_function) and counts_examples(batch, count)

    def drawing(self, step: int, examples: NDArray[np.int64]) -> AbstractContextManager[ExampleDraws]:
        """Return a context in which the model draws a step's random numbers of these examples."""
        return drawing(self.model, self.draws_of(step, examples))

    def draws_of(self, step: int, examples: NDArray[np.int64]) -> ExampleDraws:
        """Return a step's random numbers of these examples."""
        return ExampleDraws(self.key, step, examples, self.sites.drawn_once)
