"""`dpfest watch`: how the latest sweep of a folder is getting on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from dpfest.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from pipelines.runs.watch import SweepNow

REFRESH_SECONDS = 2.0
_SHOWN = 20


def run_watch(runs: str) -> None:
    """Show the sweep until it has ended, anew every two seconds on a terminal; elsewhere once.

    Raises:
        UserError: no sweep has run there.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not console.is_terminal:
        print(_text(_found(runs)))
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            now = _found(runs)
            live.update(_drawn(now), refresh=True)
            if now.stands_still or not now.of("waiting", "running", "silent"):
                return
            time.sleep(REFRESH_SECONDS)


def _found(runs: str) -> SweepNow:
    from pipelines.runs.watch import sweep_now

    now = sweep_now(Path(runs))
    if now is None:
        raise UserError(f"No sweep has made runs in {runs}: name its folder, as in `dpfest watch runs`.")
    return now


def _headline(now: SweepNow) -> str:
    from pipelines.system.progress import duration

    counts = {
        status: len(now.of(status)) for status in ("done", "running", "silent", "failed", "interrupted", "waiting")
    }
    words = [f"{count} {status}" for status, count in counts.items() if count]
    left = now.seconds_left
    rest = f"; about {duration(left)} left" if left else ""
    if now.stands_still:
        rest = "; nothing is running: the sweep's own command goes on with them"
    several = "s" * (len(now.runs) != 1)
    return f"{len(now.runs)} run{several}, {duration(now.seconds)} after the start: {', '.join(words)}{rest}"


def _lines(now: SweepNow) -> list[tuple[str, str, str]]:
    return [(run.status, run.name, run.words) for run in now.of("running", "silent", "failed", "interrupted")][:_SHOWN]


def _text(now: SweepNow) -> str:
    return "\n".join(
        [_headline(now), *(f"{status:<11} {name}  {words}".rstrip() for status, name, words in _lines(now))]
    )


def _drawn(now: SweepNow) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=_headline(now), title_justify="left", box=None, show_header=False, expand=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for cells in _lines(now):
        table.add_row(*map(Text, cells))
    return table
