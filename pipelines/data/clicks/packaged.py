"""Rows made from the Parquet files of an installed package: definitions of features, and their reader.

Each row is a function of one line of the package's main table and of public tables that are joined to it.
"""

from __future__ import annotations

import hashlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.clicks.source import RowBlock
from pipelines.data.hashing import BLANK_KEY, line_content, text_key
from pipelines.data.source import Progress, RefusedRows
from pipelines.system.checksum import sha256_of

BLOCK_ROWS = 1_000_000


@dataclass(frozen=True)
class Category:
    """A categorical feature: the columns whose values form it, and the rows of its table."""

    columns: tuple[str, ...]
    table_rows: int


@dataclass(frozen=True)
class Number:
    """A numeric feature: ``(x - centre) / scale``, clipped to [-5, 5], unknown as 0."""

    centre: float
    scale: float


class PackagedRows(ABC):
    """A row source of an installed package.

    A subclass defines the constants below and ``frames``.

    Attributes:
        package: import name.
        requirement: requirement to pass to pip.
        checksums: SHA-256 of each Parquet file that is read, by its path within the package.
        numbers: numeric features by their column.
        categories: categorical features by name.
        fields: columns of the main table that, with the label, make up a line's content.
        units: columns of the main table that may be the unit of privacy, whole numbers.
    """

    package: ClassVar[str]
    requirement: ClassVar[str]
    checksums: ClassVar[Mapping[str, str]]
    numbers: ClassVar[Mapping[str, Number]]
    categories: ClassVar[Mapping[str, Category]]
    fields: ClassVar[tuple[str, ...]]
    units: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.rejected = RefusedRows()
        self.excluded = RefusedRows()
        self.numeric_names = tuple(self.numbers)
        self.categorical_names = tuple(self.categories)
        self.published_sizes = tuple(category.table_rows for category in self.categories.values())
        self.numeric_transform = "(x - centre) / scale, clipped to [-5, 5], unknown as 0; centres and scales: " + (
            "; ".join(f"{name} {number.centre:g}, {number.scale:g}" for name, number in self.numbers.items())
        )

    @abstractmethod
    def frames(self, progress: Progress) -> Iterator[pl.DataFrame]:
        """Yield all lines in order, about a million at a time, with the columns of ``fields``, ``numbers`` and
        ``categories``, ``label`` (0 or 1) and ``date`` (from 0)."""

    def identity(self) -> dict[str, Any]:
        """Return the checksums of the files, and the definition of the features.

        Raises:
            UserError: The package is not installed, or a file is not the one that the features are defined for.
        """
        for name in self.checksums:
            self._path(name)
        recipe = {name: [list(category.columns), category.table_rows] for name, category in self.categories.items()}
        scales = {name: [number.centre, number.scale] for name, number in self.numbers.items()}
        return {"files": dict(self.checksums), "categories": recipe, "numbers": scales, "fields": list(self.fields)}

    def files(self) -> list[dict[str, Any]]:
        """Return path, size and SHA-256 of the files."""
        return [
            {"path": str(path), "bytes": path.stat().st_size, "sha256": self.checksums[name]}
            for name, path in ((name, self._path(name)) for name in self.checksums)
        ]

    def blocks(self, progress: Progress) -> Iterator[RowBlock]:
        """Yield all lines in order, about a million at a time."""
        return map(self._block, self.frames(progress))

    def read(self, name: str, columns: list[str] | None = None) -> pl.DataFrame:
        """Read a file of the package."""
        return pl.read_parquet(self._path(name), columns=columns)

    def scan(self, name: str) -> pl.LazyFrame:
        """Return a lazy reader of a file of the package."""
        return pl.scan_parquet(self._path(name))

    def _block(self, lines: pl.DataFrame) -> RowBlock:
        scaled = [
            ((pl.col(name).cast(pl.Float64) - number.centre) / number.scale).clip(-5, 5).fill_null(0).cast(pl.Float32)
            for name, number in self.numbers.items()
        ]
        return RowBlock(
            content=line_content(content_fields(lines, ("label", *self.fields))),
            day=lines.get_column("date").to_numpy().astype(np.int32),
            label=lines.get_column("label").to_numpy().astype(np.float32),
            numeric=lines.select(scaled).to_numpy(),
            keys=np.stack([category_keys(lines, category.columns) for category in self.categories.values()], axis=1),
            units={name: column_identifiers(lines.get_column(name)) for name in self.units},
        )

    def _path(self, name: str) -> Path:
        path = package_folder(self.package, self.requirement) / name
        if not path.exists() or sha256_of(path) != self.checksums[name]:
            raise UserError(
                f"{path} is not the file of {self.requirement} that the features are defined for: "
                f"pip install --force-reinstall {self.requirement}"
            )
        return path


def in_frames(table: pl.DataFrame, progress: Progress) -> Iterator[pl.DataFrame]:
    """Yield a table that is in memory, a million lines at a time."""
    for start in range(0, table.height, BLOCK_ROWS):
        progress(start, table.height)
        yield table.slice(start, BLOCK_ROWS)
    progress(table.height, table.height)


def column_identifiers(column: pl.Series) -> NDArray[np.int64]:
    """Return the values of a column of whole numbers, which identify units exactly.

    Raises:
        UserError: a value is missing, or the values are no whole numbers.
    """
    if not column.dtype.is_integer() or column.null_count():
        raise UserError(
            f"The column {column.name} cannot be a unit, which needs a whole number in every line: it holds "
            f"{column.dtype}, {column.null_count():,} of them missing."
        )
    return column.cast(pl.Int64).to_numpy()


def package_folder(package: str, requirement: str) -> Path:
    """Return the folder of an installed package without importing it.

    Raises:
        UserError: The package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"The data are files of the package {package}: pip install {requirement}")
    return Path(next(iter(spec.submodule_search_locations)))


def content_fields(lines: pl.DataFrame, names: tuple[str, ...]) -> Iterator[NDArray[np.uint64] | NDArray[np.int64]]:
    """Yield columns as fields of :func:`pipelines.data.hashing.line_content`."""
    for name in names:
        column = lines.get_column(name)
        if column.dtype == pl.String:
            keys = {text: text_key(text) for text in column.unique().drop_nulls()}
            yield column.replace_strict(keys, default=BLANK_KEY, return_dtype=pl.UInt64).to_numpy()
        else:
            yield column.cast(pl.Int64).fill_null(0).to_numpy()


def category_keys(lines: pl.DataFrame, columns: tuple[str, ...]) -> NDArray[np.uint64]:
    """Return the keys of the joint values of one or several columns, shape [n].

    A value's text (several joined by ``|``) is hashed to 8 hexadecimal digits, its BLAKE2b of 4 bytes, which are its
    key as in Criteo's files. If one of the columns is unknown, the value is blank.
    """
    text = pl.concat_str([pl.col(name).cast(pl.String) for name in columns], separator="|").alias("text")
    values = lines.select(text).to_series()
    distinct = values.drop_nulls().unique()
    keys = [int(hashlib.blake2b(value.encode(), digest_size=4).hexdigest(), 16) for value in distinct]
    of_value = pl.DataFrame({"text": distinct, "key": pl.Series(keys, dtype=pl.UInt64)})
    joined = values.to_frame().join(of_value, on="text", how="left", maintain_order="left")
    return joined.get_column("key").fill_null(BLANK_KEY).to_numpy()
