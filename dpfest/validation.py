"""Every refusal of a model, a loss or an optimiser: what private steps cannot clip, watch or update soundly.

Each check raises a :class:`dpfest.errors.UserError` (a ``ValueError``) that names the layer and the cure, before
anything is spent.  That examples do not mix is a property of values, not of names: :mod:`dpfest.trial` checks it.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpfest.errors import UserError
from dpfest.layers import FACTORS
from dpfest.tables import Table


def check_model(model: Any) -> None:
    """Refuse a model that cannot be trained privately, from its structure.

    Raises:
        UserError: no module; a layer that mixes examples or keeps statistics of them, that cannot be clipped, or that
            shares its weights; trainable parameters of another type than float32 or float64; none at all.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model must be a torch.nn.Module, not {_kind(model)}.")
    owner: dict[int, tuple[str, nn.Module]] = {}
    for name, module in model.named_modules():
        _check_layer(name, module)
        for parameter in module.parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            other, holder = owner.setdefault(parameter.data_ptr() or id(parameter), (name, module))
            if holder is not module and not (_tables(holder, module) and holder.padding_idx == module.padding_idx):
                raise UserError(
                    f"The layers {other} and {name} share a parameter; the norms of tied weights do not add up. "
                    "Untie them (embedding layers of one padding_idx may share a table), or freeze the shared one."
                )
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    if dtypes not in ({torch.float32}, {torch.float64}):
        raise UserError(
            f"The model's trainable parameters are of {', '.join(map(str, dtypes)) or 'no type: there are none'}; "
            "norms are taken in theirs, so all must be float32, or all float64. Half precision: torch.autocast."
        )


def _check_layer(name: str, module: nn.Module) -> None:
    tracks = isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats
    if isinstance(module, nn.modules.batchnorm._BatchNorm) or tracks:
        raise UserError(
            f"The layer {name} ({type(module).__name__}) mixes the examples of a batch, or keeps statistics of them "
            "without noise. Use GroupNorm or LayerNorm."
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        _check_table(name, module)
    own = sorted(n for n, p in module.named_parameters(recurse=False) if p.requires_grad)
    if own and (type(module) not in (nn.Embedding, nn.EmbeddingBag, *FACTORS) or {*own} - {"weight", "bias"}):
        known = ", ".join(kind.__name__ for kind in (nn.Embedding, nn.EmbeddingBag, *FACTORS))
        raise UserError(
            f"The layer {name or 'of the model itself'} ({type(module).__name__}) has trainable parameters "
            f"{', '.join(own)}, and private steps know the weight and bias of {known} only. Freeze it with "
            "requires_grad_(False), put a supported layer in its place, or make a bare parameter that is added to "
            "every example the bias of an nn.Linear."
        )


def _check_table(name: str, table: Table) -> None:
    if table.max_norm is not None:
        raise UserError(
            f"The table {name} has max_norm={table.max_norm}, which rewrites the rows that a batch touches in the "
            "forward pass, outside the guarantee. Set max_norm=None."
        )
    if table.scale_grad_by_freq:
        raise UserError(
            f"The table {name} has scale_grad_by_freq=True: an example's gradient would depend on the others. "
            "Set it to False."
        )
    if getattr(table, "mode", "sum") == "max":
        raise UserError(f"The table {name} takes the maximum of its bags. Use mode='sum' or mode='mean'.")


def _tables(*modules: nn.Module) -> bool:
    return all(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in modules)


def check_losses(losses: Any, outputs: Iterable[tuple[str, nn.Module, Tensor]]) -> None:
    """Refuse losses, and outputs of trainable layers, whose first dimension does not count the examples.

    Args:
        losses: what the loss function returned.
        outputs: of every call of a trainable layer: its name, the layer, its output.
    """
    if not isinstance(losses, Tensor) or losses.dim() != 1:
        given = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else _kind(losses)
        raise UserError(
            f"loss_fn returned {given}; a private step needs a tensor of one loss an example, of shape [batch]. "
            "Use reduction='none' and average over any other dimension."
        )
    for name, layer, output in outputs:
        if output.dim() < max(2, len(getattr(layer, "normalized_shape", ())) + 1) or len(output) != len(losses):
            raise UserError(
                f"The layer {name} gives {tuple(output.shape)} for {len(losses)} examples: its first dimension must "
                "count the examples. Expand what they share (position ids, say) to the batch."
            )


def check_optimizers(optimizers: Sequence[Any], model: nn.Module, *, sparse: bool, lazy: bool) -> None:
    """Refuse optimisers that cannot take a private step.

    Args:
        optimizers: between them over all trainable parameters.
        model: that they step.
        sparse: whether the tables' gradients are.
        lazy: whether the tables' noise is: see :func:`dpfest.lazy.is_plain_sgd`.

    Raises:
        UserError: one is no optimiser, needs a closure or cannot take the tables' gradients; a parameter is in none of
            them or in two.
    """
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    own = {id(p) for p in model.parameters()}
    stepped: set[int] = set()
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UserError(f"optimizer must be a torch.optim.Optimizer or several of them, not {_kind(optimizer)}.")
        kind = type(optimizer).__name__
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise UserError(f"{kind} evaluates the loss several times a step, each a release. Use another optimiser.")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name, table = names.get(id(parameter), "a parameter"), id(parameter) in tables
                if id(parameter) not in own:
                    raise UserError(
                        f"{kind} holds a parameter of shape {tuple(parameter.shape)} that is not the model's: it would "
                        "never be trained. Make it part of the model, or leave it out."
                    )
                if id(parameter) in stepped:
                    raise UserError(f"{name} is in two optimisers. Leave it to one.")
                stepped.add(id(parameter))
                if lazy and table and not is_plain_sgd(optimizer, group):
                    raise UserError(
                        f"Lazy noise adds up under plain SGD alone, not under {kind} as it is set: use torch.optim.SGD "
                        "without momentum, weight decay or hooks for the tables, or noise='dense'."
                    )
                ours, decays = type(optimizer).__module__.startswith("torch.optim"), bool(group.get("weight_decay"))
                if ours and table and sparse and (kind not in ("SGD", "Adagrad", "SparseAdam") or decays):
                    raise UserError(
                        f"{kind}{' with weight_decay' * decays} cannot take the sparse gradient of {name}. Use SGD, "
                        "Adagrad or SparseAdam, without weight_decay."
                    )
                if kind == "SparseAdam" and not (table and sparse):
                    raise UserError(f"SparseAdam cannot take the dense gradient of {name}.")
    if missing := [name for parameter, name in names.items() if parameter not in stepped]:
        raise UserError(f"No optimiser steps {', '.join(missing[:3])}: give each one, or freeze them.")


def is_plain_sgd(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    """Whether a step is ``w -= lr * gradient``: torch.optim.SGD itself, without momentum, weight decay or hooks."""
    hooks = [*optimizer._optimizer_step_pre_hooks, *optimizer._optimizer_step_post_hooks]
    options = ("momentum", "weight_decay", "dampening", "maximize", "differentiable")
    return type(optimizer) is torch.optim.SGD and not hooks and not any(group.get(name) for name in options)


class StateWatch:
    """Notices what a forward pass writes into the model: raw values of the batch would leave with it, without noise.

    Every parameter, buffer and tensor that is an attribute of a module is watched: that it is the same object in the
    same memory with the same version counter, in every pass; and its content, on request (``.data``, ``.numpy()`` and
    aliases escape version counters).  Not watched: numbers and containers that modules hold, and what lies outside the
    model.

    Args:
        model: that is watched.
        rows: of each table (by name of its weight), the rows whose content is compared; of all other tensors all of it
            is.  None to leave contents alone.
    """

    def __init__(self, model: nn.Module, rows: Mapping[str, Tensor] | None = None) -> None:
        self._model, self._rows = model, rows
        self._before = self._state()

    def _state(self) -> dict[str, tuple[Any, ...]]:
        return {name: self._of(name, tensor) for name, tensor in _held(self._model)}

    def _of(self, name: str, tensor: Tensor) -> tuple[Any, ...]:
        place = (id(tensor), tensor.data_ptr() if tensor.layout is torch.strided else 0, tensor._version)
        return place if self._rows is None else (*place, _content(tensor, self._rows.get(name)))

    def expect(self, name: str, tensor: Tensor) -> None:
        """A tensor was changed by private training itself."""
        self._before[name] = self._of(name, tensor)

    def check(self) -> None:
        """Refuse what has changed since.

        Raises:
            UserError: by name.
        """
        after = self._state()
        for name in after.keys() | self._before.keys():
            if after.get(name) != self._before.get(name):
                raise UserError(
                    f"The forward pass changes {name}: what it keeps of the examples would leave with the model, "
                    "without noise. Compute it from public data when the model is made, or not at all."
                )


def _held(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=True)
    yield from model.named_buffers(remove_duplicate=True)
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"{prefix}.{name}" if prefix else name, value


def _content(tensor: Tensor, rows: Tensor | None) -> int:
    """A checksum of a tensor's bits, or of those of some rows."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return 0
    values = (tensor if rows is None else tensor[rows]).detach().contiguous()
    whole = values.view(torch.uint8).flatten() if values.dim() else values.reshape(1).view(torch.uint8)
    words = whole[: len(whole) // 4 * 4].view(torch.int32)
    weights = torch.arange(1, 65, dtype=torch.int64, device=tensor.device)
    lanes = words[: len(words) // 64 * 64].view(-1, 64).sum(0, dtype=torch.int64)
    rest = int(whole[len(words) // 64 * 256 :].to(torch.int64).sum())
    return int((lanes * weights).sum()) + rest


def check_loss_fn(loss_fn: Any) -> None:
    """Refuse a loss function that cannot be called, or that refers to a gradient scaler."""
    if not callable(loss_fn):
        raise UserError(f"loss_fn must be a function of the model and a batch, not {_kind(loss_fn)}.")
    if isinstance(loss_fn, types.FunctionType | types.MethodType):
        try:
            held = inspect.getclosurevars(loss_fn)
        except ValueError:  # a cell that is still empty
            return
        for name, value in (*held.nonlocals.items(), *held.globals.items()):
            if isinstance(value, torch.amp.GradScaler):
                raise UserError(
                    f"loss_fn refers to the GradScaler {name}: scaled losses would all be clipped. Leave it out: norms "
                    "are taken in float32; under torch.autocast use bfloat16."
                )


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
