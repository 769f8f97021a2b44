"""What an artifact is: an id, the experiment that makes its runs, a function from runs to its content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from reports.commands import Commands
from reports.comparison import Population
from reports.style import NOTE_COLOUR, WIDTH, Drawing, canvas
from reports.tables import Table
from reports.texts import kind
from reports.wording import delta, metric, number, rule, seeds_of


@dataclass
class Content:
    """What an artifact shows of one population. `missing`: what it could not show, a sentence an item."""

    caption: str
    figure: Drawing | None = None
    table: Table | None = None
    missing: list[str] = field(default_factory=list)
    epsilons: list[float] | None = None  # those shown, for the footer; None: all of the population


@dataclass(frozen=True)
class Artifact:
    """One figure or table.

    `rules` are the algorithms that it compares: without a run of each the artifact is marked incomplete.
    `content` draws it from one population; an artifact without an experiment needs no runs and gets None.
    `streams` says that it is drawn from runs on streams; others are drawn from runs that are none.
    `texts` are the kinds of texts (`reports.texts.kind`) that it is drawn from, too; `clicks` is false where it is
    drawn from them alone. With `beside`, `content` gets all populations of texts, the one that it is drawn for first.
    `measured` is the command (or several, joined by ` && `) that measures what it shows into the report's own folder,
    which `content` then gets.
    """

    id: str
    title: str
    content: (
        Callable[[Population], Content]
        | Callable[[None], Content]
        | Callable[[Path], Content]
        | Callable[[list[Population]], Content]
    )
    experiment: str | None = None
    rules: tuple[str, ...] = ()
    figure: bool = True  # whether it has one, and so needs a placeholder while there is nothing to draw
    measured: str | None = None
    streams: bool = False
    texts: tuple[str, ...] = ()
    clicks: bool = True
    beside: bool = False

    def shows(self, population: Population) -> bool:
        """Whether it can be drawn from this population."""
        return self.experiment is not None and kind(population) in (self.kind, *self.texts)

    @property
    def kind(self) -> str:
        """The kind of data that its plain file names stand for."""
        return ("stream" if self.streams else "clicks") if self.clicks else self.texts[0]

    def experiment_on(self, population: Population | None) -> str | None:
        """The experiment that makes its runs on the population's kind of data."""
        return self.experiment if population is None else TEXTS.get(kind(population), self.experiment)


TEXTS = {"text": "text", "large_text": "text_large_vocabulary"}
"""The experiment of each kind of texts."""


def remake(artifact: Artifact, population: Population | None, commands: Commands) -> str:
    """The command that makes the artifact's runs and then the artifact."""
    report = commands.report(artifact.id, population)
    experiment = artifact.experiment_on(population)
    if experiment is None:
        measured = artifact.measured.split(" && ") if artifact.measured else []
        return " && ".join([*map(commands.measured, measured), report])
    return f"{commands.sweep(experiment, population)} && {report}"


def provenance(population: Population, content: Content) -> str:
    """On which data, at which ε and δ, how accounted, over how many seeds: the first line of every footer."""
    epsilons = population.epsilons if content.epsilons is None else content.epsilons
    private = [run for run in population.runs if run.epsilon is not None]
    deltas = sorted({run.delta for run in private if run.delta is not None})
    samplings = sorted({run.sampling for run in private if run.sampling})
    parts = [f"{population.dataset}, {population.model}, N = {population.examples:,}"]
    if epsilons and private:
        parts.append("ε = " + ", ".join(number(epsilon) for epsilon in epsilons))
        parts.append("δ = " + ", ".join(map(delta, deltas)))
        parts.append(f"{population.fidelity} accounting" + "".join(f", {s} sampling" for s in samplings))
    parts.append(seeds_of(population))
    if resolution := _resolution(population):
        parts.append(resolution)
    return " · ".join(parts)


def _resolution(population: Population) -> str:
    """How finely utilities can be told apart: the largest standard error of each split's utility."""
    errors = {
        "test": [run.test_error for run in population.runs if run.test_error is not None],
        "validation": [run.validation_error for run in population.runs if run.validation_error is not None],
    }
    said = [f"{max(found):.4f} ({split})" for split, found in errors.items() if found]
    return f"standard error of one {metric(population)} " + ", ".join(said) if said else ""


def absent_rules(artifact: Artifact, population: Population | None) -> list[str]:
    """A sentence for every rule that the artifact compares and that has no run at some ε.

    Where only what rules are held against was trained, as for another artifact, there is nothing to compare.
    """
    if population is None:
        return ["No runs yet."] if artifact.experiment else []
    sentences, compared = [], set(artifact.rules) - {"nonprivate", "dpsgd", "frozen"} or set(artifact.rules)
    epsilons = [
        e for e in population.epsilons if any(s.epsilon == e for s in population.settings if s.algorithm in compared)
    ]
    for algorithm in artifact.rules:
        present = {s.epsilon for s in population.settings if s.algorithm == algorithm}
        lacking = [number(e) for e in epsilons if e not in present]
        if not present:
            sentences.append(f"No {rule(algorithm)} ({algorithm}) runs yet.")
        elif lacking and algorithm != "nonprivate":
            sentences.append(f"No {rule(algorithm)} ({algorithm}) runs at ε = {', '.join(lacking)} yet.")
    return sentences


def placeholder(title: str) -> Drawing:
    """The figure of an artifact that has nothing to show: it says so, and cannot be taken for a result."""
    figure = canvas(WIDTH, 1.2)
    axes = figure.add_subplot()
    axes.axis("off")
    axes.text(0.5, 0.5, f"{title}\nnothing to show yet", ha="center", va="center", color=NOTE_COLOUR, fontsize=10)
    return figure
