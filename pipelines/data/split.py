"""The random split of rows into train, validation and test, decided row by row from the row's number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.hashing import row_uniforms
from pipelines.data.source import RowBlock

SPLITS = ("train", "validation", "test")


@dataclass
class SplitConfig:
    """Shares of the rows in each split (they add up to 1), and the seed that decides which rows."""

    train: float = 0.8
    validation: float = 0.05
    test: float = 0.15
    seed: int = 0

    def check(self) -> None:
        """Raise UserError unless the shares can be a split."""
        shares = (self.train, self.validation, self.test)
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-9 or self.train == 0:
            raise UserError(
                f"data.split must hold shares of 0 or more that add up to 1, train above 0, but it is "
                f"train={self.train}, validation={self.validation}, test={self.test}."
            )
        if not 0 <= self.seed < 2**63:
            raise UserError(f"data.split.seed must be between 0 and 2**63 - 1, but it is {self.seed}.")


def split_of(block: RowBlock, config: SplitConfig | None) -> NDArray[np.int64]:
    """Index into :data:`SPLITS` for each row of the block, shape [n]; all rows train where there is no split."""
    if config is None:
        return np.zeros(len(block.label), np.int64)
    edges = [config.train, config.train + config.validation]
    split = np.searchsorted(edges, row_uniforms(block.row, block.file, config.seed), side="right")
    if config.test == 0:  # 0.8 + 0.2 may be a hair under 1
        split = np.minimum(split, 1 if config.validation else 0)
    return split
