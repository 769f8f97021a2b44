"""Bags: categorical features with several values in a row, such as the genres of a film.

A bag is the set of table rows of its values, bounded by a public number: what an example can move in a count of rows is
then known before the data are read. It lies in the record of its example at that width, not in a file of its own with
offsets: a batch still costs one gather, and whatever reads rows by index (batches, units, days) needs to know no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from pipelines.data.hashing import splitmix64
from pipelines.data.rows import NO_ROW, first_distinct
from pipelines.system.ranges import Within

RowsOfTable = Annotated[int, Within(1, 2**31 - 1)]


@dataclass
class BagConfig:
    """A column with several values in a row.

    Attributes:
        rows: rows of its embedding table, a public number.
        most: distinct rows that a bag holds, at most, a public number; a longer list is cut to its first ones. An
            example moves a count of rows in so many places, for which a selection draws its noise.
        combiner: ``mean`` or ``sum`` of the embeddings of a bag's rows; zeros for an empty bag.
        separator: what stands between the values of a text, as in "a|b|c"; null for a column of lists.
    """

    rows: RowsOfTable
    most: Annotated[int, Within(1, 1024)]
    combiner: Literal["mean", "sum"] = "mean"
    separator: str | None = None

    def __post_init__(self) -> None:
        if self.separator == "":
            raise ValueError("separator='' is empty: give what stands between values, as in '|', or null for lists")


NO_BAGS: Mapping[str, BagConfig] = {}


@dataclass(frozen=True)
class Lists:
    """The keys of a feature with several values in a row.

    Attributes:
        keys: of all rows' values, one row after the other, shape [m].
        lengths: number of values of each row, shape [n].
    """

    keys: NDArray[np.uint64]
    lengths: NDArray[np.int64]

    @property
    def row(self) -> NDArray[np.int64]:
        """The row of each value, 0..n-1, shape [m]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def content(self) -> NDArray[np.uint64]:
        """Return a hash of each row's values and their order, shape [n]: a field of the line's content."""
        hashed = splitmix64(self.lengths.astype(np.uint64))
        starts = np.cumsum(self.lengths) - self.lengths
        for place in range(int(self.lengths.max(initial=0))):
            longer = np.flatnonzero(self.lengths > place)
            hashed[longer] = splitmix64(hashed[longer] ^ self.keys[starts[longer] + place])
        return hashed

    def distinct_keys(self, chosen: NDArray[np.bool_]) -> NDArray[np.uint64]:
        """Return the keys of chosen rows, those of one row once; ``chosen`` is of shape [n]."""
        mine = np.flatnonzero(chosen[self.row])
        keys, row = self.keys[mine], self.row[mine]
        return keys[first_distinct(row, keys)]

    def bags(self, rows: NDArray[np.int32], most: int) -> tuple[NDArray[np.int32], int]:
        """Return the first ``most`` distinct table rows of each list, and how many lists have more.

        Args:
            rows: table row of each value, shape [m].
            most: width of a bag.

        Returns:
            Shape [n, most], and their number; after a bag's last row stands :data:`NO_ROW`.
        """
        owner = self.row
        kept = first_distinct(owner, rows)
        owner, rows = owner[kept], rows[kept]
        lengths = np.bincount(owner, minlength=len(self.lengths))
        place = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        bags = np.full((len(lengths), most), NO_ROW, np.int32)
        fits = place < most
        bags[owner[fits], place[fits]] = rows[fits]
        return bags, int(np.count_nonzero(lengths > most))
