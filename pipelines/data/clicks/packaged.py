"""A data set made of a table in the files of an installed package: what makes it, and the reader of its rows.

Each row is a function of one line of the package's main table and of public tables that are joined to it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.clicks.source import RowBlock
from pipelines.data.hashing import BLANK_KEY, line_content, text_key
from pipelines.data.provenance import Provenance
from pipelines.data.source import Progress, RefusedRows
from pipelines.system.checksum import sha256_of

BLOCK_ROWS = 1_000_000
DAY = "_day"
"""Column of the day of a line: that of a stream, else its date, from 0."""


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


@dataclass(frozen=True)
class Package:
    """Files of an installed Python package.

    Attributes:
        name: import name.
        requirement: requirement to pass to pip.
        checksums: SHA-256 of each file that is read, by its path within the package; None for a file of any content.
    """

    name: str
    requirement: str
    checksums: Mapping[str, str | None] = field(hash=False)

    def path(self, file: str) -> Path:
        """Return where a file lies.

        Raises:
            UserError: the package is not installed, or the file is not the one that the features are defined for.
        """
        path, known = package_folder(self.name, self.requirement) / file, self.checksums[file]
        if not path.exists() or known not in (None, sha256_of(path)):
            raise UserError(
                f"{path} is not the file of {self.requirement} that the features are defined for: "
                f"pip install --force-reinstall {self.requirement}"
            )
        return path

    def read(self, file: str, columns: list[str] | None = None) -> pl.DataFrame:
        """Read a file: Parquet, or CSV in which NA is no value, also zipped."""
        path = self.path(file)
        if path.suffix == ".parquet":
            return pl.read_parquet(path, columns=columns)
        content = path.read_bytes()
        if path.suffix == ".zip":
            content = zipfile.ZipFile(io.BytesIO(content)).read(path.stem)
        return pl.read_csv(content, null_values=["NA", ""], infer_schema_length=None)

    def scan(self, file: str) -> pl.LazyFrame:
        """Return a lazy reader of a Parquet file."""
        return pl.scan_parquet(self.path(file))

    def files(self) -> list[dict[str, Any]]:
        """Return path, size and SHA-256 of the files."""
        paths = map(self.path, self.checksums)
        return [{"path": str(path), "bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in paths]


Date = TypeVar("Date", int, pl.Expr)


@dataclass(frozen=True)
class Slices:
    """Consecutive slices of dates: the days of a stream, to each of which a line belongs by its own date.

    Attributes:
        dates: number of dates (days, weeks or years).
        days: number of slices, each of ``dates // days`` dates or one more; None for data that are no stream.
        number: the slice to read, from 0; None for all lines.
    """

    dates: int
    days: int | None = None
    number: int | None = None

    def of(self, date: Date) -> Date:
        """Return the slice of a date by its place among all, from 0; of no stream, this place."""
        return date if self.days is None else date * self.days // self.dates

    def mine(self, lines: pl.DataFrame) -> pl.DataFrame:
        """Return the lines of the slice by their :data:`DAY`."""
        return lines if self.number is None else lines.filter(pl.col(DAY) == self.number)


Frames = Callable[[Package, Any, Slices, Progress], Iterator[pl.DataFrame]]
"""Given files, settings and what is to be read: yields lines in order, about a million at a time, with the columns of
``fields``, ``numbers`` and ``categories``, ``label`` (null in lines that are no examples) and :data:`DAY`."""


def standard_identity(table: PackagedTable) -> dict[str, Any]:
    """Return the checksums of the files, and the definition of the features.

    Raises:
        UserError: as :meth:`Package.path`.
    """
    for name in table.package.checksums:
        table.package.path(name)
    recipe = {name: [list(category.columns), category.table_rows] for name, category in table.categories.items()}
    scales = {name: [number.centre, number.scale] for name, number in table.numbers.items()}
    files = dict(table.package.checksums)
    return {"files": files, "categories": recipe, "numbers": scales, "fields": list(table.fields)}


@dataclass(frozen=True)
class PackagedTable:
    """All that makes a data set out of files of a package.

    Attributes:
        package: the files.
        frames: the one function that makes lines of them.
        fields: columns of the main table that, with ``outcome`` in front, make up a line's content.
        numbers: numeric features by their column.
        categories: categorical features by name.
        lines: number of lines; the most that can be drawn, where they are.
        dates: number of dates, of which a stream's days are slices.
        dates_in_words: what these are.
        provenance: origin and licence.
        outcome: column of what the label is made of.
        units: columns that may be the unit of privacy, whole numbers.
        unlabelled: why lines have no label, where there are such.
        identified_by: returns, as JSON, all that determines the rows; raises as :meth:`Package.path`.
    """

    package: Package
    frames: Frames
    fields: tuple[str, ...]
    numbers: Mapping[str, Number]
    categories: Mapping[str, Category]
    lines: int
    dates: int
    dates_in_words: str
    provenance: Provenance
    outcome: str = "label"
    units: tuple[str, ...] = ()
    unlabelled: str = ""
    identified_by: Callable[[PackagedTable], dict[str, Any]] = standard_identity

    def identity(self) -> dict[str, Any]:
        """Return, as JSON, all that determines the rows, but for settings; raises as :meth:`Package.path`."""
        return self.identified_by(self)


class PackagedRows:
    """Rows of a table: all, or those of a slice.

    Args:
        table: what they are made of.
        settings: of the data set, which the table's ``frames`` may need.
        slices: what is to be read.
    """

    def __init__(self, table: PackagedTable, settings: Any, slices: Slices) -> None:
        self._table, self._settings, self._slices = table, settings, slices
        self.rejected, self.excluded = RefusedRows(), RefusedRows()
        self.numeric_names = tuple(table.numbers)
        self.categorical_names = tuple(table.categories)
        self.published_sizes = tuple(category.table_rows for category in table.categories.values())
        self.numeric_transform = "(x - centre) / scale, clipped to [-5, 5], unknown as 0; centres and scales: " + (
            "; ".join(f"{name} {number.centre:g}, {number.scale:g}" for name, number in table.numbers.items())
        )

    def files(self) -> list[dict[str, Any]]:
        """Return path, size and SHA-256 of the files."""
        return self._table.package.files()

    def frames(self, progress: Progress = lambda done, total: None) -> Iterator[pl.DataFrame]:
        """Yield all lines in order, those without a label, too, about a million at a time."""
        return self._table.frames(self._table.package, self._settings, self._slices, progress)

    def blocks(self, progress: Progress) -> Iterator[RowBlock]:
        """Yield all lines with a label in order, about a million at a time."""
        self.excluded = RefusedRows()
        for lines in self.frames(progress):
            known = lines.filter(pl.col("label").is_not_null())
            if known.height < lines.height:
                self.excluded.add(self._table.unlabelled, count=lines.height - known.height)
            yield self._block(known)

    def _block(self, lines: pl.DataFrame) -> RowBlock:
        table = self._table
        scaled = [
            ((pl.col(name).cast(pl.Float64) - number.centre) / number.scale).clip(-5, 5).fill_null(0).cast(pl.Float32)
            for name, number in table.numbers.items()
        ]
        return RowBlock(
            content=line_content(content_fields(lines, (table.outcome, *table.fields))),
            day=lines.get_column(DAY).to_numpy().astype(np.int32),
            label=lines.get_column("label").to_numpy().astype(np.float32),
            numeric=lines.select(scaled).to_numpy().reshape(lines.height, len(scaled)),
            keys=np.stack([category_keys(lines, category.columns) for category in table.categories.values()], axis=1),
            units={name: column_identifiers(lines.get_column(name)) for name in table.units},
        )


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
