"""README's results and docs/CLAIMS.md, from the reference's run cards only: `python -m reports.readme` writes them.

A test compares them. README's block between BEGIN and END has the summary of claims, the picture of the central
comparison, and two tables with a row per dataset; docs/CLAIMS.md has the evidence for every verdict. The map for
docs/EXPERIMENTS.md is drawn as well. Each picture contains a digest of its values, so that a picture of other runs is
detected.
"""

from __future__ import annotations

import hashlib
import io
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.system.files import write_atomically
from reports.algorithms import REFERENCES, label, ordered
from reports.artifacts import fig8, map
from reports.bench import read
from reports.claims import register
from reports.claims.ahead import LOSSES
from reports.claims.estimate import OPEN
from reports.comparison import Panel, Population, Setting, best_reduction, by_epsilon, by_period, populations
from reports.entry import Content, Inputs, provenance
from reports.found import Found
from reports.reference import reference_folder
from reports.runs import load_runs
from reports.style import dress, settle, style
from reports.templates import render
from reports.text import markdown
from reports.wording import metric, multiple, number, seeds_of, significant, utility

BEGIN = "<!-- results: `make readme` writes what follows from docs/reference -->"
END = "<!-- end of results -->"

PICTURE, MAP, CLAIMS = (Path("docs") / name for name in ("comparison.png", "map.png", "CLAIMS.md"))
DIGEST = "Description"
"""The PNG's text chunk with the digest."""

WORTHLESS = "†"
"""Mark of a utility below that of frozen embeddings."""

LOSS = 0.005
"""Largest loss of validation utility against DP-SGD for the reductions in the table."""


@dataclass(frozen=True)
class Results:
    """The reference's runs under rigorous accounting, on data on which claims can be tested."""

    reference: Path
    runs: int
    everything: Sequence[Population]
    groups: Sequence[Population]
    planted: Sequence[Population]

    @classmethod
    def read(cls, reference: Path) -> Results:
        """Read a folder of run cards.

        Raises:
            UserError: a card cannot be used, or there are none of private runs on real clicks.
        """
        runs, skipped = load_runs(reference)
        if skipped:
            raise UserError(f"{reference / skipped[0].path} cannot be used: {skipped[0].reason}.")
        everything = populations(runs)
        rigorous = [group for group in everything if group.fidelity == "rigorous" and group.epsilons]
        groups = [group for group in rigorous if group.untestable is None and group.kind != "unit"]
        if not any(group.kind == "clicks" for group in groups):
            raise UserError(f"{reference} holds no cards of private runs on real clicks.")
        planted = [group for group in rigorous if group.kind == "map"]
        return cls(reference, len(runs), everything, groups, planted)

    @property
    def central(self) -> Population:
        """The population of the picture: the first on click data, at its main ε."""
        first = next(group for group in self.groups if group.kind == "clicks")
        return first.at_epsilons([first.main_epsilon])

    @cached_property
    def judged(self) -> list[dict[str, Any]]:
        """Return every claim with its verdicts."""
        return register.judge(Inputs(self.everything, self.reference))

    @property
    def claims(self) -> str:
        """Return the page of all claims, with the evidence for each verdict."""
        found = Found.of(self.judged, self.everything)
        named = [name for claim in self.judged for name in claim["datasets"]]
        return render(
            "claims.md.jinja",
            claims=self.judged,
            datasets=list(dict.fromkeys(named)),
            findings=found.findings,
            tally=found.tally,
            untested=OPEN,
            losses=" / ".join(number(loss) for loss in LOSSES),
            reductions=self._reductions,
        )

    @property
    def _reductions(self) -> list[dict[str, str]]:
        """Largest reductions within each of the paper's losses, by algorithm, on each dataset and at each ε."""
        rows = []
        for group in self.groups:
            population = group.at(group.periods[0]) if group.periods else group
            for panel in by_epsilon(population, group.epsilons):
                tried = {name: _settings_of(panel, name) for name in self._sparse}
                if panel.reference is None or not any(tried.values()):
                    continue
                cells = {label(name): _within(settings, panel.reference) for name, settings in tried.items()}
                rows.append({"data": group.dataset, "ε": number(panel.epsilon), **cells})
        return rows

    @property
    def _sparse(self) -> list[str]:
        """The algorithms that make gradients smaller, in order."""
        there = {run.rule for group in self.groups for run in group.runs}
        return [name for name in ordered(there) if name not in REFERENCES]

    @property
    def text(self) -> str:
        """Text of the block in README."""
        found = Found.of(self.judged, self.everything)
        central, panels, tried = self.central, _panels(self.groups), self._sparse
        caption = (
            f"Test {metric(central)} on {central.dataset} against the gradient size reduction at "
            f"ε = {number(central.main_epsilon)}, {seeds_of(central)}; bars are standard deviations over seeds."
        )
        references = (
            "**References.** Utility is test AUC, or accuracy for texts: means over seeds ± standard deviations (no ±: "
            "one seed) of the setting that is best on validation. Training without privacy has its own batch size, "
            "epochs and rates. —: no run."
        )
        sparse = (
            "**Sparsity-preserving algorithms.** Utility and gradient size reduction of the sparsest setting whose "
            f"validation utility is within {number(LOSS)} of the best DP-SGD's. None: no setting is, and the bracket "
            f"has the one that is best on validation. {WORTHLESS}: below frozen embeddings. In streams, DP-FEST "
            f"selects rows by the counts of the days so far. The runs are in [{self.runs:,} run cards](docs/reference)."
        )
        return "\n".join(
            [
                *(_wrapped(f"- {markdown(one)}", "  ") for one in [*found.findings, *self._speed]),
                "",
                _wrapped(
                    "The losses compared, against DP-SGD, are those of the paper's tables: "
                    f"{', '.join(number(loss) for loss in LOSSES)}. {markdown(found.tally)} "
                    f"[Every claim and its evidence]({CLAIMS.as_posix()})"
                ),
                "",
                f"![Utility against embedding gradient size on {central.dataset}]({PICTURE.as_posix()})",
                "",
                _wrapped(caption),
                "",
                _wrapped(references),
                "",
                *_table([_reference_row(panel) for panel in panels]),
                "",
                _wrapped(sparse),
                "",
                *_table([_sparse_row(one, tried) for one in panels if any(_settings_of(one, name) for name in tried)]),
            ]
        )

    @property
    def _speed(self) -> list[str]:
        """Sentence on the time of a step at the most rows that were timed with dense and with lazy noise; none without
        such a benchmark."""
        section = read(self.reference, "embedding")
        dense, lazy = (section.at(name) if section else {} for name in ("dpsgd", "dpsgd lazy"))
        both = [rows for rows in dense.keys() & lazy.keys() if dense[rows]["reference"] == "adafest"]
        if not both:
            return []
        rows = max(both)
        times = [significant(timed[rows]["ratio"]) for timed in (dense, lazy)]
        return [
            f"With {rows:,} embedding rows, a step of DP-SGD takes {times[0]} times as long as one of DP-AdaFEST; with "
            f"lazily drawn noise, which has the same distribution, {times[1]} times."
        ]

    @property
    def pictures(self) -> dict[Path, tuple[Population, Content]]:
        """The central comparison and, if there are runs on planted data, the map, by file."""
        central = self.central
        shown = {PICTURE: (central, fig8.content(Inputs([central], self.reference, central)))}
        if self.planted:
            first = self.planted[0]
            shown[MAP] = first, map.content(Inputs([*self.planted, *self.groups], self.reference, first))
        return shown


def png(population: Population, content: Content) -> bytes:
    """Return the picture with the digest of its values."""
    assert content.figure is not None
    dress(content.figure, provenance(population, content), [])
    settle(content.figure)
    out = io.BytesIO()
    content.figure.savefig(out, format="png", metadata={"Software": None, DIGEST: digest(content)})
    return out.getvalue()


def digest(content: Content) -> str:
    """Return a digest of the values that a picture shows."""
    assert content.table is not None
    return hashlib.sha256(content.table.csv().encode()).hexdigest()


def split(text: str) -> tuple[str, str, str]:
    """Split README into the text before the results, the results, and the text after them.

    Raises:
        UserError: it lacks one of the two marking lines.
    """
    before, begin, rest = text.partition(f"{BEGIN}\n")
    inside, end, after = rest.partition(f"{END}\n")
    if not (begin and end):
        raise UserError(f"README has no results to replace: it needs a line {BEGIN} and a line {END}.")
    return before + begin, inside.strip("\n"), end + after


def write(readme: Path, reference: Path) -> None:
    """Replace README's results and docs/CLAIMS.md, and draw the pictures."""
    before, _, after = split(readme.read_text(encoding="utf-8"))
    results = Results.read(reference)
    text = f"{before}\n{results.text}\n\n{after}"
    with style():
        for file, shown in results.pictures.items():
            _write(readme.parent / file, png(*shown))
    _write(readme.parent / CLAIMS, results.claims.encode())
    _write(readme, text.encode())


def _write(file: Path, data: bytes) -> None:
    write_atomically(file, lambda partial: partial.write_bytes(data))


def _panels(groups: Sequence[Population]) -> list[Panel]:
    """Return a panel of each population: that of its main ε and, in streams, of the shortest period."""
    found = []
    for group in groups:
        assert group.main_epsilon is not None
        panels = by_period(group, group.periods[:1]) or by_epsilon(group, [group.main_epsilon])
        found.append(panels[0])
    return found


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the lines of a table of rows with the same columns."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def _where(panel: Panel) -> dict[str, str]:
    population = panel.population
    where = population.dataset + (f", {panel.where}" if population.periods else "")
    return {"data": markdown(where), "ε": number(panel.epsilon)}


def _reference_row(panel: Panel) -> dict[str, str]:
    population = panel.population
    controls = {name: population.best(name, None if name == "nonprivate" else panel.epsilon) for name in REFERENCES}
    return {
        **_where(panel),
        "training examples": f"{population.examples:,}",
        **{label(name): utility(s.test, s.spread) if s is not None else "—" for name, s in controls.items()},
        "seeds": seeds_of(population.at_epsilons([panel.epsilon])).removeprefix("seeds "),
    }


def _sparse_row(panel: Panel, names: Sequence[str]) -> dict[str, str]:
    return {**_where(panel), **{label(name): _reduced(panel, name) for name in names}}


def _settings_of(panel: Panel, name: str) -> Sequence[Setting]:
    """Return an algorithm's settings; in streams, those of DP-FEST that count the days so far."""
    return panel.of(f"{name}/streaming" if name in ("fest", "fest_equal") and panel.population.periods else name)


def _within(settings: Sequence[Setting], best: Setting) -> str:
    """Return the largest reduction within each of `LOSSES`."""
    if not settings:
        return "—"
    chosen = [best_reduction(settings, best, loss) for loss in LOSSES]
    return " / ".join("none" if one is None else multiple(one.reduction) for one in chosen)


def _reduced(panel: Panel, name: str) -> str:
    settings, best = _settings_of(panel, name), panel.reference
    if not settings or best is None:
        return "—"
    chosen = best_reduction(settings, best, LOSS)
    shown = chosen or max(settings, key=lambda setting: (setting.validation, setting.key))
    said = utility(shown.test, shown.spread) + WORTHLESS * panel.population.worse_than_frozen(shown)
    return f"none ({said} at best)" if chosen is None else f"{said} at {multiple(chosen.reduction)}"


def main() -> None:
    """Write README.md of these sources from their docs/reference."""
    folder = reference_folder()
    if folder is None:
        raise UserError("docs/reference holds no run cards: make them with dpfest release RUN... --cards FILE.")
    write(Path(__file__).parents[1] / "README.md", folder)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
