"""`dpfest report`: figures and tables from the runs at hand, counted against what the experiments plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cli import tasks
from cli.launch import HydraLine, launch


def run_report(arguments: Sequence[str], only: Sequence[str] | None, dataset: str | None, listing: bool) -> None:
    """Build the report, or list its artifacts.

    Raises:
        UserError: an artifact or a dataset without runs, or a wrong configuration.
    """
    line = HydraLine.read(arguments)
    if line.only_shows:
        launch(tasks.nothing, arguments)
        return
    from pipelines.compose import Composer

    composer = Composer(line.config_dir)
    cfg = composer.compose(line.overrides)
    runs, planned = Path(cfg.paths.runs), planned_runs(composer, line.overrides)
    if listing:
        from reports.build import listing as list_artifacts

        for entry in list_artifacts(runs, planned):
            needed = entry["runs_needed"] if entry["runs_needed"] is not None else "?"
            print(f"{entry['id']:<12} {entry['runs_done']:>4} of {needed:>4} runs  {entry['title']}")
        return
    from reports.build import build

    print(build(runs, Path(cfg.paths.report), list(only) if only else None, dataset, planned))


def planned_runs(composer: object, overrides: Sequence[str]) -> dict[str, dict[str, int]]:
    """Runs that each experiment plans under the chosen profile, by algorithm."""
    from pipelines.compose import Composer
    from pipelines.grid import plan

    assert isinstance(composer, Composer)
    own = [text for text in overrides if not text.startswith(("experiment=", "paths."))]
    return {
        name: plan(composer, [*own, f"experiment={name}"]).by_algorithm() for name in composer.choices("experiment")
    }
