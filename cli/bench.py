"""`dpfest bench`: runs a section and prints its table."""

from __future__ import annotations

from collections.abc import Sequence

from cli import tasks
from cli.launch import HydraLine, launch


def run_bench(arguments: Sequence[str], section: str, repeats: int) -> None:
    """Measure a section under the configuration that `arguments` ask for.

    Raises:
        UserError: a section that does not exist, or a wrong configuration.
    """
    line = HydraLine.read(arguments)
    if line.only_shows:
        launch(tasks.nothing, arguments)
        return
    from pipelines.bench import bench
    from pipelines.compose import Composer
    from pipelines.config import typed

    path, records = bench(section, typed(Composer(line.config_dir).compose(line.overrides)), repeats)
    print(f"{'competitor':<16} {'ratio':>6} {'median':>9} {'min':>9} {'max':>9} {'peak':>8}")
    for record in records:
        times = (record.median_seconds, record.min_seconds, record.max_seconds)
        print(
            f"{record.competitor:<16} {record.ratio:>6.2f} "
            + " ".join(f"{1e3 * value:>6.1f} ms" for value in times)
            + f" {record.peak_bytes / 2**20:>5.0f} MB"
        )
    print(path)
