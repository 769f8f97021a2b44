"""The processed dataset: a folder of memory-mapped rows for random access; nothing is pickled.

``dataset.json`` describes content and configuration; ``train.rows``, ``validation.rows`` and ``test.rows`` hold
fixed-width records, memory-mapped, so that a Poisson batch costs one gather, however many rows there are.
``histogram.npy`` caches how often each table row occurs in the training rows: raw data, not a private release.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from dpfest.selection.vocabulary import OpenVocabulary
from pipelines.data.clicks.vocabulary import VOCABULARY, read_vocabulary
from pipelines.data.derived import read_derived, write_derived
from pipelines.data.rows import RowFile
from pipelines.system.checksum import read_sha256, sha256_of

ROWS_SCHEMA = 1
"""Of the rows: part of the identity of a dataset."""
SCHEMA = 2
UNSEALED = 1
"""The schema of descriptions without a seal, which earlier versions wrote and this one reads."""
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Dataset:
    """An opened dataset folder.

    Attributes:
        folder: Its folder.
        description: Content of dataset.json.
    """

    folder: Path
    description: dict[str, Any]
    _opened: dict[str, RowFile] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, folder: Path) -> Dataset:
        """Open a dataset and check that it is complete.

        Raises:
            UserError: It does not exist, has another schema, or a file's size does not match its number of rows.
        """
        folder = Path(folder)
        remedy = f"delete {folder} and preprocess again" if folder.exists() else "make it with `dpfest preprocess`"
        missing = f"There is no dataset in {folder} (no dataset.json): {remedy}."
        description = read_description(folder / "dataset.json", SCHEMA, missing, damaged=str(folder))
        dataset = cls(folder, description)
        for name, rows in dataset.rows.items():
            file = dataset.folder / f"{name}.rows"
            wanted = rows * description["record"]["bytes"]
            size = file.stat().st_size if file.exists() else None
            if size != wanted:
                there = "is missing" if size is None else f"holds {size:,} bytes"
                raise UserError(
                    f"{file} {there}, but {rows:,} rows take {wanted:,} bytes: delete {folder} and preprocess again."
                )
        return dataset

    def verify(self, *, anew: bool = False) -> None:
        """Verify every row file against its checksum in dataset.json, before rows are trained on or evaluated.

        A flipped byte would change a result without a word, and a step that a resumed run repeats on other rows would
        be a second release under the same noise.

        Args:
            anew: Read every file; else only those that changed since they were last read (about a second per
                gigabyte); see :mod:`pipelines.system.checksum`.

        Raises:
            UserError: A file is damaged.
        """
        if self.vocabulary_sha256 is not None:
            self._verify_vocabulary(self.vocabulary_sha256)
        for name in self.rows:
            file, written = self.folder / f"{name}.rows", self.description["splits"][name]["sha256"]
            actual = (read_sha256 if anew else sha256_of)(file)
            if actual != written:
                raise UserError(
                    f"{file} is damaged: its sha256 is {actual[:12]}…, and dataset.json has {written[:12]}…. Delete "
                    f"{self.folder} and preprocess again."
                )

    @property
    def training_rows(self) -> str:
        """SHA-256 of the training rows."""
        return str(self.description["splits"]["train"]["sha256"])

    @property
    def name(self) -> str:
        """The dataset's name, as in ``data=...``."""
        return str(self.description["name"])

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows of each split."""
        return {name: int(split["rows"]) for name, split in self.description["splits"].items()}

    @property
    def examples(self) -> int:
        """Number of training rows, the N of the accounting."""
        return self.rows["train"]

    @property
    def vocabulary_sizes(self) -> list[int]:
        """Table rows of each categorical feature."""
        return [int(feature["vocabulary_size"]) for feature in self.description["categorical_features"]]

    @property
    def categorical_names(self) -> list[str]:
        """Name of each categorical feature."""
        return [str(feature["name"]) for feature in self.description["categorical_features"]]

    @property
    def numeric_names(self) -> list[str]:
        """Name of each numeric feature."""
        return [str(name) for name in self.description["numeric_features"]]

    @property
    def bag_combiners(self) -> list[str]:
        """How the embeddings of each bag are combined (``mean`` or ``sum``); bags are the last of the features."""
        return [str(feature["combiner"]) for feature in self.description["categorical_features"] if "most" in feature]

    @property
    def rows_per_example(self) -> list[int]:
        """Largest number of distinct table rows of each feature that the histogram counts for one example."""
        of_any = self.description.get("rows_per_example", 1)  # of a text
        return [int(feature.get("most", of_any)) for feature in self.description["categorical_features"]]

    @property
    def data_dependent_vocabulary(self) -> bool:
        """Whether the vocabulary was built from the training rows, which no ε covers."""
        return bool(self.description["vocabulary"]["data_dependent_vocabulary"])

    @property
    def vocabulary_release(self) -> OpenVocabulary | None:
        """The release of the values that have rows, if it is a private one."""
        released = self.description["vocabulary"].get("release")
        return None if released is None else OpenVocabulary(**released)

    @property
    def vocabulary_sha256(self) -> str | None:
        """Checksum of a vocabulary of noised counts, which the same settings make differently; None for any other."""
        return self.description["vocabulary"].get("sha256")

    def _verify_vocabulary(self, written: str) -> None:
        path = self.folder / VOCABULARY
        try:
            right = read_vocabulary(path, self.categorical_names).sha256 == written
        except ValueError:
            right = False
        if not right:
            raise UserError(f"{path} is damaged: delete {self.folder} and preprocess again, which is another release.")

    def split(self, name: str) -> RowFile:
        """Return the rows of ``train``, ``validation`` or ``test``.

        Raises:
            UserError: The dataset has no such split.
        """
        if name not in self.rows:
            raise UserError(f"{self.folder} has no split {name!r}; it has {', '.join(self.rows)}.")
        if name not in self._opened:
            fields = self.description["record"]["fields"]
            record = np.dtype([(f["name"], f["dtype"], tuple(f["shape"])) for f in fields])
            self._opened[name] = RowFile(self.folder / f"{name}.rows", self.rows[name], record)
        return self._opened[name]

    def histogram(self) -> list[NDArray[np.int64]]:
        """Count the training rows that contain each table row: one array of shape [V_f] per categorical feature f. Of
        a bag or a text, the first :attr:`rows_per_example` distinct rows count.

        Computed once, then cached in the folder and mapped into memory. These are raw counts: any release derived
        from them must be made private.
        """
        sizes = self.vocabulary_sizes
        path = self.folder / "histogram.npy"
        counts = read_derived(path, self.training_rows)
        if counts is None or counts.shape != (sum(sizes),):
            counts = self._count_training_rows(sizes)
            with suppress(OSError):  # a folder that may only be read keeps no counts
                write_derived(path, counts, self.training_rows)
                counts = np.load(path, mmap_mode="r", allow_pickle=False)
        return np.split(counts, np.cumsum(sizes)[:-1])

    def _count_training_rows(self, sizes: list[int]) -> NDArray[np.int64]:
        self.verify()
        counts = np.zeros(sum(sizes), np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        for chunk in self.split("train").chunks(100_000):
            for feature, (start, most) in enumerate(zip(starts, self.rows_per_example, strict=True)):
                seen = np.bincount(chunk.counted(feature, most))
                counts[start : start + len(seen)] += seen
        return counts


def sealed_text(description: Mapping[str, Any]) -> str:
    """Return the text of a JSON file that describes a dataset or stream, with a checksum over all of it."""
    return json.dumps({**description, "seal": _seal(description)}, indent=2, allow_nan=False) + "\n"


def _seal(description: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True, allow_nan=False).encode()).hexdigest()


def read_description(path: Path, schema: int, missing: str, damaged: str) -> dict[str, Any]:
    """Read the JSON file that describes a dataset or stream.

    Args:
        path: the file.
        schema: the schema that this version reads.
        missing: error message if there is no file.
        damaged: what to delete if the file cannot be read.

    Raises:
        UserError: it is missing, unreadable, or of another schema.
    """
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(missing) from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): delete {damaged} and preprocess again.") from error
    own = description.get("schema") if isinstance(description, dict) else None
    if own == schema or (own == UNSEALED and "seal" in description):
        seal = description.pop("seal", None)
        if seal != _seal(description):
            raise UserError(f"{path} is damaged: it is not what was written. Delete {damaged} and preprocess again.")
    elif own != UNSEALED:
        raise UserError(
            f"{path} has schema {own!r}, but this version reads schema {schema}: delete {path.parent} and preprocess "
            "again."
        )
    return dict(description)
