"""`dpfest report`: build every artifact under `<report>` from finished runs, given as folders or as cards.

Writes `figures/<id>.png|pdf|svg`, `tables/<id>.csv|md|html|tex`, `report.json`, `index.md`, the self-contained page
`index.html`, and a page of each population's runs in `runs/`. Plain file names always stand for an artifact's own kind
of data; another population's files are named `<id>--<dataset>`. Two builds from the same runs give the same bytes;
everything is rendered before anything is written.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from pipelines.system.progress import Reporter
from reports import frontiers
from reports.claims import register
from reports.commands import Commands
from reports.comparison import Population, heading, populations
from reports.costs import FILE as COSTS
from reports.costs import Costs
from reports.entry import Content, Entry, Inputs, absent, placeholder, provenance, remake
from reports.found import Found
from reports.frontiers import Frontier
from reports.page import page
from reports.published import other_data
from reports.reading import Skipped, load_runs, measured_in
from reports.reference import ALARM, Agreement, agreements, table
from reports.registry import ENTRIES, chosen
from reports.run_pages import FOLDER, RunPage, run_pages
from reports.runs import Run
from reports.style import dress, style
from reports.templates import render
from reports.wording import plural
from reports.write import Draft, printing, put_figure, put_table

# Keys of a variant that earlier versions lack.
_KEYS = {"heading", "values", "claims"}

# Number of runs of a complete experiment, by experiment and algorithm, if the caller knows its grid.
Planned = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class BuiltReport:
    """The artifacts built, the runs left out, and the commands that make the missing runs."""

    folder: Path
    artifacts: list[dict[str, Any]]
    skipped: list[Skipped]
    sweeps: list[str]
    claims: list[dict[str, Any]]
    agreements: list[Agreement] | None

    def __str__(self) -> str:
        lines = [f"{entry['id']:<10} {entry['status']:<10} {_progress(entry)}" for entry in self.artifacts]
        verdicts = Counter(claim["verdict"] for claim in self.claims)
        lines.append("claims: " + ", ".join(f"{count} × {verdict}" for verdict, count in sorted(verdicts.items())))
        lines += [f"reference: {agreement}" for agreement in self.agreements or ("no reference to compare with",)]
        lines += [f"more runs: {sweep}" for sweep in self.sweeps]
        if self.skipped:
            first, more = self.skipped[0], len(self.skipped) - 1
            others = f"; and {more} more, listed at the end of the report" if more else ""
            lines.append(f"left out: {first.path}: {first.reason}{others}")
        return "\n".join([*lines, f"{self.folder / 'index.html'}"])


def build(
    runs: Path,
    report: Path,
    only: Sequence[str] | None = None,
    dataset: str | None = None,
    planned: Planned | None = None,
    commands: Commands | None = None,
    reference: Path | None = None,
    say: Reporter = lambda done, total, words="": None,
) -> BuiltReport:
    """Build artifacts from runs.

    Args:
        runs: folder of runs or of cards, or a file of cards.
        report: output folder.
        only: ids of the artifacts to build; None for all. The others stay as an earlier build left them.
        dataset: dataset that gets the plain file names; by default the first of the artifact's own kind.
        planned: number of runs of each experiment.
        commands: arguments for printed commands.
        reference: folder of the reference's runs to compare with, unless `runs` lies in it.
        say: receives how many artifacts are built, and which is next.

    Raises:
        UserError: an unknown artifact, or a dataset without runs.
        OSError: the output folder cannot be written to.
    """
    artifacts, commands = chosen(only), commands or Commands()
    with printing(beside=not only) as printer:
        usable, skipped = load_runs(runs)
        groups = _main_first(populations(usable), dataset, commands.profile)
        skipped += _alone(usable, groups)
        entries = _earlier(report) if only else {}
        draft = Draft(report, printer)
        measured = measured_in(runs, report)
        work = _Work(draft, Inputs(groups, measured, costs=Costs(measured, report)), dataset, planned, commands)
        built = {}
        for done, entry in enumerate(artifacts):
            say(done, len(artifacts) + 1, entry.id)
            built[entry.id] = work.artifact(entry)
        say(len(artifacts), len(artifacts) + 1, "claims and page")
        entries |= built
        ordered = [entries[entry.id] for entry in ENTRIES if entry.id in entries]
        claims = register.judge(work.inputs)
        judged = register.table(claims)
        put_table(draft, "claims", judged, "The paper's claims")
        draft.put("tables/claims.md", judged.markdown())
        found, curves = Found.of(claims, groups), work.frontiers()
        itself = reference is not None and reference.resolve() in (runs.resolve(), *runs.resolve().parents)
        compared = work.agreements(None if itself else reference)
        pages = work.run_pages()
        left_out = [asdict(one) for one in skipped]
        beside = {"left_out": left_out, "reference": compared, "alarm": ALARM, "found": found, "curves": curves}
        draft.put("index.md", render("index.md.jinja", entries=ordered, claims=judged, draft=draft, **beside))
        draft.put("index.html", page(draft, ordered, claims, left_out, groups, pages, curves, compared))
        content = {
            "found": [list(pair) for pair in found.answers],
            "artifacts": ordered,
            "claims": claims,
            "skipped": left_out,
            "reference": None if compared is None else {"alarm": ALARM, "artifacts": [asdict(one) for one in compared]},
        }
        if work.inputs.costs.asked:
            draft.put(COSTS, work.inputs.costs.text())
        draft.put("report.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        draft.publish()
    shown = [(entry, work.plain(entry)) for entry in artifacts if built[entry.id]["status"] != "complete"]
    incomplete = {entry.experiment_on(main): main for entry, main in shown}
    sweeps = [commands.sweep(name, main) for name, main in incomplete.items() if name]
    return BuiltReport(report, list(built.values()), skipped, sweeps, claims, compared)


def _main_first(groups: list[Population], dataset: str | None, profile: str) -> list[Population]:
    """Sort populations: those of the named dataset first, then those of the named profile."""
    if dataset is not None and all(group.dataset != dataset for group in groups):
        there = ", ".join(sorted({group.dataset for group in groups})) or "none"
        raise UserError(f"There are no finished runs on {dataset}; there are runs on: {there}.")
    return sorted(groups, key=lambda group: (dataset not in (None, group.dataset), group.profile != profile))


def _alone(runs: Sequence[Run], groups: Sequence[Population]) -> list[Skipped]:
    """Return the releases of private searches that no population includes."""
    shown = {run.id for group in groups for run in group.searched}
    why = "a private search released it, and there are no other private runs on the same data to show it beside"
    return [Skipped(run.place, why) for run in runs if run.search is not None and run.id not in shown]


@dataclass(frozen=True)
class _Work:
    """The inputs of all artifacts of one report, and the draft that receives them."""

    draft: Draft
    inputs: Inputs
    dataset: str | None
    planned: Planned | None
    commands: Commands

    def plain(self, entry: Entry) -> Population | None:
        return entry.main(self.inputs.populations, self.dataset)

    def artifact(self, entry: Entry) -> dict[str, Any]:
        main = self.plain(entry)
        others = [g for g in self.inputs.populations if entry.shows(g) and g is not main and not entry.together]
        shown = {entry.id: main} | _names(entry.id, others, main)
        variants = [self._variant(entry, name, population) for name, population in shown.items()]
        files = [file for variant in variants for file in variant["files"]]
        self.remove_stale(entry.id, files)
        return {
            "id": entry.id,
            "title": entry.title,
            "experiment": entry.experiment,
            "status": variants[0]["status"],
            **self._counts(entry, main),
            "files": files,
            "variants": variants,
        }

    def frontiers(self) -> list[Frontier]:
        """Put the figure and the table of the main frontiers, which are returned, or remove those of an earlier
        build."""
        if curves := frontiers.main(self.inputs.populations):
            with style():
                drawn = frontiers.picture(curves)
                assert drawn is not None
                put_figure(self.draft, "frontiers", drawn)
            put_table(self.draft, "frontiers", frontiers.table(curves), "Largest reductions")
        else:
            self.remove_stale("frontiers", [])
        return curves

    def agreements(self, reference: Path | None) -> list[Agreement] | None:
        """Put the comparison with the reference's runs, which is returned, or remove that of an earlier build."""
        compared = agreements(ENTRIES, self.inputs.populations, reference) if reference else []
        if not compared:
            self.remove_stale("reference", [])
            return None
        put_table(self.draft, "reference", table(compared), "These runs and the reference's")
        return compared

    def run_pages(self) -> list[RunPage]:
        """Put a page of each population's runs, and remove those of an earlier build."""
        pages = run_pages(self.inputs.populations)
        for one in pages:
            self.draft.put(one.file, one.text())
        named = {one.file for one in pages}
        for path in (self.draft.folder / FOLDER).glob("*.html"):
            if path.relative_to(self.draft.folder).as_posix() not in named:
                self.draft.remove(path)
        return pages

    def _variant(self, entry: Entry, name: str, population: Population | None) -> dict[str, Any]:
        draft, command = self.draft, remake(entry, population, self.commands)
        inputs = replace(self.inputs, drawn=population)
        with style():
            waiting = population is None and entry.experiment is not None
            content = Content("Nothing to show yet.") if waiting else entry.content(inputs)
            content.caption += other_data(entry.id, population.dataset) if population else ""
            missing = absent(entry, population) + content.missing + self._undone(entry, population)
            if content.figure is None and entry.figure:
                content.figure = placeholder(entry.title)
            files: list[str] = []
            where = provenance(population, content) if population is not None else ""
            if content.figure is not None:
                dress(content.figure, where, [f"Incomplete. {sentence}" for sentence in missing])
                files += put_figure(draft, name, content.figure)
        if content.table is not None:
            files += put_table(draft, name, content.table, f"{entry.id}: {entry.title}")
        claims = register.shown_by(entry.id, inputs)
        values = {"missing": missing, "claims": claims, "where": where, "command": command}
        text = render("section.md.jinja", entry=entry, content=content, **values)
        files.append(draft.put(f"tables/{name}.md", text))
        nothing = content.table is None if entry.measured else waiting
        return {
            "name": name,
            "dataset": population.dataset if population else None,
            "heading": heading(population, () if entry.together else self.inputs.populations) if population else None,
            "status": "missing" if nothing else "incomplete" if missing else "complete",
            "missing": missing,
            "caption": content.caption,
            "values": content.figure.values if content.figure and content.table else "",
            "claims": claims,
            "provenance": where,
            "epsilons": content.epsilons if content.epsilons is not None else population.epsilons if population else [],
            "command": command,
            "files": files,
        }

    def _grid(self, entry: Entry, population: Population | None) -> Mapping[str, int] | None:
        """Return the experiment's planned runs by algorithm, for every seed planned or present; None if unknown, as for
        another profile, for every population of an experiment but the first, and for the reference, whose first data
        are others."""
        name = entry.experiment_on(population) or ""
        if name == "reference":
            return None
        if population is None:
            return (self.planned or {}).get(name)
        first = next(g for g in self.inputs.populations if entry.shows(g) and entry.experiment_on(g) == name)
        if (population is not first and not entry.together) or population.profile != self.commands.profile:
            return None
        grid = (self.planned or {}).get(name)
        times = 1 if self.commands.seed else len(population.seeds)
        return None if grid is None else {name: times * count for name, count in grid.items()}

    def _counts(self, entry: Entry, population: Population | None) -> dict[str, int | None]:
        if entry.experiment is None:
            return {"runs_done": 0, "runs_needed": 0}
        runs: list[Run] = population.runs if population else []
        grid = self._grid(entry, population)
        return {
            "runs_done": sum(run.algorithm in entry.algorithms for run in runs),
            "runs_needed": None if grid is None else sum(grid.get(name, 0) for name in entry.algorithms),
        }

    def _undone(self, entry: Entry, population: Population | None) -> list[str]:
        """Return a sentence on the algorithms with some, but fewer runs than the experiment plans."""
        if population is None or entry.experiment is None:
            return []
        grid, done = self._grid(entry, population) or {}, Counter(run.algorithm for run in population.runs)
        short = [
            f"{done[name]} of {grid[name]} {name}" for name in entry.algorithms if 0 < done[name] < grid.get(name, 0)
        ]
        return [f"Done so far: {', '.join(short)} runs."] if short else []

    def remove_stale(self, id: str, files: list[str]) -> None:
        """Remove files of this id that an earlier build wrote and this one does not, because their runs are gone."""
        report = self.draft.folder
        for folder in ("figures", "tables"):
            for path in [*(report / folder).glob(f"{id}.*"), *(report / folder).glob(f"{id}--*.*")]:
                if path.relative_to(report).as_posix() not in files:
                    self.draft.remove(path)


def _names(id: str, others: list[Population], main: Population | None) -> dict[str, Population]:
    """Return unique names for all populations but the main one: `<id>--<dataset>`, with further details if needed."""

    def details(group: Population) -> list[str]:
        return [
            group.dataset,
            group.fidelity,
            group.profile,
            group.model,
            str(group.examples),
            group.material,
        ]

    groups, named = [*([main] if main else []), *others], {}
    for group in others:
        for depth in range(1, 7):
            label = details(group)[:depth]
            if sum(details(other)[:depth] == label for other in groups) == 1:
                break
        # Names from runs must not lead out of the folder.
        safe = re.sub(r"[^\w.+-]+", "_", "-".join(filter(None, label)))
        named[f"{id}--{safe}"] = group
    return named


def _progress(entry: Mapping[str, Any]) -> str:
    planned = f" ({entry['runs_needed']} planned)" if entry["runs_done"] < (entry["runs_needed"] or 0) else ""
    done, lacking = entry["runs_done"], entry["variants"][0]["missing"]
    return plural(done, "run") + planned + (f"; {lacking[0]}" if lacking else "")


def _earlier(report: Path) -> dict[str, dict[str, Any]]:
    """Return the entries that an earlier build of this version left; those of other versions are ignored."""
    try:
        entries = json.loads((report / "report.json").read_text(encoding="utf-8"))["artifacts"]
        return {e["id"]: e for e in entries if all(variant.keys() >= _KEYS for variant in e["variants"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
