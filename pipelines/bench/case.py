"""A case of a benchmark, which is what competitors do under one setting; and its measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch

from pipelines.bench.measure import Times, Turn, take_turns
from pipelines.bench.records import Record, records
from pipelines.bench.worker import Peak, Worker, WorkerError, available_bytes
from pipelines.config.settings import Config

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Competitors under one setting.

    Competitors take turns in this process, on what they share, and those in ``memory`` take a few steps in a process of
    their own. Or each takes all of its turns ``apart``, in such a process, after its memory was measured there.

    Attributes:
        name: description of the setting in records and tables.
        reference: competitor to whose times those of the others are relative.
        competitors: what makes each one's turns, of what is ``shared``, if anything is. For another process, a
            module-level function or a partial of one.
        shared: makes what they share, such as tables; in a process of its own a competitor has its own.
        apart: whether each has a process of its own.
        limit: share of the available memory that such a process may take. Then one that fails, unless it is the
            reference, takes no turns, and its note says why; None for no limit.
        memory: whose memory is measured, of competitors that take turns in this process.
        device: where memory is measured.
        notes: remarks, by competitor; a turn with a ``note`` has another, which is taken at the end.
        left_out: competitors that take no turns, and why.
        asked_for: what a competitor needs that may fail.
        long_turns: of how many turns of seconds or minutes there are at most; they need no warm-up, and one may have
            to do. None for as many short ones as asked for.
        fields: further fields of the records.
        values: what else is measured of a competitor, of what is shared, after all turns in this process.
    """

    name: str
    reference: str
    competitors: Mapping[str, Callable[..., Turn]]
    shared: Callable[[], Any] | None = None
    apart: bool = False
    limit: float | None = None
    memory: Collection[str] = ()
    device: torch.device = CPU
    notes: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    asked_for: Mapping[str, str] = field(default_factory=dict)
    long_turns: int | None = None
    fields: Mapping[str, int | None] = field(default_factory=dict)
    values: Mapping[str, Callable[..., dict[str, Any]]] = field(default_factory=dict)

    @property
    def timed(self) -> dict[str, Callable[..., Turn]]:
        """The competitors that take turns."""
        return {name: make for name, make in self.competitors.items() if name not in self.left_out}


def measured(case: Case, section: str, config: Config, repeats: int) -> list[Record]:
    """Measure a case in up to ``repeats`` turns of each competitor.

    Raises:
        WorkerError: a competitor fails that has no memory limit, or is the reference.
    """
    notes, peaks, values = {**case.notes, **case.left_out}, dict[str, Peak](), dict[str, dict[str, Any]]()

    def taken(turns: Mapping[str, Turn]) -> Times:
        how: dict[str, Any] = {"repeats": repeats, "seconds": config.bench.seconds}
        if case.long_turns is not None:
            how |= {"repeats": min(repeats, case.long_turns), "warm_up": 0, "least": 1}
        return take_turns(turns, case.reference, **how)

    if case.apart:
        with ExitStack() as processes:
            workers = _workers(case, processes, peaks, notes)
            times = taken(workers)
            notes |= {name: note for name, worker in workers.items() if (note := worker.note) is not None}
    else:
        shared = () if case.shared is None else (case.shared(),)
        times = taken({name: make(*shared) for name, make in case.timed.items()})
        values = {name: measure(*shared) for name, measure in case.values.items() if name in times}
        del shared  # they and their tables are gone before the processes below have their own
        for name in (name for name in case.timed if name in case.memory):
            with Worker(case.timed[name], case.shared) as worker:
                peaks[name] = worker.peak(case.device)
    common = {"section": section, "case": case.name, **case.fields}
    return records(times, case.reference, peaks=peaks, notes=notes, values=values, **common)


def _workers(case: Case, processes: ExitStack, peaks: dict[str, Peak], notes: dict[str, str]) -> dict[str, Worker]:
    """Return a process for each competitor that does not fail, with the peaks of these and the notes of the others."""
    workers = {}
    for name, make in case.timed.items():
        limit = None if case.limit is None else int(case.limit * available_bytes())
        try:
            worker = processes.enter_context(Worker(make, case.shared, memory=limit))
            peaks[name] = worker.peak(case.device)
        except WorkerError as error:
            if limit is None or name == case.reference:
                raise
            asked = f"; {case.asked_for[name]}" if name in case.asked_for else ""
            notes[name] = f"failed within {limit / 2**30:.1f} GiB: {error}{asked}"
        else:
            workers[name] = worker
    return workers


def without(package: str, *names: str) -> dict[str, str]:
    """Return that these competitors are absent, unless the package that they need is installed."""
    why = f"absent: {package} is not installed (pip install -e '.[peers]')"
    return {} if find_spec(package) else dict.fromkeys(names, why)


def sizes_up_to(largest: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes up to `largest`, with larger ones replaced by `largest` rounded down to two digits."""
    if largest < sizes[-1]:
        unit = 10 ** max(0, math.floor(math.log10(largest)) - 1)
        largest = largest // unit * unit
    return tuple(sorted({min(size, largest) for size in sizes}))
