"""Criteo's 1 TB click logs: ``day_0.gz`` to ``day_23.gz`` as published, unpacked, or as Parquet."""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dpfest.errors import UserError
from pipelines.data.clicks.config import ClickConfig
from pipelines.data.clicks.criteo import CriteoFiles
from pipelines.data.clicks.source import RowSource
from pipelines.data.clicks.split import DaySplitConfig
from pipelines.data.clicks.vocabulary import VocabularyConfig, hashed_vocabulary, table_rows
from pipelines.data.estimate import Estimate
from pipelines.data.source import OnBadRow
from pipelines.system.checksum import fingerprint
from pipelines.system.ranges import Day, Days

_SAMPLE_BLOCKS = 6
_DAY_FILE = re.compile(r"day_(\d+)(\.(tsv|txt))?(\.gz)?|day_(\d+)\.parquet")


@dataclass
class Criteo1TBConfig(ClickConfig):
    """The days of Criteo's 1 TB click logs (about 190M rows each), or files of their format.

    Attributes:
        path: The folder of the files. Required.
        days: Number of days, from day 0 on; or a list of day numbers, as in [0,1,5].
        on_bad_row: ``stop`` a day at its first malformed line, or ``skip`` such lines and count them in the day's
            dataset.json.
    """

    is_stream: ClassVar[bool] = True
    rows_of_a_day: ClassVar[float] = 4_373_472_329 / 24

    name: str = "criteo_1tb"
    path: str = "???"
    days: Days | list[Day] = 24
    on_bad_row: OnBadRow = "stop"
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: DaySplitConfig = field(default_factory=DaySplitConfig)

    def check(self) -> None:
        """Raise UserError for an invalid setting."""
        super().check()
        numbers = self.day_numbers()
        if not numbers or numbers[0] < 0 or any(a >= b for a, b in itertools.pairwise(numbers)):
            raise UserError(
                f"data.days must be a number of days above 0, or increasing day numbers as in [0,1,5], but it is "
                f"{self.days}."
            )

    def day_numbers(self) -> list[int]:
        """Return the number of each day of the stream, increasing."""
        return list(range(self.days)) if isinstance(self.days, int) else list(self.days)

    def identity(self, day: int) -> dict[str, Any]:
        """Return everything that determines the rows of a day; raises UserError if its file is missing."""
        return {"file": fingerprint(self._file(day)), "day": day}

    def source(self, day: int, scratch: Path) -> RowSource:
        """Return the reader of a day's rows."""
        return CriteoFiles([self._file(day)], self.on_bad_row, first_day=day)

    def estimates(self, days: list[int]) -> dict[int, Estimate]:
        """Estimate days by their file size and a sample of one day per kind of file; zero for a kind that cannot be
        read."""
        files = {day: self._file(day) for day in days}
        sizes = {day: max(1, file.stat().st_size) for day, file in files.items()}
        of_a_byte: dict[str, Estimate] = {}
        for file in files.values():
            if file.suffix not in of_a_byte:
                sample = sampled(CriteoFiles([file], "skip"), self.vocabulary)
                if sample.rows:
                    of_a_byte[file.suffix] = sample
        return {day: of_a_byte.get(file.suffix, Estimate(0)).times(sizes[day]) for day, file in files.items()}

    def _file(self, day: int) -> Path:
        """Return the file of a day."""
        files = self._files()
        if day not in files:
            missing = [number for number in self.day_numbers() if number not in files]
            there = [number for number in self.day_numbers() if number in files]
            raise UserError(
                f"{self.path} has no file for day {', '.join(map(str, missing))}: each needs day_N.gz, day_N.tsv or "
                f"day_N.parquet. Fetch what is missing"
                + (f", or leave it out: data.days=[{','.join(map(str, there))}]." if there else ".")
            )
        return files[day]

    def _files(self) -> dict[int, Path]:
        folder = Path(self.path)
        if not folder.is_dir():
            problem = f"{folder} is a file, not a folder" if folder.exists() else f"There is no folder {folder}"
            raise UserError(f"{problem}: set data.path to the folder that holds day_0.gz, day_1.gz, ….")
        files: dict[int, Path] = {}
        asked = set(self.day_numbers())
        for path in sorted(folder.iterdir()):
            if not (match := _DAY_FILE.fullmatch(path.name)):
                continue
            day = int(match[1] or match[5])
            if day in asked and path.is_dir():
                raise UserError(f"{path} is a folder, but a day is one file.")
            if day in files and day not in asked:
                continue
            if day in files:
                raise UserError(
                    f"Day {day} has two files, {files[day].name} and {path.name} in {folder}: move one of them away."
                )
            files[day] = path
        if not files:
            held = ", ".join(sorted(path.name for path in folder.iterdir())[:5])
            inside = [path.parent for path in sorted(folder.glob("*/day_*")) if _DAY_FILE.fullmatch(path.name)]
            guess = f"; did you mean data.path={inside[0]}?" if inside else f" (it holds {held or 'nothing'})."
            raise UserError(f"{folder} holds none of day_0.gz, day_1.gz, …{guess}")
        return files


def sampled(source: RowSource, vocabulary: VocabularyConfig) -> Estimate:
    """Estimate rows and seconds per byte of a source from its first blocks; zero rows if none can be read."""
    buckets = hashed_vocabulary(vocabulary, source.published_sizes)
    rows, bytes_done, times = [0], [0], [time.monotonic()]
    try:
        # A reader reports its progress on a block when the next one is requested.
        for block in source.blocks(lambda done, total: bytes_done.append(done)):
            table_rows(buckets, block.keys)
            rows.append(rows[-1] + len(block.label))
            times.append(time.monotonic())
            if len(rows) > _SAMPLE_BLOCKS:
                break
    except UserError:
        pass  # preprocessing the day reports the error
    last = len(bytes_done) - 1
    # Reading is ahead of parsing, by the same amount at every block but the first.
    first = 1 if last > 1 and bytes_done[last] > bytes_done[1] else 0
    if bytes_done[last] == bytes_done[first]:
        return Estimate(0)
    measured = Estimate(rows[last] - rows[first], times[last] - times[first])
    return measured.times(1 / (bytes_done[last] - bytes_done[first]))
