"""Comparison of runs with the reference's run cards in docs/reference.

Settings are matched in everything but the seeds: data, model, accounting, target ε, batch size, steps and every hyper-
parameter. For each, two means over seeds are compared: test utility, and the logarithm of one plus the coordinates of
the embedding gradient. They agree unless a two-sided t test rejects it, at a false alarm rate of ALARM per artifact
(Bonferroni over all its comparisons). The standard deviation over seeds is pooled over the settings of one algorithm
on one dataset, or is the setting's own if that is larger, so that a setting with more scatter raises few false alarms:
of 20 settings, one that scatters ten times as much raises one in about 2% of artifacts with three seeds on both sides,
and in some 14% with one against two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from reports.algorithms import label
from reports.comparison import Population, populations
from reports.entry import Entry
from reports.reading import load_runs, of_cards
from reports.runs import Run
from reports.setting import Setting
from reports.tables import Column, Table
from reports.wording import metric, number, plural, settings_text, signed, significant

ALARM = 0.01
"""Probability that an artifact is reported to differ although only the seeds do."""

AGREES, DIFFERS, NONE = "agrees", "differs", "not compared"

SELECTIONS = 0.05
"""Relative difference of gradient sizes that two noisy selections of as many rows explain."""

_SHOWN = 3  # differences listed
_EXACT = 1e-9  # equal up to rounding

Key = tuple[Any, ...]


def reference_folder() -> Path | None:
    """Return docs/reference of these sources if it holds run cards; an installed wheel has none."""
    folder = Path(__file__).parents[1] / "docs" / "reference"
    return folder if of_cards(folder) else None


@dataclass(frozen=True)
class Measure:
    """A quantity to compare: its value for a run, and the wording of a difference."""

    value: Callable[[Run], float]
    word: Callable[[Population, float, float, float], str]  # of mean, reference's mean and allowed difference


def _utility(population: Population, mean: float, reference: float, allowed: float) -> str:
    difference = signed(mean - reference)
    return f"test {metric(population)} {mean:.4f} against {reference:.4f} ({difference}; allowed ±{allowed:.4f})"


def _size(population: Population, mean: float, reference: float, allowed: float) -> str:
    one, other = math.expm1(mean), math.expm1(reference)
    difference = f"{100 * (one / other - 1):+.2g}%; " if other else ""
    allowed = 100 * math.expm1(allowed)
    return f"gradient size {significant(one)} against {significant(other)} ({difference}allowed ±{allowed:.2g}%)"


SIZE = Measure(lambda run: math.log1p(run.coordinates), _size)
MEASURES = (Measure(lambda run: run.test, _utility), SIZE)


@dataclass(frozen=True)
class Pair:
    """A setting and the matching one of the reference."""

    population: Population
    own: Setting
    reference: Setting

    def samples(self, measure: Measure) -> list[list[float]]:
        """Return the quantity at each seed, of the setting and of the reference's."""
        return [setting.over_seeds(measure.value) for setting in (self.own, self.reference)]

    @property
    def one_selection(self) -> bool:
        """Whether its gradient size is that of one noisy selection, which runs under one noise seed share: then seeds
        do not show how it scatters. (The paper's split gives every table as many rows whatever the noise.)"""
        return self.own.parameter("selection") is not None and not self.own.algorithm.endswith("_equal")

    @property
    def pool(self) -> tuple[str, str]:
        """Key of settings that share a standard deviation."""
        return self.own.runs[0].dataset, self.own.variant

    def __str__(self) -> str:
        name = f"{label(self.own.variant)} ({settings_text(self.own, self.population)})"
        return f"{self.own.runs[0].dataset}, {name}" + (
            f" at ε = {number(self.own.epsilon)}" if self.own.epsilon is not None else ""
        )


@dataclass(frozen=True)
class Comparison:
    """One quantity of a pair: its means, and the allowed difference."""

    pair: Pair
    measure: Measure
    mean: float
    reference: float
    allowed: float

    @property
    def share(self) -> float:
        """Difference in units of the allowed one."""
        difference = abs(self.mean - self.reference)
        return 0.0 if difference <= _EXACT else difference / self.allowed if self.allowed > 0 else math.inf

    def __str__(self) -> str:
        return f"{self.pair}: {self.measure.word(self.pair.population, self.mean, self.reference, self.allowed)}"


@dataclass(frozen=True)
class Agreement:
    """The agreement of one artifact: number of its `own` settings, and of those `compared` with the reference."""

    artifact: str
    verdict: str
    own: int
    compared: int
    differ: int
    evidence: str

    def __str__(self) -> str:
        words = self.evidence.partition(". ")[0] if self.verdict == AGREES else self.evidence
        return f"{self.artifact:<15} {self.verdict}: {words.removesuffix('.')}"


def agreements(entries: Iterable[Entry], groups: Sequence[Population], reference: Path) -> list[Agreement]:
    """Return the agreement with the reference in this folder of each artifact that is drawn from runs; nothing if the
    reference has no run on these data."""
    runs, _ = load_runs(reference, datasets={group.dataset for group in groups})
    if not runs:
        return []
    theirs = {key: setting for key, _, setting in _settings(populations(runs))}
    return [_agreement(entry, groups, theirs) for entry in entries if entry.experiment is not None]


def _settings(groups: Iterable[Population]) -> list[tuple[Key, Population, Setting]]:
    found = []
    for group in groups:
        about = (group.dataset, group.model, group.material, group.examples)
        for setting in group.settings:
            fidelity = None if setting.epsilon is None else group.fidelity
            found.append(((*about, fidelity, setting.key), group, setting))
    return found


def _agreement(entry: Entry, groups: Sequence[Population], theirs: Mapping[Key, Setting]) -> Agreement:
    shown = [group for group in groups if entry.shows(group)]
    own = {key: (group, s) for key, group, s in _settings(shown) if s.algorithm in entry.algorithms}
    pairs = [Pair(group, setting, theirs[key]) for key, (group, setting) in own.items() if key in theirs]
    comparisons = [c for measure in MEASURES for c in compare(pairs, measure, of=len(MEASURES) * len(pairs))]
    differing = sorted((c for c in comparisons if c.share > 1), key=lambda c: -c.share)
    compared, differ = len({id(c.pair) for c in comparisons}), len({id(c.pair) for c in differing})
    omitted = _omitted(len(own) - len(pairs), len(pairs) - compared)
    if not comparisons:
        why = "no runs yet" if not own else "no such runs in the reference" if not pairs else omitted
        return Agreement(entry.id, NONE, len(own), 0, 0, f"{why}.")
    counted = plural(compared, "setting") + (f" of {len(own)} ({omitted})" if omitted else "")
    if not differing:
        worst = max(comparisons, key=lambda c: c.share)
        words = f"{counted} within the scatter over seeds. Largest relative to the allowed difference: {worst}."
        return Agreement(entry.id, AGREES, len(own), compared, 0, words)
    more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    words = (
        f"{differ} of {counted} by more than the scatter over seeds. "
        + "; ".join(map(str, differing[:_SHOWN]))
        + more
        + "."
    )
    return Agreement(entry.id, DIFFERS, len(own), compared, differ, words)


def _omitted(lacking: int, undecided: int) -> str:
    """Say how many settings are not compared, and why."""
    reasons = (lacking, f"the reference lacks {lacking}"), (undecided, f"too few seeds to tell for {undecided}")
    return "; ".join(words for count, words in reasons if count)


def compare(pairs: Sequence[Pair], measure: Measure, of: int) -> list[Comparison]:
    """Compare every pair with a known standard deviation, as one of `of` comparisons with a joint false alarm rate of
    ALARM."""
    samples = [pair.samples(measure) for pair in pairs]
    squares: dict[tuple[str, str], float] = {}
    freedom: dict[tuple[str, str], int] = {}
    for pair, sample in zip(pairs, samples, strict=True):
        squares[pair.pool] = squares.get(pair.pool, 0.0) + _squares(sample)
        freedom[pair.pool] = freedom.get(pair.pool, 0) + _freedom(sample)
    comparisons = []
    for pair, sample in zip(pairs, samples, strict=True):
        if not freedom[pair.pool]:
            continue
        pooled = squares[pair.pool] / freedom[pair.pool]
        variance = max(pooled, _squares(sample) / max(1, _freedom(sample)))
        error = math.sqrt(variance * sum(1 / len(values) for values in sample))
        allowed = float(stats.t.ppf(1 - ALARM / (2 * of), freedom[pair.pool])) * error
        if measure is SIZE and pair.one_selection:
            allowed = max(allowed, math.log1p(SELECTIONS))
        mean, reference = map(statistics.fmean, sample)
        comparisons.append(Comparison(pair, measure, mean, reference, allowed))
    return comparisons


def _squares(sample: Sequence[Sequence[float]]) -> float:
    """Return the sum of squared deviations from the mean of each side."""
    return math.fsum((value - statistics.fmean(values)) ** 2 for values in sample for value in values)


def _freedom(sample: Sequence[Sequence[float]]) -> int:
    return sum(len(values) - 1 for values in sample)


def table(found: Sequence[Agreement]) -> Table:
    """Return a table with a row per artifact."""
    columns = [
        Column("artifact", "Artifact"),
        Column("verdict", "These runs"),
        Column("own", "Settings"),
        Column("compared", "Compared"),
        Column("differ", "Differ"),
        Column("evidence", "Evidence"),
    ]
    return Table(columns, [tuple(getattr(one, column.name) for column in columns) for one in found])
