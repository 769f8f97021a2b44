"""`dpfest report --list`: each artifact with its experiment, its runs done and planned, and the time left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.system.progress import duration
from reports.bench import read
from reports.comparison import Population, populations
from reports.entry import Entry, Inputs
from reports.pace import Pace, RunLength
from reports.reading import load_runs, measured_in
from reports.registry import ENTRIES, chosen


@dataclass(frozen=True)
class Line:
    """An artifact, or a whole experiment.

    Attributes:
        name: the artifact's id, or `experiment=...`.
        source: the experiment or measuring command that makes it; None if it needs neither.
        done, needed: number of runs; 1 of 1 for a finished measurement. `needed` is None if unknown.
        left: estimated seconds until it is done; None if unknown.
    """

    name: str
    title: str
    source: str | None
    measured: bool
    done: int
    needed: int | None
    left: float | None

    @property
    def runs(self) -> str:
        """Progress, in words."""
        if self.source is None:
            return "needs no runs"
        if self.measured:
            return "measured" if self.done else "to be measured"
        return f"{self.done:>4} of {'?' if self.needed is None else self.needed:>4} runs"

    @property
    def time(self) -> str:
        """Time left, in words; empty where nothing is left."""
        finished = self.source is None or (self.needed is not None and self.done >= self.needed)
        return "" if finished or self.measured else "unknown" if self.left is None else duration(self.left)


@dataclass(frozen=True)
class Listing:
    """A line per artifact, and one per experiment, whose runs artifacts share."""

    artifacts: list[Line]
    experiments: list[Line]
    jobs: int

    def __str__(self) -> str:
        wide = max(len(line.name) for line in self.artifacts)
        source = max((len(line.source or "") for line in self.artifacts if not line.measured), default=0)
        lines = [
            f"{line.name:<{wide}}  {line.runs:<17}  {line.time:>11}  "
            f"{'' if line.measured else line.source or '':<{source}}  {line.title}"
            + (f" ({line.source})" if line.measured and not line.done else "")
            for line in self.artifacts
        ]
        for line in self.experiments:
            left = f"; {line.time} left with {self.jobs} at once" if line.time else ""
            if line.time and line.left is None:
                left = "; time left is known once some are done"
            lines.append(f"{line.name}: {line.done} of {line.needed} runs{left}")
        return "\n".join(lines)


def listing(
    runs: Path,
    report: Path,
    planned: Mapping[str, Sequence[RunLength]] | None = None,
    jobs: int = 1,
    profile: str | None = None,
    seeded: bool = True,
    only: Sequence[str] | None = None,
) -> Listing:
    """List finished and missing runs of `profile` (None for any), and the time left with `jobs` at once.

    If `planned` is `seeded`, it has all seeds; otherwise it has one seed, and counts once for each seed present. `only`
    are the artifacts to list; None for all.

    Raises:
        UserError: there is no such artifact.
    """
    artifacts = chosen(only)
    usable, report = load_runs(runs)[0], measured_in(runs, report)
    groups = [group for group in populations(usable) if profile in (None, group.profile)]
    # Runs of another profile have another length, and another share of their time outside of steps.
    pace = Pace([run for run in usable if profile in (None, run.profile)], read(report, "step"))
    mains = {entry.experiment: entry.main(groups) for entry in ENTRIES if entry.experiment}
    seeds = {name: len(main.seeds) for name, main in mains.items() if main and not seeded}
    plans = {name: [*plan] * seeds.get(name, 1) for name, plan in (planned or {}).items()}
    lines = [_line(entry, groups, report, plans, pace, jobs) for entry in artifacts]
    experiments = []
    for name, plan in plans.items():
        if name not in mains:  # no artifact shows its runs
            continue
        datasets = {run.data for run in plan}
        kinds = {entry.kinds[0] for entry in ENTRIES if entry.experiment == name}  # that the experiment itself makes
        shown = {group for group in groups if group.kind in kinds}
        done = sum((_done(group) for group in shown if group.dataset in datasets), Counter())
        counted = sum((done & Counter(run.algorithm for run in plan)).values())
        left = pace.left(plan, done, jobs)
        experiments.append(Line(f"experiment={name}", "", name, False, counted, len(plan), left))
    return Listing(lines, experiments, jobs)


def _line(
    entry: Entry,
    groups: Sequence[Population],
    report: Path,
    planned: Mapping[str, Sequence[RunLength]],
    pace: Pace,
    jobs: int,
) -> Line:
    if entry.experiment is None:
        measured = bool(entry.measured)
        there = measured and entry.content(Inputs(report=report)).table is not None
        source = " && ".join(entry.measured) or None
        return Line(entry.id, entry.title, source, measured, int(there), int(measured), None)
    done, plan = _done(entry.main(groups)), planned.get(entry.experiment)
    # An artifact shows one dataset, the first of its experiment.
    mine = None if plan is None else [r for r in plan if r.algorithm in entry.algorithms and r.data == plan[0].data]
    return Line(
        entry.id,
        entry.title,
        entry.experiment,
        False,
        sum(done[name] for name in entry.algorithms),
        None if mine is None else len(mine),
        None if mine is None else pace.left(mine, done, jobs),
    )


def _done(population: Population | None) -> Counter[str]:
    """Count finished runs by algorithm."""
    return Counter(run.algorithm for run in population.runs) if population else Counter()
