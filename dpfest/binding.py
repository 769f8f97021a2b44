"""Binding of a saved state: a description of everything besides the weights that determines what a step does.

Two runs of one step under one key share its noise, so they must be the same release to the last bit. Each part is
described by its content (code, shapes, settings), so that a changed function of the same name is detected.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfest.engine import PrivateEngine
from dpfest.errors import UserError
from dpfest.privacy_plan import PrivacyPlan

_LARGEST = 1 << 20  # elements up to which an array's content is hashed; beyond, only its shape counts
OF_BRANCHES = ("period", "plan", "selection")
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
    shapes = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in model.named_parameters()]
    modes = [(name, module.training, describe_module(module)) for name, module in model.named_modules()]
    kinds = [
        (type(one).__qualname__, [{k: _settled(v) for k, v in group.items() if k not in ("params", "lr", "initial_lr")}
         for group in one.param_groups])
        for one in optimizers
    ]  # fmt: skip
    return {
        "plan": _digest(repr(privacy_plan)),
        "selection": "none" if selected is None else _digest(selected.cpu().numpy().tobytes()),
        "model": _digest(repr((shapes, modes, str(model)))),
        "loss_fn": _digest(describe(recorder.loss_fn)),
        "optimizers": _digest(repr(kinds)),
        "reader": _digest(describe(read)),
        "device": str(recorder.device),
        "dtype": f"{engine.dtype}, sums {engine.sum_dtype}",
        "threads": str(torch.get_num_threads()),
        "versions": ", ".join(
            [platform.python_version(), torch.__version__, np.__version__, torch.backends.cpu.get_cpu_capability()]
        ),
    }


def refuse_difference(saved: Mapping[str, str], now: Mapping[str, str], only: Collection[str] | None) -> None:
    """Refuse to resume if parts differ.

    Args:
        saved: what the state is bound to.
        now: what this training is bound to.
        only: parts that must be equal; None for all.

    Raises:
        UserError: names the parts, and says how to go on nevertheless.
    """
    differing = [name for name in now if saved.get(name) != now[name] and (only is None or name in only)]
    if differing:
        parts = ", ".join(_named(name, str(saved.get(name)), now[name]) for name in differing)
        raise UserError(
            f"The state was saved under another {parts}. Repeated steps would be a second release under the same "
            "noise. Restore what differs, or branch: load_state_dict(state, steps=...) takes a fresh key."
        )


def describe(value: Any, depth: int = 4) -> str:
    """Describe a function or an object: its code and what it refers to; settings; the content of arrays."""
    if depth == 0:
        return type(value).__qualname__
    if isinstance(value, types.MethodType):
        return f"{describe(value.__func__, depth)} of {describe(value.__self__, depth - 1)}"
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        held: Any = [value.__defaults__, value.__kwdefaults__, cells]
        names = [value.__globals__.get(name) for name in value.__code__.co_names]
        plain = types.FunctionType | int | float | str | Tensor | np.ndarray
        own = [describe(one, depth - 1) for one in names if isinstance(one, plain)]
        return f"{value.__qualname__} {_code(value.__code__)} {describe(held, depth - 1)} {own}"
    if isinstance(value, functools.partial):
        return f"partial {describe([value.func, value.args, value.keywords], depth - 1)}"
    if isinstance(value, nn.Module):
        return f"module {type(value).__qualname__}"
    if isinstance(value, Tensor):
        value = value.detach().cpu().float().numpy() if value.layout is torch.strided else None
    if isinstance(value, np.ndarray):
        content = _digest(value.tobytes()) if value.size <= _LARGEST and value.dtype != object else ""
        return f"array {value.shape} {value.dtype} {content}"
    if isinstance(value, Mapping):
        return str([(str(key), describe(one, depth - 1)) for key, one in value.items()])
    if isinstance(value, list | tuple):
        return f"{len(value)} {[describe(one, depth - 1) for one in value[:64]]}"
    if isinstance(value, str | bytes | int | float | bool | type(None) | torch.dtype | torch.device):
        return repr(value)
    if isinstance(value, type):
        return value.__qualname__
    kind, size = type(value), len(value) if hasattr(value, "__len__") else ""
    code = [
        _code(vars(kind)[name].__code__) for name in ("__call__", "__getitem__", "forward") if _function(kind, name)
    ]
    public = {name: one for name, one in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    return f"{kind.__qualname__} {size} {code} {describe(public, depth - 1)}"


def describe_module(module: nn.Module) -> str:
    """Describe a module without its parameters and children: the code of its class, plain attributes, buffers."""
    kind, plain = type(module), int | float | str | bool
    code = [_code(vars(base)["forward"].__code__) for base in kind.__mro__ if _function(base, "forward")][:1]
    held = {**vars(kind), **vars(module)}
    settings = sorted((name, value) for name, value in held.items() if isinstance(value, plain) and name != "training")
    buffers = [(name, describe(value)) for name, value in module.named_buffers(recurse=False)]
    return f"{kind.__qualname__} {code} {settings} {buffers}"


def _function(kind: type, name: str) -> bool:
    return isinstance(vars(kind).get(name), types.FunctionType)


def _code(code: types.CodeType) -> str:
    constants = [_constant(one) for one in code.co_consts]
    return _digest(repr((code.co_code, code.co_names, code.co_varnames, constants)))


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code(value)
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _settled(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _digest(value: str | bytes) -> str:
    return hashlib.sha256(value if isinstance(value, bytes) else value.encode()).hexdigest()[:16]


def _named(name: str, saved: str, now: str) -> str:
    return f"{name} ({saved}, now {now})" if name in ("device", "dtype", "threads", "versions") else name
