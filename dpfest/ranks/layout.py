"""Rows to virtual shards, shards to ranks.

Global row g is row ``g // V`` of shard ``g % V``. Within a shard the rows of a table are consecutive, so a shard is a
small set of tables with a :class:`dpfest.gradients.tables.TableLayout` of its own, on which algorithms, noise and
survivors work as on the whole. Each rank owns consecutive shards.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from dpfest.gradients.tables import TableLayout

Rows = NDArray[np.int64]


class ShardLayout:
    """Where each row lies.

    Args:
        layout: the whole tables.
        shards: V, fixed for a run.
        world, rank: number of ranks, and of this one.

    Attributes:
        own: numbers of this rank's shards.
        layouts: the layout of each own shard, in the order of ``own``.
        rank_of: the rank that owns each shard, ``[V]``.
        shards_of_rank: number of shards of each rank.
        own_rows: rows of each table that this rank holds.

    Raises:
        UserError: more ranks than shards.
    """

    def __init__(self, layout: TableLayout, shards: int, world: int = 1, rank: int = 0) -> None:
        if world > shards:
            raise UserError(
                f"{world} ranks cannot share {shards} shards: start fewer ranks, or a run with more shards."
            )
        self.layout, self.shards = layout, shards
        self.offsets, self.dims = np.asarray(layout.offsets), np.asarray(layout.dims)
        cuts = [shards * each // world for each in range(world + 1)]
        self.own = range(cuts[rank], cuts[rank + 1])
        self.shards_of_rank = np.diff(cuts).tolist()
        self.rank_of = np.repeat(np.arange(world), self.shards_of_rank)
        # Number, within each shard, of each table's first row: [tables + 1, V].
        self._first = -(-(self.offsets[:, None] - np.arange(shards)) // shards)
        self.rows = np.diff(self._first, axis=0)
        own = self.rows[:, self.own.start : self.own.stop]
        self.own_rows = own.sum(1)
        self._start = np.zeros_like(self.rows)
        self._start[:, self.own.start : self.own.stop] = np.cumsum(own, axis=1) - own
        self.layouts = [TableLayout(layout.names, tuple(column), layout.dims) for column in own.T.tolist()]

    def table(self, rows: Rows) -> Rows:
        """Return the table of each global row."""
        return np.searchsorted(self.offsets, rows, side="right") - 1

    def owner(self, rows: Rows) -> Rows:
        """Return the rank that owns each global row."""
        return self.rank_of[rows % self.shards]

    def slots(self, rows: Rows) -> Rows:
        """Return the place of each own global row among this rank's rows of its table: by shard, then by row."""
        table, shard = self.table(rows), rows % self.shards
        return self._start[table, shard] + rows // self.shards - self._first[table, shard]

    def own_slot(self, table: int, row: int | None) -> int | None:
        """Return the place of a table's row among this rank's rows of it; None of no row, or of another rank's."""
        if row is None or (row + self.offsets[table]) % self.shards not in self.own:
            return None
        return int(self.slots(np.array([row + self.offsets[table]]))[0])

    def by_shard(self, rows: Rows) -> list[Rows]:
        """Return where the rows of each own shard stand among own global rows."""
        shard = rows % self.shards - self.own.start
        order = np.argsort(shard.astype(np.uint16 if self.shards < 1 << 16 else np.int64), kind="stable")
        return np.split(order, np.cumsum(np.bincount(shard, minlength=len(self.own)))[:-1])

    def local_rows(self, table: int, shard: int) -> Rows:
        """Return the rows of a table that lie in a shard, numbered within the table, in ascending order."""
        numbers = self._first[table, shard] + np.arange(self.rows[table, shard])
        return numbers * self.shards + shard - self.offsets[table]

    def part(self, table: int, shard: int) -> slice:
        """Return where the rows of an own shard lie among this rank's rows of a table."""
        start = int(self._start[table, shard])
        return slice(start, start + int(self.rows[table, shard]))
