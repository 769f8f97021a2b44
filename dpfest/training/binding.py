"""Binding of a saved state: a description of everything besides the weights that determines what a step does.

Two runs of one step under one key share its noise, so they must be the same release to the last bit. Each part is
described by its content (code, shapes, settings), so that a changed function of the same name is detected.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
import types
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from dpfest import devices, kernels
from dpfest.errors import UserError
from dpfest.gradients import arithmetic
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.step.engine import PrivateEngine

_ITEMS = 64  # of a list that are described
_NOT_OF_A_CLASS = (
    "__module__",
    "__dict__",
    "__weakref__",
    "__doc__",
    "__annotations__",
    "__firstlineno__",
    "_abc_impl",
)
_BOUND = "_attn_implementation"  # which kernels a transformer of Hugging Face runs: they round differently
_LONGEST = 200  # of a description within another
_LARGEST = 1 << 20  # elements up to which an array's content is hashed; beyond, only its shape counts
OF_BRANCHES = ("period", "units", "plan", "selection")
"""Parts that a branch, which has a fresh key, must share with the run that it leaves."""


def bound_to(
    privacy_plan: PrivacyPlan,
    selected: Tensor | None,
    engine: PrivateEngine,
    optimizers: Sequence[torch.optim.Optimizer],
    read: Any,
) -> dict[str, str]:
    """Return the description of each part by name: a short text, or a digest of a long one."""
    recorder, model = engine.recorder, engine.recorder.model
    shapes = [(name, _shape(p), str(p.dtype), p.requires_grad) for name, p in model.named_parameters()]
    description = _Description()
    modes = [(name, module.training, description.module(module)) for name, module in model.named_modules()]
    kinds = [
        (type(one).__qualname__, [{k: _settled(v) for k, v in group.items() if k not in ("params", "lr", "initial_lr")}
         for group in one.param_groups])
        for one in optimizers
    ]  # fmt: skip
    return {
        "plan": digest(privacy_plan.identity),
        "selection": "none" if selected is None else digest(selected.cpu().numpy().tobytes()),
        "model": digest(repr((shapes, modes, str(model)))),
        "loss_fn": digest(describe(recorder.loss_fn)),
        "optimizers": digest(repr(kinds)),
        "reader": digest(describe(read)),
        "device": arithmetic.describe(recorder.device),
        "dtype": f"{engine.dtype}, sums {engine.sum_dtype}",
        "threads": str(torch.get_num_threads()),
        "versions": ", ".join(
            [
                *(platform.python_version(), torch.__version__, np.__version__, version("scipy"), version("dpfest")),
                torch.backends.cpu.get_cpu_capability(),
                kernels.build(),
                *devices.build(recorder.device),
            ]
        ),
    }


def training_of(
    privacy_plan: PrivacyPlan,
    model: nn.Module,
    loss_fn: Any,
    read: Any,
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *others: Any,
) -> str:
    """Return a digest over what decides a training's gradients: a key that is given twice must not meet two of them.

    Plan, model with its weights, loss function, reader, optimisers with their rates and state, and ``others`` (units,
    selected rows, dtypes) count; of data with more than a million values, their shape.
    """
    of_optimizers = [(type(one).__qualname__, one.state_dict()) for one in _listed(optimizers)]
    parts = [privacy_plan.identity, str(model), describe(loss_fn), describe(read)]
    parts += [_content(value) for value in (model.state_dict(), of_optimizers, others)]
    return digest("\n".join(map(digest, parts)))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) else [value]


def _content(value: Any) -> str:
    """Return a digest over a value's description, and over the whole of the tensors and arrays in it."""
    leaves, structure = tree_flatten(value)
    content = hashlib.sha256(str(structure).encode())
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            leaf = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        content.update(leaf.tobytes() if isinstance(leaf, np.ndarray) else describe(leaf).encode())
    return content.hexdigest()


def refuse_difference(
    saved: Mapping[str, str], now: Mapping[str, str], only: Collection[str] | None, branches: bool = True
) -> None:
    """Refuse to resume if parts differ.

    Args:
        saved: what the state is bound to.
        now: what this training is bound to.
        only: parts that must be equal; None for all.
        branches: whether the plan's sampler allows branches.

    Raises:
        UserError: names the parts, and says how to go on nevertheless.
    """
    names = dict.fromkeys([*now, *saved])
    differing = [name for name in names if saved.get(name) != now.get(name) and (only is None or name in only)]
    if differing:
        parts = ", ".join(_named(name, str(saved.get(name)), str(now.get(name))) for name in differing)
        branch = ", or branch: load_state_dict(state, steps=..., taken=...) takes a fresh key and counts the steps "
        raise UserError(
            f"The state was saved under another {parts}. Repeated steps would be a second release under the same "
            f"noise. Restore what differs{branch + 'that were taken' if branches else ''}."
        )


def describe(value: Any) -> str:
    """Describe a function or an object: its code and what it refers to; settings; the content of arrays."""
    return _Description().of(value)


class _Description:
    """Describes values that refer to one another, each once.

    Code is followed into whatever a function refers to, as long as it is the user's own: of the standard library and of
    installed packages the name alone counts, since versions are bound. Of an object, its class and public attributes
    count; of a list, its length and first items.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}  # by identity: when, and what, kept alive so that no other has it

    def of(self, value: Any) -> str:
        """Describe one value, by a digest where the description is long: within others, it would be quoted anew."""
        text = self._of(value)
        return text if len(text) <= _LONGEST else digest(text)

    def _of(self, value: Any) -> str:
        if isinstance(value, str | bytes | int | float | complex | None | torch.dtype | torch.device | range | slice):
            return repr(value)
        if isinstance(value, Tensor):
            return self._array(value.detach().cpu().float().numpy()) if value.layout is torch.strided else "tensor"
        if isinstance(value, np.ndarray):
            return self._array(value)
        if id(value) in self._seen:
            return f"again {self._seen[id(value)][0]}"
        self._seen[id(value)] = (len(self._seen), value)
        if isinstance(value, types.MethodType):
            return f"{self.of(value.__func__)} of {self.of(value.__self__)}"
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, functools.partial):
            return f"partial {self.of(value.func)} {self.of(value.args)} {self.of(value.keywords)}"
        if isinstance(value, nn.Module):
            return " ".join(
                [self.module(value), *(f"{name}: {self.of(part)}" for name, part in value.named_children())]
            )
        if isinstance(value, Mapping):
            return str([(self.of(key), self.of(item)) for key, item in value.items()])
        if isinstance(value, list | tuple):
            return f"{len(value)} {[self.of(item) for item in value[:_ITEMS]]}"
        if isinstance(value, set | frozenset):
            return str(sorted(map(self.of, value)))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.ModuleType | types.BuiltinFunctionType):
            return value.__name__
        size = len(value) if hasattr(value, "__len__") else ""
        attributes = self._attributes(value)
        shown = repr(value) if attributes == "[]" else ""  # a path, a member of an enumeration
        return f"{self._class(type(value))} {size} {attributes} {'' if ' at 0x' in shown else shown}"

    def module(self, module: nn.Module) -> str:
        """Describe a module without its children and its parameters' values."""
        buffers = [(name, self.of(value)) for name, value in module.named_buffers(recurse=False)]
        return f"{self._class(type(module))} {self._attributes(module)} {buffers}"

    def _attributes(self, value: Any) -> str:
        held = getattr(value, "__dict__", {}).items()
        chosen = (item for item in held if item[0].startswith(_BOUND) or (item[0][0] != "_" and item[0] != "training"))
        return str(sorted((name, self.of(one)) for name, one in chosen))

    def _class(self, kind: type) -> str:
        own = [base for base in kind.__mro__ if not _is_of_a_library(base.__module__)]
        code = [(name, self.of(one)) for base in own for name, one in vars(base).items() if name not in _NOT_OF_A_CLASS]
        return f"{kind.__module__}.{kind.__qualname__} {code}"

    def _function(self, function: types.FunctionType) -> str:
        if _is_of_a_library(function.__module__):
            return f"{function.__module__}.{function.__qualname__}"
        cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        names = sorted(set(_names(function.__code__)))
        referred = []
        for name in names:
            value = function.__globals__.get(name)
            if isinstance(value, types.ModuleType) and not _is_of_a_library(value.__name__):
                referred += [(f"{name}.{one}", self.of(getattr(value, one))) for one in names if hasattr(value, one)]
            elif value is not None:
                referred.append((name, self.of(value)))
        held = [self.of(one) for one in (function.__defaults__, function.__kwdefaults__, cells)]
        return f"{function.__qualname__} {_code(function.__code__)} {held} {referred}"

    def _array(self, array: np.ndarray) -> str:
        content = digest(array.tobytes()) if array.size <= _LARGEST and array.dtype != object else ""
        return f"array {array.shape} {array.dtype} {content}"


def _is_of_a_library(module: str | None) -> bool:
    name = (module or "builtins").partition(".")[0]
    if name in sys.stdlib_module_names and name != "__main__":
        return True
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return any(part in ("site-packages", "dist-packages") for part in Path(file).parts)


def _names(code: types.CodeType) -> list[str]:
    inner = [name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in _names(constant)]
    return [*code.co_names, *inner]


def _code(code: types.CodeType) -> str:
    constants = [_constant(one) for one in code.co_consts]
    return digest(repr((code.co_code, code.co_names, code.co_varnames, constants)))


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code(value)
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _shape(parameter: nn.Parameter) -> tuple[int, ...]:
    return getattr(parameter, "whole_shape", tuple(parameter.shape))  # of a table over ranks, however many


def _settled(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def digest(value: str | bytes) -> str:
    """Return sixteen hexadecimal digits over a value's content."""
    return hashlib.sha256(value if isinstance(value, bytes) else value.encode()).hexdigest()[:16]


def _named(name: str, saved: str, now: str) -> str:
    return f"{name} ({saved}, now {now})" if name in ("device", "dtype", "threads", "versions") else name
