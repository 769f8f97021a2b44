"""Tests of what the paper says of wall-clock time, on what `dpfest bench embedding` left."""

from __future__ import annotations

import math

from reports.bench import read
from reports.claims.claim import Evidence, Finding, Test
from reports.claims.estimate import FAILS, HOLDS, OPEN
from reports.published import TAB_WALLCLOCK


def factor_at(rows: int, least: float) -> Test:
    """At so many rows, a step of DP-AdaFEST takes more than `least` times less than one of DP-SGD."""

    def test(evidence: Evidence) -> Finding:
        section = read(evidence.report, "embedding")
        dense = section.at("dpsgd").get(rows) if section else None
        ours = section.at("adafest").get(rows) if section else None
        if section is None or dense is None or ours is None:
            return Finding(OPEN, f"An embedding of {rows:,} rows has not been timed yet: dpfest bench embedding.")
        # Machines are shared, and a turn is slow for reasons of its own: within turns, and at their extremes.
        median = ours["median_seconds"]
        factors = [dense["ratio"], *((dense.get(name) or math.inf) / median for name in ("min_seconds", "max_seconds"))]
        known = [factor for factor in factors if factor is not None and math.isfinite(factor)]
        verdict = HOLDS if min(known) > least else FAILS if max(known) < least else OPEN
        return Finding(
            verdict,
            f"At {rows:,} rows DP-SGD takes {known[0]:.1f} times as long (median within turns; {min(known):.1f} to "
            f"{max(known):.1f} by its fastest and slowest turns), in the paper {TAB_WALLCLOCK.value(rows, 'factor')}. "
            f"Measured on {section.machine}.",
        )

    return test
