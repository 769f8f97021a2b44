"""README's results, docs/RESULTS.md and docs/CLAIMS.md, from the reference's run cards only: `python -m reports.readme`
writes them.

A test compares them. README's block between BEGIN and END has the picture of all curves, their largest reductions and
the answers to what readers ask first; docs/RESULTS.md has all questions, data, ε and algorithms, docs/CLAIMS.md the
evidence for every verdict. The map for docs/FINDINGS.md is drawn as well. Each picture contains a digest of its values,
so that a picture of other runs is detected.
"""

from __future__ import annotations

import hashlib
import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from dpfest.planning.seen import seen_in_batch
from pipelines.system.files import write_atomically
from pipelines.tasks.pctr import embedding_dim
from reports import at_size, frontiers
from reports.algorithms import REFERENCES, label, ordered
from reports.artifacts import correlated, map
from reports.bench import read
from reports.beside import FILE, controls_text
from reports.claims import register
from reports.claims.claim import DECIDED
from reports.claims.estimate import NEARLY
from reports.comparison import Panel, Population, by_epsilon, by_period, populations
from reports.costs import FILE as COSTS
from reports.costs import Costs
from reports.entry import Content, Inputs, provenance
from reports.found import Found
from reports.frontiers import Frontier
from reports.published import TAB_VOCAB
from reports.reading import load_runs
from reports.reference import reference_folder
from reports.registry import chosen
from reports.style import Drawing, dress, settle, style
from reports.tables import Table
from reports.templates import render
from reports.text import markdown
from reports.wording import capitalized, number, plural, seeds_of, significant, utility
from reports.write import printed

BEGIN = "<!-- results: `make readme` writes what follows from docs/reference -->"
END = "<!-- end of results -->"

DOCS = Path("docs")
PICTURE, MAP, CLAIMS, RESULTS = DOCS / "frontiers.png", DOCS / "map.png", DOCS / "CLAIMS.md", DOCS / "RESULTS.md"
DIGEST = "Description"
"""The PNG's text chunk with the digest."""

HALF_A_MILLION = 500_000
"""Reduction that the paper reports for DP-AdaFEST on Criteo-Kaggle at a loss of AUC below 0.005."""


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

    @cached_property
    def frontiers(self) -> list[Frontier]:
        """The frontiers on clicks and streams, at the main ε."""
        return frontiers.main(self.groups)

    @cached_property
    def judged(self) -> list[dict[str, Any]]:
        """Return every claim with its verdicts."""
        return register.judge(Inputs(self.everything, self.reference))

    @cached_property
    def found(self) -> Found:
        """The answers that the claims give."""
        return Found.of(self.judged, self.everything)

    @property
    def _first(self) -> Found:
        """The answers on the data of the picture."""
        shown = {frontier.population.dataset for frontier in self.frontiers}
        return replace(self.found, epsilons={name: at for name, at in self.found.epsilons.items() if name in shown})

    @property
    def text(self) -> str:
        """Text of the block in README."""
        text = render(
            "readme.md.jinja",
            answers=self._first.answers[:4],
            caption=frontiers.caption(self.frontiers),
            claims=CLAIMS.as_posix(),
            coordinates=_criteo_coordinates(),
            marks=self._first.marks,
            nearly=NEARLY,
            picture=PICTURE.as_posix(),
            results=RESULTS.as_posix(),
            runs=self.runs,
            sized=at_size.said(self.reference.parents[1] / at_size.FILE),
            speed=self._speed,
            table=_table([_row(frontier, frontiers.SHOWN) for frontier in self.frontiers]),
        )
        return _filled(text)

    @property
    def results(self) -> str:
        """The page of results: questions, references and largest reductions on all data, at every ε."""
        panels = [panel for group in self.groups for panel in _panels(group)]
        sparse = [frontier for panel in panels if (frontier := Frontier(panel)).curves]
        names = ordered({name for frontier in sparse for name in frontier.curves})
        epsilons = sorted({frontier.panel.epsilon for frontier in self.frontiers})
        text = render(
            "results.md.jinja",
            answers=self.found.answers,
            correlated=self._correlated,
            epsilon=", ".join(number(epsilon) for epsilon in epsilons),
            marks=self.found.marks,
            nearly=NEARLY,
            runs=self.runs,
            references=_table([_reference_row(panel) for panel in panels]),
            seen=self._seen,
            reductions=_table([_row(frontier, names, epsilon=True) for frontier in sparse]),
            picture=PICTURE.name,
            caption=frontiers.caption(self.frontiers),
        )
        return _filled(text)

    @property
    def claims(self) -> str:
        """The page of all claims, with the evidence for each verdict."""
        named = dict.fromkeys(name for claim in self.judged for name in claim["datasets"])
        judged: dict[str, Any] = {"claims": self.judged, "datasets": list(named), "decided": DECIDED}
        return render("claims.md.jinja", found=self.found, brief=self._brief, **judged)

    @property
    def costs(self) -> str:
        """What the runs cost together, which reports of the reference would take minutes to compute."""
        costs = Costs(self.reference)
        (entry,) = chosen(["private_search"])
        for group in filter(entry.shows, self.everything):
            entry.content(Inputs(self.everything, self.reference, group, costs=costs))
        return costs.text()

    @property
    def controls(self) -> str:
        """What `dpfest train` prints beside a result: the controls of clicks and streams."""
        return controls_text(group for group in self.groups if group.kind in ("clicks", "stream"))

    def _brief(self, result: Mapping[str, Any], dataset: str) -> str:
        """Return the evidence at the main ε, and the verdicts in other panels; the whole evidence of one panel."""
        panels, main = result["panels"], self.found.main_panel(dataset, result)
        others: dict[str, list[str]] = {}
        for where, panel in panels.items():
            if panel is not main:
                others.setdefault(panel["verdict"], []).append(where)
        rest = "; ".join(f"{_joined(places)}: {verdict}" for verdict, places in others.items())
        if main is None and len(panels) < 2:
            return result["alone"]
        text = "" if main is None else capitalized(main["evidence"])
        return " ".join(filter(None, (text, rest and f"{rest}.")))

    @property
    def _seen(self) -> dict[str, str]:
        """Return the fewest and most training examples that a row must occur in to be seen by a map of equal noise
        multipliers, and by the counts of DP-FEST, on click data."""
        maps, counts = [], []
        for frontier in (one for one in self.frontiers if one.population.kind == "clicks"):
            for setting in frontier.population.settings:
                run = setting.runs[0]
                features = len(run.tables)
                if run.target_epsilon != frontier.panel.epsilon:
                    continue
                if run.rule == "adafest" and setting.parameter("noise_ratio") == 1:
                    norm = setting.parameter("contribution_clipping_norm") or 1.0
                    in_batch = seen_in_batch(run.map_noise_multiplier or 0.0, norm, features)
                    maps.append(in_batch * run.examples / run.batch_size)
                elif run.rule == "fest":
                    counts.append(math.sqrt(features) * (setting.parameter("selection.noise_multiplier") or 0.0))
        return {
            name: f"{significant(float(f'{min(found):.2g}'))} to {significant(float(f'{max(found):.2g}'))}"
            for name, found in (("map", maps), ("counts", counts)) if found
        }  # fmt: skip

    @property
    def _correlated(self) -> str:
        """What correlated noise gains DP-SGD, by data, period of a stream and ε; empty without such runs."""
        said = []
        for group in self.groups:
            parts = [(f" in periods of {plural(days, 'day')}", group.at(days)) for days in group.periods] or [
                ("", group)
            ]
            each = [
                f"{of} at ε = {number(epsilon)}{where} ({bands} bands)"
                for where, part in parts for epsilon in part.epsilons
                for bands, of in filter(None, [correlated.gain(part, epsilon)])
            ]  # fmt: skip
            said += [f"{group.dataset} {', '.join(each)}"] if each else []
        return "; ".join(said)

    @property
    def _speed(self) -> dict[str, str]:
        """Return how many times as long as DP-AdaFEST's a step of DP-SGD takes at the most rows that were timed, with
        dense and with lazy noise; empty without such a benchmark."""
        section = read(self.reference, "embedding")
        dense, lazy = (section.at(name) if section else {} for name in ("dpsgd", "dpsgd lazy"))
        both = [rows for rows in dense.keys() & lazy.keys() if dense[rows]["reference"] == "adafest"]
        if not both:
            return {}
        rows = max(both)
        return {"rows": f"{rows:,}"} | {
            name: significant(timed[rows]["ratio"]) for name, timed in (("dense", dense), ("lazy", lazy))
        }

    @property
    def pictures(self) -> dict[Path, tuple[Drawing, Table, str]]:
        """The curves and, if there are runs on planted data, the map, by file: drawing, values and footer."""
        drawn = frontiers.picture(self.frontiers)
        assert drawn is not None
        shown = {PICTURE: (drawn, frontiers.table(self.frontiers), "")}
        if self.planted:
            first = self.planted[0]
            content: Content = map.content(Inputs([*self.planted, *self.groups], self.reference, first))
            assert content.figure is not None and content.table is not None
            shown[MAP] = content.figure, content.table, provenance(first, content)
        return shown


def png(figure: Drawing, table: Table, footer: str) -> bytes:
    """Return the picture with the digest of its values."""
    dress(figure, footer, [])
    settle(figure)
    return printed(figure, "png", **{DIGEST: digest(table)})


def digest(table: Table) -> str:
    """Return a digest of the values that a picture shows."""
    return hashlib.sha256(table.csv().encode()).hexdigest()


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
    """Replace README's results, docs/RESULTS.md and docs/CLAIMS.md, and draw the pictures."""
    before, _, after = split(readme.read_text(encoding="utf-8"))
    results = Results.read(reference)
    text = f"{before}\n{results.text}\n\n{after}"
    with style():
        for file, shown in results.pictures.items():
            _write(readme.parent / file, png(*shown))
    _write(readme.parent / "reports" / FILE.name, results.controls.encode())
    _write(reference / COSTS, results.costs.encode())
    _write(readme.parent / RESULTS, results.results.encode())
    _write(readme.parent / CLAIMS, results.claims.encode())
    _write(readme, text.encode())


def _write(file: Path, data: bytes) -> None:
    write_atomically(file, lambda partial: partial.write_bytes(data))


def _joined(places: Sequence[str]) -> str:
    """Join the names of places, what all begin with once: ε = 3, 8."""
    begin = places[0].rpartition(" ")[0] + " "
    if not all(place.startswith(begin) for place in places):
        return ", ".join(places)
    return begin + ", ".join(place.removeprefix(begin) for place in places)


def _panels(group: Population) -> list[Panel]:
    """Return a panel of each ε; in streams, of the shortest period at the main ε."""
    return by_period(group, group.periods[:1]) or by_epsilon(group, group.epsilons)


def _filled(text: str) -> str:
    """Wrap the paragraphs and items of Markdown, but not its tables and headings."""
    lines = []
    for line in text.strip().splitlines():
        indent = "  " if line.startswith("- ") else ""
        fixed = line.startswith(("|", "#", "!"))
        lines.append(line if fixed else textwrap.fill(
            line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ))  # fmt: skip
    return "\n".join(lines)


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a table of rows with the same columns."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _row(frontier: Frontier, names: Sequence[str], epsilon: bool = False) -> dict[str, str]:
    """Return a dataset's largest reductions: in README with its references, in all results with its ε."""
    population = frontier.population
    controls = " / ".join("—" if test is None else f"{test:.3f}" for test in frontier.controls)
    data = markdown(population.dataset)
    columns = {"data": data, "ε": number(frontier.panel.epsilon)} if epsilon else {
        "data (DP-SGD / frozen AUC)": f"{data} ({controls})"
    }  # fmt: skip
    for name in names:
        columns[label(name)] = frontier.cell(name)
    return columns


def _reference_row(panel: Panel) -> dict[str, str]:
    population = panel.population
    controls = {name: population.best(name, panel.epsilon) for name in REFERENCES}
    return {
        "data": markdown(population.dataset + (f", {panel.where}" if population.periods else "")),
        "ε": number(panel.epsilon),
        "training examples": f"{population.examples:,}",
        "rows": f"{population.embedding_rows:,}",
        **{label(name): utility(s.test, s.spread) if s is not None else "—" for name, s in controls.items()},
        "seeds": seeds_of(population.at_epsilons([panel.epsilon])).removeprefix("seeds "),
    }


def _criteo_coordinates() -> dict[str, str]:
    """Return the coordinates of the embedding tables of the paper's Criteo model, and how many of them are left after
    a cut by HALF_A_MILLION."""
    sizes = [int(size) for (size,) in TAB_VOCAB.rows.values()]
    count = sum(size * embedding_dim(size) for size in sizes)
    return {"all": f"{count / 1e6:.1f} million", "left": f"{count / HALF_A_MILLION:.0f}", "cut": f"{HALF_A_MILLION:,}"}


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
