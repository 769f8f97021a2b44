"""Settings of torch under which a step's arithmetic is what its guarantee says: of one precision, in one order.

Torch's settings are the program's, and a user's own choice holds everywhere but here:

* Products of float32 may be computed on operands rounded to TF32 or bfloat16 (``torch.set_float32_matmul_precision``),
  relative errors of 2^-11 and 2^-8. A clipped gradient is added up by such products, after its norm was taken: the sum
  would hold more of an example than its clipping norm, by more than the 2^-10 that the noise is charged for.
* Sums on a GPU may be added in another order each time. A step that is taken again under its key must be the same
  release to the last bit, or the two differ by a function of the batch without noise.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.utils import deterministic

from dpfest.errors import UserError

_BACKENDS: Final[Any] = torch.backends
_DETERMINISTIC: Final[Any] = deterministic


_SETTABLE: Final = hasattr(_BACKENDS, "fp32_precision")  # kind by kind, since torch 2.9


class _Before29:
    """The setting of earlier versions, as an attribute."""

    @property
    def precision(self) -> str:
        return torch.get_float32_matmul_precision()

    @precision.setter
    def precision(self, value: str) -> None:
        torch.set_float32_matmul_precision(value)


def _precisions(device: torch.device) -> dict[str, tuple[Any, str, Any]]:
    """Return where the precision of a device's products of float32 is set, and its value for full precision."""
    if not _SETTABLE:
        return {
            "products": (_Before29(), "precision", "highest"),
            "convolutions": (_BACKENDS.cudnn, "allow_tf32", False),
        }
    if device.type == "cpu":
        owners = [_BACKENDS.mkldnn.matmul, _BACKENDS.mkldnn.conv, _BACKENDS.mkldnn.rnn]
    else:
        owners = [_BACKENDS.cuda.matmul, _BACKENDS.cudnn.conv, _BACKENDS.cudnn.rnn]
    kinds = ("products", "convolutions", "recurrent layers")
    return {kind: (owner, "fp32_precision", "ieee") for kind, owner in zip(kinds, owners, strict=True)}


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """A context in which products of float32 are products of float32."""
    changed: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, full in _precisions(device).values():
            if (before := getattr(owner, name)) not in (full, "none"):  # none: nobody chose less
                changed.append((owner, name, before))
                setattr(owner, name, full)
        yield
    finally:
        for owner, name, before in changed:
            if _SETTABLE:
                owner.fp32_precision = "none"  # what is inherited from a wider setting stays so
            if getattr(owner, name) != before:
                setattr(owner, name, before)


@contextmanager
def one_order(device: torch.device) -> Iterator[None]:
    """A context in which a computation that is repeated gives the same bits.

    On a CPU they are the same anyway, for a fixed number of threads.

    Raises:
        UserError: torch has no such form of an operation.
    """
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # asked for by torch; without effect on results
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark, fill = _BACKENDS.cudnn.benchmark, _DETERMINISTIC.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(True)
        _BACKENDS.cudnn.benchmark = False
        _DETERMINISTIC.fill_uninitialized_memory = False
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise UserError(
            "A step that is taken again must give the same bits, or it is a second release under the same noise, and "
            f"on {device} torch cannot promise that of an operation of this model: {str(error).splitlines()[0]} "
            "Replace the operation, or train on the CPU."
        ) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        _BACKENDS.cudnn.benchmark, _DETERMINISTIC.fill_uninitialized_memory = benchmark, fill


def describe(device: torch.device) -> str:
    """Return what decides how a model's own products are rounded: the device, and precisions that somebody lowered."""
    words = [str(device)]
    if device.type == "cuda":
        words += [
            torch.cuda.get_device_name(device),
            f"CUDA {torch.version.cuda}",
            f"cuDNN {_BACKENDS.cudnn.version()}",
        ]
    chosen = ((kind, getattr(owner, name), full) for kind, (owner, name, full) in _precisions(device).items())
    words += [f"{kind} in {value}" for kind, value, full in chosen if value not in (full, "none")]
    return ", ".join(words)
