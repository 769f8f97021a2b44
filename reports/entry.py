"""The definition of an artifact: its id, the experiment that makes its runs, and a function that draws it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reports.algorithms import REFERENCES, label
from reports.commands import Commands
from reports.comparison import Population, joined
from reports.costs import Costs
from reports.style import NOTE_COLOUR, WIDTH, Drawing
from reports.tables import Table
from reports.wording import delta, metric, number, seeds_of


@dataclass(frozen=True)
class Inputs:
    """The inputs of artifacts and claims.

    Attributes:
        populations: all populations, preferred ones first.
        report: folder with the results of `dpfest bench` and `dpfest audit` (`runs.measured_in`).
        drawn: population that an artifact is drawn from, preferred to all others.
        known: what claims found on these populations, so that each is judged once (`claims.claim`).
        costs: what runs cost together, as far as earlier reports have left it.
    """

    populations: Sequence[Population] = ()
    report: Path = Path()
    drawn: Population | None = None
    known: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    costs: Costs = field(default_factory=Costs, compare=False, repr=False)

    @property
    def population(self) -> Population:
        """Population that the artifact is drawn from; the artifact must have one."""
        assert self.drawn is not None
        return self.drawn

    def of(self, *kinds: str) -> list[Population]:
        """Return the populations of these kinds (`Population.kind`), those on which no claim can be tested last."""
        alike = [population for population in self.populations if population.kind in kinds]
        return sorted(alike, key=lambda population: (population is not self.drawn, population.untestable is not None))


@dataclass
class Content:
    """An artifact's content for one population; `missing` has a sentence for everything that it cannot show."""

    caption: str
    figure: Drawing | None = None
    table: Table | None = None
    missing: list[str] = field(default_factory=list)
    epsilons: list[float] | None = None  # the ε shown, for the footer; None for all of the population


def unmeasured(*commands: str) -> Content:
    """Return the content of an artifact before these commands have measured anything."""
    return Content("Nothing to show yet.", missing=[f"Not measured yet: {command}" for command in commands])


@dataclass(frozen=True)
class Entry:
    """One figure or table.

    Attributes:
        content: draws it; an artifact with an experiment receives a population (`Inputs.population`).
        experiment: experiment that makes its runs; None if it needs none.
        algorithms: algorithms that it compares; without a run of each it is marked incomplete.
        kinds: kinds of data (`Population.kind`) that it is drawn from; its plain file names stand for the first.
        measured: commands that measure its data into the report's folder.
        figure: whether it has a figure, and needs a placeholder while there is nothing to draw.
        together: whether all populations of its kinds are drawn as one (`comparison.joined`).
        where_trained: whether it is drawn only from populations with runs of all its algorithms, as few data have.
    """

    id: str
    title: str
    content: Callable[[Inputs], Content]
    experiment: str | None = None
    algorithms: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("clicks",)
    measured: tuple[str, ...] = ()
    figure: bool = True
    together: bool = False
    where_trained: bool = False

    def shows(self, population: Population) -> bool:
        """Whether it can be drawn from this population."""
        trained = {setting.algorithm for setting in population.settings} if self.where_trained else self.algorithms
        return self.experiment is not None and population.kind in self.kinds and set(self.algorithms) <= set(trained)

    def main(self, populations: Sequence[Population], dataset: str | None = None) -> Population | None:
        """Return the population of the plain file names: that of the named dataset, else one of the artifact's own kind
        of data; None if there is none, even if there are runs of another kind."""
        shown = [population for population in populations if self.shows(population)]
        if self.together:
            return joined(shown)
        if shown and shown[0].dataset == dataset:
            return shown[0]
        return next((population for population in shown if population.kind == self.kinds[0]), None)

    def experiment_on(self, population: Population | None) -> str | None:
        """Return the experiment that makes its runs on the population's kind of data."""
        if population is None:
            return self.experiment
        if population.dataset in _IN_REFERENCE:
            return "reference"
        return _EXPERIMENTS.get(population.kind, self.experiment)


_EXPERIMENTS = {"text": "text", "large_text": "text_large_vocabulary", "stream": "streaming"}
"""The experiment of each kind of data that has one of its own."""

_IN_REFERENCE = ("promotions", "journey_stream", "promotions_stream")
"""Data whose settings are in the grid of `experiment=reference` only."""


def remake(entry: Entry, population: Population | None, commands: Commands) -> str:
    """Return the command that makes the artifact's runs or measurements, and then the artifact."""
    experiment = entry.experiment_on(population)
    runs = [commands.sweep(experiment, population)] if experiment else map(commands.measured, entry.measured)
    return " && ".join([*runs, commands.report(entry.id, population)])


def provenance(population: Population, content: Content) -> str:
    """Return data, ε, δ, accounting and seeds: the first line of every footer."""
    epsilons = population.epsilons if content.epsilons is None else content.epsilons
    private = [run for run in population.runs if run.epsilon is not None]
    deltas = sorted({run.delta for run in private if run.delta is not None})
    samplings = sorted({run.sampling for run in private if run.sampling})
    parts = [f"{population.dataset}, {population.model}, N = {population.examples:,}"]
    if epsilons and private:
        parts.append("ε = " + ", ".join(number(epsilon) for epsilon in epsilons))
        parts.append("δ = " + ", ".join(map(delta, deltas)))
        parts.append(f"{population.fidelity} accounting" + "".join(f", {s} sampling" for s in samplings))
        if units := sorted({run.unit for run in private if run.unit}):
            parts.append("add or remove one " + " or ".join(units))
    parts.append(seeds_of(population))
    if resolution := _resolution(population):
        parts.append(resolution)
    return " · ".join(parts)


def _resolution(population: Population) -> str:
    """Return the resolution of utilities: the largest standard error of each split's utility."""
    errors = {
        "test": [run.test_error for run in population.runs if run.test_error is not None],
        "validation": [run.validation_error for run in population.runs if run.validation_error is not None],
    }
    largest = [f"{max(known):.4f} ({split})" for split, known in errors.items() if known]
    return f"standard error of one {metric(population)} " + ", ".join(largest) if largest else ""


def absent(entry: Entry, population: Population | None) -> list[str]:
    """Return a sentence for every algorithm of the artifact that lacks runs at some ε.

    An ε at which only references were trained, for another artifact, does not count.
    """
    if population is None:
        return ["No runs yet."] if entry.experiment else []
    compared = set(entry.algorithms) - set(REFERENCES) or set(entry.algorithms)
    trained = {name: {s.epsilon for s in population.settings if s.algorithm == name} for name in entry.algorithms}
    epsilons = [e for e in population.epsilons if any(e in trained[name] for name in compared)]
    sentences = []
    for name, present in trained.items():
        lacking = [number(e) for e in epsilons if e not in present]
        if not present:
            sentences.append(f"No {label(name)} ({name}) runs yet.")
        elif lacking and name != "nonprivate":
            sentences.append(f"No {label(name)} ({name}) runs at ε = {', '.join(lacking)} yet.")
    return sentences


def placeholder(title: str) -> Drawing:
    """Return the figure of an artifact without data, which cannot be mistaken for a result."""
    figure = Drawing(WIDTH, 1.2)
    axes = figure.add_subplot()
    axes.axis("off")
    axes.text(0.5, 0.5, f"{title}\nnothing to show yet", ha="center", va="center", color=NOTE_COLOUR, fontsize=10)
    return figure
