"""What long work says of itself: a live line on a terminal, a plain line every few seconds in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_INTERVAL_SECONDS = 10.0


class Report(Protocol):
    """Say that ``done`` units of work are done, and a few words about them."""

    def __call__(self, done: int, text: str = "") -> None: ...


@contextmanager
def progress(title: str, total: int) -> Iterator[Report]:
    """Report on work of ``total`` units."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = [
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[words]}"),
        ]
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(title, total=total, words="")
            yield lambda done, text="": bar.update(task, completed=done, words=text)
        return

    started = last = time.monotonic()

    def plain(done: int, text: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PLAIN_INTERVAL_SECONDS or done >= total:
            last = now
            print(f"{title}: {done}/{total} after {now - started:.0f} s  {text}", file=sys.stderr, flush=True)

    yield plain
