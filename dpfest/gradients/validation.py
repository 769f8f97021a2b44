"""Validation: refusal of models, losses and optimisers that cannot be trained privately.

A fault is a sentence that names the layer and the remedy; all that are found are refused at once, as a
:class:`dpfest.errors.UserError` (a ``ValueError``), before any budget is spent. Whether examples mix depends on values,
not on layer types: :mod:`dpfest.training.trial` checks it.
"""

from __future__ import annotations

import inspect
import types
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpfest.errors import UserError
from dpfest.gradients.tables import Table


def refuse(faults: Iterable[str]) -> None:
    """Raise one UserError that names all faults, each once; none if there is none."""
    found = list(dict.fromkeys(faults))
    if len(found) == 1:
        raise UserError(found[0])
    if found:
        listed = "\n".join(f"- {fault}".replace("\n", "\n  ") for fault in found)
        raise UserError(f"{len(found)} things keep this from being trained privately:\n{listed}")


def check_training(
    model: Any, loss_fn: Any, optimizers: Any = None, *, sparse: bool = False, lazy: bool = False
) -> None:
    """Refuse a model, a loss function and optimisers together.

    Args:
        model: see :func:`model_faults`.
        loss_fn: see :func:`loss_fn_faults`.
        optimizers: one or several, see :func:`optimizer_faults`; None to leave them unchecked.
        sparse: see there.
        lazy: see there.

    Raises:
        UserError: names every fault of the three.
    """
    faults = [*model_faults(model), *loss_fn_faults(loss_fn)]
    if optimizers is not None and isinstance(model, nn.Module):
        several = optimizers if isinstance(optimizers, Sequence) else [optimizers]
        faults += optimizer_faults(several, model, sparse=sparse, lazy=lazy)
    refuse(faults)


def model_faults(model: Any) -> Iterator[str]:
    """Yield what in a model's structure rules out private training.

    Not a module; a layer that mixes examples or keeps statistics of them; a table with options that break the
    guarantee; trainable parameters not all float32 or all float64, or none.
    """
    if not isinstance(model, nn.Module):
        yield f"model must be a torch.nn.Module, not {_kind(model)}."
        return
    holders: dict[int, tuple[str, Table]] = {}
    for name, module in model.named_modules():
        yield from _layer_faults(name, module)
        if isinstance(module, Table) and module.weight.requires_grad:
            other, holder = holders.setdefault(id(module.weight), (name, module))
            if holder.padding_idx != module.padding_idx:
                yield (
                    f"The layers {other} and {name} share a table, and leave out different rows as padding. Give both "
                    "the same padding_idx, or untie them."
                )
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    if dtypes not in ({torch.float32}, {torch.float64}):
        yield (
            f"The model's trainable parameters are of {', '.join(map(str, dtypes)) or 'no type: there are none'}; "
            "norms are computed in that type, so all must be float32, or all float64. For half precision use "
            "torch.autocast."
        )


def _layer_faults(name: str, module: nn.Module) -> Iterator[str]:
    tracks = isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats
    frozen = not any(parameter.requires_grad for parameter in module.parameters(recurse=False))
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
        tracks = module.training or not frozen  # a frozen one in eval() scales by constants
    elif isinstance(module, nn.modules.batchnorm._BatchNorm):
        tracks = True
    if tracks:
        yield (
            f"The layer {name} ({type(module).__name__}) mixes the examples of a batch, or keeps statistics of them "
            "without noise. Use GroupNorm or LayerNorm; or freeze it, keep its statistics and call eval() on it."
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        yield (
            f"The table {name} has max_norm={module.max_norm}, which rewrites the rows that a batch touches in the "
            "forward pass, outside the guarantee. Set max_norm=None."
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.scale_grad_by_freq:
        yield (
            f"The table {name} has scale_grad_by_freq=True: an example's gradient would depend on the others. "
            "Set it to False."
        )


def loss_fn_faults(loss_fn: Any) -> Iterator[str]:
    """Yield that a loss function is not callable, or refers to a gradient scaler."""
    if not callable(loss_fn):
        yield f"loss_fn must be a function of the model and a batch, not {_kind(loss_fn)}."
    if isinstance(loss_fn, types.FunctionType | types.MethodType):
        try:
            variables = inspect.getclosurevars(loss_fn)
        except ValueError:  # a cell that is still empty
            return
        for name, value in (*variables.nonlocals.items(), *variables.globals.items()):
            if isinstance(value, torch.amp.GradScaler):
                yield (
                    f"loss_fn refers to the GradScaler {name}: scaled gradients would all be clipped. Remove it: norms "
                    "are computed in float32; under torch.autocast use bfloat16."
                )


def optimizer_faults(optimizers: Sequence[Any], model: nn.Module, *, sparse: bool, lazy: bool) -> Iterator[str]:
    """Yield why optimisers cannot take a private step.

    One is no optimiser, needs a closure or cannot take the tables' gradients; a parameter is in none or two of them.

    Args:
        optimizers: of all trainable parameters, together.
        model: the model.
        sparse: whether the tables' gradients are sparse.
        lazy: whether the tables' noise is lazy: see :func:`is_plain_sgd`.
    """
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    own = {id(p) for p in model.parameters()}
    all_are, stepped = True, set[int]()
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            all_are = False
            yield f"optimizer must be a torch.optim.Optimizer or several of them, not {_kind(optimizer)}."
            continue
        kind = type(optimizer).__name__
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            yield f"{kind} evaluates the loss several times a step, each a release. Use another optimiser."
        for group in optimizer.param_groups:
            held = {id(parameter): parameter for parameter in group["params"]}
            for parameter in (one for place, one in held.items() if place not in own):
                yield (
                    f"{kind} holds a parameter of shape {tuple(parameter.shape)} that is not the model's: it would "
                    "never be trained. Make it part of the model, or leave it out."
                )
            if again := _named(held.keys() & stepped, names):
                yield f"{again} is in two optimisers. Leave it to one."
            if len(held) < len(group["params"]):
                counts = Counter(map(id, group["params"]))
                twice = _named([place for place in counts if counts[place] > 1], names)
                yield f"{twice} is in an optimiser twice. Give it once."
            stepped |= held.keys()
            of_tables = _named(held.keys() & tables, names)
            if of_tables and lazy and not is_plain_sgd(optimizer, group):
                yield (
                    f"Lazy noise is exact under plain SGD alone, not under {kind} as configured: use "
                    "torch.optim.SGD without momentum, weight decay or hooks for the tables, or noise='dense'."
                )
            known = type(optimizer).__module__.startswith("torch.optim") or getattr(optimizer, "dense_only", False)
            decays = bool(group.get("weight_decay"))
            if of_tables and sparse and known and (kind not in ("SGD", "Adagrad", "SparseAdam") or decays):
                dense = "Adam" if kind == "SparseAdam" or not hasattr(torch.optim, kind) else kind
                others = f"torch.optim.{dense}(dense), " * (not names.keys() <= tables)
                yield (
                    f"{kind}{' with weight_decay' * decays} cannot take the sparse gradient of {of_tables}. Give "
                    "tables SGD, Adagrad or SparseAdam, without weight_decay, and the rest an optimiser of its own:\n"
                    "    dense, tables = dpfest.parameter_groups(model)\n"
                    f"    optimizers = [{others}torch.optim.SparseAdam(tables)]"
                )
            if kind == "SparseAdam" and (dense := _named(held.keys() - (tables if sparse else set()), names)):
                yield f"SparseAdam cannot take the dense gradient of {dense}."
    if all_are and (missing := _named(names.keys() - stepped, names)):
        yield f"No optimiser steps {missing}: give each one, or freeze them."


def _named(some: Collection[int], names: Mapping[int, str]) -> str:
    """Name the first three of some parameters, in the model's order; "" for none."""
    ordered = [name for parameter, name in names.items() if parameter in some]
    shown = ordered[:3] + ["…"] * (len(ordered) > 3)
    return ", ".join(shown) or ("a parameter" if some else "")


def check_losses(losses: Any, outputs: Iterable[tuple[str, nn.Module, Tensor]], examples: int) -> None:
    """Refuse losses, and outputs of trainable layers, whose first dimension is not the number of examples.

    Args:
        losses: return value of the loss function.
        outputs: name, layer and output of every call of a trainable layer.
        examples: their number.
    """
    if not isinstance(losses, Tensor) or losses.dim() != 1:
        kind = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else _kind(losses)
        raise UserError(
            f"loss_fn returned {kind}; a private step needs one loss per example, a tensor of shape [batch]. "
            "Use reduction='none' and average over any other dimension."
        )
    for name, layer, output in outputs:
        if output.dim() < max(2, len(getattr(layer, "normalized_shape", ())) + 1) or len(output) != len(losses):
            raise UserError(
                f"The layer {name} gives {tuple(output.shape)} for {len(losses)} examples: its first dimension must "
                "count the examples. Expand shared inputs (such as position ids) to the batch."
            )
    if len(losses) != examples:
        raise UserError(f"There are {len(losses)} losses for {examples} examples: return one per example.")


def is_plain_sgd(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    """Return whether a step is ``w -= lr * gradient``: torch.optim.SGD itself, no momentum, weight decay or hooks."""
    return _is_plain(torch.optim.SGD, optimizer, group, "momentum", "dampening")


def is_plain_adagrad(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    """Return whether an optimiser is torch.optim.Adagrad itself, without weight decay or hooks."""
    return _is_plain(torch.optim.Adagrad, optimizer, group)


def _is_plain(kind: type, optimizer: torch.optim.Optimizer, group: Mapping[str, Any], *options: str) -> bool:
    hooks = [*optimizer._optimizer_step_pre_hooks, *optimizer._optimizer_step_post_hooks]
    unset = ("weight_decay", "maximize", "differentiable", *options)
    return type(optimizer) is kind and not hooks and not any(group.get(name) for name in unset)


class HeldTensors:
    """The tensors that a model's modules hold: parameters, buffers and attributes, each once.

    They are found anew only where a module holds another object, of any kind, than when it was looked at before.

    Args:
        model: the model.

    Attributes:
        by_name: the tensors.
        parameters: those that are the model's parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._find()

    def look(self) -> HeldTensors:
        """Bring the attributes up to date, and return self."""
        if list(map(id, self._objects())) != self._identities:
            self._find()
        return self

    def _find(self) -> None:
        self._modules = list(self._model.modules())
        self._alive = self._objects()  # so that no identity is given to another object
        self._identities = list(map(id, self._alive))
        self.by_name, self.parameters = dict(_held(self._model)), list(self._model.parameters())

    def _objects(self) -> list[Any]:
        """Return all that the modules hold; the modules are known ones, as long as each holds the same."""
        found: list[Any] = []
        for module in self._modules:
            found += vars(module).values()
            found += module._parameters.values()
            found += module._buffers.values()
            found += module._modules.values()
        return found


class StateWatch:
    """Detects writes of the forward pass into the model, which would release raw values of the batch without noise.

    Every parameter, buffer and tensor attribute of a module is watched: in every pass it must stay the same object in
    the same memory with the same version counter; on request also its content (``.data``, ``.numpy()`` and aliases
    bypass version counters). Not watched: numbers and containers that modules hold, and anything outside the model.

    Args:
        held: the tensors of the model to watch.
        rows: for each table (by name of its weight), the rows whose content is compared; all other tensors are compared
            in full. None to compare no content.
    """

    def __init__(self, held: HeldTensors, rows: Mapping[str, Tensor] | None = None) -> None:
        self._held, self._rows = held, rows
        self._before = self._state()

    def _state(self) -> dict[str, tuple[Any, ...]]:
        return {name: self._of(name, tensor) for name, tensor in self._held.look().by_name.items()}

    def _of(self, name: str, tensor: Tensor) -> tuple[Any, ...]:
        place = (id(tensor), tensor.data_ptr() if tensor.layout is torch.strided else 0, tensor._version)
        return place if self._rows is None else (*place, _content(tensor, self._rows.get(name)))

    def expect(self, name: str, tensor: Tensor) -> None:
        """Accept a change that private training itself made to a tensor."""
        self._before[name] = self._of(name, tensor)

    def check(self) -> None:
        """Refuse changes since the watch began.

        Raises:
            UserError: names the changed tensor.
        """
        after = self._state()
        if after == self._before:
            return
        for name in after.keys() | self._before.keys():
            if after.get(name) != self._before.get(name):
                raise UserError(
                    f"The forward pass changes {name}: data of the examples stored there would be released with the "
                    "model, without noise. Compute it from public data when the model is made, or not at all."
                )


def _held(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    seen = set()
    for prefix, module in model.named_modules():
        for name, value in (*module._parameters.items(), *module._buffers.items(), *vars(module).items()):
            if isinstance(value, Tensor) and id(value) not in seen:
                seen.add(id(value))
                yield f"{prefix}.{name}" if prefix else name, value


def _content(tensor: Tensor, rows: Tensor | None) -> int:
    """Return a checksum of a tensor's bits, or of those of some rows."""
    if tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
        return 0
    values = (tensor if rows is None else tensor[rows]).detach().contiguous()
    whole = values.view(torch.uint8).flatten() if values.dim() else values.reshape(1).view(torch.uint8)
    words = whole[: len(whole) // 4 * 4].view(torch.int32)
    weights = torch.arange(1, 65, dtype=torch.int64, device=tensor.device)
    lanes = words[: len(words) // 64 * 64].view(-1, 64).sum(0, dtype=torch.int64)
    rest = int(whole[len(words) // 64 * 256 :].to(torch.int64).sum())
    return int((lanes * weights).sum()) + rest


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
