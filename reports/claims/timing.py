"""Tests of what the paper says of wall-clock time, on what `dpfest bench embedding` left.

Times are multiplied, not added to, by what disturbs a turn, so they are compared as logarithms. `dpfest bench` keeps
the median, the fastest and the slowest of its turns: n values within a range R have a standard deviation of at most
R/2 · sqrt(n / (n − 1)), and with that Student's interval is wider than the turns themselves would make it, not
narrower. What a machine does to both in the same turn is not taken out of it either. It is of this machine alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from scipy import stats

from reports.bench import Section, read
from reports.claims.claim import Finding, finding
from reports.claims.estimate import OPEN, Difference
from reports.entry import Inputs
from reports.published import TAB_WALLCLOCK


def factor(section: Section, rows: int) -> Difference | None:
    """The logarithm of how many times as long a step of DP-SGD takes as one of DP-AdaFEST, with its 95% interval,
    which is open where one of them had a single turn; None where they were not timed at this size."""
    dense, ours = (section.at(name).get(rows) for name in ("dpsgd", "adafest"))
    if dense is None or ours is None or dense["ratio"] is None or dense["reference"] != "adafest":
        return None
    turns = min(dense["repeats"], ours["repeats"])
    if turns < 2:
        return Difference(math.log(dense["ratio"]), math.inf)
    error = math.hypot(_error(dense), _error(ours))
    return Difference(math.log(dense["ratio"]), float(stats.t.ppf(0.975, turns - 1)) * error)


def _error(record: Mapping[str, Any]) -> float:
    """The most that the standard error of the mean logarithm of its turns can be."""
    return math.log(record["max_seconds"] / record["min_seconds"]) / (2 * math.sqrt(record["repeats"] - 1))


def factor_at(rows: int, least: float) -> Callable[[Inputs], Finding]:
    """At so many rows, a step of DP-AdaFEST takes more than `least` times less than one of DP-SGD."""

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


def grows_with_size(inputs: Inputs) -> Finding:
    """DP-SGD takes more times as long in the largest table that was timed than in the smallest one."""
    section = read(inputs.report, "embedding")
    timed = {rows: found for rows in section.at("dpsgd") if (found := factor(section, rows))} if section else {}
    if section is None or len(timed) < 2:
        return finding(OPEN, "not_timed", rows=1_000_000)
    small, large = min(timed), max(timed)
    grown = Difference(
        timed[large].value - timed[small].value, math.hypot(*(timed[rows].half for rows in (small, large)))
    )
    return finding(
        grown.above(0),
        "grown",
        ("times the factor", math.exp(grown.low), math.exp(grown.high)),
        small=small,
        large=large,
        factors=(timed[small], timed[large]),
        grown=grown,
        machine=section.machine,
    )
