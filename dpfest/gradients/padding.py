"""Batches that are padded to a capacity: their passes have one shape, whatever Poisson sampling drew.

A GPU then makes the same launches in every step, which can be started as one graph (:mod:`dpfest.device.graph`), and
the time that they take tells less of the batch's size. The first example stands again where examples lack. What follows
the passes (look-ups, norms, sums) reads the rows of the batch's own examples alone, so that nothing that padding holds
is ever multiplied, by 0 or otherwise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from dpfest.gradients.layers import Call

_STEP = 256  # capacities are multiples of it


def usual_capacity(expected: float) -> int:
    """Return the capacity for Poisson batches of this expected size: one in 10^9 exceeds it."""
    return _rounded(expected + 6 * math.sqrt(expected))


def capacity_for(count: int, usual: int) -> int:
    """Return the capacity for so many examples: the usual one, unless they are more, or fewer than half of it."""
    return usual if usual / 2 <= count <= usual else _rounded(count)


def _rounded(count: float) -> int:
    return max(math.ceil(count / _STEP), 1) * _STEP


def counts_examples(data: Any, count: int) -> bool:
    """Return whether a batch consists of tensors alone, of so many examples each."""
    leaves = tree_leaves(data)
    return bool(leaves) and all(isinstance(one, Tensor) and one.dim() and len(one) == count for one in leaves)


def padded(data: Any, count: int, capacity: int) -> Any:
    """Return a batch of so many examples, of tensors that count them, as one of ``capacity``."""
    return tree_map(lambda one: torch.cat([one, one[:1].expand(capacity - count, *one.shape[1:])]), data)


def held_at(data: Any, examples: np.ndarray, capacity: int) -> tuple[Any, np.ndarray]:
    """Return a batch and its examples' identities, both padded to ``capacity``."""
    rest = capacity - len(examples)
    return padded(data, len(examples), capacity), np.concatenate([examples, np.repeat(examples[:1], rest)])


def first_of(call: Call, count: int) -> Call:
    """Return the part of a call that the first ``count`` of its examples have."""

    def part(value: Any) -> Any:
        return value[:count] if isinstance(value, Tensor) and value.dim() and len(value) == len(call.output) else value

    own = Call(
        tuple(part(one) for one in call.args), {name: part(one) for name, one in call.kwargs.items()},
        part(call.output.detach()), part(call.chosen),
    )  # fmt: skip
    own.gradient = part(call.gradient)
    return own
