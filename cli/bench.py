"""`dpfest bench`: run a section and print its table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from cli import tasks
from cli.launch import HydraLine, launch

if TYPE_CHECKING:
    from pipelines.bench.records import Record


DATA = "data=criteo_synthetic"
"""The data of a section unless another is named: in Criteo's layout, with the paper's model and batch size."""


def run_bench(arguments: Sequence[str], section: str, repeats: int) -> None:
    """Run a section under the configuration that `arguments` compose.

    Raises:
        UserError: an unknown section or a wrong configuration.
    """
    line = HydraLine.read(arguments)
    if line.only_shows:
        launch(tasks.nothing, arguments)
        return
    from pipelines.bench.sections import bench
    from pipelines.config.compose import Composer
    from pipelines.config.settings import typed

    data = [] if any(text.startswith("data=") for text in line.overrides) else [DATA]
    path, records = bench(section, typed(Composer(line.config_dir).compose([*data, *line.overrides])), repeats)
    for case, group in groupby(records, key=lambda record: record.case):
        print(_table(case, list(group)))
    print(path)


def _table(case: str, records: Sequence[Record]) -> str:
    """Format a case's records as a table without empty columns; a star marks the reference."""
    columns = {
        "competitor": [record.competitor + "*" * (record.competitor == record.reference) for record in records],
        "ratio": ["" if record.ratio is None else format(record.ratio, ",.3f") for record in records],
        "median": [_milliseconds(record.median_seconds) for record in records],
        "min": [_milliseconds(record.min_seconds) for record in records],
        "max": [_milliseconds(record.max_seconds) for record in records],
        "turns": [str(record.repeats or "") for record in records],
        "peak": [_megabytes(record.peak_bytes) for record in records],
        "working": [_megabytes(record.working_bytes) for record in records],
    }
    aligned = [_aligned([title, *cells]) for title, cells in columns.items() if any(cells)]
    remarks = ["", *("  ".join(filter(None, (_speed(record), _work(record), record.note))) for record in records)]
    lines = ["  ".join(["", *cells]).rstrip() for cells in zip(*aligned, remarks, strict=True)]
    return "\n".join([case, *lines]) + "\n"


def _aligned(cells: Sequence[str]) -> list[str]:
    """Align a column: names to the left, numbers to the right."""
    wide, names = max(map(len, cells)), cells[0] == "competitor"
    return [cell.ljust(wide) if names else cell.rjust(wide) for cell in cells]


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:,.3f} ms"


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:,.0f} MB"


def _speed(record: Record) -> str | None:
    if not (record.rows and record.bytes and record.median_seconds):
        return None
    rows, size = record.rows / record.median_seconds, record.bytes / record.median_seconds
    return f"{rows:,.0f} rows/s, {size / 1e6:,.1f} MB/s"


def _work(record: Record) -> str | None:
    if not record.values:
        return None
    operations, waits, busy = (record.values[name] for name in ("operations", "waits", "device_seconds"))
    return f"{operations:,.0f} operations, {waits} waits, {_milliseconds(busy)} busy"
