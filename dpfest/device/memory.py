"""What kernels read besides tensors of the step, and how they are started."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor


def blocks(count: int, size: int) -> int:
    """Return how many blocks of a size hold ``count`` items."""
    return -(-count // size)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Start a kernel on the device of its tensors, of which it sees the first address alone; not on an empty grid."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    if not all(one.is_contiguous() for one in tensors):
        raise ValueError("A kernel reads and writes contiguous tensors.")
    if min(grid) > 0:
        with torch.cuda.device_of(tensors[0]):
            kernel[grid](*args, **constants)


@lru_cache(maxsize=256)
def reals(device: torch.device, *values: float) -> Tensor:
    """Return float64 numbers on a device; those of earlier calls are kept."""
    return torch.tensor(values, dtype=torch.float64, device=device)


_OF_GRAPHS: list[Tensor] = []
"""What graphs read besides tensors of the step: kept for good, as a graph may be started at any time."""


def wholes(device: torch.device, values: tuple[int, ...]) -> Tensor:
    """Return int64 numbers on a device; those of earlier calls are kept, and alone can be read by a graph."""
    found = _wholes(device, values)
    if _captures(device):
        _OF_GRAPHS.append(found)
    return found


@lru_cache(maxsize=256)
def _wholes(device: torch.device, values: tuple[int, ...]) -> Tensor:
    if _captures(device):
        raise RuntimeError("a kernel reads numbers that are not on the GPU yet (ids that are not int64?).")
    return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)


def _captures(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def table(device: torch.device, rows: Sequence[Sequence[int]]) -> Tensor:
    """Return int64 numbers that change from step to step (addresses among them) on a device, ``[rows, columns]``."""
    return torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)


def key(device: torch.device, secret: bytes) -> Tensor:
    """Return the eight words of a keystream's key on a device."""
    return torch.from_numpy(np.frombuffer(secret, dtype="<u4").astype(np.uint32)).to(device, non_blocking=True)


def power_of_two(count: int) -> int:
    """Return the least power of two that is not below ``count``."""
    return 1 << max(count - 1, 0).bit_length()
