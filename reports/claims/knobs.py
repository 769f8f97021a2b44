"""Tests of the paper's claims about DP-AdaFEST's σ₁/σ₂ and τ, on the grid in which nothing else varies."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from reports.ablation import Grid, largest_grid
from reports.claims.claim import Finding, all_of, finding
from reports.claims.curves import Comparison, Curve
from reports.claims.estimate import FAILS, HOLDS, INCONCLUSIVE, NEARLY, OPEN, Difference, Sample, Verdict, decide
from reports.claims.leads import compared_at
from reports.claims.logic import Above, All, Any, Contrast, between, equivalent, verdict
from reports.claims.tradeoff import TOLERABLE
from reports.claims.trend import trend
from reports.comparison import Population, Setting
from reports.wording import metric

BEST_RATIOS = (5.0, 10.0)

Lines = dict[float, dict[float, Setting]]
"""Settings by the value of one hyper-parameter, for each value of the other."""


def on_grid(test: Callable[[Population, Grid], Finding], positive: bool = True) -> Callable[[Population], Finding]:
    """Return a test of the fullest grid at the main ε; at positive τ, as the paper's are, unless all count: from 0
    down, noise alone keeps half of all rows or more, and fewer of them if there is more of it."""

    def test_grid(population: Population) -> Finding:
        grid = largest_grid(population, population.main_epsilon)
        cells = {of: cell for of, cell in grid.cells.items() if of[1] > 0 or not positive} if grid else {}
        return test(population, Grid(cells)) if cells else finding(OPEN, "missing", what="DP-AdaFEST runs")

    return test_grid


def larger_ratio_better(population: Population, grid: Grid) -> Finding:
    """At the same τ, utility rises with σ₁/σ₂, step by step."""
    lines = _along_ratios(grid)
    found = trend(Sample(grid.cells.values()), list(lines.values()))
    if found is None:
        return finding(OPEN, "missing", what="two noise ratios at the same τ")
    return finding(
        found.verdict,
        "larger_ratios",
        (f"gain of {metric(population)}", found.moved.low, found.moved.high),
        moved=found.moved,
        lowest=found.lowest,
        metric=metric(population),
        thresholds=len(lines),
    )


def five_or_ten_best(population: Population, grid: Grid) -> Finding:
    """One of the settings with a ratio of 5 or 10 is better than each with another ratio."""
    named = [setting for (ratio, _), setting in grid.cells.items() if ratio in BEST_RATIOS]
    others = [setting for (ratio, _), setting in grid.cells.items() if ratio not in BEST_RATIOS]
    sample = Sample(grid.cells.values())
    best, other = sample.best(named), sample.best(others)
    if best is None or other is None:
        return finding(OPEN, "missing", what="runs with a ratio of 5 or 10 and with another one")
    statement = Any([All([Above(between(sample, one, against)) for against in others]) for one in named])
    gained = between(sample, best, other).at(len(grid.cells))
    outcome = verdict(statement)
    # Denser settings are better: a lead over settings that are all sparser need not be due to the ratio.
    leader, trailing = (best, others) if outcome == HOLDS else (other, named)
    lacking = outcome in (HOLDS, FAILS) and min(s.reduction for s in trailing) > leader.reduction
    return finding(
        INCONCLUSIVE if lacking else outcome,
        "best_ratio",
        (f"gain of {metric(population)}", gained.low, gained.high),
        gained=gained,
        best=best,
        other=other,
        of=len(grid.cells),
        lacking=lacking,
        metric=metric(population),
        untried=not lacking and outcome in (HOLDS, FAILS),
    )


def larger_ratio_denser(population: Population, grid: Grid) -> Finding:
    """At every τ, the gradient has more coordinates at the largest σ₁/σ₂ than at the smallest, and no step to the next
    ratio surely has fewer."""
    findings = []
    for threshold, line in _along_ratios(grid).items():
        if (found := _sized(line, len(grid.cells))) is None:
            continue
        low, high, grown, moved = found
        outcome = min((one for one in moved if one == FAILS), key=lambda one: one.p, default=grown.above(0))
        findings.append(
            finding(outcome, "denser", _times_as_many(grown), threshold=threshold, grown=grown, low=low, high=high)
        )
    if not findings:
        return finding(OPEN, "missing", what="two noise ratios at the same τ")
    return _of_lines(findings, "τ")


def larger_threshold_sparser(population: Population, grid: Grid) -> Finding:
    """At every σ₁/σ₂, the gradient has fewer coordinates at the largest τ than at the smallest. Since the paper says
    "usually", the claim fails if more than half of the steps from one τ to the next surely add coordinates."""
    findings: list[Finding] = []
    steps: list[Verdict] = []
    for ratio, line in _along_thresholds(grid).items():
        if (found := _sized(line, len(grid.cells))) is None:
            continue
        low, high, grown, moved = found
        steps += moved
        outcome = decide(grown.p_below(0), 1.0)
        findings.append(
            finding(outcome, "sparser", _times_as_many(grown), ratio=ratio, grown=grown, low=low, high=high)
        )
    if not findings:
        return finding(OPEN, "missing", what="two τ at the same σ₁/σ₂")
    together = _of_lines(findings, "σ₁/σ₂")
    denser = [step.p for step in steps if step == HOLDS]
    if 2 * len(denser) > len(steps):
        return Finding(Verdict(FAILS, max(denser)), together.template, together.numbers, together.interval)
    return together


def _of_lines(findings: Sequence[Finding], lines: str) -> Finding:
    """Combine findings on lines of the grid, of which that with the smallest change is worded: of those that decide."""
    together = all_of(findings)
    decisive = [one for one in findings if one.verdict == together.verdict]
    shown = min(decisive, key=lambda one: abs(one.numbers["grown"].value))
    return replace(together, template="of_lines", numbers={"findings": findings, "shown": shown, "lines": lines})


def _sized(line: dict[float, Setting], of: int) -> tuple[float, float, Difference, list[Verdict]] | None:
    """Return the first and the last value of a line, the growth of the gradient's coordinates between them, and for
    each step the verdict on whether it adds coordinates (one of `of` such comparisons). Settings in which no row
    survived are left out; None if fewer than two others remain."""
    sized = [(value, setting) for value, setting in line.items() if setting.coordinates > 0]
    if len(sized) < 2:
        return None
    (low, first), (high, last) = sized[0], sized[-1]
    moved = [_denser(one, other, of).above(0) for (_, one), (_, other) in itertools.pairwise(sized)]
    return low, high, _denser(first, last, of), moved


def _times_as_many(grown: Difference) -> tuple[str, float, float]:
    return "times as many coordinates", math.exp(grown.low), math.exp(grown.high)


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


def small_threshold_harmless(population: Population, grid: Grid) -> Finding:
    """Among small τ, none changes utility from that of the smallest by NEARLY. τ is small up to the standard deviation
    of the map's noise, C₁σ₁: there a row without contributions still survives in one step of six."""
    small = Grid({of: setting for of, setting in grid.cells.items() if of[1] <= _map_noise(setting)})
    sample = Sample(grid.cells.values())
    moves = {
        (ratio, min(line), tau): between(sample, setting, line[min(line)])
        for ratio, line in _along_thresholds(small).items()
        for tau, setting in line.items()
        if tau > min(line)
    }
    if not moves:
        return finding(OPEN, "missing", what="two τ within the map's noise at the same σ₁/σ₂")
    (ratio, low, high), most = max(moves.items(), key=lambda item: (abs(item[1].seems), item[0]))
    moved = most.at(len(moves))
    return finding(
        verdict(All([equivalent(contrast) for contrast in moves.values()])),
        "small_thresholds",
        (f"change of {metric(population)}", moved.low, moved.high),
        moved=moved,
        ratio=ratio,
        low=low,
        high=high,
        count=len(moves),
        nearly=NEARLY,
        metric=metric(population),
    )


def _map_noise(setting: Setting) -> float:
    """Return the standard deviation of the noise in the contribution map; 0 if unknown."""
    norm = setting.parameter("contribution_clipping_norm")
    return (setting.runs[0].map_noise_multiplier or 0.0) * (1.0 if norm is None else float(norm))


def large_threshold_cliff(population: Population, grid: Grid) -> Finding:
    """Utility drops sharply at the largest τ, for at least one σ₁/σ₂. The absence of a drop is decisive only if τ
    reached half of the largest sum of a row's contributions (in the paper, 500 of 1,024 examples)."""
    lines = _along_thresholds(grid)
    sample = Sample(grid.cells.values())
    drops = {ratio: _drop(sample, line) for ratio, line in lines.items()}
    if not drops:
        return finding(OPEN, "missing", what="two τ at the same σ₁/σ₂")
    outcome = verdict(Any([Above(drop, TOLERABLE) for drop in drops.values()]), chosen=True, of=len(grid.thresholds))
    most = largest_contribution(grid.best)
    reached = max(max(line) for line in lines.values())
    if reached < most / 2 and (outcome == FAILS or max(drop.value for drop in drops.values()) <= TOLERABLE):
        outcome = Verdict(INCONCLUSIVE)
    of = len(grid.cells)
    steepest = max(drops, key=lambda ratio: drops[ratio].seems)
    sharpest = drops[steepest].at(of)
    return finding(
        outcome,
        "largest_threshold",
        (f"loss of {metric(population)}", sharpest.low, sharpest.high),
        drop=sharpest,
        ratio=steepest,
        threshold=max(lines[steepest]),
        ratios=len(drops),
        tolerable=TOLERABLE,
        most=most,
        ended=reached if outcome == INCONCLUSIVE else None,
        metric=metric(population),
    )


def _drop(sample: Sample, line: dict[float, Setting]) -> Contrast:
    """Return the loss from the best smaller τ to the largest."""
    last = max(line)
    best = sample.best(setting for tau, setting in line.items() if tau < last)
    assert best is not None
    return between(sample, best, line[last])


def largest_contribution(setting: Setting) -> float:
    """Return the largest possible sum of a row's contributions in a batch: an example that touches one row in each of F
    tables adds min(1, C₁/√F) to its row. Texts have one table and maps of varying norm: there the smallest norm
    counts."""
    run = setting.runs[0]
    norm = setting.parameter("contribution_clipping_norm")
    clipped = 1.0 if norm is None else float(norm) / math.sqrt(max(1, len(run.tables)))
    return run.batch_size * min(1.0, clipped)


def cliff_worse_at_small_ratio(population: Population, grid: Grid) -> Finding:
    """From the smallest to the largest τ common to both, utility drops more at the smallest σ₁/σ₂ than at the
    largest."""
    lines = _along_thresholds(grid)
    few, many = (lines[min(lines)], lines[max(lines)]) if len(lines) > 1 else ({}, {})
    shared = sorted(few.keys() & many.keys())
    if len(shared) < 2:
        return finding(OPEN, "missing", what="two τ at each of two σ₁/σ₂")
    low, high = shared[0], shared[-1]
    sample = Sample(grid.cells.values())
    worse = Contrast(sample, [(1, few[low]), (-1, few[high]), (-1, many[low]), (1, many[high])])
    drops = [between(sample, line[low], line[high]) for line in (few, many)]
    outcome = verdict(Above(worse))
    # If neither drops sharply, there is no cliff whose depth could be compared.
    flat = outcome != HOLDS and all(drop.value <= TOLERABLE for drop in drops)
    # If utility has already dropped at the smaller τ, the rest of the drop is not the cliff.
    best = sample.best(grid.cells.values())
    fallen = outcome != HOLDS and best is not None and best.test - few[low].test > TOLERABLE
    moved = worse.at(1, False)
    return finding(
        INCONCLUSIVE if flat or fallen else outcome,
        "cliffs",
        (f"difference of losses of {metric(population)}", moved.low, moved.high),
        small=min(lines),
        large=max(lines),
        low=low,
        high=high,
        drops=[drop.at(1, False) for drop in drops],
        moved=moved,
        flat=flat,
        fallen=fallen,
        metric=metric(population),
    )


def optimum_inside(population: Population, grid: Grid) -> Finding:
    """Of the settings within NEARLY of the best, the sparsest has a σ₁/σ₂ above the median of those tried, and a τ that
    is neither the smallest nor the largest."""
    middle = statistics.median(grid.ratios)
    inner = grid.thresholds[1:-1]
    inside = [s for (ratio, tau), s in grid.cells.items() if ratio > middle and tau in inner]
    outside = [s for s in grid.cells.values() if s not in inside]
    sample = Sample(grid.cells.values())
    best = sample.best(grid.cells.values())
    if not inside or len(grid.ratios) < 2 or best is None:
        return finding(OPEN, "missing", what="two noise ratios with three τ")
    mine, others = (
        Curve("adafest", settings, sample, best, words=words)
        for words, settings in (("that region", inside), ("the rest", outside))
    )
    if not (mine.settings and others.settings):
        return finding(INCONCLUSIVE, "all_empty", names=["adafest"], where=f"ε = {population.main_epsilon:g}")
    result = compared_at(Comparison(mine, [others], NEARLY), f"ε = {population.main_epsilon:g}", metric(population))
    return finding(
        result.verdict, "optimum", result.interval, result.untried, finding=result, middle=middle, thresholds=inner
    )


def _along_ratios(grid: Grid) -> Lines:
    """Return lines of varying ratio, by τ."""
    return _lines({(tau, ratio): setting for (ratio, tau), setting in grid.cells.items()})


def _along_thresholds(grid: Grid) -> Lines:
    """Return lines of varying τ, by σ₁/σ₂."""
    return _lines(grid.cells)


def _lines(cells: dict[tuple[float, float], Setting]) -> Lines:
    """Return lines of two settings or more, sorted by both settings."""
    lines: Lines = {}
    for (line, place), setting in sorted(cells.items(), key=lambda item: item[0]):
        lines.setdefault(line, {})[place] = setting
    return {line: cells for line, cells in lines.items() if len(cells) > 1}
