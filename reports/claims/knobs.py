"""Tests of what the paper says of AdaFEST's σ₁/σ₂ and τ, on the grid in which nothing else varies."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable

from reports.ablation import Grid, largest_grid
from reports.claims.claim import Finding, all_of, finding
from reports.claims.estimate import FAILS, HOLDS, OPEN, UNTOLD, Difference, between, normal, slope
from reports.claims.tradeoff import TOLERABLE
from reports.comparison import Population, Setting
from reports.wording import metric

BEST_RATIOS = (5.0, 10.0)


def on_grid(test: Callable[[Population, Grid], Finding]) -> Callable[[Population], Finding]:
    """A test of the fullest grid at the main ε."""

    def test_grid(population: Population) -> Finding:
        grid = largest_grid(population, population.main_epsilon)
        return finding(OPEN, "missing", what="DP-AdaFEST runs") if grid is None else test(population, grid)

    return test_grid


def larger_ratio_better(population: Population, grid: Grid) -> Finding:
    """At the same τ, utility rises with the logarithm of σ₁/σ₂."""
    lines = [
        [(math.log10(ratio), run.test) for ratio, setting in line for run in setting.runs]
        for line in _lines(grid, across=True).values()
    ]
    gained = slope(lines) if lines else None
    if gained is None:
        return finding(OPEN, "missing", what="two noise ratios at the same τ")
    return finding(
        gained.above(0),
        "tenfold_ratio",
        moved=gained,
        metric=metric(population),
        runs=sum(map(len, lines)),
        thresholds=len(lines),
    )


def five_or_ten_best(population: Population, grid: Grid) -> Finding:
    """The best ratio is 5 or 10: that setting against the best one with another ratio, both chosen on validation."""
    named = [setting for (ratio, _), setting in grid.cells.items() if ratio in BEST_RATIOS]
    others = [setting for (ratio, _), setting in grid.cells.items() if ratio not in BEST_RATIOS]
    if not named or not others:
        return finding(OPEN, "missing", what="runs with a ratio of 5 or 10 and with another one")
    best, other = (max(settings, key=lambda s: (s.validation, s.key)) for settings in (named, others))
    gained = between(best, other, of=len(grid.cells))
    return finding(
        gained.above(0),
        "best_ratio",
        gained=gained,
        ratio=best.parameter("noise_ratio"),
        other=other.parameter("noise_ratio"),
        of=len(grid.cells),
        metric=metric(population),
    )


def larger_ratio_denser(population: Population, grid: Grid) -> Finding:
    """At every τ, the gradient has more coordinates at the largest σ₁/σ₂ than at the smallest, and surely fewer at none
    than at the one below it. Settings in which no row survived have no size to compare."""
    findings, of = [], len(grid.cells)
    for threshold, cells in _lines(grid, across=True).items():
        line = [(ratio, setting) for ratio, setting in cells if setting.coordinates > 0]
        if len(line) < 2:
            continue
        (low, first), (high, last) = line[0], line[-1]
        grown = _denser(first, last, of)
        thinner = any(_denser(one, other, of).above(0) == FAILS for (_, one), (_, other) in itertools.pairwise(line))
        verdict = FAILS if thinner else grown.above(0)
        findings.append(finding(verdict, "denser", threshold=threshold, grown=grown, low=low, high=high))
    return all_of(findings) if findings else finding(OPEN, "missing", what="two noise ratios at the same τ")


def _denser(one: Setting, other: Setting, of: int) -> Difference:
    """The logarithm of how many times as many coordinates `other` has as `one`, one of `of` such comparisons. Its
    interval is from the rows that were counted over all steps: a count of rows that survive independently scatters by
    its root at most."""
    value = math.log(other.coordinates / one.coordinates)
    counted = [sum(run.steps * table.rows_mean for run in s.runs for table in run.tables) for s in (one, other)]
    if min(counted) <= 0:
        return Difference(value, math.inf)
    return Difference(value, normal(of) * math.sqrt(sum(1 / count for count in counted)))


def small_threshold_harmless(population: Population, grid: Grid) -> Finding:
    """Among small τ (the lower half of those tried), raising it moves utility by nothing to speak of."""
    limit = statistics.median(grid.thresholds)
    lines = [[cell for cell in line if cell[0] <= limit] for line in _lines(grid, across=False).values()]
    lines = [line for line in lines if len(line) > 1]
    if not lines:
        return finding(OPEN, "missing", what="two small τ at the same σ₁/σ₂")
    line = max(lines, key=lambda cells: (len(cells), cells[-1][1].validation))
    (low, first), (high, last) = line[0], line[-1]
    moved = between(last, first, of=len(lines))
    return finding(moved.none(), "small_thresholds", moved=moved, low=low, high=high, metric=metric(population))


def large_threshold_cliff(population: Population, grid: Grid) -> Finding:
    """Utility drops at the largest τ; where it does not, that decides only if τ came to half the batch (in the
    paper, 500 of 1,024)."""
    drops: list[tuple[float, float, Difference]] = []
    lines = _lines(grid, across=False)
    of = sum(map(len, lines.values()))
    for ratio, line in lines.items():
        best = max((setting for _, setting in line[:-1]), key=lambda s: (s.validation, s.key))
        drops.append((ratio, line[-1][0], between(best, line[-1][1], of)))
    if not drops:
        return finding(OPEN, "missing", what="two τ at the same σ₁/σ₂")
    verdicts = [drop.above(TOLERABLE) for *_, drop in drops]
    batch = population.of("adafest", population.main_epsilon)[0].runs[0].batch_size
    reached = max(threshold for _, threshold, _ in drops)
    verdict = HOLDS if HOLDS in verdicts else OPEN
    if set(verdicts) == {FAILS} and reached >= batch / 2:
        verdict = FAILS
    elif verdict == OPEN and reached < batch / 2 and all(drop.value <= TOLERABLE for *_, drop in drops):
        verdict = UNTOLD
    return finding(
        verdict,
        "largest_threshold",
        drops=drops,
        tolerable=TOLERABLE,
        batch_size=batch,
        ended=reached if verdict == UNTOLD else None,
        metric=metric(population),
    )


def _lines(grid: Grid, across: bool) -> dict[float, list[tuple[float, Setting]]]:
    """Cells in lines of two or more: by τ along the ratios (`across`), or by ratio along τ."""
    lines: dict[float, list[tuple[float, Setting]]] = {}
    for (ratio, threshold), setting in sorted(grid.cells.items()):
        line, place = (threshold, ratio) if across else (ratio, threshold)
        lines.setdefault(line, []).append((place, setting))
    return {line: cells for line, cells in sorted(lines.items()) if len(cells) > 1}
