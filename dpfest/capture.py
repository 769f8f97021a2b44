"""One forward and one backward pass that leave behind what clipping needs, and no parameter gradients.

Within the call of a recorded layer its parameters are held out of autograd, so the backward pass computes output
gradients only: the weight gradients of the ordinary backward pass are never formed, the clipped ones take their place.
A parameter that autograd reaches all the same was used outside its layer, and the step is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from dpfest.embeddings import Lookups, Table, check_table
from dpfest.errors import UserError
from dpfest.layers import FACTORS, Call, Factors
from dpfest.tables import TableLayout


class Recorder:
    """The trainable layers of a model: its embedding tables and its dense layers.

    Args:
        model: any module whose trainable parameters all lie in ``nn.Embedding``, ``nn.EmbeddingBag`` or a layer of
            :data:`dpfest.layers.FACTORS`.  Embedding layers may share a table.  Frozen parameters may lie anywhere.

    The first micro-batch of two examples or more is tested for losses that depend on other examples than their own
    (one backward pass more); a loss that depends on the batch's *size* is not seen, nor one that differentiates.

    Raises:
        UserError: by name, a layer that cannot be clipped, mixes the examples of a batch, or shares its weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.layers: dict[str, nn.Module] = {}
        self.tables: dict[str, Table] = {}
        self.table_of: dict[int, int] = {}
        owner: dict[int, str] = {}
        for name, module in model.named_modules():
            _refuse_mixing(name, module)
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                check_table(name, module)
            own = [p for p in module.parameters(recurse=False) if p.requires_grad]
            if not own:
                continue
            is_table = type(module) in (nn.Embedding, nn.EmbeddingBag)
            _refuse_unsupported(name, module)
            for parameter in own:
                other = owner.setdefault(id(parameter), name)
                if other != name and not (is_table and other in self.tables and _same(self.tables[other], module)):
                    raise UserError(
                        f"The layers {other} and {name} share a parameter; the norms of tied weights do not add up. "
                        "Untie them (embedding layers of one padding_idx may share a table), or freeze the shared one."
                    )
            self.layers[name] = module
            if is_table and id(own[0]) not in self.table_of:
                self.table_of[id(own[0])] = len(self.tables)
                self.tables[name] = module
        rows, dims = ([getattr(t, n) for t in self.tables.values()] for n in ("num_embeddings", "embedding_dim"))
        self.layout = TableLayout(tuple(self.tables), tuple(rows), tuple(dims))
        self.trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        dtypes = {parameter.dtype for parameter in self.trainable.values()}
        if dtypes not in ({torch.float32}, {torch.float64}):
            raise UserError(
                f"The model's trainable parameters are of {', '.join(map(str, dtypes)) or 'no type: there are none'}; "
                "norms are taken in theirs, so all must be float32, or all float64. Half precision: torch.autocast."
            )
        self.dtype, self.device = dtypes.pop(), next(iter(self.trainable.values())).device
        self.before_read: Callable[[int, Tensor], None] | None = None  # called with a table and the ids to be looked up
        self.independent = False  # whether the examples have been seen not to mix
        self.table_calls: int | None = None  # look-ups' calls in a micro-batch; 0 where they vary
        self.dense_parameters = {name: p for name, p in self.trainable.items() if id(p) not in self.table_of}

    def record(self, *, lookups_only: bool = False) -> Recording:
        """A recording of one micro-batch, to be used as a context manager.

        With ``lookups_only`` the forward pass ends with its last look-up, once it is known how many there are.

        Raises:
            LookupsVary: by :meth:`Recording.look_up`, where a complete pass makes another number of them.
            UserError: parameters were frozen, unfrozen or replaced since.
        """
        if {id(p) for p in self.model.parameters() if p.requires_grad} != {id(p) for p in self.trainable.values()}:
            raise UserError("The model's trainable parameters are no longer those that were wrapped: wrap it anew.")
        return Recording(self, lookups_only)


class Recording:
    """What one micro-batch left behind.

    The forward pass runs inside the ``with`` block and leaves its per-example losses ``[b]`` in :attr:`losses`.
    After :meth:`look_up`, :attr:`lookups` names who touched what; after :meth:`backward`, it and :attr:`factors` hold
    every per-example gradient.
    """

    def __init__(self, recorder: Recorder, lookups_only: bool = False) -> None:
        self.recorder, self._lookups_only, self._ended = recorder, lookups_only, False
        self._table_calls = self.examples = 0
        self.losses = torch.empty(0)
        self.factors: list[Factors] = []
        self._calls: dict[str, list[Call]] = {}
        self._done = False

    def __enter__(self) -> Recording:
        self._handles = []
        self._buffers = _versions(self.recorder.model)
        for name, layer in self.recorder.layers.items():
            own = [p for p in layer.parameters(recurse=False) if p.requires_grad]
            self._handles.append(layer.register_forward_pre_hook(self._before(own), with_kwargs=True))
            self._handles.append(layer.register_forward_hook(self._hook(name, own), with_kwargs=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        for handle in self._handles:
            handle.remove()
        after = _versions(self.recorder.model)
        _hold(self.recorder.trainable.values(), out=False)
        if kind is None and (
            changed := [name for name, version in self._buffers.items() if version != after.get(name)]
        ):
            raise UserError(
                f"The forward pass changes the buffer {changed[0]}: what it keeps of the examples would leave with the "
                "model, without noise. Compute it from public data, or not at all."
            )
        self._ended = kind is _LookedUp
        return self._ended

    def _before(self, own: list[nn.Parameter]) -> Any:
        table, read = self.recorder.table_of.get(id(own[0])), self.recorder.before_read

        def hold(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if table is not None and read is not None:
                read(table, args[0] if args else kwargs["input"])
            _hold(own, out=True)

        return hold

    def _hook(self, name: str, own: list[nn.Parameter]) -> Any:
        is_table = id(own[0]) in self.recorder.table_of

        def record(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            _hold(own, out=False)
            if torch.is_grad_enabled() and not output.requires_grad:
                output.requires_grad_(True)
            self._calls.setdefault(name, []).append(Call(args, kwargs, output))
            if is_table:
                self._table_calls += 1
                self.examples = len(output)
                if self._lookups_only and self._table_calls == self.recorder.table_calls:
                    raise _LookedUp

        return record

    def look_up(self) -> None:
        """Find who touched which row; call after the forward pass.

        Raises:
            UserError: the losses are not one an example, or a layer's first dimension does not count the examples:
                its gradients could not be told apart by example, and clipping would not bound them.
        """
        if not self._ended:
            self._check_shapes()
            self.examples = len(self.losses)
            if self.recorder.table_calls is None:
                self.recorder.table_calls = self._table_calls
            elif self.recorder.table_calls not in (0, self._table_calls):
                raise LookupsVary
        made: list[list[tuple[Table, Call]]] = [[] for _ in self.recorder.tables]
        for name, calls in self._calls.items():
            layer = self.recorder.layers[name]
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
                made[self.recorder.table_of[id(layer.weight)]] += [(layer, call) for call in calls]
        self.lookups = Lookups(self.recorder.layout, made, torch.arange(self.examples, device=self.recorder.device))

    def _check_shapes(self) -> None:
        if not isinstance(self.losses, Tensor) or self.losses.dim() != 1:
            shape = tuple(self.losses.shape) if isinstance(self.losses, Tensor) else type(self.losses).__name__
            raise UserError(
                f"The losses have shape {shape}; a private step needs a tensor of one an example, of shape "
                "[batch]. Use reduction='none' and average over any other dimension."
            )
        for name, calls in self._calls.items():
            normalised = len(getattr(self.recorder.layers[name], "normalized_shape", ()))
            for output in (call.output for call in calls):
                if output.dim() < max(2, normalised + 1) or len(output) != len(self.losses):
                    raise UserError(
                        f"The layer {name} gives {tuple(output.shape)} for {len(self.losses)} examples: its first "
                        "dimension must count the examples. Expand what they share (position ids, say) to the batch."
                    )

    def backward(self) -> None:
        """Back-propagate the per-example losses to the outputs of all recorded layers, once.

        Raises:
            UserError: a layer's input or output was changed in place, so its gradient would be that of something else;
                a parameter is used outside its layer's call, where its gradient cannot be clipped; or the examples mix.
        """
        if self._done:
            return
        self._done = True
        calls = [(name, call) for name, all_calls in self._calls.items() for call in all_calls]
        for name, call in calls:
            if call.changed_since:
                raise UserError(
                    f"An input or output of the layer {name} is changed in place (inplace=True in the next layer?); "
                    "its gradient cannot be clipped. Use the out-of-place form."
                )
        outputs, parameters = [call.output for _, call in calls], self.recorder.trainable
        total = self.losses.sum()
        found: Sequence[Tensor | None] = [None] * (len(outputs) + len(parameters))
        if total.requires_grad:
            if not self.recorder.independent and len(self.losses) > 1:
                self._refuse_mixed_examples(calls)
            found = torch.autograd.grad(total, [*outputs, *parameters.values()], allow_unused=True)
        for name, gradient in zip(parameters, found[len(outputs) :], strict=True):
            if gradient is not None:
                raise UserError(
                    f"The parameter {name} is used outside the call of its layer (torch.nn.functional, a penalty in "
                    "the loss?), where its gradient cannot be clipped. Call the layer, or freeze the parameter."
                )
        for (_, call), gradient in zip(calls, found, strict=False):
            call.gradient = torch.zeros_like(call.output) if gradient is None else gradient
        homes = Counter(call.gradient.untyped_storage().data_ptr() for _, call in calls)
        for _, call in calls:
            call.own = call.gradient.is_contiguous() and homes[call.gradient.untyped_storage().data_ptr()] == 1
        self.lookups.take_gradients()
        dense = {name: layer for name, layer in self.recorder.layers.items() if type(layer) in FACTORS}
        self.factors = [FACTORS[type(dense[n])](dense[n], c) for n, c in self._calls.items() if n in dense]

    def _refuse_mixed_examples(self, calls: Sequence[tuple[str, Call]]) -> None:
        """Where half of the losses count nothing, the gradients of those examples are zero, exactly."""
        counted = torch.rand(len(self.losses), generator=torch.Generator().manual_seed(0)) < 0.5
        counted[0], counted[1] = True, False
        counted = counted.to(self.losses.device)
        half = self.losses[counted].sum()
        found = torch.autograd.grad(half, [call.output for _, call in calls], allow_unused=True, retain_graph=True)
        for (name, _), gradient in zip(calls, found, strict=True):
            if gradient is not None and bool((gradient[~counted].nan_to_num(nan=0.0) != 0).any()):
                raise UserError(
                    f"The loss of one example depends on what the layer {name} made of another: they are mixed or "
                    "permuted within the batch, and cannot be clipped one by one."
                )
        self.recorder.independent = True


class LookupsVary(Exception):
    """The model looks rows up more often in one micro-batch than in another: what a shortened pass saw is not all."""


class _LookedUp(BaseException):
    """Ends a forward pass of which only the look-ups are wanted; no model's `except Exception` holds it up."""


def _hold(parameters: Any, *, out: bool) -> None:
    for parameter in parameters:
        parameter.requires_grad_(not out)


def _versions(model: nn.Module) -> dict[str, tuple[int, int]]:
    return {name: (id(buffer), buffer._version) for name, buffer in model.named_buffers()}


def _same(table: Table, other: nn.Module) -> bool:
    return isinstance(other, nn.Embedding | nn.EmbeddingBag) and table.padding_idx == other.padding_idx


def _refuse_mixing(name: str, module: nn.Module) -> None:
    tracks = isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats
    if isinstance(module, nn.modules.batchnorm._BatchNorm) or tracks:
        raise UserError(
            f"The layer {name} ({type(module).__name__}) mixes the examples of a batch, or keeps statistics of them "
            "without noise. Use GroupNorm or LayerNorm."
        )


def _refuse_unsupported(name: str, module: nn.Module) -> None:
    own = {n for n, p in module.named_parameters(recurse=False) if p.requires_grad}
    supported = type(module) in (nn.Embedding, nn.EmbeddingBag, *FACTORS)
    if not supported or own - {"weight", "bias"}:
        known = ", ".join(kind.__name__ for kind in (nn.Embedding, nn.EmbeddingBag, *FACTORS))
        raise UserError(
            f"The layer {name or 'of the model itself'} ({type(module).__name__}) has trainable parameters "
            f"{', '.join(sorted(own))}, and private steps know the weight and bias of {known} only. "
            "Freeze it with requires_grad_(False), or put a supported layer in its place."
        )
