"""What computes the parts of a step: a CPU's loops, or a GPU's kernels (:mod:`dpfest.device`) where they serve."""

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


def graphs(device: torch.device) -> bool:
    """Return whether a model's passes are started as graphs where the kernels serve; DPFEST_DEVICE_GRAPHS=0: not."""
    return device.type == "cuda" and os.environ.get("DPFEST_DEVICE_GRAPHS", "1") == "1"


def build(device: torch.device) -> list[str]:
    """Describe what computes on a device besides what computes on a CPU: sums differ in their last bits."""
    if device.type == "cpu":
        return []
    parts = _parts()
    return [f"kernels of Triton {importlib.import_module('triton').__version__}" if parts else "no kernels of Triton"]
