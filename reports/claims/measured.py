"""Is something that was counted or timed above a bound?

Disturbances multiply times rather than add to them, so times are compared as logarithms. `dpfest bench` records the
median, the fastest and the slowest turn: n values within a range R have a standard deviation of at most
R/2 · sqrt(n / (n − 1)). Student's interval with this bound is wider than the turns themselves would give. Common
effects within a turn are not removed either. The interval is for this machine only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from reports.ablation import Grid, Lines, largest_grid
from reports.bench import Section, read
from reports.claims.claim import Finding, missing, together
from reports.claims.estimate import FAILS, HOLDS, Difference, Verdict, decide
from reports.comparison import Panel
from reports.published import TAB_WALLCLOCK
from reports.setting import Setting
from reports.wording import number, plural, significant

VERY = 10
"""A gradient counts as very sparse if at most one coordinate in VERY is non-zero; the paper gives no number."""

COMMAND = "dpfest bench embedding --repeats 3"

SOURCES = {"dense update": ("pytorch dense", "pytorch sparse"), "dense noise": ("dpsgd", "pytorch dense")}
"""Sources of DP-SGD's cost, each with a competitor that has it and one that differs by it."""


def _times(what: str, log: Difference, outcome: Verdict, of: str, note: str = "") -> Finding:
    """Return the finding on a factor, given by its logarithm."""
    words = f"{what}: {significant(log.factor)}× (95%: {log.factors}){note}."
    return Finding(outcome, words, (of, math.exp(log.low), math.exp(log.high)))


def sparse_without_privacy(panel: Panel, panels: int) -> Finding:
    """Without privacy, all but one in VERY coordinates of the embedding gradient are zero, in batches of the private
    runs' size."""
    setting = panel.population.nonprivate
    if setting is None or setting.coordinates <= 0:
        return missing("runs without privacy in batches of the private runs' size")
    zero = f"{1 - 1 / setting.reduction:.2%}"
    words = f"In batches of {setting.runs[0].batch_size:,}, {zero} of coordinates are zero."
    return Finding(Verdict(HOLDS if setting.reduction > VERY else FAILS, 0.0), words)  # counted


def larger_ratio_denser(panel: Panel, panels: int) -> Finding:
    """At every τ, the gradient has more coordinates at the largest σ₁/σ₂ than at the smallest, and no step to the next
    ratio surely has fewer."""

    def judge(change: Difference, steps: Sequence[Verdict]) -> Verdict:
        return min((step for step in steps if step == FAILS), key=lambda step: step.p, default=change.above(0))

    grid = largest_grid(panel.population, panel.epsilon).positive
    every, _ = _sizes(grid, grid.along_ratios, ("σ₁/σ₂", "τ"), judge)
    return every


def larger_threshold_sparser(panel: Panel, panels: int) -> Finding:
    """At every σ₁/σ₂, the gradient has fewer coordinates at the largest τ than at the smallest. Since the paper says
    "usually", the claim fails if more than half of the steps from one τ to the next surely add coordinates."""

    def judge(change: Difference, steps: Sequence[Verdict]) -> Verdict:
        return decide(change.p_below(0), 1.0)

    grid = largest_grid(panel.population, panel.epsilon).positive
    every, steps = _sizes(grid, grid.along_thresholds, ("τ", "σ₁/σ₂"), judge)
    denser = [step.p for step in steps if step == HOLDS]
    return replace(every, verdict=Verdict(FAILS, max(denser))) if 2 * len(denser) > len(steps) else every


def _sizes(
    grid: Grid, lines: Lines, symbols: tuple[str, str], judge: Callable[[Difference, Sequence[Verdict]], Verdict]
) -> tuple[Finding, list[Verdict]]:
    """Return the finding on the gradient's coordinates along all lines, in the words of that with the smallest change
    of those that decide, and for each step whether it adds coordinates; without settings in which no row survived."""
    changes: dict[str, Difference] = {}
    findings: dict[str, Finding] = {}
    steps: list[Verdict] = []
    for value, line in lines.items():
        sized = [(at, setting) for at, setting in line.items() if setting.coordinates > 0]
        if len(sized) < 2:
            continue
        (first, one), *_, (last, other) = sized
        moved = [_denser(*pair, len(grid.cells)).above(0) for pair in pairwise(setting for _, setting in sized)]
        change, where = _denser(one, other, len(grid.cells)), f"{symbols[1]} = {number(value)}"
        what = f"Coordinates from {symbols[0]} = {number(first)} to {number(last)} at {where}"
        changes[where], steps = change, [*steps, *moved]
        findings[where] = _times(what, change, judge(change, moved), "times as many coordinates")
    if not findings:
        return missing(f"two {symbols[0]} at the same {symbols[1]}"), steps
    every = together(findings)
    decisive = [where for where, one in findings.items() if one.verdict == every.verdict]
    words = findings[min(decisive, key=lambda where: abs(changes[where].value))].words
    of = f", the least change of {len(findings)} {symbols[1]}." if len(findings) > 1 else "."
    return replace(every, words=words.removesuffix(".") + of, places={}), steps


def _denser(one: Setting, other: Setting, of: int) -> Difference:
    """Return the logarithm of the ratio of the coordinates of `other` to those of `one`, for one of `of` comparisons.
    Its interval follows from the numbers of rows counted over all steps: the standard deviation of a count of
    independently surviving rows is at most its square root, and a row of a table has as many coordinates as the table's
    dimension."""
    value = math.log(other.coordinates / one.coordinates)
    return Difference(value, math.hypot(_counting_error(one), _counting_error(other)), of=of)


def _counting_error(setting: Setting) -> float:
    """Return an upper bound on the relative standard error of a setting's mean number of coordinates."""
    rows = [(run.steps * table.rows_mean, table.dimension) for run in setting.runs for table in run.tables]
    counted = math.fsum(count * dimension for count, dimension in rows)
    return math.sqrt(math.fsum(count * dimension**2 for count, dimension in rows)) / counted if counted else math.inf


@dataclass(frozen=True)
class Faster:
    """At this number of rows, a step of DP-SGD takes more than `least` times as long as one of DP-AdaFEST."""

    rows: int
    least: float

    def __call__(self, report: Path, panels: int) -> Finding:
        section = read(report, "embedding")
        measured = factor(section, self.rows) if section else None
        if section is None or measured is None:
            return missing(f"time of an embedding of {self.rows:,} rows ({COMMAND})")
        turns, paper = section.at("dpsgd")[self.rows]["repeats"], significant(TAB_WALLCLOCK.rows[self.rows][2])
        what = f"Step time of DP-SGD to DP-AdaFEST's at {self.rows:,} rows"
        note = f"; {plural(turns, 'turn')} on {section.machine}; {paper} in the paper"
        return _times(what, measured, measured.above(math.log(self.least)), "times the time of a step", note)


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


def two_sources(report: Path, panels: int) -> Finding:
    """The dense update and the dense noise each add more time to a step of the largest table timed than of the
    smallest, and the ratio of step times is larger there. The dense update is plain PyTorch with dense gradients minus
    with sparse ones; the dense noise, clipping included, is DP-SGD minus the former."""
    section = read(report, "embedding")
    timed = {rows: ratio for rows in _timed_apart(section) if (ratio := factor(section, rows))} if section else {}
    if section is None or len(timed) < 2:
        return missing(f"times of the dense update and of the dense noise apart ({COMMAND})")
    small, large = min(timed), max(timed)
    grown, what = timed[large].minus(timed[small]), f"Growth from {small:,} rows to {large:,} of"
    what += " DP-SGD's step time to DP-AdaFEST's"
    parts = {"factor": _times(what, grown, grown.above(0), "times the factor")}
    for source, (slow, fast) in SOURCES.items():
        first, last = (_milliseconds(section, slow, fast, rows) for rows in (small, large))
        added = last.minus(first)
        value, *bounds = map(significant, (added.value, added.low, added.high))
        interval = (f"ms more for the {source}", added.low, added.high)
        words = f"Of the {source} in a step: {value} ms (95%: {' to '.join(bounds)})."
        parts[source] = Finding(added.above(0), words, interval)
    every = together(parts)
    return replace(every, words=" ".join(one.words for one in parts.values()), places={})


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
