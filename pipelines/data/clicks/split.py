"""The split of lines: by a hash of each line's content (:mod:`pipelines.data.hashing`), or as the source says."""

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
        train: share of the training split.
        validation: share of the split on which settings are chosen.
        test: share of the split that is only reported.
        seed: public seed; a line's content and this seed determine its split.
    """

    train: Share = 0.8
    validation: Share = 0.05
    test: Share = 0.15
    seed: Seed = 0

    @property
    def shares(self) -> dict[str, float]:
        """Share of each split by name, ``train`` first; they add up to 1."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def check(self) -> None:
        """Raise UserError unless the shares can be a split."""
        if abs(sum(self.shares.values()) - 1) > 1e-9 or self.train == 0:
            raise UserError(
                f"data.split must hold shares of 0 or more that add up to 1, train above 0, but it is "
                f"train={self.train}, validation={self.validation}, test={self.test}."
            )


@dataclass
class DaySplitConfig:
    """The split of a day of a stream: most rows are for training, the others evaluate the model trained before that
    day.

    Attributes:
        held_out: share of each day's rows that are neither trained on nor counted in selections.
        seed: public seed; a line's content and this seed determine its split.
    """

    held_out: Share = 0.05
    seed: Seed = 0

    @property
    def shares(self) -> dict[str, float]:
        return {"train": 1 - self.held_out, "validation": self.held_out}

    def check(self) -> None:
        """Raise UserError for an invalid setting."""
        if not 0 < self.held_out < 1:
            raise UserError(
                f"data.split.held_out must be above 0 and below 1, but it is {self.held_out}: the share of each day's "
                "rows that are never trained on and evaluate the stream."
            )


Split = SplitConfig | DaySplitConfig


def split_of(block: RowBlock, split: Split) -> NDArray[np.int64]:
    """Return the index in ``split.shares`` of each row's split, shape [n]."""
    if block.part is not None:
        return block.part
    shares = np.array(list(split.shares.values()))
    place = np.searchsorted(np.cumsum(shares)[:-1], content_uniforms(block.content, split.seed), side="right")
    return np.minimum(place, np.flatnonzero(shares)[-1])  # rounded shares can add up to slightly less than 1


def record_uniforms(rows: Rows, seed: int) -> NDArray[np.float64]:
    """Return a number in [0, 1) per row, a function of its label, its table rows and the seed, shape [n]. It divides
    the rows of days that are not trained on."""
    return content_uniforms(line_content([rows.labels.astype(np.int64), *rows.categorical.T.astype(np.int64)]), seed)
