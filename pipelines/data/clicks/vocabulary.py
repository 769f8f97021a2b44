"""Vocabularies, which map keys to table rows, under four policies.

``hash`` hashes every value into a table of fixed, published size and reveals nothing about the data. The others compute
the vocabulary from the training rows. ``private`` releases the values whose noised counts pass a threshold
(:mod:`dpfest.selection.vocabulary`), which every run on them pays for; those of ``threshold`` and ``all`` are a release
that no part of the accounting covers, and recorded as such (``data_dependent_vocabulary``).
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from dpfest.noise.key import NoiseKey
from dpfest.selection.vocabulary import OpenVocabulary
from pipelines.data.hashing import bucket
from pipelines.system.ranges import Count, Within

DATA_DEPENDENT_NOTE = (
    "This vocabulary was computed from the training rows, and is a release about them that the accounting does not "
    "cover: the epsilon of a run on this dataset holds only if the vocabulary is taken as public."
)
PRIVATE_NOTE = (
    "This vocabulary holds the values whose noised counts among the training rows passed a threshold, a private "
    "release, which every run on this dataset pays for."
)
PUBLIC_NOTE = "Fixed sizes and a fixed hash: the vocabulary depends on no row of the data."
VOCABULARY = "vocabulary.npz"
"""Holds the keys of a learnt vocabulary, by feature."""
NOTES = {"hash": PUBLIC_NOTE, "private": PRIVATE_NOTE}
OF_NOISED_COUNTS = ("noise_multiplier", "delta", "noise_seed")
"""Settings that matter under ``private`` alone; earlier versions lacked them."""
_SHARE_OF_DELTA = 0.01  # of 1 / rows, the delta of a run by default


@dataclass
class VocabularyConfig:
    """The map from categorical values to table rows.

    Attributes:
        policy: ``hash`` into tables of ``sizes``; ``threshold`` for a row for each value that occurs in at least
            ``min_count`` training rows, row 0 being shared by all others; ``all`` for threshold with a count of 1;
            ``private`` for a row for each value whose noised count is so large that no single training row decides.
        sizes: rows of each table under ``hash``; null for the dataset's published sizes.
        min_count: number of training rows from which a value has its own row, under ``threshold``.
        noise_multiplier: of the counts, under ``private``: noise over the joint l2-sensitivity of all features.
        delta: under ``private``, the probability with which a value of a single row passes; null for 1% of 1 / rows.
        noise_seed: under ``private``, null for a key drawn from the operating system; set it only to reproduce results
            on public data.
    """

    policy: Literal["hash", "threshold", "all", "private"] = "hash"
    sizes: list[Annotated[int, Within(1, 2**31 - 1)]] | None = None
    min_count: Count = 10
    noise_multiplier: Annotated[float, Within(0.1, 1e6)] = 20.0
    delta: Annotated[float, Within(1e-30, 0.1)] | None = None
    noise_seed: int | None = None

    def release(self, rows: int, features: int) -> OpenVocabulary | None:
        """Return what releases the values of so many training rows, each with one of every feature; None unless
        ``private``."""
        if self.policy != "private":
            return None
        if self.delta is not None and self.delta >= 1 / rows:
            raise UserError(
                f"data.vocabulary.delta={self.delta:g} leaves nothing of a run's delta, 1 / {rows:,} by default: "
                f"choose {_SHARE_OF_DELTA / rows:.1g}, as null does."
            )
        try:
            return OpenVocabulary(self.noise_multiplier, self.delta or _SHARE_OF_DELTA / rows, features)
        except ValueError as error:
            raise UserError(f"data.vocabulary.{str(error).rstrip('.')}.") from error

    def check(self, tables: int, bags: int = 0) -> None:
        """Raise UserError for settings that do not fit data with this number of tables, some of them of bags."""
        if bags and self.policy == "private":
            raise UserError(
                "data.vocabulary.policy=private counts one value of each feature in a row, and features of bags have "
                "several: take data.vocabulary.policy=hash, or only single values."
            )
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
    data_dependent: bool = True

    @property
    def sha256(self) -> str:
        """A checksum over what has which row."""
        return hashlib.sha256(b"".join(len(of).to_bytes(8, "little") + of.tobytes() for of in self.keys)).hexdigest()

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


def learn_vocabulary(
    train_keys: Iterable[Sequence[NDArray[np.uint64]]], config: VocabularyConfig, made_with: str = ""
) -> LearnedVocabulary:
    """Return the values of training rows that have rows of their own under ``config``, which is not of ``hash``.

    Args:
        train_keys: of each block of training rows, the keys of each feature, a row's distinct ones.
        config: the policy.
        made_with: all settings of the data: under one seed, data of other settings have other noise.
    """
    features: list[_KeyCounts] = []
    for keys in train_keys:
        features = features or [_KeyCounts() for _ in keys]
        for feature, counted in enumerate(features):
            counted.add(np.array(keys[feature]))
    for counted in features:
        counted.merge()
    rows = int(features[0].counts.sum()) if features else 0
    if rows and (release := config.release(rows, len(features))):
        seed = config.noise_seed
        key = NoiseKey.fresh() if seed is None else NoiseKey.from_seed(seed, f"vocabulary of {made_with}")
        known = [release.known(one.counts, key.stream("vocabulary", number)) for number, one in enumerate(features)]
    else:
        known = [one.counts >= (config.min_count if config.policy == "threshold" else 1) for one in features]
    keys_of = [one.keys[mask] for one, mask in zip(features, known, strict=True)]
    return LearnedVocabulary(keys_of, data_dependent=config.policy != "private")


def hashed_vocabulary(config: VocabularyConfig, published_sizes: Sequence[int]) -> HashedVocabulary:
    """Return the vocabulary of ``policy=hash``."""
    return HashedVocabulary([int(size) for size in config.sizes or published_sizes])


def write_vocabulary(path: Path, features: Sequence[str], vocabulary: LearnedVocabulary) -> None:
    """Write a vocabulary: row i of a feature is the i-th of its keys, row 0 all others."""
    with zipfile.ZipFile(path, "w") as packed:  # by np.savez, a column may not be called "file"
        for name, keys in zip(features, vocabulary.keys, strict=True):
            with packed.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, keys, allow_pickle=False)


def read_vocabulary(path: Path, features: Sequence[str]) -> LearnedVocabulary:
    """Read the vocabulary of these features, and nothing beside it.

    Raises:
        ValueError: the file is missing, damaged, or of other features.
    """
    try:
        with np.load(path, allow_pickle=False) as keys:
            if sorted(keys.files) != sorted(features):
                raise ValueError(f"it is of {', '.join(keys.files)[:80]}")
            return LearnedVocabulary([np.asarray(keys[name], np.uint64) for name in features])
    except (OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(str(error)) from error
