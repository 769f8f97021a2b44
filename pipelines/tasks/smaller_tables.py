"""Smaller embedding tables: the baseline that needs no choice of rows.

Values share rows, as under fewer hash buckets, or rows have fewer dimensions; plain DP-SGD trains what is left. The
algorithm is defined here and not in :mod:`dpfest.algorithms.rules` because it changes which model is trained, not which
rows survive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dpfest.algorithms.algorithm import positive
from dpfest.algorithms.rules import DPSGD

Shape = tuple[int, int]
"""Rows and dimension of an embedding table."""


@dataclass(frozen=True)
class SmallerTables(DPSGD):
    """DP-SGD on embedding tables that are no larger than this in rows and in dimension.

    Row ``v`` of a larger table becomes row ``v mod max_rows``. Which values share a row does not depend on the data, so
    it costs no privacy; a step noises ``rows * dimension`` coordinates of each smaller table.

    Attributes:
        max_rows: rows of a table, at most; null for its own.
        max_dimension: dimension of a table, at most; null for its own.

    Raises:
        ValueError: both are null, or one is not a whole number above zero.
    """

    name: str = "smaller_tables"
    max_rows: int | None = field(default_factory=lambda: 1000)  # or null, which only the check below knows
    max_dimension: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_rows is None and self.max_dimension is None:
            raise ValueError("max_rows or max_dimension must be set: without them this is algorithm=dpsgd")
        for name in ("max_rows", "max_dimension"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name), whole=True)

    def shapes(self, whole: Sequence[Shape]) -> list[Shape]:
        """Return the shapes of the smaller tables."""
        return [(min(rows, self.max_rows or rows), min(dim, self.max_dimension or dim)) for rows, dim in whole]
