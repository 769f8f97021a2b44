"""Rows asked for and answered: what travels between the ranks that hold examples and those that own rows.

A rank asks each owner for the rows that its examples touch; the owner answers with their values, and whether they
survive; the rank sends the sums of the surviving ones back, in the same order and without their numbers. All sums are
of multiples of one power of two, exact in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfest.ranks.group import Group
from dpfest.ranks.layout import Rows, ShardLayout


class RowExchange:
    """The traffic about the rows that one batch, or a part of it, touches.

    Args:
        group: the ranks.
        places: which rank owns which rows.
        rows: sorted distinct global rows that this rank asks for, ``[n]``.

    Attributes:
        asked: rows that are asked of this rank, by asking rank and then by row, ``[m]``.
        touched: the distinct ones of them, sorted, ``[u]``.
    """

    def __init__(self, group: Group, places: ShardLayout, rows: Rows) -> None:
        self._group, self._places = group, places
        owner = places.owner(rows)
        self._order = np.argsort(owner, kind="stable")
        self._sent = np.bincount(owner, minlength=group.world).tolist()
        self._received = group.sizes(self._sent)
        self._rows = rows[self._order]
        self.asked = group.exchange(torch.from_numpy(self._rows), self._sent, self._received).numpy()
        self.touched, self._place = np.unique(self.asked, return_inverse=True)

    def summed(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Send a value of each row that this rank asked for to its owner; return the sums at ``touched``, ``[u]``."""
        sent = torch.from_numpy(values[self._order])
        received = self._group.exchange(sent, self._sent, self._received).numpy()
        return np.bincount(self._place, weights=received, minlength=len(self.touched)).astype(float)  # never integers

    def answered(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Answer each asking rank with a flag of each ``touched`` row; return those of this rank's rows, ``[n]``."""
        self._alive = flags[self._place]
        sent = torch.from_numpy(self._alive.astype(np.uint8))
        received = self._group.exchange(sent, self._received, self._sent).numpy()
        found = np.empty(len(received), dtype=bool)
        found[self._order] = received > 0
        return found

    def values(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """Answer each asking rank with its rows of ``tables [own rows, dim]``; return this rank's, by table and row."""
        places = self._places
        asked = _Blocks(places, self.asked, self._received)
        slots = torch.from_numpy(places.slots(self.asked))
        sent = _flat([tables[t].index_select(0, slots[at]) for t, at in asked.runs], tables)
        mine = _Blocks(places, self._rows, self._sent)
        received = self._group.exchange(sent, asked.sizes, mine.sizes)
        first = np.searchsorted(np.sort(self._rows), places.offsets)
        found = [t.new_empty(n, t.shape[1]) for t, n in zip(tables, np.diff(first).tolist(), strict=True)]
        order = torch.from_numpy(self._order)
        for table, at, block in mine.blocks(received):
            found[table].index_copy_(0, order[at] - int(first[table]), block)
        return found

    def returned(self, sums: Sequence[Tensor], survived: NDArray[np.bool_]) -> tuple[Rows, NDArray[np.float64]]:
        """Send the sums of this rank's surviving rows to their owners.

        Args:
            sums: by table, ``[surviving rows, dim]`` float64, in the order of the rows.
            survived: which of this rank's rows survive, as :meth:`answered` said.

        Returns:
            Own rows, each once for every rank that sent a sum of it, ``[k]``, and their sums, end to end.
        """
        places = self._places
        kept = survived[self._order]
        rank = (np.cumsum(survived) - 1)[self._order[kept]]  # position among all surviving rows
        mine = _Blocks(places, self._rows[kept], _counts(kept, self._sent))
        first = np.cumsum([0, *map(len, sums)])
        at_table = torch.from_numpy(rank - first[mine.table])
        sent = _flat([sums[t].index_select(0, at_table[at]) for t, at in mine.runs], sums)
        rows = self.asked[self._alive]
        theirs = _Blocks(places, rows, _counts(self._alive, self._received))
        return rows, self._group.exchange(sent, mine.sizes, theirs.sizes).numpy()


class _Blocks:
    """Runs of one table in rows that are sorted by rank and then by row.

    Attributes:
        table: table of each row.
        runs: table and place of each run.
        sizes: values that belong to each rank.
    """

    def __init__(self, places: ShardLayout, rows: Rows, of_rank: Sequence[int]) -> None:
        self._dims, self.table = places.dims, places.table(rows)
        rank = np.repeat(np.arange(len(of_rank)), of_rank)
        key = rank * len(places.dims) + self.table
        starts = np.flatnonzero(np.diff(key, prepend=-1)).tolist()
        ends = [*starts[1:], len(rows)]
        self.runs = [(int(self.table[low]), slice(low, high)) for low, high in zip(starts, ends, strict=False)]
        self.sizes = np.bincount(rank, weights=places.dims[self.table], minlength=len(of_rank)).astype(int).tolist()

    def blocks(self, flat: Tensor) -> Iterator[tuple[int, slice, Tensor]]:
        """Split values, end to end, into runs: table, place, values ``[rows, dim]``."""
        start = 0
        for table, at in self.runs:
            count, dim = at.stop - at.start, int(self._dims[table])
            yield table, at, flat[start : start + count * dim].view(count, dim)
            start += count * dim


def _flat(blocks: Sequence[Tensor], like: Sequence[Tensor]) -> Tensor:
    return torch.cat([block.reshape(-1) for block in blocks]) if blocks else like[0].new_empty(0)


def _counts(flags: NDArray[np.bool_], sizes: Sequence[int]) -> list[int]:
    """Return how many flags are set in each of consecutive groups."""
    return np.diff(np.concatenate([[0], np.cumsum(flags)])[np.cumsum([0, *sizes])]).tolist()
