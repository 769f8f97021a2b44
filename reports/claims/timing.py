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

from scipy import stats

from reports.bench import Section, read
from reports.claims.claim import Finding, finding
from reports.claims.estimate import OPEN, Difference
from reports.entry import Inputs
from reports.published import TAB_WALLCLOCK


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
    return Difference(math.log(dense["ratio"]), float(stats.t.ppf(0.975, turns - 1)) * error)


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


def grows_with_size(inputs: Inputs) -> Finding:
    """The ratio of step times is larger for the largest table timed than for the smallest."""
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
