"""Layouts of ``chacha20/1``: which block of the cipher a coordinate's noise comes from.

A block has eight words, four pairs (radius, angle), and so eight variates: the cosine and the sine of each in turn.
Its counter is a function of what is noised alone:

| layout | counter | variates |
|---|---|---|
| dense: coordinate e of the dense parameters | 128 (e // 1024) + e % 128 | e // 128 % 8 |
| rows: coordinate e of row j | j + 2^48 (e // 8) | e % 8 |
| map: row j | j // 8 | j % 8 |

So any coordinate's noise is one block away: subsets of rows, lazy noise, shards and the threads of a GPU need no
position in a stream. (Dense variates lie 128 apart, so that 128 lanes of a GPU that compute a block each store side by
side.) A row of dimension 9 uses 9 variates of 16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpfest.errors import UserError
from dpfest.noise.keystream import Words

Whole = NDArray[np.int64]

MOST_VALUES = 1 << 27
"""Values whose noise is drawn in one step to find the few that are large; of more, those are drawn alone."""

DENSE, ROWS, MAP = 1, 2, 3  # layouts; 0 is the stream in order
_MOST_BLOCKS = 1 << 13  # of a piece: 2^16 variates
LANES, TILE = 128, 1024  # of the dense layout
_MOST_ROWS, _MOST_DIM = 1 << 48, 8 * _MOST_BLOCKS


class Piece(NamedTuple):
    """Consecutive values of a draw.

    Attributes:
        layout: its number.
        counters: of the blocks that they need, ``[n]``.
        variates: that of each value among those of the blocks by pair, ``[2, 4, n]`` end to end.
    """

    layout: int
    counters: Words
    variates: Whole


class Places(Protocol):
    """Where the noise of some values comes from."""

    def pieces(self, start: int, count: int) -> Iterator[Piece]:
        """Yield values ``start`` to ``start + count - 1`` in order, with at most 2^13 blocks at a time."""


class DensePlaces:
    """Consecutive coordinates of the dense parameters.

    Args:
        first: number of the first.
    """

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def pieces(self, start: int, count: int) -> Iterator[Piece]:
        """See :class:`Places`."""
        at, end, step = self.first + start, self.first + start + count, 8 * _MOST_BLOCKS
        while at < end:
            begin = at // TILE * TILE
            stop = min(begin + step, end)
            tiles = -(-(stop - begin) // TILE)
            counters = np.arange(begin // 8, begin // 8 + tiles * LANES, dtype=np.uint64)
            yield Piece(DENSE, counters, _dense_index(tiles)[at - begin : stop - begin])
            at = stop


class RowPlaces:
    """All coordinates of some rows, table by table and row by row.

    Args:
        rows: their numbers, in a shard's or a model's numbering, ``[s]``; None for all.
        shapes: rows and dimension of each table's part.
    """

    def __init__(self, rows: Tensor | None, shapes: Sequence[tuple[int, int]]) -> None:
        self.shapes = list(shapes)
        self.bounds = [0, *accumulate(rows for rows, _ in self.shapes)]
        self.ends = [0, *accumulate(rows * dim for rows, dim in self.shapes)]
        self.rows = rows
        self._refuse_more(self.bounds[-1] if rows is None else 0)
        if rows is not None and rows.device.type == "cpu":  # a GPU's are checked when the host reads them, and waits
            self._numbers(0, 0)

    def pieces(self, start: int, count: int) -> Iterator[Piece]:
        """See :class:`Places`."""
        for table, (_, dim) in enumerate(self.shapes):
            at = max(start - self.ends[table], 0)
            end = min(start + count, self.ends[table + 1]) - self.ends[table]
            if at >= end:
                continue
            per_row = -(-dim // 8)
            step = max(_MOST_BLOCKS // per_row, 1)
            for row in range(at // dim, -(-end // dim), step):
                stop = min(row + step, -(-end // dim))
                rows = self._numbers(self.bounds[table] + row, self.bounds[table] + stop)
                blocks = np.arange(per_row, dtype=np.uint64) << np.uint64(48)
                counters = (rows[:, None] | blocks).reshape(-1)
                cut = slice(max(at - row * dim, 0), min(end, stop * dim) - row * dim)
                yield Piece(ROWS, counters, _row_index(stop - row, dim)[cut])

    @cached_property
    def _host_rows(self) -> Whole:
        assert self.rows is not None
        rows = self.rows.cpu().numpy()
        self._refuse_more(1 + int(rows.max(initial=-1)))
        return rows

    def _refuse_more(self, count: int) -> None:
        if count > _MOST_ROWS or max((dim for _, dim in self.shapes), default=0) > _MOST_DIM:
            raise UserError(f"cipher=chacha20/1 numbers up to {_MOST_ROWS:,} rows of up to {_MOST_DIM:,} values.")

    def _numbers(self, begin: int, end: int) -> Words:
        if self.rows is None:
            return np.arange(begin, end, dtype=np.uint64)
        return self._host_rows[begin:end].astype(np.uint64)


class MapPlaces:
    """A value each of some rows.

    Args:
        rows: their numbers, ``[u]``; None for all, from 0.
    """

    def __init__(self, rows: Tensor | Whole | None) -> None:
        self._rows = rows.cpu().numpy() if isinstance(rows, Tensor) else rows

    def pieces(self, start: int, count: int) -> Iterator[Piece]:
        """See :class:`Places`."""
        if self._rows is None:
            for first in range(start // 8, -(-(start + count) // 8), _MOST_BLOCKS):
                stop = min(first + _MOST_BLOCKS, -(-(start + count) // 8))
                cut = slice(max(start - 8 * first, 0), min(start + count, 8 * stop) - 8 * first)
                yield Piece(MAP, np.arange(first, stop, dtype=np.uint64), _row_index(stop - first, 8)[cut])
            return
        for begin in range(start, start + count, _MOST_BLOCKS):
            rows = self._rows[begin : min(begin + _MOST_BLOCKS, start + count)]
            blocks, of_row = np.unique(rows >> 3, return_inverse=True)
            yield Piece(MAP, blocks.astype(np.uint64), _index(rows & 7, of_row.reshape(-1), len(blocks)))


def _index(variate: Whole, block: Whole, blocks: int) -> Whole:
    """Return the place of variates of blocks among those by pair."""
    return (variate % 2 * 4 + variate // 2) * blocks + block


@lru_cache(maxsize=4)
def _dense_index(tiles: int) -> Whole:
    tile, variate, lane = np.ix_(np.arange(tiles), np.arange(8), np.arange(LANES))
    return _index(variate, tile * LANES + lane, tiles * LANES).reshape(-1)


@lru_cache(maxsize=16)
def _row_index(rows: int, dim: int) -> Whole:
    per_row = -(-dim // 8)
    row, coordinate = np.ix_(np.arange(rows), np.arange(dim))
    return _index(coordinate % 8, row * per_row + coordinate // 8, rows * per_row).reshape(-1)
