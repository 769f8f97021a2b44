"""The random split of lines, a function of each line's content (see :mod:`pipelines.data.hashing`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.clicks.source import RowBlock
from pipelines.data.hashing import content_uniforms, line_content
from pipelines.data.rows import Rows
from pipelines.system.ranges import Seed, Share


@dataclass
class SplitConfig:
    """Shares of the rows in each split; they add up to 1.

    Attributes:
        train: share that is trained on.
        validation: share that chooses settings.
        test: share that is only reported.
        seed: decides, with a line's content, which split it is in.
    """

    train: Share = 0.8
    validation: Share = 0.05
    test: Share = 0.15
    seed: Seed = 0

    @property
    def shares(self) -> dict[str, float]:
        """Share of each split by its name, in order, ``train`` first; they add up to 1."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def check(self) -> None:
        """Raise UserError unless the shares can be a split."""
        shares = self.shares.values()
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-9 or self.train == 0:
            raise UserError(
                f"data.split must hold shares of 0 or more that add up to 1, train above 0, but it is "
                f"train={self.train}, validation={self.validation}, test={self.test}."
            )
        _check_seed(self.seed)


@dataclass
class DaySplitConfig:
    """How a day of a stream is divided: most rows are trained on, the others judge what was trained before that day.

    Attributes:
        held_out: Share of each day's rows that are never trained on nor counted.
        seed: Decides which rows.
    """

    held_out: Share = 0.05
    seed: Seed = 0

    @property
    def shares(self) -> dict[str, float]:
        return {"train": 1 - self.held_out, "validation": self.held_out}

    def check(self) -> None:
        """Raise UserError where a setting has no meaning."""
        if not 0 < self.held_out < 1:
            raise UserError(
                f"data.split.held_out is a share above 0 and below 1, but it is {self.held_out}: the rows of each day "
                "that are never trained on, by which a stream is judged as it goes."
            )
        _check_seed(self.seed)


Split = SplitConfig | DaySplitConfig


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise UserError(f"data.split.seed must be between 0 and 2**63 - 1, but it is {seed}.")


def split_of(block: RowBlock, split: Split) -> NDArray[np.int64]:
    """Which of ``split.shares`` each row of the block belongs to, from 0, shape [n]."""
    shares = np.array(list(split.shares.values()))
    place = np.searchsorted(np.cumsum(shares)[:-1], content_uniforms(block.content, split.seed), side="right")
    return np.minimum(place, np.flatnonzero(shares)[-1])  # 0.8 + 0.2 may be a hair under 1


def record_uniforms(rows: Rows, seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each row, fixed by its label, its table rows and the seed, shape [n]: it divides the rows
    of days that nothing is trained on."""
    return content_uniforms(line_content([rows.labels.astype(np.int64), *rows.categorical.T.astype(np.int64)]), seed)
