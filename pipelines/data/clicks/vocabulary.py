"""Vocabularies, which map keys to table rows, under three policies.

``hash`` hashes every value into a table of fixed, published size and reveals nothing about the data. ``threshold`` and
``all`` compute the vocabulary from the training rows. Such a vocabulary is a release that no part of the accounting
covers, and is recorded as such (``data_dependent_vocabulary``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.hashing import bucket
from pipelines.system.ranges import Count, Within

DATA_DEPENDENT_NOTE = (
    "This vocabulary was computed from the training rows, and is a release about them that the accounting does not "
    "cover: the epsilon of a run on this dataset holds only if the vocabulary is taken as public."
)
PUBLIC_NOTE = "Fixed sizes and a fixed hash: the vocabulary depends on no row of the data."


@dataclass
class VocabularyConfig:
    """The map from categorical values to table rows.

    Attributes:
        policy: ``hash`` into tables of ``sizes``; ``threshold`` for a row for each value that occurs in at least
            ``min_count`` training rows, row 0 being shared by all others; ``all`` for threshold with a count of 1.
        sizes: rows of each table under ``hash``; null for the dataset's published sizes.
        min_count: number of training rows from which a value has its own row, under ``threshold``.
    """

    policy: Literal["hash", "threshold", "all"] = "hash"
    sizes: list[Annotated[int, Within(1, 2**31 - 1)]] | None = None
    min_count: Count = 10

    def check(self, tables: int) -> None:
        """Raise UserError for settings that do not fit data with this number of tables."""
        if self.sizes is not None and self.policy != "hash":
            raise UserError(f"data.vocabulary.sizes has no effect under data.vocabulary.policy={self.policy}.")
        if self.sizes is not None and len(self.sizes) != tables:
            raise UserError(
                f"data.vocabulary.sizes must hold {tables} positive numbers, one per feature; "
                f"it holds {len(self.sizes)}: {list(self.sizes)}."
            )


@dataclass(frozen=True)
class HashedVocabulary:
    """Tables of fixed sizes; colliding values share a row."""

    sizes: list[int]
    data_dependent = False

    def rows(self, keys: NDArray[np.uint64], feature: int) -> NDArray[np.int32]:
        """Return the table rows of a feature's keys, both of shape [n]."""
        return bucket(keys, feature, self.sizes[feature])


@dataclass(frozen=True)
class LearnedVocabulary:
    """Row i for the i-th known key of a feature (keys increase), row 0 for every unknown value."""

    keys: list[NDArray[np.uint64]]
    data_dependent = True

    @property
    def sizes(self) -> list[int]:
        """Rows of each table, including the shared row 0."""
        return [len(known) + 1 for known in self.keys]

    def rows(self, keys: NDArray[np.uint64], feature: int) -> NDArray[np.int32]:
        """Return the table rows of a feature's keys, both of shape [n]."""
        known = self.keys[feature]
        if not len(known):
            return np.zeros(len(keys), np.int32)
        place = np.searchsorted(known, keys)
        place[place == len(known)] = 0
        return np.where(known[place] == keys, place + 1, 0).astype(np.int32)


Vocabulary = HashedVocabulary | LearnedVocabulary


def table_rows(vocabulary: Vocabulary, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Return the table rows of the keys of the first F features, both of shape [n, F]."""
    rows = np.empty(keys.shape, dtype=np.int32, order="F")
    for feature in range(keys.shape[1]):
        rows[:, feature] = vocabulary.rows(keys[:, feature], feature)
    return rows


@dataclass
class _KeyCounts:
    """Exact counts of the keys of one feature, in memory proportional to the number of distinct values."""

    keys: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    pending: list[NDArray[np.uint64]] = field(default_factory=list)
    pending_rows: int = 0

    def add(self, keys: NDArray[np.uint64]) -> None:
        self.pending.append(keys)
        self.pending_rows += len(keys)
        # A merge takes time proportional to the number of counts: merge batches of a proportional size.
        if self.pending_rows > max(200_000, len(self.keys) // 4):
            self.merge()

    def merge(self) -> None:
        new_keys, new_counts = np.unique(np.concatenate([self.keys[:0], *self.pending]), return_counts=True)
        keys, place = np.unique(np.concatenate([self.keys, new_keys]), return_inverse=True)
        counts = np.zeros(len(keys), np.int64)
        counts[place[: len(self.keys)]] = self.counts
        counts[place[len(self.keys) :]] += new_counts
        self.keys, self.counts, self.pending, self.pending_rows = keys, counts, [], 0


def learn_vocabulary(train_keys: Iterable[Sequence[NDArray[np.uint64]]], min_count: int) -> LearnedVocabulary:
    """Return the values that occur in at least ``min_count`` training rows.

    Args:
        train_keys: of each block of training rows, the keys of each feature, a row's distinct ones.
        min_count: from which a value has a row.
    """
    features: list[_KeyCounts] = []
    for keys in train_keys:
        features = features or [_KeyCounts() for _ in keys]
        for feature, counted in enumerate(features):
            counted.add(np.array(keys[feature]))
    for counted in features:
        counted.merge()
    return LearnedVocabulary([counted.keys[counted.counts >= min_count] for counted in features])


def hashed_vocabulary(config: VocabularyConfig, published_sizes: Sequence[int]) -> HashedVocabulary:
    """Return the vocabulary of ``policy=hash``."""
    return HashedVocabulary([int(size) for size in config.sizes or published_sizes])
