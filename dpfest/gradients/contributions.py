"""The contribution map of a batch (Ghazi et al. 2023, algorithm 1): which rows each example touches, clipped."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfest import devices, kernels
from dpfest.gradients.tables import locate

_MOST_ROOT = 2.0**26  # its square, and that of anything smaller, is exact to less than one; no map has so many rows


@dataclass(frozen=True)
class Contributions:
    """Contribution map of a batch: its distinct (example, row) pairs.

    Attributes:
        rows: sorted distinct touched rows, int64 ``[u]``.
        row_of: position in ``rows`` of each pair's row, int64 ``[p]``.
        example: example of each pair, int64 ``[p]``, in ``range(examples)``.
    """

    rows: Tensor
    row_of: Tensor
    example: Tensor
    examples: int

    @classmethod
    def joined(cls, parts: Iterable[Contributions], device: torch.device) -> Contributions:
        """Return the map of several groups of examples, numbered one group after another."""
        empty = torch.empty(0, dtype=torch.int64, device=device)
        rows, row_of, example = [empty], [empty], [empty]
        touched = examples = 0
        for part in parts:
            example.append(part.example + examples)
            row_of.append(part.row_of + touched)
            rows.append(part.rows)
            touched += len(part.rows)
            examples += part.examples
        distinct, place = torch.unique(torch.cat(rows), return_inverse=True)
        return cls(distinct, place[torch.cat(row_of)], torch.cat(example), examples)

    def within(self, selected: Tensor) -> Contributions:
        """Restrict the map to sorted distinct ``selected`` rows, each renumbered by its rank among them."""
        rank, inside = locate(selected, self.rows)
        pairs = torch.nonzero(inside[self.row_of]).squeeze(1)
        renumbered = inside.cumsum(0) - 1
        return Contributions(rank[inside], renumbered[self.row_of[pairs]], self.example[pairs], self.examples)

    def clipped(self, contribution_clipping_norm: float, grid: float = 0.0, selected: Tensor | None = None) -> Tensor:
        """Return ``sum_i [v_i]_C1`` at ``rows``, float64 ``[u]``: each example's map clipped to l2 norm ``C1``.

        Args:
            contribution_clipping_norm: ``C1``.
            grid: power of two to whose multiples each entry of a clipped map is rounded down; 0 for no rounding.
            selected: sorted distinct rows outside of which maps are 0; None for none.

        Formal guarantee: the map's l2-sensitivity under add-or-remove-one adjacency is at most ``C1``; on a grid this
        holds for the floats themselves, since their sums are exact.
        """
        contribution_clipping_norm = _at_most(contribution_clipping_norm)
        if selected is not None:
            sums = torch.zeros(len(self.rows), dtype=torch.float64, device=self.rows.device)
            sums[locate(selected, self.rows)[1]] = self.within(selected).clipped(contribution_clipping_norm, grid)
            return sums
        parts = devices.serving(self.example) if grid > 0 else None
        if parts or kernels.serve(self.example):
            return (parts or kernels).clipped_map(
                self.example, self.row_of, self.examples, len(self.rows), contribution_clipping_norm, grid
            )
        distinct = torch.bincount(self.example, minlength=self.examples).to(torch.float64)
        weight = contribution_clipping_norm / distinct.sqrt().clamp_min(contribution_clipping_norm)
        if grid > 0:  # a weight below 1 is a quotient by a root, each rounded by up to half a unit
            weight = torch.where(weight < 1, weight * (1 - 2.0**-51), weight)
            weight = (weight / grid).floor_().mul_(grid)
        sums = weight.new_zeros(len(self.rows))
        return sums.index_add_(0, self.row_of, weight.index_select(0, self.example))  # on a GPU bincount has no order


def _at_most(clipping_norm: float) -> float:
    """Return the clipping norm, or the float below it where it is the root of a whole number, rounded down.

    A map of so many rows has the same norm as a float, and would count as one that needs no clipping.
    """
    count = round(clipping_norm**2) if clipping_norm < _MOST_ROOT else 0
    over, under = clipping_norm.as_integer_ratio() if count else (0, 1)
    exceeds = math.sqrt(count) == clipping_norm and over**2 < count * under**2
    return math.nextafter(clipping_norm, 0.0) if exceeds else clipping_norm
