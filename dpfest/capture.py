"""One forward and one backward pass that leave behind what clipping needs, and no parameter gradients.

Within the call of a recorded layer its parameters are held out of autograd, so the backward pass computes output
gradients only: the weight gradients of the ordinary backward pass are never formed, the clipped ones take their place.
A parameter that autograd reaches all the same was used outside its layer, and the step is refused.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from dpfest.embeddings import Table, TableBatch, check_table
from dpfest.errors import UserError
from dpfest.layers import FACTORS, Call, Factors
from dpfest.tables import TableLayout


class Recorder:
    """The trainable layers of a model: its embedding tables and its dense layers.

    Args:
        model: any module whose trainable parameters all lie in ``nn.Embedding``, ``nn.EmbeddingBag`` or a layer of
            :data:`dpfest.layers.FACTORS`.  Embedding layers may share a table.  Frozen parameters may lie anywhere.

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
        self.dense_parameters = {name: p for name, p in self.trainable.items() if id(p) not in self.table_of}

    def record(self) -> Recording:
        """A recording of one micro-batch, to be used as a context manager."""
        return Recording(self)


class Recording:
    """What one micro-batch left behind.

    The forward pass runs inside the ``with`` block and leaves its per-example losses ``[b]`` in :attr:`losses`.
    After :meth:`pair`, :attr:`example` and :attr:`rows` (global) name the distinct pairs, table by table
    (:attr:`sizes`); after :meth:`backward`, :attr:`row_gradients` and :attr:`factors` hold every per-example gradient.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.tables = [TableBatch(table) for table in recorder.tables.values()]
        self.losses = torch.empty(0)
        self.factors: list[Factors] = []
        self.row_gradients: list[Tensor] = []
        self._calls: dict[str, list[Call]] = {}
        self._done = False

    def __enter__(self) -> Recording:
        self._handles = []
        for name, layer in self.recorder.layers.items():
            own = [p for p in layer.parameters(recurse=False) if p.requires_grad]
            self._handles.append(layer.register_forward_pre_hook(lambda *_, own=own: _hold(own, out=True)))
            self._handles.append(layer.register_forward_hook(self._hook(name, own), with_kwargs=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        _hold(self.recorder.trainable.values(), out=False)

    def _hook(self, name: str, own: list[nn.Parameter]) -> Any:
        table = self.recorder.table_of.get(id(own[0]))

        def record(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            _hold(own, out=False)
            if torch.is_grad_enabled() and not output.requires_grad:
                output.requires_grad_(True)
            call = Call(args, kwargs, output, output._version, output)
            self._calls.setdefault(name, []).append(call)
            if table is not None:
                self.tables[table].calls.append((layer, call))  # type: ignore[arg-type]

        return record

    def pair(self) -> None:
        """Find the distinct (example, row) pairs of every table; call after the forward pass.

        Raises:
            UserError: the losses are not one an example, or a layer's first dimension does not count the examples:
                its gradients could not be told apart by example, and clipping would not bound them.
        """
        if self.losses.dim() != 1:
            raise UserError(
                f"The losses have shape {tuple(self.losses.shape)}; a private step needs one an example, of shape "
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
        examples = torch.arange(len(self.losses), device=self.losses.device)
        for table in self.tables:
            table.pair(examples)
        self.sizes = [len(table.row) for table in self.tables]
        offsets = torch.tensor(self.recorder.layout.offsets[:-1], dtype=torch.int64)
        starts = offsets.repeat_interleave(torch.tensor(self.sizes, dtype=torch.int64)).to(examples.device)
        self.rows = torch.cat([examples[:0], *(table.row for table in self.tables)]) + starts
        self.example = torch.cat([examples[:0], *(table.example for table in self.tables)])

    def backward(self) -> None:
        """Back-propagate the per-example losses to the outputs of all recorded layers, once.

        Raises:
            UserError: a layer's output was changed in place, so its gradient would be that of something else; or a
                parameter is used outside its layer's call, where its gradient cannot be clipped.
        """
        if self._done:
            return
        self._done = True
        calls = [(name, call) for name, all_calls in self._calls.items() for call in all_calls]
        for name, call in calls:
            if call.output._version != call.version:
                raise UserError(
                    f"The output of the layer {name} is changed in place (inplace=True in the next layer?); "
                    "its gradient cannot be clipped. Use the out-of-place form."
                )
        outputs, parameters = [call.output for _, call in calls], self.recorder.trainable
        total = self.losses.sum()
        found = (
            torch.autograd.grad(total, [*outputs, *parameters.values()], allow_unused=True)
            if total.requires_grad
            else [None] * (len(outputs) + len(parameters))
        )
        for name, gradient in zip(parameters, found[len(outputs) :], strict=True):
            if gradient is not None:
                raise UserError(
                    f"The parameter {name} is used outside the call of its layer (torch.nn.functional, a penalty in "
                    "the loss?), where its gradient cannot be clipped. Call the layer, or freeze the parameter."
                )
        for (_, call), gradient in zip(calls, found, strict=False):
            call.gradient = torch.zeros_like(call.output) if gradient is None else gradient
        self.row_gradients = [table.gradients() for table in self.tables]
        dense = {name: layer for name, layer in self.recorder.layers.items() if type(layer) in FACTORS}
        self.factors = [FACTORS[type(dense[n])](dense[n], c) for n, c in self._calls.items() if n in dense]


def _hold(parameters: Any, *, out: bool) -> None:
    for parameter in parameters:
        parameter.requires_grad_(not out)


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
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        check_table(name, module)
    own = {n for n, p in module.named_parameters(recurse=False) if p.requires_grad}
    supported = type(module) in (nn.Embedding, nn.EmbeddingBag, *FACTORS)
    if not supported or own - {"weight", "bias"}:
        known = ", ".join(kind.__name__ for kind in (nn.Embedding, nn.EmbeddingBag, *FACTORS))
        raise UserError(
            f"The layer {name or 'of the model itself'} ({type(module).__name__}) has trainable parameters "
            f"{', '.join(sorted(own))}, and private steps know the weight and bias of {known} only. "
            "Freeze it with requires_grad_(False), or put a supported layer in its place."
        )
