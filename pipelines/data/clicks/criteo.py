"""Criteo's click logs: ``train.txt`` of the Kaggle challenge, plain or gzipped, and files of its format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpfest.errors import UserError
from pipelines.data.clicks.blocks import LineBlocks
from pipelines.data.clicks.config import ClickConfig
from pipelines.data.clicks.criteo_lines import ParsedLines, parse_block
from pipelines.data.clicks.criteo_parquet import ParquetLines
from pipelines.data.clicks.source import RowBlock, RowSource
from pipelines.data.clicks.split import SplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig
from pipelines.data.hashing import line_content
from pipelines.data.parquet import is_parquet
from pipelines.data.rows import NUMERIC_FEATURES
from pipelines.data.source import OnBadRow, Progress, RefusedRows
from pipelines.system.checksum import fingerprint

CATEGORICAL_NAMES = tuple(f"categorical-feature-{i}" for i in range(14, 40))
NUMERIC_NAMES = tuple(f"integer-feature-{i}" for i in range(1, 14))
PUBLISHED_SIZES: tuple[int, ...] = (
    *(1_472, 577, 82_741, 18_940, 305, 23, 1_172, 633, 3, 9_090, 5_918, 64_300, 3_207),
    *(27, 1_550, 44_262, 10, 5_485, 2_161, 3, 56_473, 17, 15, 27_360, 104, 12_934),
)
"""Vocabulary sizes of features 14 to 39: Ghazi et al., Sparsity-Preserving DP Training, tab:feature_size."""

NUMERIC_TRANSFORM = "log(1 + max(x, 0)); blank as 0"


@dataclass
class CriteoKaggleConfig(ClickConfig):
    """``train.txt`` of the Criteo Kaggle challenge (45.8M rows), or its .gz.

    Attributes:
        path: The file. Required.
        on_bad_row: ``stop`` at the first malformed line, or ``skip`` such lines and count them in dataset.json.
    """

    rows_of_a_day: ClassVar[float] = 45_840_617

    name: str = "criteo_kaggle"
    path: str = "???"
    on_bad_row: OnBadRow = "stop"
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: SplitConfig = field(default_factory=SplitConfig)

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows."""
        return {"files": [fingerprint(path) for path in CriteoFiles([Path(self.path)], self.on_bad_row).paths]}

    def source(self, day: int, scratch: Path) -> RowSource:
        """Return the reader of the rows."""
        return CriteoFiles([Path(self.path)], self.on_bad_row)


class CriteoFiles:
    """Rows of files in Criteo's text format, or of its columns as Parquet; each file is one day.

    Args:
        paths: The files, in the order of their days.
        on_bad_row: ``stop`` or ``skip``.
        generated: Whether the files are temporary, generated for this reading.
        first_day: Day of the first file.

    Raises:
        UserError: A file is missing, or is a folder.
    """

    numeric_names = NUMERIC_NAMES
    categorical_names = CATEGORICAL_NAMES
    numeric_transform = NUMERIC_TRANSFORM
    published_sizes: tuple[int, ...] = PUBLISHED_SIZES

    def __init__(self, paths: Sequence[Path], on_bad_row: str, generated: bool = False, first_day: int = 0) -> None:
        self.paths = [Path(path) for path in paths]
        for path in self.paths:
            if not path.is_file():
                problem = f"{path} is a folder, not a file" if path.is_dir() else f"There is no file {path}"
                raise UserError(f"{problem}: set data.path to Criteo's train.txt or train.txt.gz{_guess(path)}.")
        self.rejected = RefusedRows()
        self.excluded = RefusedRows()
        self._on_bad_row = on_bad_row
        self._generated = generated
        self._first_day = first_day
        self._files: list[dict[str, Any]] = []

    def files(self) -> list[dict[str, Any]]:
        """Return path (of generated files the name), size and SHA-256 of each file, as read."""
        return self._files

    def blocks(self, progress: Progress) -> Iterator[RowBlock]:
        """Yield all rows in order.

        Raises:
            UserError: A file cannot be read to its end, or has a malformed line under ``on_bad_row=stop``.
        """
        self.rejected, self._files = RefusedRows(), []
        total = sum(path.stat().st_size for path in self.paths)
        done = 0
        for file, path in enumerate(self.paths):
            reader = lines_of(path)
            start = 0
            for block in reader:
                parsed = parse_block(block)
                self._judge(parsed, f"{path}, {reader.unit}", start)
                label = parsed.label.astype(np.int64)
                yield RowBlock(
                    content=line_content([label, *parsed.integers.T, *parsed.keys.T]),
                    day=np.full(len(parsed.line), self._first_day + file, np.int32),
                    label=parsed.label,
                    numeric=transform(parsed.integers),
                    keys=parsed.keys,
                )
                start = reader.lines
                progress(done + reader.bytes_read, total)
            done += reader.bytes_read
            place = {"generated": path.name} if self._generated else {"path": str(path.absolute())}
            self._files.append({**place, "bytes": reader.bytes_read, "sha256": reader.sha256})

    def _judge(self, parsed: ParsedLines, where: str, start: int) -> None:
        for line, error in parsed.bad:
            place = f"{where} {start + line + 1}: {error}"
            if self._on_bad_row == "stop":
                raise UserError(
                    f"{place}. Correct the file, or set data.on_bad_row=skip to leave out and count such lines."
                )
            self.rejected.add(error.reason, place)


def lines_of(path: Path) -> ParquetLines | LineBlocks:
    """Return the reader of a file's lines in blocks: plain text, gzip or Parquet. It reads no further than iterated."""
    return ParquetLines(path) if is_parquet(path) else LineBlocks(path)


def _guess(path: Path) -> str:
    """Return the file that was probably meant by a folder, as the end of a sentence."""
    inside = [path / name for name in ("train.txt", "train.txt.gz") if (path / name).is_file()]
    return f", here data.path={inside[0]}" if inside else ""


def transform(integers: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return log(1 + max(x, 0)) of counts of shape [n, 13]; blanks are 0 already."""
    assert integers.shape[1] == NUMERIC_FEATURES
    return np.log1p(np.maximum(integers, 0).astype(np.float64)).astype(np.float32)
