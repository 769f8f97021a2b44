"""README's table of largest reductions, computed again from the run cards by code that imports nothing of dpfest.

What it repeats: of five seeds that all settings of a data set share the first two choose, on validation, and the others
confirm, on test. Runs of one setting and seed count as their mean. An algorithm's curve joins the settings that no
other one equals or beats in utility and reduction. A reduction is estimated where the loss of test utility over all
seeds, linear in the logarithm of the reduction, comes to 0.005, and shown where its upper 95% bound does: Student's,
with the residual scatter of an additive model of setting and seed, or the contrast's own where an F-test at 25% finds
that larger.
"""

from __future__ import annotations

import json
import lzma
import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

HOME = Path(__file__).parents[2]
LOSS, LEVEL, UNLIKE, ENOUGH = 0.005, 0.05, 0.25, 3
COLUMNS = {
    "DP-SGD, smaller tables": "smaller_tables",
    "DP-FEST (one k)": "fest joint",
    "DP-FEST (k/p a table)": "fest equal",
    "DP-AdaFEST": "adafest",
    "DP-AdaFEST+ (one k)": "adafest_plus joint",
}
# Of no effect on what a run computes or on its law; the split stands in the algorithm's name.
ASIDE = {"noise", "calibrate", "split", "save_model", "checkpoint_every", "log_every", "evaluate_every"}


def without(values: dict) -> dict:
    """Return nested settings without nulls and without what is of no effect."""
    kept = {key: without(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in kept.items() if value is not None and value != {} and key not in ASIDE}


def cards(data: str) -> pl.DataFrame:
    """Return the private runs of a data set at epsilon 1 (streams: in periods of a day), one row each."""
    rows = []
    for line in lzma.decompress((HOME / "docs" / "reference" / f"{data}.jsonl.xz").read_bytes()).splitlines():
        card = json.loads(line)
        if "summary" not in card:
            continue
        summary, config = card["summary"], card["config"]
        privacy, algorithm, stream = summary["privacy"], config["algorithm"], config.get("stream")
        if not privacy or privacy["fidelity"] != "rigorous" or config["privacy"]["epsilon"] != 1:
            continue
        selection, name = algorithm.get("selection"), algorithm["name"] + " correlated" * bool(algorithm.get("bands"))
        if (stream and stream["period"] != 1) or privacy.get("search") or config["privacy"].get("unit"):
            continue
        if stream and name == "fest" and selection["source"] not in (None, "streaming"):
            continue
        rows.append(
            {
                "algorithm": name + (f" {selection.get('split') or 'equal'}" if selection else ""),
                "setting": json.dumps(
                    [without(summary["hyperparameters"]), privacy["delta"], summary["batch_size"], summary["steps"]],
                    sort_keys=True,
                ),
                "seed": summary["seed"],
                "test": summary["utility"]["value"],
                "validation": summary["utility"]["validation"],
                "parameters": summary["embedding_gradient"]["parameters"],
                "coordinates": summary["embedding_gradient"]["coordinates_mean"],
            }
        )
    of_a_seed = ["algorithm", "setting", "seed"]  # as with dense and with lazy noise
    return pl.DataFrame(rows).group_by(of_a_seed, maintain_order=True).mean()


class Data:
    """The settings of one data set at epsilon 1, and the seeds that choose."""

    def __init__(self, name: str) -> None:
        runs = cards(name)
        by = ["algorithm", "setting"]
        self.settings = runs.group_by(by).agg(
            pl.col("test").mean(), (pl.col("parameters").first() / pl.col("coordinates").mean()).alias("reduction")
        )  # fmt: skip
        self.tests = {
            of: dict(part.select("seed", "test").iter_rows()) for of, part in runs.group_by(by, maintain_order=True)
        }
        self.validations = {of: dict(part.select("seed", "validation").iter_rows()) for of, part in runs.group_by(by)}
        seeds = sorted(set(runs["seed"]))
        tried = [tests for (algorithm, _), tests in self.tests.items() if algorithm != "frozen"]
        shared = [seed for seed in seeds if all(seed in tests for tests in tried)]
        self.choosing = set(shared[: len(shared if len(shared) >= ENOUGH else seeds) // 2])
        assert self.choosing
        self.dpsgd = max(self.of("dpsgd"), key=self.seems)

    def of(self, algorithm: str) -> list[tuple[str, str]]:
        return [of for of in self.tests if of[0] == algorithm]

    def seems(self, setting: tuple[str, str]) -> float:
        known = self.validations[setting]
        return float(np.mean([known[seed] for seed in self.choosing & known.keys() or known]))

    def validation(self, setting: tuple[str, str]) -> float:
        return float(np.mean(list(self.validations[setting].values())))

    def utility(self, setting: tuple[str, str]) -> float:
        return float(np.mean(list(self.tests[setting].values())))

    def reduction(self, setting: tuple[str, str]) -> float:
        algorithm, name = setting
        return self.settings.filter(pl.col("algorithm") == algorithm, pl.col("setting") == name)["reduction"].item()

    def scatter(self, *algorithms: str) -> tuple[float, int]:
        """Return the standard deviation of a run, pooled over the settings of some algorithms, and its freedom."""
        cells = [(of, seed, test) for of in self.tests if of[0] in algorithms for seed, test in self.tests[of].items()]
        rows, columns = list(dict.fromkeys(of for of, *_ in cells)), list(dict.fromkeys(seed for _, seed, _ in cells))
        design = np.zeros((len(cells), len(rows) + len(columns)))
        for line, (of, seed, _) in enumerate(cells):
            design[line, rows.index(of)] = design[line, len(rows) + columns.index(seed)] = 1
        tests = np.array([test for *_, test in cells])
        fitted = design @ np.linalg.lstsq(design, tests, rcond=None)[0]
        freedom = len(cells) - int(np.linalg.matrix_rank(design))
        return math.sqrt(float(np.sum((tests - fitted) ** 2)) / freedom), freedom

    def lost(self, setting: tuple[str, str], choices: int) -> tuple[float, float]:
        """Return the loss of test utility against DP-SGD over all seeds, and its upper bound."""
        one, other = self.tests[self.dpsgd], self.tests[setting]
        by_seed = {seed: one[seed] - other[seed] for seed in one.keys() & other.keys()}
        fresh = [lost for seed, lost in by_seed.items() if seed not in self.choosing]
        deviation, freedom = self.scatter("dpsgd", setting[0])
        deviation *= math.sqrt(2)
        own, less = float(np.std(list(by_seed.values()), ddof=1)), len(by_seed) - 1
        if stats.f.sf((own / deviation) ** 2, less, freedom) < UNLIKE:
            deviation, freedom = own, less
        used, level = (fresh, LEVEL) if fresh else (list(by_seed.values()), LEVEL / choices)
        bound = float(np.mean(used)) + stats.t.isf(level, freedom) * deviation / math.sqrt(len(used))
        return self.utility(self.dpsgd) - self.utility(setting), bound

    def cell(self, algorithm: str) -> str:
        """Return a cell of README's table."""
        tried = [setting for setting in self.of(algorithm) if math.isfinite(self.reduction(setting))]
        if not tried:
            return "—"
        curve: list[tuple[str, str]] = []
        for setting in sorted(tried, key=lambda s: (self.seems(s), self.reduction(s)), reverse=True):
            if not curve or self.reduction(setting) > self.reduction(curve[-1]):
                curve.append(setting)
        choices = len(tried) * len(self.of("dpsgd"))
        losses = [self.lost(setting, choices) for setting in curve]
        places = [math.log(self.reduction(setting)) for setting in curve]
        estimate, shown = (up_to(places, [pair[which] for pair in losses]) for which in (0, 1))
        ended = estimate == places[-1] and losses[-1][0] <= LOSS
        return f"{'≥ ' * ended}{times(estimate)} ({times(min(shown, estimate))}; {len(tried)})"


def up_to(places: list[float], losses: list[float]) -> float:
    if losses[0] > LOSS:
        return 0.0
    for (left, right), (less, more) in zip(pairwise(places), pairwise(losses), strict=True):
        if more > LOSS:
            return left + (right - left) * (LOSS - less) / (more - less)
    return places[-1]


def times(place: float) -> str:
    """Return a factor with three significant digits: 2.71×, 83.1×, 13,400×, 1.41·10⁵×."""
    value = float(f"{math.exp(place):.3g}")
    if value >= 1e5:
        mantissa, power = f"{value:.2e}".split("e+")
        return f"{mantissa}·10{str(int(power)).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}×"
    return f"{value:,.0f}×" if value >= 100 else f"{value:g}×"


def table() -> list[dict[str, str]]:
    (found,) = re.findall(r"^(\| data \(DP-SGD.*\n\| ---.*\n(?:\|.*\n)+)", (HOME / "README.md").read_text(), flags=re.M)
    head, _, *rows = [line.strip("| ").split(" | ") for line in found.splitlines()]
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.documents
def test_every_cell_of_readmes_table_is_computed_again() -> None:
    """Documents (reads all run cards)."""
    rows = table()
    assert len(rows) >= 7
    for row in rows:
        head = row.pop("data (DP-SGD / frozen AUC)")
        name = head.partition(" ")[0]
        data = Data(name)
        controls = [data.utility(max(data.of(control), key=data.validation)) for control in ("dpsgd", "frozen")]
        assert head == f"{name} ({controls[0]:.3f} / {controls[1]:.3f})"
        assert row == {column: data.cell(algorithm) for column, algorithm in COLUMNS.items()}, name
