"""Progress of long work: a live bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text


class Reporter(Protocol):
    """Report that ``done`` of ``total`` units of work are done, with a short remark."""

    def __call__(self, done: int, total: int, words: str = "") -> None: ...


@contextmanager
def progress(title: str, interval: float = 10.0) -> Iterator[Reporter]:
    """Show the progress of work on standard error; yields its reporter.

    On a terminal this is a bar with the remark below it. Elsewhere it is a line at the start, one per report but at
    most one every ``interval`` seconds (0: every report), and one with the elapsed seconds at the end.
    """
    console = Console(stderr=True)
    with _bar(title, console) if console.is_terminal else _lines(title, interval) as report:
        yield report


class _Bar(Progress):
    """A line of title, bar, count and remaining time, and a line of remarks, both cut to the terminal's width."""

    words = ""

    def __init__(self, console: Console) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            _CountColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            console=console,
            expand=True,
        )

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.words:
            yield Text(self.words, no_wrap=True, overflow="ellipsis")


class _CountColumn(TextColumn):
    def __init__(self, table_column: Column) -> None:
        super().__init__("", table_column=table_column)

    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else _count(int(task.completed), int(task.total)))


@contextmanager
def _bar(title: str, console: Console) -> Iterator[Reporter]:
    with _Bar(console) as bar:
        task = bar.add_task(title, total=None)

        def report(done: int, total: int, words: str = "") -> None:
            bar.words = words
            bar.update(task, completed=done, total=total)

        yield report


@contextmanager
def _lines(title: str, interval: float) -> Iterator[Reporter]:
    started = time.monotonic()
    reported = started

    def say(text: str) -> None:
        print(f"{title}{text}".rstrip(), file=sys.stderr, flush=True)

    def report(done: int, total: int, words: str = "") -> None:
        nonlocal reported
        now = time.monotonic()
        if now - reported >= interval:
            reported = now
            say(f": {_count(done, total)} after {now - started:.0f} s  {words}")

    say(" …")
    yield report
    say(f": done in {time.monotonic() - started:.1f} s")


def duration(seconds: float) -> str:
    """Format a duration in its two largest units: 3 d 4 h, 2 h 10 min, 5 min 20 s, 12 s."""
    for unit, part, size, parts in (("d", "h", 86_400, 3_600), ("h", "min", 3_600, 60), ("min", "s", 60, 1)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} {int(seconds % size // parts)} {part}"
    return f"{seconds:.0f} s"


def _count(done: int, total: int) -> str:
    """Format done and total: steps exactly, bytes in millions."""
    if total < 10_000_000:
        return f"{done:,}/{total:,}"
    return f"{done / 1e6:,.0f}M/{total / 1e6:,.0f}M"
