"""Parts of a step on a GPU: kernels in Triton, handed to the one step (:mod:`dpfest.step`) in place of a CPU's.

Triton comes with PyTorch's builds for GPUs. The kernels were seen interpreted on a CPU and compiled for three GPUs, and
**no GPU has run them yet**: they serve under ``DPFEST_DEVICE_KERNELS=1`` alone, for those who want to test them. Else,
and on a CPU, the parts that the rest of the library describes run: draws have the same bits, sums of floats other last
bits. A state is bound to which ran. The kernels read as the step does: :mod:`~dpfest.device.lookups` (which rows an
example touched, its map), :mod:`~dpfest.device.noise` (which rows survive; noise), :mod:`~dpfest.device.sums` (norms
and clipped sums), :mod:`~dpfest.device.update`.

Rules that they obey: no float is added atomically, so that a step that is taken again has the same bits; noise is a
function of place (:mod:`dpfest.places`), never of a lane's or a list's order; float64 scalars are read from memory, as
Triton makes a Python float a float32.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

PRETENDED = False
"""Whether a tensor on the CPU counts as a GPU's: in tests, where Triton interprets the kernels."""


def serving(*tensors: Tensor) -> Any:
    """Return :mod:`dpfest.device.parts` if the kernels serve these tensors; else None."""
    return _parts() if tensors and all(tensor.is_cuda or PRETENDED for tensor in tensors) else None


@lru_cache
def _parts() -> Any:
    wanted = os.environ.get("DPFEST_DEVICE_KERNELS", "1" if PRETENDED else "0") == "1"
    if not wanted or importlib.util.find_spec("triton") is None:
        return None
    try:
        return importlib.import_module("dpfest.device.parts")
    except (ImportError, AttributeError) as error:
        warnings.warn(f"Triton is installed, but cannot be used ({error}), so steps on a GPU are slower.", stacklevel=2)
        return None


def build(device: torch.device) -> list[str]:
    """Describe what computes on a device besides what computes on a CPU: sums differ in their last bits."""
    if device.type == "cpu":
        return []
    parts = _parts()
    return [f"kernels of Triton {importlib.import_module('triton').__version__}" if parts else "no kernels of Triton"]
