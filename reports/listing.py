"""`dpfest report --list`: of each artifact its experiment, the runs that it needs and has, how long the rest takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.artifact import Artifact
from reports.bench import read
from reports.comparison import Population, populations
from reports.pace import Pace, PlannedRuns, duration
from reports.registry import ARTIFACTS
from reports.runs import load_runs


@dataclass(frozen=True)
class Line:
    """An artifact, or a whole experiment.

    Attributes:
        name: the artifact's id, or `experiment=...`.
        source: what makes it: an experiment, or the command that measures it; None where nothing has to be made.
        done, needed: runs; of what is measured, 1 of 1 where it is. `needed` is None where it is not known.
        left: seconds that the rest takes; None where it is not known.
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
        """How far it is, in words."""
        if self.source is None:
            return "needs no runs"
        if self.measured:
            return "measured" if self.done else "to be measured"
        return f"{self.done:>4} of {'?' if self.needed is None else self.needed:>4} runs"

    @property
    def time(self) -> str:
        """How long the rest takes, in words; empty where nothing is left."""
        finished = self.source is None or (self.needed is not None and self.done >= self.needed)
        return "" if finished or self.measured else duration(self.left)


@dataclass(frozen=True)
class Listing:
    """A line an artifact, and one an experiment, whose runs artifacts share."""

    artifacts: list[Line]
    experiments: list[Line]
    jobs: int

    def __str__(self) -> str:
        wide = max(len(line.name) for line in self.artifacts)
        source = max(len(line.source or "") for line in self.artifacts if not line.measured)
        lines = [
            f"{line.name:<{wide}}  {line.runs:<17}  {line.time:>7}  "
            f"{'' if line.measured else line.source or '':<{source}}  {line.title}"
            + (f" ({line.source})" if line.measured and not line.done else "")
            for line in self.artifacts
        ]
        for line in self.experiments:
            left = f"; the rest takes {line.time} with {self.jobs} at once" if line.time else ""
            if line.time and line.left is None:
                left = "; how long the rest takes shows once some are done"
            lines.append(f"{line.name}: {line.done} of {line.needed} runs{left}")
        return "\n".join(lines)


def listing(
    runs: Path,
    report: Path,
    planned: Mapping[str, PlannedRuns] | None = None,
    jobs: int = 1,
    profile: str | None = None,
) -> Listing:
    """What is done and what is left, counted on the runs of `profile` (None: whatever is there), `jobs` at once."""
    usable = load_runs(runs)[0]
    groups = [group for group in populations(usable) if profile in (None, group.profile)]
    # Runs of another profile are of another length, and what is not a step weighs differently in them.
    pace = Pace([run for run in usable if profile in (None, run.profile)], read(report, "step"))
    lines = [_line(artifact, groups, report, planned or {}, pace, jobs) for artifact in ARTIFACTS]
    experiments = []
    for name, plan in (planned or {}).items():
        shown = next((a for a in ARTIFACTS if a.experiment == name), None)
        done = _done(shown, groups) if shown else Counter[str]()
        counted = sum(min(done[algorithm], count) for algorithm, count in plan.by_algorithm().items())
        left = pace.left(plan, done, jobs)
        experiments.append(Line(f"experiment={name}", "", name, False, counted, len(plan.runs), left))
    return Listing(lines, experiments, jobs)


def _line(
    artifact: Artifact,
    groups: Sequence[Population],
    report: Path,
    planned: Mapping[str, PlannedRuns],
    pace: Pace,
    jobs: int,
) -> Line:
    if artifact.experiment is None:
        there = artifact.measured is not None and artifact.content(report).table is not None  # type: ignore[arg-type]
        measured = artifact.measured is not None
        return Line(artifact.id, artifact.title, artifact.measured, measured, int(there), int(measured), None)
    done, plan = _done(artifact, groups), planned.get(artifact.experiment)
    mine = None if plan is None else PlannedRuns([run for run in plan.runs if run.algorithm in artifact.rules])
    return Line(
        artifact.id,
        artifact.title,
        artifact.experiment,
        False,
        sum(done[algorithm] for algorithm in artifact.rules),
        None if mine is None else len(mine.runs),
        None if mine is None else pace.left(mine, done, jobs),
    )


def _done(artifact: Artifact, groups: Sequence[Population]) -> Counter[str]:
    """Runs by algorithm of the population that the artifact's own experiment makes."""
    shown = (group for group in groups if artifact.shows(group))
    main = next((group for group in shown if artifact.experiment_on(group) == artifact.experiment), None)
    return Counter(run.algorithm for run in main.runs) if main else Counter()
