"""Texts as rows of fixed width: a label, how many tokens there are, and the ids of the tokens, padded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


def text_record(max_length: int) -> np.dtype[Any]:
    """The record of a text of at most so many tokens."""
    return np.dtype([("label", "<i4"), ("length", "<i4"), ("ids", "<i4", (max_length,))])


@dataclass(frozen=True)
class TextRows:
    """b examples: labels (0, 1, …) and lengths of shape [b], token ids of shape [b, max_length].

    What stands behind a text's length is padding, and no token of it.
    """

    labels: NDArray[np.int32]
    lengths: NDArray[np.int32]
    ids: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, records: NDArray[Any]) -> TextRows:
        """Copies of the three fields, each contiguous and writable."""
        return cls(*(np.array(records[name]) for name in ("label", "length", "ids")))

    def counted(self, feature: int, most: int) -> NDArray[np.int32]:
        """The distinct tokens of every text, at most its first ``most``, end to end; a text is its one feature."""
        example, place = np.nonzero(np.arange(self.ids.shape[1]) < self.lengths[:, None])
        tokens = self.ids[example, place]
        _, first = np.unique(example * (int(self.ids.max(initial=0)) + 1) + tokens, return_index=True)
        first.sort()
        per_text = np.bincount(example[first], minlength=len(self))
        rank = np.arange(len(first)) - np.repeat(np.cumsum(per_text) - per_text, per_text)
        return tokens[first[rank < most]]
