"""Section `table`: a Parquet file of one's own as rows, against polars' own scan and hash of the same columns.

Times are CPU seconds of all threads: other processes of a shared machine disturb them least. The files are generated
once, under ``<paths.data>/bench``, and kept. Every competitor has a process of its own.
"""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.bench.case import Case
from pipelines.bench.measure import Turn, timed
from pipelines.bench.preprocess import ours
from pipelines.config.settings import Config
from pipelines.data.clicks.table import TableConfig
from pipelines.system.files import write_atomically

REFERENCE, READ, WHOLE = "polars scan and hash", "rows of data=table", "dpfest preprocess"
_DISTINCT = {"user": 500_000, "page": 5_000, "advert": 100_000, "site": 2_000, "hour": 24}
_TABLE = TableConfig(
    label="label",
    categorical=dict(_DISTINCT),
    numeric={"price": "log1p", "age": "standard(40, 15)", "score": "none"},
)


def cases(config: Config) -> list[Case]:
    """Return a file of each size."""
    return [_case(file(Path(config.paths.data), rows), rows, config) for rows in config.bench.preprocess_rows]


def _case(path: Path, rows: int, config: Config) -> Case:
    data = dataclasses.replace(_TABLE, path=str(path))
    return Case(
        name=f"{rows:,} rows of Parquet, CPU time",
        reference=REFERENCE,
        competitors={
            REFERENCE: partial(in_polars, path),
            READ: partial(rows_alone, data, path),
            WHOLE: partial(ours, data, config, path, time.process_time),
        },
        apart=True,
        long_turns=5,
        fields={"rows": rows, "bytes": path.stat().st_size},
    )


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


def in_polars(path: Path) -> Turn:
    """Scan the columns with polars, and hash those of categories."""
    wanted = [_TABLE.label, *_TABLE.numeric, *(pl.col(name).hash() for name in _TABLE.categorical)]
    return timed(lambda: pl.scan_parquet(path).select(wanted).collect(engine="streaming"), time.process_time)


def rows_alone(data: TableConfig, path: Path) -> Turn:
    """Make all rows of the file, without vocabulary, split or dataset."""

    def read() -> None:
        for _ in data.source(0, path.parent).blocks(lambda done, total: None):
            pass

    return timed(read, time.process_time)
