"""The grid of DP-AdaFEST settings over σ₁/σ₂ and τ that fig7 and fig9 show, all else fixed."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pipelines.runs.cards import without_nulls
from reports.comparison import Population
from reports.runs import INCIDENTAL
from reports.setting import Setting
from reports.tables import Column, Table
from reports.wording import flag, metric, multiple, number, utility

RATIO, THRESHOLD = "noise_ratio", "threshold"

Lines = dict[float, dict[float, Setting]]
"""Settings by the value of one hyper-parameter, for each value of the other."""


@dataclass(frozen=True)
class Grid:
    """Settings by (σ₁/σ₂, τ) that agree in everything else."""

    cells: dict[tuple[float, float], Setting]

    @property
    def ratios(self) -> list[float]:
        return sorted({ratio for ratio, _ in self.cells})

    @property
    def thresholds(self) -> list[float]:
        return sorted({threshold for _, threshold in self.cells})

    @property
    def runs(self) -> int:
        return sum(len(setting.runs) for setting in self.cells.values())

    @property
    def positive(self) -> Grid:
        """Its cells at positive τ, as the paper's are: from 0 down, noise alone keeps half of all rows or more, and
        fewer of them if there is more of it."""
        return Grid({of: setting for of, setting in self.cells.items() if of[1] > 0})

    @property
    def along_ratios(self) -> Lines:
        """Lines of varying σ₁/σ₂, by τ."""
        return _lines({(tau, ratio): setting for (ratio, tau), setting in self.cells.items()})

    @property
    def along_thresholds(self) -> Lines:
        """Lines of varying τ, by σ₁/σ₂."""
        return _lines(self.cells)

    @property
    def best(self) -> Setting:
        return max(self.cells.values(), key=lambda setting: setting.rank)


def largest_grid(population: Population, epsilon: float | None) -> Grid:
    """Return the largest set of DP-AdaFEST settings at one ε in which only σ₁/σ₂ and τ vary; an empty one without any.

    Of several as large it is the one with most runs: utilities that chose it would not be fit to judge it.
    """
    slices: dict[str, dict[tuple[float, float], Setting]] = {}
    for setting in population.of("adafest", epsilon):
        ratio, threshold = setting.parameter(RATIO), setting.parameter(THRESHOLD)
        if isinstance(ratio, int | float) and isinstance(threshold, int | float):
            slices.setdefault(_rest(setting), {})[float(ratio), float(threshold)] = setting
    grids = [Grid(cells) for _, cells in sorted(slices.items())]
    return max(grids, key=lambda grid: (len(grid.cells), grid.runs), default=Grid({}))


def _lines(cells: dict[tuple[float, float], Setting]) -> Lines:
    """Return lines of two settings or more, sorted by both settings."""
    lines: Lines = {}
    for (line, place), setting in sorted(cells.items(), key=lambda item: item[0]):
        lines.setdefault(line, {})[place] = setting
    return {line: cells for line, cells in lines.items() if len(cells) > 1}


def _rest(setting: Setting) -> str:
    """Return all settings but σ₁/σ₂ and τ."""
    run = setting.runs[0]
    skipped = INCIDENTAL | {RATIO, THRESHOLD}
    algorithm = {k: v for k, v in (run.hyperparameters.get("algorithm") or {}).items() if k not in skipped}
    others = {
        section: {k: v for k, v in (values or {}).items() if k not in skipped}
        for section, values in run.hyperparameters.items()
        if section != "algorithm"
    }
    settings = without_nulls(algorithm), without_nulls(others)
    return json.dumps([*settings, run.delta, run.batch_size, run.steps], sort_keys=True, default=str)


def held_fixed(grid: Grid) -> str:
    """Return the other settings of the algorithm, for captions."""
    best = grid.best
    names = {"contribution_clipping_norm": "C₁", "clipping_norm": "C₂"}
    known = [
        f"{symbol} = {number(best.parameter(name))}"
        for name, symbol in names.items()
        if best.parameter(name) is not None
    ]
    return ", ".join(known)


def grid_table(population: Population, grid: Grid) -> Table:
    """Return a table with one row per cell of the grid."""
    table = Table(
        [
            Column("noise_ratio", "σ₁/σ₂", number),
            Column("threshold", "τ", number),
            Column("validation", f"validation {metric(population)}", utility),
            Column("test", f"test {metric(population)}", utility),
            Column("test_spread", "± over seeds", utility),
            Column("coordinates", "gradient size", lambda value: f"{value:,.1f}"),
            Column("reduction", "reduction", multiple),
            Column("seeds", "seeds"),
            Column("worse_than_frozen", "worse than frozen", flag),
        ],
        heads=2,
    )
    frozen = population.best("frozen", population.main_epsilon)
    for (ratio, threshold), s in sorted(grid.cells.items()):
        worse = None if frozen is None else population.worse_than_frozen(s)
        table.runs.append(s.runs[0].anchor)
        table.rows.append(
            (ratio, threshold, s.validation, s.test, s.spread, s.coordinates, s.reduction, len(s.by_seed), worse)
        )
    return table


def gaps(grid: Grid) -> list[str]:
    """Return what a grid lacks to show the effects of σ₁/σ₂ and τ (it need not be a full product)."""
    sentences = []
    for name, values in (("noise ratio σ₁/σ₂", grid.ratios), ("threshold τ", grid.thresholds)):
        if len(values) < 2:
            sentences.append(f"Runs with one {name} only, which do not show its effect yet.")
    return sentences


NO_GRID = "No DP-AdaFEST (adafest) runs with a noise ratio and a threshold yet."
