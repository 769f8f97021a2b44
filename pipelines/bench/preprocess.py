"""Section `preprocess`: from a Criteo file to a dataset, against reading the same bytes and counting their lines.

The files are generated once, under ``<paths.data>/bench``, and kept. Every competitor has a process of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pipelines.bench.case import Case, without
from pipelines.bench.measure import Turn, timed
from pipelines.bench.pandas_way import convert
from pipelines.config.settings import Config
from pipelines.data.clicks.criteo import CriteoKaggleConfig
from pipelines.data.clicks.synthetic import CriteoSyntheticConfig, write_criteo_files
from pipelines.data.source import DataConfig
from pipelines.preprocess import preprocess
from pipelines.system.files import whole_folder, write_atomically
from pipelines.system.progress import progress

REFERENCE, OURS, PANDAS = "read and count lines", "dpfest preprocess", "pandas"
_PIECE = 1 << 20


def cases(config: Config) -> list[Case]:
    """Return a plain and a gzipped file of each size."""
    return [
        Case(
            name=f"{rows:,} rows, {'.gz' if path.suffix == '.gz' else 'plain'}",
            reference=REFERENCE,
            competitors={
                REFERENCE: partial(counting, path),
                OURS: partial(ours, CriteoKaggleConfig(path=str(path)), config, path),
                PANDAS: partial(in_pandas, path),
            },
            apart=True,
            left_out=without("pandas", PANDAS),
            long_turns=3,
            fields={"rows": rows, "bytes": path.stat().st_size},
        )
        for rows in config.bench.preprocess_rows
        for path in files(Path(config.paths.data), rows)
    ]


def files(data: Path, rows: int) -> tuple[Path, Path]:
    """Return a plain and a gzipped Criteo file with the same rows, generated unless they exist."""
    folder = data / "bench" / f"{rows}-rows"
    if not folder.exists():
        with whole_folder(folder) as partial, progress(f"writing {rows:,} rows of text") as report:
            config = CriteoSyntheticConfig(rows=rows)
            write_criteo_files(partial, config, config.rows_of_days(), report)
    plain, packed = folder / "day_0.txt", folder / "day_0.txt.gz"
    if not packed.exists():
        write_atomically(packed, lambda partial: _pack(plain, partial))
    return plain, packed


def _pack(plain: Path, packed: Path) -> None:
    with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as stream:
        shutil.copyfileobj(source, stream, _PIECE)


def counting(path: Path) -> Turn:
    """Read (and unpack) the file and count its lines: the floor."""

    def count() -> None:
        lines = 0
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb", buffering=0) as stream:
            while piece := stream.read(_PIECE):
                lines += piece.count(b"\n")

    return timed(count)


def ours(data: DataConfig, config: Config, path: Path, clock: Callable[[], float] = time.perf_counter) -> Turn:
    """Run `dpfest preprocess` on these data, into a folder beside the file that is then removed."""

    def write(folder: Path) -> None:
        into = dataclasses.replace(config.paths, data=str(folder))
        with contextlib.redirect_stderr(io.StringIO()):
            preprocess(dataclasses.replace(config, data=data, paths=into))

    return _into_a_folder(write, path, clock)


def in_pandas(path: Path) -> Turn:
    """Preprocess with pandas into a folder beside the file that is then removed."""
    import pandas  # noqa: F401  (its import is not timed)

    return _into_a_folder(partial(convert, path), path)


def _into_a_folder(write: Callable[[Path], None], beside: Path, clock: Callable[[], float] = time.perf_counter) -> Turn:
    def turn(number: int) -> float:
        with tempfile.TemporaryDirectory(dir=beside.parent) as folder:
            return timed(lambda: write(Path(folder)), clock)(number)

    return turn
