"""Compare the measurements of `dpfest check` with expected ranges, each with its source.

No range is a guess about Criteo's files. A range follows from theory (the effect of hash, batch and noisy map on the
measured counts), is a number from the paper or a public source, or, for generated data, is a setting of the generator.
A measurement without any of these is shown without a verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipelines.check import Feature, Findings, Trial
from pipelines.config.settings import Config
from pipelines.data.clicks.criteo import PUBLISHED_SIZES
from pipelines.data.clicks.synthetic import CLICK_RATE
from pipelines.runs.grid import evaluated, steps
from pipelines.system.progress import duration
from reports.algorithms import label
from reports.claims.estimate import TRAINING
from reports.published import TAB_STREAMING

_KAGGLE_VALUES = (
    *(1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194),
    *(27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
_TERABYTE_VALUES = (
    *(227_605_432, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 130_229_467, 3_067_956, 405_282, 10),
    *(2_209, 11_938, 155, 4, 976, 14, 292_775_614, 40_790_948, 187_188_510, 590_152, 12_973, 108, 36),
)

_HELD_OUT = 0.02
"""Margin by which an AUC may exceed the paper's on the 1 TB logs: a check tests on the hours that it trains on, the
paper on later days."""

_DIFFERENCE = 2 * math.sqrt(2) * TRAINING["auc"]
"""Two standard deviations of the difference of two training runs."""
_APART = f"± {_DIFFERENCE:.3f} (two standard deviations of a difference of runs) and two standard errors"

_ERRORS = 5
_TENTH = 0.1


@dataclass(frozen=True)
class Reference:
    """Known properties of the data, with their sources.

    Attributes:
        values: largest number of distinct values of each category in all of the data.
        positives, around: share of label 1, and the relative deviation allowed for the head.
        auc: largest AUC of non-private training on all of the data.
        private_auc: largest AUC of DP-SGD by ε; empty if there is no source.
    """

    values: tuple[int, ...]
    values_source: str
    positives: float
    around: float
    positives_source: str
    auc: float
    auc_source: str
    private_auc: Mapping[float, float]


_KAGGLE = Reference(
    _KAGGLE_VALUES,
    "distinct values of all of train.txt, as facebookresearch/dlrm lists them",
    11_745_438 / 45_840_617,
    _TENTH,
    "11,745,438 of train.txt's 45,840,617 lines, ± a tenth: lines are in temporal order",
    0.8148,
    "best of the public benchmark BARS (Criteo_x4) on all lines; the paper prints no AUC of Criteo-Kaggle",
    {},
)
_TERABYTE = Reference(
    _TERABYTE_VALUES,
    "distinct values of all 24 days, as facebookresearch/dlrm lists them",
    0.02904,
    1 / 3,
    "29,040 of a million unspecified lines (README of the project CTRLib), ± a third",
    max(nonprivate for *_, nonprivate in TAB_STREAMING.rows.values()) + _HELD_OUT,
    f"the paper's tab:auc_streaming + {_HELD_OUT}, since it tests on later days",
    {
        epsilon: max(row[place] for row in TAB_STREAMING.rows.values()) + _HELD_OUT
        for place, epsilon in enumerate((1.0, 3.0, 8.0))
    },
)
_GENERATED = Reference(
    PUBLISHED_SIZES,
    "the generator draws each category from as many values as the paper's vocabulary has",
    CLICK_RATE,
    _TENTH,
    "the generator's click rate, ± a tenth: its intercept is approximate",
    0.81,
    "the planted model's own AUC is about 0.8",
    {},
)
_REFERENCES = {"criteo_kaggle": _KAGGLE, "criteo_1tb": _TERABYTE}


@dataclass(frozen=True)
class Line:
    """A measurement, its expected range and the source of the range; `ok` is None without one."""

    what: str
    measured: str
    expected: str = ""
    ok: bool | None = None
    source: str = ""


@dataclass(frozen=True)
class Column:
    """A category: distinct values, and rows of its table that the training examples use."""

    feature: Feature
    most: int
    used: tuple[float, float] | None

    @property
    def ok(self) -> bool:
        """Whether values and used rows are within their ranges; a blank counts as a value."""
        few = 2 <= self.feature.values <= self.most + 1
        return few and (self.used is None or self.used[0] <= self.feature.used <= self.used[1])


@dataclass(frozen=True)
class Verdict:
    """All comparisons."""

    lines: Sequence[Line]
    columns: Sequence[Column]
    values_source: str

    @property
    def outside(self) -> int:
        """Number of measurements outside their range."""
        return sum(line.ok is False for line in self.lines) + sum(not column.ok for column in self.columns)


def judge(findings: Findings) -> Verdict:
    """Compare measurements with their expected ranges."""
    reference = _REFERENCES.get(findings.data, _GENERATED)
    columns = [
        Column(feature, most, _used(feature) if findings.hashed else None)
        for feature, most in zip(findings.features, reference.values, strict=True)
    ]
    lines = [*_reading(findings, reference), *_gradients(findings), *_utilities(findings, reference)]
    return Verdict(lines, columns, reference.values_source)


def _reading(findings: Findings, reference: Reference) -> list[Line]:
    low, high = (reference.positives * (1 + side * reference.around) for side in (-1, 1))
    return [
        Line(
            "malformed lines",
            f"{findings.malformed:,}",
            "0",
            findings.malformed == 0,
            findings.first or "Criteo's description: 40 fields, integers and categories or blanks",
        ),
        Line(
            "label 1",
            f"{findings.positives:.2%}",
            f"{low:.1%} to {high:.1%}",
            low <= findings.positives <= high,
            reference.positives_source,
        ),
    ]


def _used(feature: Feature) -> tuple[float, float]:
    """Return the range, within four standard deviations, of the number of a table's V rows that d uniformly hashed
    values occupy; its mean is V (1 - (1 - 1/V)^d)."""
    rows, values = feature.rows, feature.values
    empty = (1 - 1 / rows) ** values
    both = (1 - 2 / rows) ** values if rows > 1 else 0.0
    variance = max(0.0, rows * (rows - 1) * both + rows * empty - (rows * empty) ** 2)
    mean, spread = rows * (1 - empty), 4 * math.sqrt(variance)
    return max(1.0, math.floor(mean - spread)), min(float(rows), float(values), math.ceil(mean + spread))


def _gradients(findings: Findings) -> list[Line]:
    lines = []
    for name, words in (
        ("nonprivate", "embedding coordinates that a batch reads"),
        ("adafest", "embedding coordinates that DP-AdaFEST updates"),
    ):
        trial = findings.trials[name]
        assert trial.expected is not None
        margin = _TENTH * trial.expected.value + 4 * trial.expected.error
        low, high = max(0.0, trial.expected.value - margin), trial.expected.value + margin
        sparsity = 1 - trial.coordinates / findings.parameters
        smaller = f"1 in {findings.parameters / trial.coordinates:,.0f}" if trial.coordinates else "none"
        lines.append(
            Line(
                words,
                f"{trial.coordinates:,.0f}" + (f" ({smaller})" if name == "adafest" else f" (sparsity {sparsity:.2%})"),
                f"{low:,.0f} to {high:,.0f}",
                low <= trial.coordinates <= high,
                "the law of Poisson batches"
                + (" and of the noisy map" if name == "adafest" else "")
                + ", given the counts of the rows, ± a tenth",
            )
        )
    dense = findings.trials["dpsgd"].coordinates
    lines.append(
        Line(
            "embedding coordinates that DP-SGD updates",
            f"{dense:,.0f}",
            f"{findings.parameters:,}",
            dense == findings.parameters,
            "all, by definition",
        )
    )
    return lines


def _utilities(findings: Findings, reference: Reference) -> list[Line]:
    """Compare AUCs: non-private training is above chance and below that on all of the data; the others are ordered."""
    trials = findings.trials
    if any(trial.auc is None for trial in trials.values()):
        return [Line("test AUC", "unknown", "known", False, "the test rows lack one of the labels")]
    frozen, nonprivate = _auc(trials["frozen"]), _auc(trials["nonprivate"])
    lines = []
    for name, trial in trials.items():
        error = trial.error or 0.0
        apart = _DIFFERENCE + 2 * error
        if name == "nonprivate":
            low, high = 0.5 + _ERRORS * error, reference.auc
            source = f"above chance if labels match their lines; {reference.auc_source}"
        else:
            low, high = (0.5 if name == "frozen" else frozen) - apart, nonprivate + apart
            source = f"from {'chance' if name == 'frozen' else 'frozen'} to non-private, {_APART}"
            if (paper := reference.private_auc.get(findings.epsilon)) and name != "frozen" and paper < high:
                high, source = paper, f"from frozen, {_APART}; {reference.auc_source}"
        kind = "" if name == "nonprivate" else f", ε = {findings.epsilon:g}"
        lines.append(
            Line(
                f"test AUC, {label(name)}{kind}",
                f"{_auc(trial):.4f}",
                f"{low:.3f} to {high:.3f}",
                low <= _auc(trial) <= high,
                source,
            )
        )
    return lines


def _auc(trial: Trial) -> float:
    assert trial.auc is not None
    return trial.auc


def speeds(findings: Findings, grid: str, planned: Sequence[Config]) -> list[str]:
    """Estimate how long all lines, and the paper's grid on them, take at the speed of the check.

    Args:
        findings: measurements of the check.
        grid: overrides that make the runs.
        planned: the runs. Algorithms that were not tried count as DP-AdaFEST, whose steps are as sparse.
    """
    data = planned[0].data
    rows = data.rows_of_a_day * len(data.day_numbers())
    lines = [
        f"read and written: {findings.lines / findings.seconds:,.0f} lines a second; all {rows:,.0f} take "
        f"{duration(rows * findings.seconds / findings.lines)}"
    ]
    runs = Counter(run.algorithm.name for run in planned)
    seconds = dict.fromkeys(runs, 0.0)
    for run in planned:
        trial = findings.trials.get(run.algorithm.name, findings.trials["adafest"])
        seconds[run.algorithm.name] += (steps(run) or 0) * trial.seconds + (evaluated(run) or 0) * trial.evaluation
    for name, trial in findings.trials.items():
        lines.append(
            f"{label(name)}: {trial.seconds:.3f} s a step; {runs[name]:,} runs of the paper's grid take "
            f"{duration(seconds[name])}"
        )
    if others := [name for name in runs if name not in findings.trials]:
        names = ", ".join(f"{label(name)} ({runs[name]:,})" for name in others)
        took = duration(sum(seconds[name] for name in others))
        lines.append(f"{names}: {took}, assuming that their steps take as long as {label('adafest')}'s")
    total = duration(sum(seconds.values()))
    return [*lines, f"{grid}: {runs.total():,} runs, {total} one after another on this machine"]


def text(verdict: Verdict) -> str:
    """Format the comparison for the terminal."""
    columns = [("category", "values", "at most", "table rows", "used", "expected", "blank", "")]
    for column in verdict.columns:
        feature, used = column.feature, column.used
        columns.append(
            (
                feature.name,
                f"{feature.values:,}",
                f"{column.most + 1:,}",
                f"{feature.rows:,}",
                f"{feature.used:,}",
                "" if used is None else f"{used[0]:,.0f} to {used[1]:,.0f}",
                f"{feature.blank:.1%}",
                _word(column.ok),
            )
        )
    lines = [("measured", "value", "expected", "", "source")]
    lines += [(line.what, line.measured, line.expected, _word(line.ok), line.source) for line in verdict.lines]
    return "\n".join(
        [
            *_aligned(lines, left=(0, 3, 4)),
            "",
            *_aligned(columns, left=(0, 7)),
            f"at most: {verdict.values_source}, plus one for blanks.",
            "expected: rows that a uniform hash of these values occupies, within four standard deviations.",
        ]
    )


def _word(ok: bool | None) -> str:
    return {True: "ok", False: "OUTSIDE", None: ""}[ok]


def _aligned(rows: Sequence[tuple[str, ...]], left: Sequence[int]) -> list[str]:
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
