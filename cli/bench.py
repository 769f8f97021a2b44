"""`dpfest bench`: runs a section and prints its table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from cli import tasks
from cli.launch import HydraLine, launch

if TYPE_CHECKING:
    from pipelines.bench.records import Record


def run_bench(arguments: Sequence[str], section: str, repeats: int) -> None:
    """Measure a section under the configuration that `arguments` ask for.

    Raises:
        UserError: a section that does not exist, or a wrong configuration.
    """
    line = HydraLine.read(arguments)
    if line.only_shows:
        launch(tasks.nothing, arguments)
        return
    from pipelines.bench.sections import bench
    from pipelines.compose import Composer
    from pipelines.config import typed

    path, records = bench(section, typed(Composer(line.config_dir).compose(line.overrides)), repeats)
    for case, found in groupby(records, key=lambda record: record.case):
        print(_table(case, list(found)))
    print(path)


def _table(case: str, records: Sequence[Record]) -> str:
    """A case's records under its name; the ratio is to the one marked with a star."""
    wide = max(len(record.competitor) for record in records) + 1
    lines = [
        f"{case}",
        f"  {'competitor':<{wide}} {'ratio':>9} {'median':>11} {'min':>11} {'max':>11} {'turns':>5} "
        f"{'peak':>9} {'working':>9}",
    ]
    for record in records:
        name = record.competitor + "*" * (record.competitor == record.reference)
        times = (record.median_seconds, record.min_seconds, record.max_seconds)
        cells = [
            f"{'' if record.ratio is None else format(record.ratio, ',.3f'):>9}",
            *(f"{'' if seconds is None else f'{1e3 * seconds:,.3f} ms':>11}" for seconds in times),
            f"{record.repeats or '':>5}",
            *(f"{_megabytes(size):>9}" for size in (record.peak_bytes, record.working_bytes)),
        ]
        words = [_speed(record), record.note]
        lines.append("  ".join([f"  {name:<{wide}} {' '.join(cells)}", *filter(None, words)]).rstrip())
    return "\n".join(lines) + "\n"


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:,.0f} MB"


def _speed(record: Record) -> str | None:
    if not (record.rows and record.bytes and record.median_seconds):
        return None
    rows, size = record.rows / record.median_seconds, record.bytes / record.median_seconds
    return f"{rows:,.0f} rows/s, {size / 1e6:,.1f} MB/s"
