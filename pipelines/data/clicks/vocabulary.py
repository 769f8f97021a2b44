"""Vocabularies, from keys to table rows: three policies, and what each means for the guarantee.

``hash`` sends every value into tables of fixed, published sizes: nothing about the data leaks through it.
``threshold`` and ``all`` read the vocabulary off the training rows. That is a release about those rows which
no part of the accounting covers, so datasets made with them say so (``data_dependent_vocabulary``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.hashing import bucket
from pipelines.system.ranges import Count, Within

POLICIES = ("hash", "threshold", "all")


@dataclass
class VocabularyConfig:
    """How categorical values become table rows.

    Attributes:
        policy: ``hash`` into ``sizes``; ``threshold``: values seen at least ``min_count`` times in the
            training rows have a row of their own and all the rest share row 0; ``all``: as threshold with a
            count of 1.
        sizes: Rows of each table under ``hash``; null for the dataset's published sizes.
        min_count: Least number of training rows that hold a value, under ``threshold``.
    """

    policy: str = "hash"
    sizes: list[Annotated[int, Within(1, 2**31 - 1)]] | None = None
    min_count: Count = 10

    def check(self, tables: int) -> None:
        """Raise UserError where a setting has no meaning for data with so many tables."""
        if self.policy not in POLICIES:
            raise UserError(f"data.vocabulary.policy must be one of {', '.join(POLICIES)}, not {self.policy!r}.")
        if self.sizes is not None and self.policy != "hash":
            raise UserError(f"data.vocabulary.sizes has no meaning under data.vocabulary.policy={self.policy}.")
        if self.sizes is not None and (len(self.sizes) != tables or not all(1 <= size < 2**31 for size in self.sizes)):
            raise UserError(
                f"data.vocabulary.sizes must hold {tables} positive numbers, one a feature; "
                f"it holds {len(self.sizes)}: {list(self.sizes)}."
            )
        if self.min_count < 1:
            raise UserError(f"data.vocabulary.min_count must be 1 or more, but it is {self.min_count}.")


@dataclass(frozen=True)
class HashedVocabulary:
    """Tables of fixed sizes; values that collide share a row."""

    sizes: list[int]
    data_dependent = False

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Table rows of keys, both of shape [n, F]."""
        rows = np.empty(keys.shape, dtype=np.int32, order="F")
        for feature, size in enumerate(self.sizes):
            rows[:, feature] = bucket(keys[:, feature], feature, size)
        return rows


@dataclass(frozen=True)
class LearnedVocabulary:
    """Row 0 for every value that is not known, row i for the i-th known key of the feature (they rise)."""

    keys: list[NDArray[np.uint64]]
    data_dependent = True

    @property
    def sizes(self) -> list[int]:
        """Rows of each table, the shared row 0 among them."""
        return [len(known) + 1 for known in self.keys]

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Table rows of keys, both of shape [n, F]."""
        rows = np.zeros(keys.shape, dtype=np.int32, order="F")
        for feature, known in enumerate(self.keys):
            if len(known):
                place = np.searchsorted(known, keys[:, feature])
                place[place == len(known)] = 0
                rows[:, feature] = np.where(known[place] == keys[:, feature], place + 1, 0)
        return rows


Vocabulary = HashedVocabulary | LearnedVocabulary


@dataclass
class _KeyCounts:
    """Exact counts of the keys of one feature; memory grows with its distinct values, not with the rows."""

    keys: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    pending: list[NDArray[np.uint64]] = field(default_factory=list)
    pending_rows: int = 0

    def add(self, keys: NDArray[np.uint64]) -> None:
        self.pending.append(keys)
        self.pending_rows += len(keys)
        # Merging costs as much as the counts are long, so it waits for a batch in proportion.
        if self.pending_rows > max(200_000, len(self.keys) // 4):
            self.merge()

    def merge(self) -> None:
        new_keys, new_counts = np.unique(np.concatenate([self.keys[:0], *self.pending]), return_counts=True)
        keys, place = np.unique(np.concatenate([self.keys, new_keys]), return_inverse=True)
        counts = np.zeros(len(keys), np.int64)
        counts[place[: len(self.keys)]] = self.counts
        counts[place[len(self.keys) :]] += new_counts
        self.keys, self.counts, self.pending, self.pending_rows = keys, counts, [], 0


def learn_vocabulary(train_keys: Iterable[NDArray[np.uint64]], min_count: int) -> LearnedVocabulary:
    """The values that at least ``min_count`` training rows hold, from blocks of keys of shape [n, F]."""
    features: list[_KeyCounts] = []
    for keys in train_keys:
        features = features or [_KeyCounts() for _ in range(keys.shape[1])]
        for feature, counted in enumerate(features):
            counted.add(np.array(keys[:, feature]))
    for counted in features:
        counted.merge()
    return LearnedVocabulary([counted.keys[counted.counts >= min_count] for counted in features])


def hashed_vocabulary(config: VocabularyConfig, published_sizes: Sequence[int]) -> HashedVocabulary:
    """The vocabulary of ``policy=hash``."""
    return HashedVocabulary([int(size) for size in config.sizes or published_sizes])
