"""The comparison that every artifact uses: runs pooled over seeds, chosen on validation, reported on test.

- A *population* is a set of comparable runs: same data, model, fidelity and profile.
- A *setting* is one configuration at one ε; its runs differ in the seed only.
- *Utility loss* is measured against the setting of DP-SGD that is best on the validation split at the same ε.
- *Reduction* is embedding parameters / mean non-zero coordinates of the noised embedding gradient per step; infinite if
  no coordinate is updated (frozen embeddings).
- A *panel* is the settings with the same reference DP-SGD: those of one ε and, in a stream, of one period.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from reports.runs import Run, setting_key
from reports.setting import Setting

LARGE_VOCABULARY = 200_000
"""Rows of a word embedding from which it counts as large, like XLM-R's 250,002 and unlike RoBERTa's 50,265."""

MAP = "map_synthetic"
"""Planted data that differ in one property at a time: points of the map, not data for comparisons."""


@dataclass(frozen=True)
class Population:
    """Comparable settings: same data, model, fidelity and profile.

    `searched` holds what private searches released on the same data. Their ε covers a choice, so they are no runs of
    a setting.
    """

    dataset: str
    model: str
    fidelity: str
    profile: str
    material: str
    examples: int
    settings: tuple[Setting, ...]
    searched: tuple[Run, ...] = ()

    @property
    def metric(self) -> str:
        return self.settings[0].runs[0].metric

    @property
    def constant_loss(self) -> float | None:
        """Log loss of the best constant on the test split, a property of the data; None if no run tells it."""
        return next((run.losses.constant for run in self.runs if run.losses.constant is not None), None)

    @property
    def runs(self) -> list[Run]:
        return [run for setting in self.settings for run in setting.runs]

    @property
    def embedding_rows(self) -> int:
        """Rows of all embedding tables; 0 if unknown."""
        return max(sum(table.rows for table in run.tables) for run in self.runs)

    @cached_property
    def values(self) -> Mapping[str, Sequence[Any]]:
        """The distinct values of each hyper-parameter over all settings."""
        return _distinct(self.settings)

    @cached_property
    def private_values(self) -> Mapping[str, Sequence[Any]]:
        """The distinct values of each hyper-parameter over the private settings."""
        return _distinct([setting for setting in self.settings if setting.epsilon is not None])

    @cached_property
    def vocabulary(self) -> int:
        """Rows of the largest embedding table; 0 if unknown."""
        return max((table.rows for run in self.runs for table in run.tables), default=0)

    @cached_property
    def kind(self) -> str:
        """``text``, ``large_text`` (large vocabulary), ``stream``, ``map`` (planted for the map), ``unit`` (comparison
        of units of privacy) or ``clicks``."""
        if self.runs[0].unit is not None:
            return "unit"
        if self.dataset == MAP:
            return "map"
        if self.metric == "accuracy":
            return "large_text" if self.vocabulary >= LARGE_VOCABULARY else "text"
        return "stream" if self.periods else "clicks"

    @property
    def untestable(self) -> str | None:
        """Why no claim of the paper can be tested on these runs; None if it can."""
        if "synthetic" in self.dataset:
            return "the data are generated, and the claim needs runs on real data"
        return "the numbers of profile=smoke are meaningless" if self.profile == "smoke" else None

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    @cached_property
    def epsilons(self) -> Sequence[float]:
        return sorted({s.epsilon for s in self.settings if s.epsilon is not None})

    @property
    def test_error(self) -> float | None:
        """Largest standard error of one run's test utility over its test rows; None if unknown."""
        return max((run.test_error for run in self.runs if run.test_error is not None), default=None)

    @property
    def main_epsilon(self) -> float | None:
        """The ε of single-panel artifacts: 1, as in the paper, or else the smallest present."""
        return 1.0 if 1.0 in self.epsilons else next(iter(self.epsilons), None)

    @property
    def periods(self) -> list[int]:
        """Lengths of the streaming periods present; none if the data are no stream."""
        return sorted({s.period for s in self.settings if s.period is not None})

    def at(self, period: int) -> Population:
        """Return the settings of one streaming period, for which settings of other periods are no reference."""
        return replace(self, settings=tuple(s for s in self.settings if s.period == period))

    def at_epsilons(self, epsilons: Collection[float | None]) -> Population:
        """Return the settings at these ε and those without privacy."""
        return replace(self, settings=tuple(s for s in self.settings if s.epsilon is None or s.epsilon in epsilons))

    def of(self, name: str, epsilon: float | None) -> list[Setting]:
        """Return the settings of an algorithm, or of one of its variants in a stream (see `Setting.variant`)."""
        return list(self._by_name.get((name, epsilon), ()))

    @cached_property
    def _by_name(self) -> Mapping[tuple[str, float | None], Sequence[Setting]]:
        found: dict[tuple[str, float | None], list[Setting]] = {}
        for setting in self.settings:
            for name in {setting.algorithm, setting.variant}:
                found.setdefault((name, setting.epsilon), []).append(setting)
        return found

    def best(self, name: str, epsilon: float | None) -> Setting | None:
        """Return the setting with the highest validation utility (that of larger reduction on a tie); training without
        privacy has no ε."""
        return max(
            self.of(name, None if name == "nonprivate" else epsilon), key=lambda setting: setting.rank, default=None
        )

    @property
    def nonprivate(self) -> Setting | None:
        """The best setting without privacy in batches of the private runs' size, if there are private runs: smaller
        batches touch fewer rows."""
        private = {run.batch_size for run in self.runs if run.epsilon is not None}
        alike = tuple(s for s in self.settings if not private or s.runs[0].batch_size in private)
        return replace(self, settings=alike).best("nonprivate", None)

    def worse_than_frozen(self, setting: Setting) -> bool:
        """Whether frozen embeddings have a higher test utility at this ε, which makes the reduction worthless."""
        frozen = self.best("frozen", setting.epsilon)
        return frozen is not None and setting.algorithm != "frozen" and setting.test < frozen.test


@dataclass(frozen=True)
class Panel:
    """Settings that are compared with one DP-SGD: those of one ε (infinite without privacy) and, in a stream, of one
    period.

    `value` distinguishes it from other panels, `where` names it in a sentence.
    """

    value: float | int
    where: str
    population: Population
    epsilon: float

    @property
    def reference(self) -> Setting | None:
        """The best DP-SGD."""
        return self.population.best("dpsgd", self.epsilon)

    def of(self, name: str) -> list[Setting]:
        """Return the settings of an algorithm, or of one of its variants."""
        return self.population.of(name, self.epsilon if math.isfinite(self.epsilon) else None)


def by_epsilon(population: Population, epsilons: Sequence[float]) -> list[Panel]:
    """Return a panel for each ε."""
    return [Panel(epsilon, f"ε = {epsilon:g}", population, epsilon) for epsilon in epsilons]


def by_period(population: Population, periods: Sequence[int]) -> list[Panel]:
    """Return a panel for each streaming period, at the population's main ε."""
    epsilon = population.main_epsilon
    return [
        Panel(days, f"period of {days} day{'s' * (days > 1)}", population.at(days), epsilon)
        for days in periods
        if epsilon is not None
    ]


def heading(population: Population, among: Sequence[Population]) -> str:
    """Return a name that is unique in `among`: if shorter ones are not, with the rows of the largest table, the number
    of examples, or the fingerprint of data and model."""

    def names(of: Population) -> list[str]:
        short = ", ".join(filter(None, (of.dataset, of.model, of.fidelity, of.profile)))
        rows = f"largest table of {of.vocabulary:,} rows"
        return [short, f"{short}, {rows}", f"{short}, N = {of.examples:,}", f"{short}, data and model {of.material}"]

    own, others = names(population), [names(other) for other in among if other is not population]
    return next((name for i, name in enumerate(own) if all(other[i] != name for other in others)), own[-1])


def _distinct(settings: Sequence[Setting]) -> Mapping[str, Sequence[Any]]:
    """Return the distinct values of each hyper-parameter, None where a setting lacks it."""
    names = dict.fromkeys(name for setting in settings for name in setting.values)
    found: dict[str, list[Any]] = {name: [] for name in names}
    for name, known in found.items():
        for setting in settings:
            if (value := setting.values.get(name)) not in known:
                known.append(value)
    return found


def populations(runs: Iterable[Run]) -> list[Population]:
    """Group runs into populations, in an order that depends on what was run, not on how often.

    Clicks come first, then streams, then texts; within each, real data before generated ones, and rigorous before the
    paper's fidelity; of one dataset's models that with most algorithms, of which artifacts are drawn. A run without
    privacy has no fidelity: it joins the private runs of every fidelity on its data.
    Releases of private searches are kept apart (`Population.searched`); without other private runs on their data they
    are in no population.
    """
    private: dict[tuple, list[Run]] = {}
    public: dict[tuple, list[Run]] = {}
    searched: dict[tuple, list[Run]] = {}
    for run in runs:
        base = (run.dataset, run.model, run.profile, run.material, run.examples)
        if run.search is not None:
            searched.setdefault((*base, run.fidelity), []).append(run)
        elif run.epsilon is None:
            public.setdefault(base, []).append(run)
        else:
            private.setdefault((*base, run.fidelity), []).append(run)
    for base, references in public.items():
        keys = [key for key in private if key[:-1] == base] or [(*base, references[0].fidelity)]
        for key in keys:
            private.setdefault(key, []).extend(references)
    groups = [
        Population(
            *(dataset, model, fidelity, profile, material, examples, _settings(members)),
            searched=tuple(sorted(searched.get(key, ()), key=lambda run: (run.seed, run.id))),
        )
        for key, members in private.items()
        for dataset, model, profile, material, examples, fidelity in [key]
    ]
    return sorted(groups, key=_rank)


def joined(groups: Sequence[Population]) -> Population | None:
    """Join the populations with the first one's dataset name, accounting and profile, for an artifact that is drawn
    from all of them; None if there are none."""
    alike = [group for group in groups if _name(group) == _name(groups[0])]
    settings = tuple(setting for group in alike for setting in group.settings)
    return replace(alike[0], settings=settings) if alike else None


def _name(group: Population) -> tuple[str, str, str]:
    return group.dataset, group.fidelity, group.profile


def _rank(population: Population) -> tuple[Any, ...]:
    texts, generated = population.metric == "accuracy", "synthetic" in population.dataset
    algorithms = len({setting.algorithm for setting in population.settings})
    about = (population.dataset, population.fidelity != "rigorous", -algorithms, population.model, population.profile)
    return (
        *(texts, bool(population.periods), generated, population.profile == "smoke"),
        *(*about, -population.examples, population.embedding_rows, population.material),
    )


def _settings(runs: list[Run]) -> tuple[Setting, ...]:
    pooled: dict[str, list[Run]] = {}
    for run in runs:
        pooled.setdefault(setting_key(run), []).append(run)
    return tuple(
        Setting(key, tuple(sorted(members, key=lambda r: (r.seed, r.id)))) for key, members in sorted(pooled.items())
    )
