"""The unit of privacy: examples that belong to one person, household or basket, sampled, clipped and counted together.

Neighbouring data sets differ in one unit: in *all* training examples of it. Batches are Poisson samples of units. A
sampled unit brings at most ``max_examples`` of its examples, a uniformly random subset of them drawn at each step; its
contribution map is 1 on each row that any of them touches, and its gradient is the mean or the sum of theirs. The map
is clipped to ``C1`` and the gradient to ``C2``, as those of an example are: every sensitivity holds with "unit" for
"example", and with it the accounting, at the rate q = batch_size / units.

A unit may occur in several periods of a stream, and then pays in each: periods compose
(:mod:`dpfest.planning.privacy_plan`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfest.errors import UserError
from dpfest.noise.keystream import Keystream

Indices = NDArray[np.int64]

COMBINE = ("mean", "sum")


@dataclass(frozen=True)
class UnitConfig:
    """What a unit is, and what it contributes to a step.

    Attributes:
        name: of one unit, as in "add or remove one household".
        max_examples: number of its examples that a step reads, at most.
        combine: ``mean`` or ``sum`` of their gradients, which is then clipped to ``C2``.

    Raises:
        UserError: a value out of range, by name.
    """

    name: str
    max_examples: int = 32
    combine: str = "mean"

    def __post_init__(self) -> None:
        if not self.name or self.name == "example":
            raise UserError(f"A unit needs a name of its own, such as household, not {self.name!r}.")
        if not isinstance(self.max_examples, Integral) or self.max_examples < 1:
            raise UserError(
                f"max_examples={self.max_examples!r} must be a whole number, 1 or more: a unit's examples in a step."
            )
        if self.combine not in COMBINE:
            raise UserError(f"combine={self.combine!r} must be {' or '.join(COMBINE)} of the examples' gradients.")


class Units:
    """The units of a data set.

    Args:
        of_example: the unit of each example of the data set, integers or strings, ``[N]``, equal for examples of one
            unit. In a stream an identifier means the same unit in every day.
        name: see :class:`UnitConfig`.
        max_examples: see there.
        combine: see there.

    Attributes:
        config: the settings.
        of: number of each example's unit, from 0, int64 ``[N]``.
        count: number of units with an example.

    Raises:
        UserError: not one identifier per example.
    """

    def __init__(self, of_example: Any, name: str, max_examples: int = 32, combine: str = "mean") -> None:
        self.config = UnitConfig(name, max_examples, combine)
        identifiers = identifiers_of(of_example)
        distinct, of = np.unique(identifiers, return_inverse=True)
        self.of: Indices = of.astype(np.int64)
        self.count = len(distinct)
        self._by_unit = np.argsort(self.of, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(self.of, minlength=self.count))])

    def refuse_other(self, examples: int) -> None:
        """Raise UserError unless these are the units of a data set of so many examples."""
        if len(self.of) != examples:
            raise UserError(
                f"units name {len(self.of)} examples, but the data set has {examples}: give the unit of each, in order."
            )

    def examples(self, units: Indices, stream: Keystream) -> Indices:
        """Return the examples that these units bring to a step: by unit, in ascending order within each, int64 ``[b]``.

        Formal guarantee: of a unit with more than ``max_examples`` every subset of that size is equally likely, given
        a keystream of independent uniform words, whichever other units there are.

        Args:
            units: sorted distinct numbers of units.
            stream: source of the choice.
        """
        sizes = self._starts[units + 1] - self._starts[units]
        large = sizes > self.config.max_examples
        chosen = [self._all_of(units[~large], sizes[~large]), self._some_of(units[large], sizes[large], stream)]
        examples = np.concatenate(chosen)
        return examples[np.lexsort((examples, self.of[examples]))]

    def _all_of(self, units: Indices, sizes: Indices) -> Indices:
        first = np.repeat(self._starts[units] - np.cumsum(sizes) + sizes, sizes)
        return self._by_unit[first + np.arange(len(first))]

    def _some_of(self, units: Indices, sizes: Indices, stream: Keystream) -> Indices:
        examples = self._all_of(units, sizes)
        while True:  # order a unit's examples by random words, which must differ
            words = stream.words(len(examples))
            order = np.lexsort((words, self.of[examples]))
            if not ((np.diff(words[order]) == 0) & (np.diff(self.of[examples[order]]) == 0)).any():
                break
        rank = np.arange(len(examples)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return examples[order[rank < self.config.max_examples]]


def identifiers_of(of_example: Any) -> NDArray[Any]:
    """Return the identifiers of units as an array ``[N]``.

    Raises:
        UserError: they are no list of integers or strings.
    """
    array = np.asarray(of_example.cpu() if isinstance(of_example, Tensor) else of_example)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.dtype.kind in "US"):
        raise UserError(
            f"Units are given as one integer or string per example, equal for examples of one unit, not as "
            f"{array.dtype} of shape {array.shape}."
        )
    return array


class Groups:
    """The units of a micro-batch: which of its examples are clipped as one.

    Args:
        units: the unit of each example, int64 ``[b]``, in ascending order.
        combine: ``mean`` or ``sum``.
        device: of the model.

    Attributes:
        units: the distinct units, ``[u]``.
        of: position in ``units`` of each example's unit, int64 ``[b]``.
        bounds: first example of each unit, and the number of examples, int64 ``[u + 1]``.
        weight: factor of each example's loss, float64 ``[b]``: 1 over the number of examples of its unit for the mean;
            None for the sum.
    """

    def __init__(self, units: Indices, combine: str, device: torch.device) -> None:
        if (np.diff(units) < 0).any():
            raise UserError("The examples of a micro-batch must be in the order of their units.")
        starts = np.flatnonzero(np.diff(units, prepend=-1))
        sizes = np.diff(starts, append=len(units))
        self.units, self._starts, self._sizes = units[starts], starts, sizes
        self._device = device
        self.of = self._tensor(np.repeat(np.arange(len(starts)), sizes))
        self.bounds = self._tensor(np.append(starts, len(units)))
        self.weight = self._tensor(np.repeat(1 / sizes, sizes)) if combine == "mean" else None

    def __len__(self) -> int:
        return len(self.units)

    @cached_property
    def by_size(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The units in classes of up to 1, 2, 4, 8, ... examples, each as a rectangle.

        Of each class: positions of its units ``[k]``; their examples, int64 ``[k, size]``, where a unit's last example
        repeats up to the size; and which of these are such repetitions, bool ``[k, size]``.
        """
        found = []
        rounded = 1 << np.ceil(np.log2(self._sizes)).astype(np.int64)
        for size in np.unique(rounded):
            mine = np.flatnonzero(rounded == size)
            place = np.arange(size)
            members = self._starts[mine, None] + np.minimum(place, self._sizes[mine, None] - 1)
            found.append((mine, members, place >= self._sizes[mine, None]))
        return [tuple(map(self._tensor, one)) for one in found]  # type: ignore[misc]

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def weighted(losses: Tensor, groups: Groups | None) -> Tensor:
    """Return losses ``[b]`` whose gradients add up to those of the examples, or units."""
    return losses if groups is None or groups.weight is None else losses * groups.weight.to(losses.dtype)
