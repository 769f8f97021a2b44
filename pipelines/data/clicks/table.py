"""A table of one's own as clicks, described by the configuration alone.

A row is a function of its own line and of the settings: neither types nor sizes nor scales are learnt from other rows.
Rows of tables, means and deviations are therefore the user's own statements, and public with the settings of a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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
from pipelines.data.clicks.table_files import CATEGORIES, LISTS, NUMBERS, PARTED, check_columns, files_of, frames
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.hashing import HASH_SPECIFICATION, line_content
from pipelines.data.source import Progress, RefusedRows
from pipelines.system.checksum import fingerprint

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,99}")
_UNIT = re.compile(r"\w[\w +-]*")


@dataclass
class TableConfig(ClickConfig):
    """A table of your own: Parquet, Arrow, CSV or TSV files with a row for each example.

    Sizes of tables and constants of transforms are your public statements: choose them from what you know of the field,
    not from these rows, for epsilon does not cover what they reveal.

    Attributes:
        kind: ``table``; a file of your own, such as conf/data/clicks.yaml, says so, and gives its own ``name``.
        path: a file, a folder or a pattern such as 'clicks/*.parquet'. Required.
        label: the column of labels, 0 or 1, true or false; or a comparison with a number, as in "rating > 3". Required.
        categorical: categorical columns (text, whole numbers, booleans or dates), each with the rows of its embedding
            table, a public number (without effect unless ``vocabulary.policy`` is hash), as in {user: 8192}; of a
            column of lists also how many of a row's values count at most, as in {genres: {rows: 512, most: 16}}
            (:class:`BagConfig`). Required.
        numeric: numeric columns, each with ``log1p``, ``standard(MEAN, STD)`` with public constants, clipped to
            [-5, 5], or ``none``, as in {price: log1p}; missing values become 0.
        unit: columns that may be the unit of privacy, whole numbers or text without missing values.
    """

    kind: Literal["table"] = "table"
    name: str = "table"
    path: str = "???"
    label: str = "???"
    categorical: dict[str, RowsOfTable | BagConfig] = field(default_factory=dict)
    numeric: dict[str, str] = field(default_factory=dict)
    unit: list[str] = field(default_factory=list)
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: SplitConfig = field(default_factory=SplitConfig)

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
                "data.vocabulary.sizes has no effect on data=table: data.categorical gives the rows of each table."
            )
        super().check()
        if not _NAME.fullmatch(self.name):
            raise UserError(f"data.name={self.name} names a folder of runs: give letters, digits, _, + and - alone.")
        if not self.categorical:
            raise UserError(
                "data.categorical must name a column and the rows of its embedding table, as in "
                "'data.categorical={user: 8192}'."
            )
        label = Label.parse(self.label).column
        for key, columns in (("categorical", self.categorical), ("numeric", self.numeric)):
            if label in columns:
                raise UserError(f"data.{key} names {label}, which the label is made of: a model would read it off.")
        for name, text in self.numeric.items():
            transform(name, text)
        for name in self.unit:
            if not _UNIT.fullmatch(name) or name == "example":
                raise UserError(
                    f"data.unit names the column {name}, of which a file's name is made: rename it to letters, digits "
                    "and _, and other than example."
                )

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows."""
        return {"files": [fingerprint(path) for path in files_of(self.path)], "hash": self._hash}

    def source(self, day: int, scratch: Path) -> RowSource:
        """Return the reader of the rows."""
        return TableRows(files_of(self.path), self.label, self.categorical, self.numeric, self.unit)

    def features(self) -> list[int] | int:
        """See :class:`DataConfig`."""
        sizes = list(sizes_of(self.categorical).values())
        return sizes if self.vocabulary.policy == "hash" else len(sizes)


def sizes_of(categorical: Mapping[str, int | BagConfig]) -> dict[str, int]:
    """Return the rows of each table in the order of a dataset's features: by name, bags after the others."""
    tables = sorted(categorical.items(), key=lambda table: (isinstance(table[1], BagConfig), table[0]))
    return {name: table.rows if isinstance(table, BagConfig) else table for name, table in tables}


class TableRows:
    """Rows of the files of a table; features are in the order of their names, bags last, however they are listed.

    Args:
        files: the files, in the order of their rows.
        label: as ``data.label``.
        categorical: categorical columns, with the rows of their tables, or as bags.
        numeric: numeric columns, with their transforms.
        units: columns that may be the unit of privacy.

    Raises:
        UserError: a setting is invalid, or a file lacks a column or holds it as another type.
    """

    def __init__(
        self,
        files: list[Path],
        label: str,
        categorical: Mapping[str, int | BagConfig],
        numeric: Mapping[str, str],
        units: list[str],
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
        self._paths = files
        self._label = Label.parse(label)
        self._transforms = {name: transform(name, numeric[name]) for name in self.numeric_names}
        self._units = tuple(sorted(units))
        check_columns(
            files,
            {
                "data.label": {self._label.column: NUMBERS},
                "data.categorical": dict.fromkeys(self._singles, CATEGORIES)
                | {name: LISTS if separator is None else PARTED for name, separator in self._separators.items()},
                "data.numeric": dict.fromkeys(self.numeric_names, NUMBERS),
                "data.unit": dict.fromkeys(self._units, CATEGORIES),
            },
        )

    def files(self) -> list[dict[str, Any]]:
        """Return path, size and SHA-256 of the files."""
        prints = ((path, fingerprint(path)) for path in self._paths)
        return [{"path": str(path.absolute()), "bytes": it["bytes"], "sha256": it["sha256"]} for path, it in prints]

    def blocks(self, progress: Progress) -> Iterator[RowBlock]:
        """Yield all rows in order, some thousands at a time.

        Raises:
            UserError: a file cannot be read, or a value cannot be used; names file, row and column.
        """
        columns = list(dict.fromkeys([self._label.column, *self.numeric_names, *self.categorical_names, *self._units]))
        sizes = [path.stat().st_size for path in self._paths]
        for file, path in enumerate(self._paths):
            done = 0
            for frame, share in frames(path, columns):
                try:
                    block = self._block(frame)
                except BadValueError as error:
                    raise UserError(f"{path}, row {done + error.row + 1:,}: {error}") from error
                yield block
                done += frame.height
                progress(int(sum(sizes[:file]) + share * sizes[file]), sum(sizes))

    def _block(self, frame: pl.DataFrame) -> RowBlock:
        label = self._label.of(frame.get_column(self._label.column))
        read = {name: numbers(frame.get_column(name)) for name in self.numeric_names}
        key = {name: keys(frame.get_column(name)) for name in {*self._singles, *self._units}}
        bags = [lists(frame.get_column(name), separator) for name, separator in self._separators.items()]
        numeric = np.empty((frame.height, len(read)), np.float32, order="F")
        for place, (name, values) in enumerate(read.items()):
            numeric[:, place] = transformed(values, self._transforms[name], frame.get_column(name))
        fields: list[NDArray[np.int64] | NDArray[np.uint64]]
        fields = [label, *map(_bits, read.values()), *(key[name] for name in (*self._singles, *self._units))]
        fields += [one.content() for one in bags]
        return RowBlock(
            content=line_content(fields),
            day=np.zeros(frame.height, np.int32),
            label=label.astype(np.float32),
            numeric=numeric,
            keys=np.array([key[name] for name in self._singles], np.uint64).reshape(-1, frame.height).T,
            units={name: identifiers(frame.get_column(name)) for name in self._units},
            lists=bags,
        )


def _bits(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return the bits of numbers, those of 0 where they are unknown or -0."""
    return (np.nan_to_num(values, nan=0.0) + 0.0).view(np.uint64)
