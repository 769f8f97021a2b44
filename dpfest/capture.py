"""Recording of one forward and one backward pass: what clipping needs, without parameter gradients.

Within the call of a recorded layer its parameters are excluded from autograd, so the backward pass computes output
gradients only: the weight gradients of the ordinary backward pass are never formed; clipped ones replace them. A
parameter that autograd reaches nevertheless was used outside its layer, and the step is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfest.draws import ExampleDraws, NoDraws
from dpfest.embeddings import Lookups
from dpfest.errors import UserError
from dpfest.layers import FACTORS, Call, Factors
from dpfest.lazy import LazyNoise
from dpfest.noise import NoiseKey
from dpfest.reading import MicroBatch
from dpfest.tables import Table, TableLayout
from dpfest.units import Groups, UnitConfig
from dpfest.validation import HeldTensors, StateWatch, check_losses, check_model

_PLACE = -1  # of a recording's hook among a layer's, which PyTorch numbers from 0
_IN_PLACE = (
    "is changed in place (inplace=True or x += ... after it?); its gradient cannot be clipped. "
    "Use the out-of-place form."
)


class Recorder:
    """The trainable layers of a model: its embedding tables and its dense layers.

    Args:
        model: any module whose trainable parameters all lie in ``nn.Embedding``, ``nn.EmbeddingBag`` or a layer of
            :data:`dpfest.layers.FACTORS`. Embedding layers may share a table. Frozen parameters may lie anywhere.
        loss_fn: ``loss_fn(model, batch)`` runs the model and returns per-example losses ``[b]``.
        key: source of the forward pass's random numbers.
        unit: what is clipped and counted as one; None for each example. With it, a batch holds whole units.

    Raises:
        UserError: whatever :func:`dpfest.validation.check_model` refuses, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        key: NoiseKey,
        unit: UnitConfig | None = None,
    ) -> None:
        check_model(model)
        self.model, self.loss_fn, self.key, self.unit = model, loss_fn, key, unit
        self.layers = {
            name: module
            for name, module in model.named_modules()
            if any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        }
        self.tables: dict[str, Table] = {}
        self.table_of: dict[int, int] = {}
        for name, layer in self.layers.items():
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and id(layer.weight) not in self.table_of:
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
        self.lazy: LazyNoise | None = None  # applies pending noise to rows before they are looked up
        self.draws: bool | None = None  # whether the forward pass draws random numbers; None until one was run
        self.recording: Recording | None = None  # the one in whose passes the layers' hooks are in place
        self.hooks = [_LayerHooks(self, name, layer) for name, layer in self.layers.items()]

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
    ) -> Recording:
        """Run the forward pass of one micro-batch and record it.

        Args:
            batch: argument of the loss function.
            examples: identifies its examples, int64 ``[b]``; their random numbers depend on it.
            step: step number.
            backward: False if only the look-ups are needed.
            groups: the examples' units; None if each is its own.
            known: the micro-batch's look-ups, where they were learnt before; None to find them.

        Raises:
            UserError: parameters were frozen, unfrozen or replaced since; or a refusal of :mod:`dpfest.validation`.
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
        recording = Recording(self, backward, groups)
        if not recording.forward(batch, examples, step):  # it drew for the first time: rerun, drawing by example
            self.draws = True
            recording = Recording(self, backward, groups)
            recording.forward(batch, examples, step)
        recording.look_up(len(examples), known)
        return recording


class Recording:
    """The recording of one micro-batch.

    After :meth:`look_up`, :attr:`lookups` holds the (example, row) pairs; after :meth:`backward`, it and
    :attr:`factors` hold every per-example (or per-unit) gradient. The backward pass hooks the layers too, as
    checkpointing reruns them.
    """

    def __init__(self, recorder: Recorder, backward: bool, groups: Groups | None = None) -> None:
        self.recorder, self.groups = recorder, groups
        self.losses = torch.empty(0)
        self.lookups: Lookups
        self.factors: list[Factors] = []
        self.overflowed: Tensor | None = None  # bool [b]: the examples whose gradients a clipped sum set to zero
        self._backward, self._recording = backward, False
        self._looked_up: tuple[nn.Parameter, Tensor] | None = None
        self._calls: dict[str, list[Call]] = {}

    def forward(self, batch: Any, examples: NDArray[np.int64], step: int) -> bool:
        """Run the loss function; return False if it drew random numbers that were not drawn by example."""
        recorder = self.recorder
        device = recorder.device if recorder.device.type == "cuda" else None
        with ExitStack() as stack:
            stack.enter_context(_hooked(self))
            stack.enter_context(torch.set_grad_enabled(self._backward))
            draws = None
            if recorder.draws is not False:
                draws = stack.enter_context(ExampleDraws(recorder.key, step, examples))
            before = None if draws else _random_state(device)
            self._watch = StateWatch(recorder.held)
            self._recording = True
            try:
                self.losses = recorder.loss_fn(recorder.model, batch)
            except (RuntimeError, IndexError) as error:
                self._name_id(error)
                if "leaf Variable that requires grad" in str(error):
                    raise UserError(f"The output of a trainable layer {_IN_PLACE}") from error
                raise
            self._recording = False
            if draws is None:
                return _random_state(device) == before
            recorder.draws = draws.calls > 0
        return True

    def before_layer(self, layer: nn.Module, own: list[nn.Parameter], ids: Tensor | None) -> None:
        """Before a recorded layer's call: exclude its parameters from autograd; apply noise pending on its rows."""
        recorder = self.recorder
        if self._recording and ids is not None and recorder.lazy is not None:
            recorder.lazy.read(recorder.table_of[id(own[0])], ids)
            recorder.lazy.looking_up = True
            name = next(name for name, table in recorder.tables.items() if table.weight is own[0])
            self._watch.expect(f"{name}.weight", own[0])
        if ids is not None:
            self._looked_up = own[0], ids
        _hold(own, out=True)

    def _name_id(self, error: Exception) -> None:
        """Raise another error if the last look-up asked for a row that its table has not."""
        if self._looked_up is None:
            return
        weight, ids = self._looked_up
        table = next(table for table in self.recorder.tables.items() if table[1].weight is weight)
        rows = table[1].num_embeddings
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
            wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
            raise UserError(
                f"The id {wrong} is looked up in {table[0]}, a table of {rows} rows: ids are 0 to {rows - 1}."
            ) from error

    def after_layer(self, name: str, own: list[nn.Parameter], call: Call) -> None:
        """After a recorded layer's call: make its output an autograd leaf if it requires no gradient; keep the call."""
        _hold(own, out=False)
        self._looked_up = None
        if self.recorder.lazy is not None:
            self.recorder.lazy.looking_up = False
        if self._backward and not torch.is_grad_enabled():
            raise UserError(
                f"The layer {name} is called without gradients (torch.no_grad, torch.inference_mode, or a checkpoint "
                "with use_reentrant=True), though it is trainable. Enable them, or freeze it."
            )
        if self._backward and not call.output.requires_grad:
            call.output.requires_grad_(True)
        if self._recording:
            self._calls.setdefault(name, []).append(call)

    def look_up(self, examples: int, known: Lookups | None = None) -> None:
        """Find which example touched which row, unless it is known; call after the forward pass.

        Raises:
            UserError: losses or layers do not count these examples, or the forward pass wrote into the model.
        """
        self._watch.check()
        layers = self.recorder.layers
        check_losses(self.losses, ((n, layers[n], call.output) for n, calls in self._calls.items() for call in calls))
        if len(self.losses) != examples:
            raise UserError(f"There are {len(self.losses)} losses for {examples} examples: return one per example.")
        by_table: list[list[tuple[Table, Call]]] = [[] for _ in self.recorder.tables]
        for name, calls in self._calls.items():
            layer = layers[name]
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
                by_table[self.recorder.table_of[id(layer.weight)]] += [(layer, call) for call in calls]
        if known is None:
            numbers = torch.arange(examples, device=self.recorder.device)
            known = Lookups(self.recorder.layout, by_table, numbers, self.groups)
        else:
            known.take_calls(by_table)
        self.lookups = known

    def backward(self) -> None:
        """Back-propagate the per-example losses to the outputs of all recorded layers, once.

        Raises:
            UserError: a layer's input or output was changed in place, so its gradient would be wrong; a parameter is
                used outside its layer's call, where its gradient cannot be clipped.
        """
        if not self._backward:
            return
        self._backward = False
        calls = [(name, call) for name, all_calls in self._calls.items() for call in all_calls]
        for name, call in calls:
            if call.changed_since:
                raise UserError(f"An input or output of the layer {name} {_IN_PLACE}")
        outputs, parameters = [call.output for _, call in calls], self.recorder.trainable
        total = weighted(self.losses, self.groups).sum()
        gradients: Sequence[Tensor | None] = [None] * (len(outputs) + len(parameters))
        if not total.requires_grad and len(self.losses):
            raise UserError("The losses depend on no trainable parameter (detach, no_grad?): nothing would be learnt.")
        if total.requires_grad:
            self._backward = True
            with _hooked(self), NoDraws() if self.recorder.draws else nullcontext():
                gradients = torch.autograd.grad(total, [*outputs, *parameters.values()], allow_unused=True)
            self._backward = False
        self._watch.check()
        for name, gradient in zip(parameters, gradients[len(outputs) :], strict=True):
            if gradient is not None:
                raise UserError(
                    f"The parameter {name} is used outside the call of its layer (torch.nn.functional, a penalty in "
                    "the loss?), where its gradient cannot be clipped. Call the layer, or freeze the parameter."
                )
        for (_, call), gradient in zip(calls, gradients, strict=False):
            call.gradient = torch.zeros_like(call.output) if gradient is None else gradient
        self.lookups.take_gradients()
        dense = {name: layer for name, layer in self.recorder.layers.items() if type(layer) in FACTORS}
        self.factors = [
            FACTORS[type(dense[name])](dense[name], calls, self.groups)
            for name, calls in self._calls.items()
            if name in dense
        ]

    def __len__(self) -> int:
        """Number of its examples, or units."""
        return len(self.losses) if self.groups is None else len(self.groups)


class _LayerHooks:
    """What is called before and after a trainable layer's call while a recording observes it."""

    def __init__(self, recorder: Recorder, name: str, layer: nn.Module) -> None:
        self._recorder, self._name, self._layer = recorder, name, layer
        self._own = [parameter for parameter in layer.parameters(recurse=False) if parameter.requires_grad]
        self._is_table = isinstance(layer, nn.Embedding | nn.EmbeddingBag)

    def place(self) -> None:
        """Put the hooks behind those that the layer has.

        As ``register_forward_hook`` does, without its handle, which takes ten times as long.
        """
        layer = self._layer
        layer._forward_pre_hooks[_PLACE] = self.before
        layer._forward_pre_hooks_with_kwargs[_PLACE] = True
        layer._forward_hooks[_PLACE] = self.after
        layer._forward_hooks_with_kwargs[_PLACE] = True

    def remove(self) -> None:
        """Take the hooks away."""
        layer = self._layer
        for hooks in (
            layer._forward_pre_hooks, layer._forward_pre_hooks_with_kwargs,
            layer._forward_hooks, layer._forward_hooks_with_kwargs,
        ):  # fmt: skip
            hooks.pop(_PLACE, None)

    def before(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See :meth:`Recording.before_layer`."""
        assert self._recorder.recording is not None
        ids = (args[0] if args else kwargs["input"]) if self._is_table else None
        self._recorder.recording.before_layer(layer, self._own, ids)

    def after(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        """See :meth:`Recording.after_layer`."""
        assert self._recorder.recording is not None
        self._recorder.recording.after_layer(self._name, self._own, Call(args, kwargs, output))


@contextmanager
def _hooked(recording: Recording) -> Iterator[None]:
    """A context in which a recording observes the calls of the trainable layers."""
    recorder = recording.recorder
    recorder.recording = recording
    try:
        for layer in recorder.hooks:
            layer.place()
        yield
    finally:
        for layer in recorder.hooks:
            layer.remove()
        recorder.recording = None
        _hold(recorder.trainable.values(), out=False)


def _hold(parameters: Any, *, out: bool) -> None:
    for parameter in parameters:
        parameter.requires_grad_(not out)


def weighted(losses: Tensor, groups: Groups | None) -> Tensor:
    """Return losses ``[b]`` whose gradients add up to those of the examples, or units."""
    return losses if groups is None or groups.weight is None else losses * groups.weight.to(losses.dtype)


def _random_state(device: torch.device | None) -> list[bytes]:
    """Return the states of PyTorch's generators that a forward pass on this device draws from."""
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device else [])
    return [state.numpy().tobytes() for state in states]
