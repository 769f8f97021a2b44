"""Tests of the paper's claims about wall-clock time, on results of `dpfest bench embedding`.

Disturbances multiply times rather than add to them, so times are compared as logarithms. `dpfest bench` records the
median, the fastest and the slowest turn: n values within a range R have a standard deviation of at most
R/2 · sqrt(n / (n − 1)). Student's interval with this bound is wider than the turns themselves would give. Common
effects within a turn are not removed either. The interval is for this machine only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from reports.bench import Section, read
from reports.claims.claim import Finding, all_of, finding
from reports.claims.estimate import OPEN, Difference
from reports.entry import Inputs
from reports.published import TAB_WALLCLOCK

SOURCES = {"dense update": ("pytorch dense", "pytorch sparse"), "dense noise": ("dpsgd", "pytorch dense")}
"""Sources of DP-SGD's cost, each with a competitor that has it and one that differs by it."""


def factor(section: Section, rows: int) -> Difference | None:
    """Return the logarithm of the ratio of DP-SGD's step time to DP-AdaFEST's, with its 95% interval, which is infinite
    if one of them had a single turn; None if they were not timed at this size."""
    dense, ours = (section.at(name).get(rows) for name in ("dpsgd", "adafest"))
    if dense is None or ours is None or dense["ratio"] is None or dense["reference"] != "adafest":
        return None
    turns = min(dense["repeats"], ours["repeats"])
    if turns < 2:
        return Difference(math.log(dense["ratio"]), math.inf)
    error = math.hypot(_error(dense), _error(ours))
    return Difference(math.log(dense["ratio"]), error, turns - 1, of=2)  # bounds on both sides, together at 95%


def _error(record: Mapping[str, Any]) -> float:
    """Return an upper bound on the standard error of the mean logarithm of the turns."""
    return math.log(record["max_seconds"] / record["min_seconds"]) / (2 * math.sqrt(record["repeats"] - 1))


def factor_at(rows: int, least: float) -> Callable[[Inputs], Finding]:
    """At this number of rows, a step of DP-SGD takes more than `least` times as long as one of DP-AdaFEST."""

    def test(inputs: Inputs) -> Finding:
        section = read(inputs.report, "embedding")
        measured = factor(section, rows) if section else None
        if section is None or measured is None:
            return finding(OPEN, "not_timed", rows=rows)
        return finding(
            measured.above(math.log(least)),
            "timed",
            ("times the time of a step", math.exp(measured.low), math.exp(measured.high)),
            rows=rows,
            factor=measured,
            turns=section.at("dpsgd")[rows]["repeats"],
            paper=TAB_WALLCLOCK.rows[rows][2],
            machine=section.machine,
        )

    return test


def two_sources(inputs: Inputs) -> Finding:
    """The dense update and the dense noise each add more time to a step of the largest table timed than of the
    smallest, and the ratio of step times is larger there."""
    section = read(inputs.report, "embedding")
    timed = {rows: found for rows in _timed_apart(section) if (found := factor(section, rows))} if section else {}
    if section is None or len(timed) < 2:
        return finding(OPEN, "not_timed_apart")
    small, large = min(timed), max(timed)
    grown = timed[large].minus(timed[small])
    parts = [
        finding(
            grown.above(0),
            "grown",
            ("times the factor", math.exp(grown.low), math.exp(grown.high)),
            small=small,
            large=large,
            factors=(timed[small], timed[large]),
            grown=grown,
        )
    ]
    for source, (slow, fast) in SOURCES.items():
        first, last = (_milliseconds(section, slow, fast, rows) for rows in (small, large))
        added = last.minus(first)
        interval = (f"ms more for the {source}", added.low, added.high)
        parts.append(finding(added.above(0), "source", interval, source=source, first=first, last=last, added=added))
    return all_of(parts, "two_sources", machine=section.machine)


def _timed_apart(section: Section) -> list[int]:
    """Return the sizes at which all competitors of SOURCES were timed, in two turns or more."""
    timed = [section.at(name) for pair in SOURCES.values() for name in pair]
    return [rows for rows in timed[0] if all(rows in of and of[rows]["repeats"] > 1 for of in timed)]


def _milliseconds(section: Section, slow: str, fast: str, rows: int) -> Difference:
    """Return the time that a step of one competitor takes longer than one of another."""
    records = [section.at(name)[rows] for name in (slow, fast)]
    errors = [(one["max_seconds"] - one["min_seconds"]) / (2 * math.sqrt(one["repeats"] - 1)) for one in records]
    difference = records[0]["median_seconds"] - records[1]["median_seconds"]
    return Difference(1e3 * difference, 1e3 * math.hypot(*errors), min(one["repeats"] for one in records) - 1, of=2)
