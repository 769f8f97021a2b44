"""Section `table`: a Parquet file of one's own as rows, against polars' own scan and hash of the same columns.

Times are CPU seconds of all threads: other processes of a shared machine disturb them least. The files are generated
once, under ``<paths.data>/bench``, and kept. Every competitor has a process of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import torch

from pipelines.bench.measure import Turn, take_turns
from pipelines.bench.records import Record, records
from pipelines.bench.worker import Worker
from pipelines.config.settings import Config
from pipelines.data.clicks.table import TableConfig
from pipelines.preprocess import preprocess
from pipelines.system.files import write_atomically
from pipelines.system.progress import progress

REFERENCE, READ, WHOLE = "polars scan and hash", "rows of data=table", "dpfest preprocess"
_REPEATS = 5
_DISTINCT = {"user": 500_000, "page": 5_000, "advert": 100_000, "site": 2_000, "hour": 24}
_TABLE = TableConfig(
    label="label",
    categorical=dict(_DISTINCT),
    numeric={"price": "log1p", "age": "standard(40, 15)", "score": "none"},
)


def bench(config: Config, repeats: int) -> list[Record]:
    """Time every competitor on a file of each size."""
    measured = []
    for rows in config.bench.preprocess_rows:
        path = file(Path(config.paths.data), rows)
        with progress(f"table of {rows:,} rows"):
            measured += _of(path, rows, config, min(repeats, _REPEATS))
    return measured


def file(data: Path, rows: int) -> Path:
    """Return a Parquet file of clicks: two columns of texts, three of integers, three of floats, generated unless it
    exists."""
    path = data / "bench" / f"{rows}-rows.parquet"
    if not path.exists():
        write_atomically(path, lambda partial: _clicks(rows).write_parquet(partial))
    return path


def _clicks(rows: int) -> pl.DataFrame:
    random = np.random.default_rng(0)
    drawn = {name: pl.Series(random.zipf(1.2, rows) % count) for name, count in _DISTINCT.items()}
    numbers = pl.DataFrame({"label": random.integers(0, 2, rows), **drawn, "price": random.lognormal(2, 1, rows)})
    age, score = random.integers(18, 80, rows), random.normal(size=rows)
    return numbers.with_columns(
        pl.format("user-{}", pl.col("user") + 10_000_000).alias("user"),
        pl.format("/category/{}/item/{}", pl.col("page") % 97, "page").alias("page"),
        pl.Series("age", age.astype(np.float64)).replace(33.0, None),
        pl.Series("score", score),
    )


def _of(path: Path, rows: int, config: Config, repeats: int) -> list[Record]:
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch, contextlib.ExitStack() as stack:
        made = {name: stack.enter_context(Worker(work, config, path, Path(scratch))) for name, work in WORK.items()}
        times = take_turns(made, REFERENCE, repeats=repeats, seconds=config.bench.seconds, warm_up=1)
        peaks = {name: worker.peak(torch.device("cpu")) for name, worker in made.items()}
    case, size = f"{rows:,} rows of Parquet, CPU time", path.stat().st_size
    return records(times, REFERENCE, peaks=peaks, section="table", case=case, rows=rows, bytes=size)


def with_polars(config: Config, path: Path, scratch: Path) -> Turn:
    """Scan the columns with polars, and hash those of categories."""
    wanted = [_TABLE.label, *_TABLE.numeric, *(pl.col(name).hash() for name in _TABLE.categorical)]
    return _timed(lambda: pl.scan_parquet(path).select(wanted).collect(engine="streaming"))


def rows_alone(config: Config, path: Path, scratch: Path) -> Turn:
    """Make all rows of the file, without vocabulary, split or dataset."""

    def read() -> None:
        for _ in dataclasses.replace(_TABLE, path=str(path)).source(0, scratch).blocks(lambda done, total: None):
            pass

    return _timed(read)


def whole(config: Config, path: Path, scratch: Path) -> Turn:
    """Run `dpfest preprocess` on the file, into a folder that is then removed."""
    data = dataclasses.replace(_TABLE, path=str(path))
    into = dataclasses.replace(config.paths, data=str(scratch / "ours"))

    def write() -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            shutil.rmtree(preprocess(dataclasses.replace(config, data=data, paths=into)))

    return _timed(write)


def _timed(work: Callable[[], object]) -> Turn:
    def turn(number: int) -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    return turn


WORK = {REFERENCE: with_polars, READ: rows_alone, WHOLE: whole}
