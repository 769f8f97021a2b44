"""`dpfest report`: every artifact from the run directories alone, under `<report>`.

Writes `figures/<id>.png|pdf|svg`, `tables/<id>.csv|md|html|tex`, `report.json`, `index.md` and `index.html`, the page
that needs no other file. The population with the most runs has the plain names, another one `<id>--<dataset>`. Two
builds on the same runs give the same bytes.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfest.errors import UserError
from reports.artifact import TEXTS, Artifact, Content, absent_rules, placeholder, provenance, remake
from reports.claims import register
from reports.claims.claim import Evidence
from reports.commands import Commands
from reports.comparison import Population, populations
from reports.index import index, section
from reports.page.document import page
from reports.published import other_data
from reports.registry import ARTIFACTS
from reports.runs import Run, Skipped, load_runs
from reports.style import dress, style
from reports.texts import kind
from reports.write import write, write_figure, write_table

# Runs that a complete experiment has, by experiment and algorithm, where the caller knows its grid.
Planned = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Report:
    """What was built, what was left out, and the commands that make more runs for what is incomplete."""

    folder: Path
    artifacts: list[dict[str, Any]]
    skipped: list[Skipped]
    sweeps: list[str]
    claims: list[dict[str, Any]]

    def __str__(self) -> str:
        lines = [f"{entry['id']:<10} {entry['status']:<10} {_progress(entry)}" for entry in self.artifacts]
        verdicts = Counter(claim["verdict"] for claim in self.claims)
        lines.append("claims: " + ", ".join(f"{count} × {verdict}" for verdict, count in sorted(verdicts.items())))
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
) -> Report:
    """Build all artifacts, or `only` those named, from the runs under `runs` into `report`.

    `dataset` chooses the data that get the plain file names (default: those with the most runs). `planned`
    tells how many runs each experiment has, `commands` what the commands in the report must say. Artifacts that
    are not built keep what an earlier build made.
    Raises UserError for an unknown artifact or a dataset without runs.
    """
    chosen, commands = _chosen(only), commands or Commands()
    usable, skipped = load_runs(runs)
    groups = _main_first(populations(usable), dataset)
    entries = _earlier(report) if only else {}
    built = {a.id: _build_artifact(a, groups, report, planned, commands) for a in ARTIFACTS if a in chosen}
    entries |= built
    ordered = [entries[a.id] for a in ARTIFACTS if a.id in entries]
    left_out = [{"path": s.path, "reason": s.reason} for s in skipped]
    claims = register.judge(Evidence(groups, report))
    judged = register.table(claims)
    write_table(report / "tables" / "claims", judged, "The paper's claims")
    write(report / "tables" / "claims.md", judged.markdown())
    made = {"artifacts": ordered, "claims": claims, "skipped": left_out}
    write(report / "report.json", json.dumps(made, indent=2, ensure_ascii=False) + "\n")
    write(report / "index.md", index(ordered, judged, left_out, report))
    write(report / "index.html", page(report, ordered, claims, left_out, groups))
    shown = [(a, _main(a, groups)) for a in ARTIFACTS if a.id in built and built[a.id]["status"] != "complete"]
    incomplete = {a.experiment_on(main): main for a, main in shown}
    sweeps = [commands.sweep(name, main) for name, main in incomplete.items() if name]
    return Report(report, list(built.values()), skipped, sweeps, claims)


def _chosen(only: Sequence[str] | None) -> list[Artifact]:
    known = {artifact.id: artifact for artifact in ARTIFACTS}
    for name in only or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"There is no artifact {name}; {hint}There are {', '.join(known)}.")
    return [known[name] for name in only] if only else list(ARTIFACTS)


def _main_first(groups: list[Population], dataset: str | None) -> list[Population]:
    if dataset is None:
        return groups
    if all(group.dataset != dataset for group in groups):
        there = ", ".join(sorted({group.dataset for group in groups})) or "none"
        raise UserError(f"There are no finished runs on {dataset}; there are runs on: {there}.")
    return sorted(groups, key=lambda group: group.dataset != dataset)


def _main(artifact: Artifact, groups: list[Population]) -> Population | None:
    """The first population that the artifact can be drawn from."""
    return next((group for group in groups if artifact.shows(group)), None)


def _build_artifact(
    artifact: Artifact, groups: list[Population], report: Path, planned: Planned | None, commands: Commands
) -> dict[str, Any]:
    everything, groups = groups, [group for group in groups if artifact.shows(group)]
    if groups and groups[0].profile != commands.profile:
        planned = None  # another profile's grid
    if not groups:
        shown: list[tuple[str, Population | None]] = [(artifact.id, None)]
    else:
        shown = list(zip(_names(artifact.id, groups), groups, strict=True))
    main = groups[0] if groups else None
    texts = [group for group in everything if kind(group) in TEXTS]
    variants = [
        _build_variant(
            artifact,
            name,
            population,
            [group for group in texts if group is not population],
            report,
            _undone(artifact, main, planned) if name == artifact.id else [],
            commands,
            Evidence(everything, report, population),
        )
        for name, population in shown
    ]
    files = [file for variant in variants for file in variant["files"]]
    _remove_stale(artifact.id, files, report)
    return {
        "id": artifact.id,
        "title": artifact.title,
        "experiment": artifact.experiment,
        "status": variants[0]["status"],
        **_counts(artifact, main, planned),
        "files": files,
        "variants": variants,
    }


def _build_variant(
    artifact: Artifact,
    name: str,
    population: Population | None,
    texts: list[Population],
    report: Path,
    undone: list[str],
    commands: Commands,
    evidence: Evidence,
) -> dict[str, Any]:
    command = remake(artifact, population, commands)
    with style():
        if population is None and artifact.experiment is not None:
            content = Content("Nothing to show yet.")
        else:
            shown: Any = report if artifact.measured else population
            content = artifact.content([shown, *texts] if artifact.beside else shown)  # type: ignore[arg-type]
        content.caption += other_data(artifact.id, population.dataset) if population else ""
        missing = absent_rules(artifact, population) + content.missing + undone
        if content.figure is None and artifact.figure:
            content.figure = placeholder(artifact.title)
        paths: list[Path] = []
        where = provenance(population, content) if population is not None else ""
        if content.figure is not None:
            notes = [f"Incomplete. {sentence}" for sentence in missing]
            dress(content.figure, "\n".join(filter(None, (where, command))), notes)
            paths += write_figure(report / "figures" / name, content.figure)
    if content.table is not None:
        paths += write_table(report / "tables" / name, content.table, f"{artifact.id}: {artifact.title}")
    paths.append(report / "tables" / f"{name}.md")
    claims = register.shown_by(artifact.id, evidence)
    write(paths[-1], section(artifact, content, missing, claims, where, command))
    nothing = content.table is None if artifact.measured else artifact.experiment is not None and population is None
    return {
        "name": name,
        "dataset": population.dataset if population else None,
        "model": population.model if population else None,
        "fidelity": population.fidelity if population else None,
        "profile": population.profile if population else None,
        "status": "missing" if nothing else "incomplete" if missing else "complete",
        "missing": missing,
        "caption": content.caption,
        "claims": claims,
        "provenance": where,
        "epsilons": content.epsilons if content.epsilons is not None else population.epsilons if population else [],
        "command": command,
        "files": [path.relative_to(report).as_posix() for path in paths],
    }


def _names(id: str, groups: list[Population]) -> list[str]:
    """`<id>` for the main population, `<id>--<dataset>` for others, with as much more as tells them apart."""

    def details(group: Population) -> list[str]:
        return [
            group.dataset,
            group.fidelity,
            group.profile,
            group.model,
            str(group.examples),
            group.material,
        ]

    names = [id]
    for group in groups[1:]:
        for depth in range(1, 7):
            label = details(group)[:depth]
            if sum(details(other)[:depth] == label for other in groups) == 1:
                break
        # What runs say of themselves must not lead out of the folder.
        told = re.sub(r"[^\w.+-]+", "_", "-".join(filter(None, label)))
        names.append(f"{id}--{told}")
    return names


def _counts(artifact: Artifact, population: Population | None, planned: Planned | None) -> dict[str, int | None]:
    if artifact.experiment is None:
        return {"runs_done": 0, "runs_needed": 0}
    runs: list[Run] = population.runs if population else []
    grid = (planned or {}).get(artifact.experiment_on(population) or "")
    return {
        "runs_done": sum(run.algorithm in artifact.rules for run in runs),
        "runs_needed": None if grid is None else sum(grid.get(rule, 0) for rule in artifact.rules),
    }


def _undone(artifact: Artifact, population: Population | None, planned: Planned | None) -> list[str]:
    """A sentence that names the rules with fewer runs than the experiment plans, where some runs are done."""
    if population is None or artifact.experiment is None:
        return []
    grid, done = (
        (planned or {}).get(artifact.experiment_on(population) or "", {}),
        Counter(run.algorithm for run in population.runs),
    )
    short = [f"{done[rule]} of {grid[rule]} {rule}" for rule in artifact.rules if 0 < done[rule] < grid.get(rule, 0)]
    return [f"Done so far: {', '.join(short)} runs."] if short else []


def _progress(entry: Mapping[str, Any]) -> str:
    planned = f" ({entry['runs_needed']} planned)" if entry["runs_needed"] else ""
    done, lacking = entry["runs_done"], entry["variants"][0]["missing"]
    return f"{done} run{'s' * (done != 1)}{planned}" + (f"; {lacking[0]}" if lacking else "")


def _remove_stale(id: str, files: list[str], report: Path) -> None:
    """Remove what an earlier build wrote under this id and this one did not: its runs are gone."""
    for folder in ("figures", "tables"):
        for path in [*(report / folder).glob(f"{id}.*"), *(report / folder).glob(f"{id}--*.*")]:
            if path.relative_to(report).as_posix() not in files:
                path.unlink()


def _earlier(report: Path) -> dict[str, dict[str, Any]]:
    """What an earlier build of this version left; an entry of another version is none."""
    try:
        entries = json.loads((report / "report.json").read_text(encoding="utf-8"))["artifacts"]
        return {e["id"]: e for e in entries if all("claims" in variant for variant in e["variants"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
