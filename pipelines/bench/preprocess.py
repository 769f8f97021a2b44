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
from importlib.util import find_spec
from pathlib import Path

import torch

from pipelines.bench.measure import take_turns
from pipelines.bench.pandas_way import convert
from pipelines.bench.records import Record, records
from pipelines.bench.worker import Worker
from pipelines.config.settings import Config
from pipelines.data.clicks.criteo import CriteoKaggleConfig
from pipelines.data.clicks.synthetic import CriteoSyntheticConfig, write_criteo_files
from pipelines.preprocess import preprocess
from pipelines.system.files import whole_folder, write_atomically
from pipelines.system.progress import progress

REFERENCE, OURS, PANDAS = "read and count lines", "dpfest preprocess", "pandas"
ABSENT = "absent: pandas is not installed (pip install -e '.[peers]')"
_REPEATS, _PIECE = 3, 1 << 20


def bench(config: Config, repeats: int) -> list[Record]:
    """Time every competitor on a plain and a gzipped file of each size."""
    measured = []
    for rows in config.bench.preprocess_rows:
        for path in files(Path(config.paths.data), rows):
            with progress(f"preprocess {path.parent.name}/{path.name}"):
                measured += _of(path, rows, config, min(repeats, _REPEATS))
    return measured


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


def _of(path: Path, rows: int, config: Config, repeats: int) -> list[Record]:
    notes = {} if find_spec("pandas") else {PANDAS: ABSENT}
    names = [name for name in (REFERENCE, OURS, PANDAS) if name not in notes]
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch, contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(WORK[name], config, path, Path(scratch))) for name in names}
        times = take_turns(workers, REFERENCE, repeats=repeats, seconds=config.bench.seconds, warm_up=0, least=1)
        cpu = torch.device("cpu")
        peaks = {name: worker.peak(cpu) for name, worker in workers.items()}
    return records(
        times,
        REFERENCE,
        peaks=peaks,
        notes=notes,
        section="preprocess",
        case=f"{rows:,} rows, {'.gz' if path.suffix == '.gz' else 'plain'}",
        rows=rows,
        bytes=path.stat().st_size,
    )


def counting(config: Config, path: Path, scratch: Path) -> Callable[[int], float]:
    """Read (and unpack) the file and count its lines: the floor."""

    def turn(number: int) -> float:
        started, lines = time.perf_counter(), 0
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb", buffering=0) as stream:
            while piece := stream.read(_PIECE):
                lines += piece.count(b"\n")
        return time.perf_counter() - started

    return turn


def ours(config: Config, path: Path, scratch: Path) -> Callable[[int], float]:
    """Run `dpfest preprocess` on the file, into a folder that is then removed."""
    data = CriteoKaggleConfig(path=str(path))
    into = dataclasses.replace(config.paths, data=str(scratch / "ours"))

    def turn(number: int) -> float:
        started = time.perf_counter()
        with contextlib.redirect_stderr(io.StringIO()):
            folder = preprocess(dataclasses.replace(config, data=data, paths=into))
        taken = time.perf_counter() - started
        shutil.rmtree(folder)
        return taken

    return turn


def with_pandas(config: Config, path: Path, scratch: Path) -> Callable[[int], float]:
    """Preprocess with pandas into a folder that is then removed."""
    import pandas  # noqa: F401  (its import is not timed)

    def turn(number: int) -> float:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            started = time.perf_counter()
            convert(path, Path(folder))
            return time.perf_counter() - started

    return turn


WORK = {REFERENCE: counting, OURS: ours, PANDAS: with_pandas}
