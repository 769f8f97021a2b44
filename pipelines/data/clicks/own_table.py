"""A table whose rows a class of the user's own yields, in place of files; all else is as of every table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import polars as pl

from dpfest.errors import UserError
from pipelines.data.clicks.source import RowBlock
from pipelines.data.clicks.table import ColumnsConfig, FramesConfig, TableRows
from pipelines.data.clicks.table_files import TableFiles
from pipelines.data.clicks.table_frames import ColumnCheck, Frame, Frames, Wanted, columns_of, in_frames
from pipelines.data.source import Progress
from pipelines.system.checksum import fingerprint
from pipelines.system.code import CHOICE, code_of, load, refuse_places, without_folder

_METHODS = {
    "frames": "yields the rows as polars DataFrames",
    "files": "returns the paths of all files that these are made of, [] if of none",
}
_END = object()


@dataclass
class ClassConfig(FramesConfig):
    """A class of the user's own, whose ``frames()`` yields the rows of a table; its ``files()`` says what it reads.

    Attributes:
        kind: module, in a file of settings with a name of its own.
        name: of the data; null for that of the class.
        target: the class, as FILE.py:CLASS or MODULE:CLASS; it is called with the options.
        options: keyword arguments of the class.
        code: SHA-256 of the file that defines it, found if null; give it to refuse any other.
    """

    kind: Literal["module"] = CHOICE
    name: str | None = None  # type: ignore[assignment]
    target: str = "???"
    options: dict[str, Any] = field(default_factory=dict)
    code: str | None = None

    def __post_init__(self) -> None:
        if self.target == "???":
            return
        refuse_places(self.options, "data.options", released="path")
        if self.code is None:
            self.code = code_of(self.target, "data.target")
        if self.name is None:
            self.name = self.target.rpartition(":")[2]

    @property
    def reader(self) -> type[TableRows]:
        return RepeatedRows

    def frames(self) -> Frames:
        return OwnFrames(self.target, self.options, self.code)


@dataclass
class OwnTableConfig(ColumnsConfig, ClassConfig):
    """A table of your own, whose rows a class yields."""


class OwnFrames:
    """The frames of a class as :class:`~pipelines.data.clicks.table_frames.Frames`; each reading makes the class anew.

    Args:
        target, options, code: as in :class:`ClassConfig`.

    Raises:
        UserError: there is no such class, it has other code, or it lacks a method.
    """

    def __init__(self, target: str, options: dict[str, Any], code: str | None) -> None:
        self._target, self._options = target, options
        self._class = load(target, "data.target", object, "object", code)
        for name, does in _METHODS.items():
            if not callable(getattr(self._class, name, None)):
                raise UserError(f"data.target={target} has no method {name}(), which {does}.")

    def identity(self) -> dict[str, Any]:
        files = [{**fingerprint(path), "name": str(path)} for path in self._paths()]
        return {"target": without_folder(self._target), "files": files}

    def files(self) -> list[dict[str, Any]]:
        return TableFiles(self._paths()).files()

    def check(self, wanted: Wanted) -> None:
        """Refuse nothing: columns are known when frames are."""

    def read(self, wanted: Wanted, progress: Progress) -> Iterator[Frame]:
        check, columns, rows, number = ColumnCheck(wanted), columns_of(wanted), 0, 0
        made = self._made()
        with self._named("frames()"):
            frames = iter(made.frames())
        while True:
            number += 1
            with self._named(f"frames(), asked for frame {number},"):
                frame = next(frames, _END)
            if frame is _END:
                break
            if not isinstance(frame, pl.DataFrame):
                raise UserError(
                    f"data.target={self._target}: frame {number} is a {type(frame).__name__}, and frames() must yield "
                    "polars DataFrames (pl.from_pandas, .collect())."
                )
            where = f"frame {number} of {self._target}"
            check(where, frame.schema)
            rows += frame.height
            yield from in_frames(frame.select(columns), where)
        if not rows:
            raise UserError(f"data.target={self._target}: frames() yields no row.")

    def _made(self) -> Any:
        with self._named(f"{self._class.__name__}(**{self._options})"):
            return self._class(**self._options)

    def _paths(self) -> list[Path]:
        made = self._made()
        with self._named("files()"):
            named = made.files()
        if not isinstance(named, list | tuple) or not all(isinstance(one, str | Path) for one in named):
            raise UserError(
                f"data.target={self._target}: files() must return a list of paths, those of all that frames() reads, "
                f"and returns {named!r:.80}."
            )
        return [Path(one) for one in named]

    @contextmanager
    def _named(self, call: str) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(".")
            raise UserError(f"data.target={self._target}: {call} fails ({said}).") from error


class RepeatedRows(TableRows):
    """Rows of a class, which must be the same ones in the same order at every reading: units are read after rows."""

    _rows: dict[str, Any] | None = None

    def files(self) -> list[dict[str, Any]]:
        """Return path, size and SHA-256 of files that the class names, and number and SHA-256 of its rows."""
        return super().files() + ([self._rows] if self._rows else [])

    def blocks(self, progress: Progress) -> Iterator[RowBlock]:
        """Yield all rows; raises as :class:`TableRows`, or if they are other ones than before.

        After the first reading the first rows are read again, so that rows which are drawn anew are noticed even where
        nothing else reads them twice.
        """
        digest, rows, first = hashlib.sha256(), 0, ""
        for block in super().blocks(progress):
            _add(block, digest)
            first = first or digest.hexdigest()
            rows += len(block.label)
            yield block
        found = {"rows": rows, "sha256": digest.hexdigest()}
        if self._rows is None:
            _add(next(super().blocks(lambda done, total: None)), again := hashlib.sha256())
            same = again.hexdigest() == first
        else:
            same = self._rows == found
        if not same:
            raise UserError(
                "data.target yields other rows, or in another order, when it is read again: sort what has no order, "
                "and seed what is drawn."
            )
        self._rows = found


def _add(block: RowBlock, digest: hashlib._Hash) -> None:
    for column in (block.content, block.label, block.part):
        digest.update(b"" if column is None else column.tobytes())
