"""`dpfest report`: builds figures and tables from finished runs, and compares their number with the planned one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from cli import tasks
from cli.launch import HydraLine, launch
from dpfest.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from pipelines.config.compose import Composer
    from reports.pace import RunLength


def run_report(arguments: Sequence[str], only: Sequence[str] | None, dataset: str | None, listing: bool) -> None:
    """Build the report, or list its artifacts.

    Each item of `only` holds one or several ids of artifacts, separated by commas.

    Raises:
        UserError: no folder of runs, an artifact or a dataset without runs, a folder that cannot be written to, or a
            wrong configuration.
    """
    line = HydraLine.read(arguments)
    if line.only_shows:
        launch(tasks.nothing, arguments)
        return
    from pipelines.config.compose import Composer

    chosen = [name for names in only or () for name in names.split(",") if name]
    if only and not chosen:
        raise UserError("--only names no artifact: give one or several, as in --only fig8,fig3, or omit it for all.")
    composer = Composer(line.config_dir)
    # The overrides may be those of a sweep, such as seed=range(3): compose the first run here.
    _, cfg = next(iter(composer.expand([text for text in line.overrides if not text.startswith("hydra")])))
    seed = next((text.partition("=")[2] for text in reversed(line.overrides) if text.startswith("seed=")), None)
    moved, runs = elsewhere(cfg), Path(cfg.paths.runs)
    # Listing needs no runs, but a folder that the user named must exist.
    if not runs.exists() and (not listing or "paths.runs" in moved):
        raise UserError(
            f"there is no folder {runs} (paths.runs): make runs with `dpfest sweep experiment=comparison`, or "
            "set paths.runs to a folder of runs or to run cards."
        )
    if listing:
        from reports.listing import listing as list_artifacts

        planned = planned_runs(composer, line.overrides, chosen)
        report, jobs = Path(cfg.paths.report), int(cfg.sweep.jobs)
        print(list_artifacts(runs, report, planned, jobs, str(cfg.profile), seeded=seed is not None, only=chosen))
        return
    from pipelines.system.progress import progress
    from reports.build import build
    from reports.commands import Commands
    from reports.reading import of_cards
    from reports.reference import reference_folder

    if of_cards(runs):  # new runs do not belong beside cards, and what was published is no sweep to be completed
        moved.pop("paths.runs", None)
        planned = {}
    else:
        planned = planned_runs(composer, line.overrides, chosen)
    # An artifact shows one dataset; the experiment's first dataset gets the plain file names.
    counts = {
        name: Counter(run.algorithm for run in lengths if run.data == lengths[0].data)
        for name, lengths in planned.items()
    }
    commands = Commands(moved, str(cfg.profile), line.config_dir, dataset, seed)
    folder = writable(Path(cfg.paths.report))
    try:
        with progress("report") as say:
            built = build(runs, folder, chosen, dataset, counts, commands, reference_folder(), say)
        print(built)
    except OSError as error:
        raise UserError(f"The report cannot be written to {folder} (paths.report): {error}.") from error


def run_private_report(run: str) -> None:
    """Draw the training curves of a run into its private folder, and print where, and that they are private.

    Raises:
        UserError: the folder has no metrics of a run.
    """
    from reports.curves import NOTE, write_page

    path = write_page(Path(run))
    print(NOTE)
    print(path)


def writable(folder: Path) -> Path:
    """Create `folder` unless it exists, before any work, and return it.

    Raises:
        UserError: it is a file or below one, or cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be a folder for the report ({error.strerror}): set paths.report.") from error
    return folder


def elsewhere(cfg: DictConfig) -> dict[str, str]:
    """Return the paths that differ from the defaults, by key (`paths.runs`)."""
    from pipelines.config.settings import PathsConfig

    default = asdict(PathsConfig())
    return {f"paths.{name}": str(path) for name, path in cfg.paths.items() if str(path) != default.get(name)}


def planned_runs(
    composer: Composer, overrides: Sequence[str], artifacts: Sequence[str] = ()
) -> dict[str, list[RunLength]]:
    """Return the planned runs of the named experiments, or of each that these artifacts show (default: all), under the
    chosen profile.

    Experiments that do not support these data, or whose data are missing, are omitted: the report then shows no number
    of missing runs.

    Raises:
        UserError: a named experiment is among those; there is no such artifact.
    """
    from pipelines.runs.grid import asked_for, evaluated, plan, steps
    from reports.pace import RunLength
    from reports.registry import chosen

    shown = sorted({entry.experiment for entry in chosen(artifacts) if entry.experiment})
    own = [text for text in overrides if not text.startswith(("experiment=", "paths."))]
    _, named = asked_for(composer, overrides).get("experiment", ("", []))
    planned = {}
    for name in named or shown:
        with nullcontext() if named else suppress(UserError):
            runs = [run.config for run in plan(composer, [*own, f"experiment={name}"]).runs]
            planned[name] = [
                RunLength(run.data.name, run.model.name, run.algorithm.name, steps(run), evaluated(run)) for run in runs
            ]
    return planned
