"""A table of one's own as clicks, described by the configuration alone.

A row is a function of its own line and of the settings: neither types nor sizes nor scales are learnt from other rows.
Rows of tables, means and deviations are therefore the user's own statements, and public with the settings of a run.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.clicks.bags import BagConfig, RowsOfTable
from pipelines.data.clicks.config import ClickConfig
from pipelines.data.clicks.source import RowBlock, RowSource
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.table_columns import (
    BAG_HASH,
    TABLE_HASH,
    BadValueError,
    Label,
    identifiers,
    keys,
    lists,
    numbers,
    transform,
    transformed,
)
from pipelines.data.clicks.table_days import DayColumn, parts_of
from pipelines.data.clicks.table_files import TableFiles, files_of
from pipelines.data.clicks.table_frames import CATEGORIES, LISTS, NUMBERS, PARTED, TEXT, Frames, Wanted
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.dataset import Dataset
from pipelines.data.hashing import HASH_SPECIFICATION, line_content
from pipelines.data.source import Progress, RefusedRows
from pipelines.system.files import NAME

_LOOKED_AT = 100_000  # training rows of which the distinct ones are counted
_UNIT = re.compile(r"\w[\w +-]*")


class FramesConfig(ClickConfig):
    """A table, whose rows come in frames."""

    kind: str

    @abstractmethod
    def frames(self) -> Frames:
        """Return all rows.

        Raises:
            UserError: they are not there.
        """

    @property
    def reader(self) -> type[TableRows]:
        """What makes rows of frames."""
        return TableRows


@dataclass
class ColumnsConfig(FramesConfig):
    """What the columns of a table mean, wherever its rows come from.

    Sizes of tables and constants of transforms are your public statements: choose them from what you know of the field,
    not from these rows, for epsilon does not cover what they reveal.

    Attributes:
        label: the column of labels, 0 or 1, true or false; or a comparison with a number, as in "rating > 3". Required.
        categorical: categorical columns (text, whole numbers, booleans or dates), each with the rows of its embedding
            table, a public number, as in {user: 8192}, or null where ``vocabulary.policy`` is not hash; of a column of
            lists also how many of a row's values count at most, as in {genres: {rows: 512, most: 16}}
            (:class:`BagConfig`). Required.
        numeric: numeric columns, each with ``log1p``, ``standard(MEAN, STD)`` with public constants, clipped to
            [-5, 5], or ``none``, as in {price: log1p}; missing values become 0.
        unit: columns that may be the unit of privacy, whole numbers or text without missing values.
        split_by: a column of the names of splits, train, validation and test (of a stream, train and validation); null
            to split by a hash of each line, in the shares of ``split``.
    """

    label: str = "???"
    categorical: dict[str, RowsOfTable | BagConfig | None] = field(default_factory=dict)
    numeric: dict[str, str] = field(default_factory=dict)
    unit: list[str] = field(default_factory=list)
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    split_by: str | None = None

    @property
    def bags(self) -> Mapping[str, BagConfig]:
        """Columns of lists, in the order of their names."""
        return {name: bag for name, bag in sorted(self.categorical.items()) if isinstance(bag, BagConfig)}

    @property
    def hash_specification(self) -> Mapping[str, str]:  # type: ignore[override]
        """How values become rows and lines splits."""
        return HASH_SPECIFICATION | self._hash

    @property
    def _hash(self) -> dict[str, str]:
        return TABLE_HASH | (BAG_HASH if self.bags else {})

    @property
    def units(self) -> tuple[str, ...]:
        """Columns that may be the unit of privacy."""
        return tuple(self.unit)

    def check(self) -> None:
        """Raise UserError for an invalid setting."""
        if self.vocabulary.sizes is not None:
            raise UserError(
                f"data.vocabulary.sizes has no effect on data={self.kind}: data.categorical gives the rows of each "
                "table."
            )
        super().check()
        if not NAME.fullmatch(self.name):
            raise UserError(f"data.name={self.name} names a folder of runs: give letters, digits, _, + and - alone.")
        if not self.categorical:
            raise UserError(
                "data.categorical must name a column and the rows of its embedding table, as in "
                "'data.categorical={user: 8192}'."
            )
        label = Label.parse(self.label).column
        hashed = self.vocabulary.policy == "hash"
        for name, rows in self.categorical.items():
            if hashed and rows is None:
                raise UserError(
                    f"data.categorical.{name} must say how many rows its table has, which hashing needs; without such "
                    "numbers, take data.vocabulary.policy=private."
                )
            if self.vocabulary.policy == "private" and rows is not None:
                raise UserError(
                    f"data.categorical.{name}={rows} would be published and has no effect, for "
                    "data.vocabulary.policy=private counts rows itself: write null in place of every column's rows."
                )
        for key, columns in (("categorical", self.categorical), ("numeric", self.numeric)):
            if label in columns:
                raise UserError(f"data.{key} names {label}, which the label is made of: a model would read it off.")
        for name, text in self.numeric.items():
            transform(name, text)
        if self.split_by is not None and self.split.shares != type(self.split)().shares:
            raise UserError(
                f"the shares of data.split have no effect under data.split_by={self.split_by}: leave them out."
            )
        for name in self.unit:
            if not _UNIT.fullmatch(name) or name == "example":
                raise UserError(
                    f"data.unit names the column {name}, of which a file's name is made: rename it to letters, digits "
                    "and _, and other than example."
                )

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows."""
        return {**self.frames().identity(), "hash": self._hash}

    def source(self, day: int, scratch: Path) -> RowSource:
        """Return the reader of the rows."""
        return self.rows(self.frames())

    def rows(self, frames: Frames, number: int = 0, days: DayColumn | None = None) -> RowSource:
        """Return the reader of frames whose rows are of the day ``number``, or of the rows that ``days`` says are."""
        parts = None if self.split_by is None else (self.split_by, tuple(self.split.shares))
        return self.reader(frames, self.label, self.categorical, self.numeric, self.unit, parts, number, days)

    def to_score(self, scratch: Path, labelled: bool) -> Iterator[RowSource]:
        """Yield the reader of all rows, of all days and splits; see :class:`ClickConfig`."""
        label = self.label if labelled else None
        yield self.reader(self.frames(), label, self.categorical, self.numeric, [])

    def warnings(self, day: Dataset) -> list[str]:
        """Warn also of rows that hardly differ, all equal ones of which are in one split."""
        if self.split_by is not None or self.vocabulary.policy != "hash":  # values share rows, and no split
            return super().warnings(day)
        rows = next(day.split("train").chunks(_LOOKED_AT))
        distinct = len(np.unique(line_content(rows.values())))
        few = distinct < 0.5 * len(rows)
        return super().warnings(day) + few * [
            f"of {len(rows):,} training rows only {distinct:,} differ in what the model sees, and equal rows share a "
            "split: validation and test hold combinations of values that are never trained on. To divide rows at "
            "random, write a column of the words train, validation and test, and name it in data.split_by."
        ]

    def more_rows(self, part: str) -> str:
        """Return what gives a split more rows."""
        return super().more_rows(part) if self.split_by is None else f"name {part} in more rows of {self.split_by}"

    def features(self) -> list[int] | int:
        """See :class:`~pipelines.data.source.DataConfig`."""
        sizes = list(sizes_of(self.categorical).values())
        return sizes if self.vocabulary.policy == "hash" else len(sizes)


@dataclass
class FilesConfig(FramesConfig):
    """Files that hold the rows of a table.

    Attributes:
        kind: ``table``; a file of your own, such as conf/data/clicks.yaml, says so, and gives its own ``name``.
        path: a file, a folder or a pattern such as 'clicks/*.parquet'. Required.
    """

    kind: Literal["table"] = "table"
    name: str = "table"
    path: str = "???"

    def frames(self) -> Frames:
        return TableFiles(files_of(self.path))


@dataclass
class TableConfig(ColumnsConfig, FilesConfig):
    """A table of your own: Parquet, Arrow, CSV or TSV files with a row for each example."""


def sizes_of(categorical: Mapping[str, int | BagConfig | None]) -> dict[str, int]:
    """Return the rows of each table in the order of a dataset's features: by name, bags after the others; 0 where the
    vocabulary decides."""
    tables = sorted(categorical.items(), key=lambda table: (isinstance(table[1], BagConfig), table[0]))
    return {name: table.rows if isinstance(table, BagConfig) else table or 0 for name, table in tables}


class TableRows:
    """Rows of a table's frames; features are in the order of their names, bags last, however they are listed.

    Args:
        frames: where the rows come from.
        label: as ``data.label``; None for rows without one, which are only to be scored.
        categorical: categorical columns, with the rows of their tables, or as bags.
        numeric: numeric columns, with their transforms.
        units: columns that may be the unit of privacy.
        parts: a column of the names of splits, and these names; None for splits by hash.
        number: day of the rows.
        days: column by which rows of other days are left out; None for all rows.

    Raises:
        UserError: a setting is invalid, or the frames are known to lack a column or to hold it as another type.
    """

    def __init__(
        self,
        frames: Frames,
        label: str | None,
        categorical: Mapping[str, int | BagConfig | None],
        numeric: Mapping[str, str],
        units: list[str],
        parts: tuple[str, tuple[str, ...]] | None = None,
        number: int = 0,
        days: DayColumn | None = None,
    ) -> None:
        self.rejected = RefusedRows()
        self.excluded = RefusedRows()
        sizes = sizes_of(categorical)
        self.categorical_names, self.published_sizes = tuple(sizes), tuple(sizes.values())
        self._separators = {name: bag.separator for name in sizes if isinstance(bag := categorical[name], BagConfig)}
        self._singles = tuple(name for name in sizes if name not in self._separators)
        self.numeric_names = tuple(sorted(numeric))
        described = [f"{name} {numeric[name]}" for name in self.numeric_names]
        self.numeric_transform = f"{'; '.join(described)}; standardised ones clipped to [-5, 5], unknown as 0"
        self._frames = frames
        self._label = None if label is None else Label.parse(label)
        self._transforms = {name: transform(name, numeric[name]) for name in self.numeric_names}
        self._units = tuple(sorted(units))
        self._parts, self._number, self._days = parts, number, days
        self._wanted: Wanted = {
            "data.label": {} if self._label is None else {self._label.column: NUMBERS},
            "data.categorical": dict.fromkeys(self._singles, CATEGORIES)
            | {name: LISTS if separator is None else PARTED for name, separator in self._separators.items()},
            "data.numeric": dict.fromkeys(self.numeric_names, NUMBERS),
            "data.unit": dict.fromkeys(self._units, CATEGORIES),
            "data.split_by": {} if parts is None else {parts[0]: (TEXT,)},
            "data.day": {} if days is None else {days.column: days.kinds},
        }
        frames.check(self._wanted)

    def files(self) -> list[dict[str, Any]]:
        """Return path, size and SHA-256 of what the rows come from."""
        return self._frames.files()

    def blocks(self, progress: Progress) -> Iterator[RowBlock]:
        """Yield all rows in order, some thousands at a time.

        Raises:
            UserError: they cannot be read, or a value cannot be used; names place, row and column.
        """
        for frame, where, before in self._frames.read(self._wanted, progress):
            mine, numbered = np.arange(frame.height), []
            if self._days is not None:
                with _located(where, before + mine):
                    number = self._days.numbers(frame.get_column(self._days.column))
                mine = np.flatnonzero(self._days.days_of(number) == self._number)
                numbered = [number[mine]]
            with _located(where, before + mine):
                block = self._block(frame if len(mine) == frame.height else frame[mine], numbered)
            yield block

    def _block(self, frame: pl.DataFrame, numbered: list[NDArray[np.int64]]) -> RowBlock:
        known, label = self._label, np.zeros(frame.height, np.float32)
        if known is not None:
            label[:] = known.of(frame.get_column(known.column))
        read = {name: numbers(frame.get_column(name)) for name in self.numeric_names}
        singles = np.empty((len(self._singles), frame.height), np.uint64)
        for name, out in zip(self._singles, singles, strict=True):
            keys(frame.get_column(name), out)
        known_keys = dict(zip(self._singles, singles, strict=True))
        units = [known_keys[one] if one in known_keys else keys(frame.get_column(one)) for one in self._units]
        bags = [lists(frame.get_column(name), separator) for name, separator in self._separators.items()]
        numeric = np.empty((frame.height, len(read)), np.float32, order="F")
        for place, (name, values) in enumerate(read.items()):
            transformed(values, self._transforms[name], frame.get_column(name), numeric[:, place])
        contents = (one.content() for one in bags)
        return RowBlock(
            content=line_content([*read.values(), *singles, *units, *contents, *numbered]),
            day=np.full(frame.height, self._number, np.int32),
            label=label,
            numeric=numeric,
            keys=singles.T,
            units={name: identifiers(frame.get_column(name)) for name in self._units},
            lists=bags,
            part=None if self._parts is None else parts_of(frame.get_column(self._parts[0]), self._parts[1]),
        )


@contextmanager
def _located(where: Path | str, rows: NDArray[np.int64]) -> Iterator[None]:
    """A context in which a value that cannot be used is told with its place and its row there.

    Args:
        where: the file or frame.
        rows: place in it of each row that is read, from 0.
    """
    try:
        yield
    except BadValueError as error:
        raise UserError(f"{where}, row {rows[error.row] + 1:,}: {error}") from error
