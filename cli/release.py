"""`dpfest release`: checks runs against the list of what may be published, packs them, prints their privacy cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli import tasks
from cli.launch import HydraLine, launch
from dpfest.errors import UserError

if TYPE_CHECKING:
    from pipelines.runs.release import Release


def run_release(arguments: Sequence[str], to: str | None, nonprivate: bool) -> None:
    """Check the runs that `arguments` name, pack them into one archive, and print what it holds.

    Args:
        arguments: folders of runs; Hydra's overrides among them are checked, and have no effect.
        to: the archive; None for `<dataset>-<algorithm>-<digest>.zip` of one run, `release-<digest>.zip` of several.
        nonprivate: whether runs without privacy are packed.

    Raises:
        UserError: no run is named, one holds what may not be published or lacks a file, it is non-private and
            `nonprivate` is not set, or the archive is there already.
    """
    line = HydraLine.read(arguments)
    if line.only_shows:
        launch(tasks.nothing, arguments)
        return
    overrides = [text for text in line.overrides if "=" in text and not Path(text).exists()]
    runs = [Path(text) for text in line.overrides if text not in overrides]
    if not runs:
        raise UserError("dpfest release needs the folder of a run: dpfest release runs/DATASET/ALGORITHM/HASH.")
    if overrides:
        from pipelines.config.compose import Composer
        from pipelines.config.settings import typed

        typed(Composer(line.config_dir).compose(overrides))
    from pipelines.runs.release import checked, digest, pack

    try:
        releases = [checked(run) for run in dict.fromkeys(runs)]
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read ({error.strerror}): only its owner packs a run.") from error
    for release in releases:
        if release.summary["privacy"] is None and not nonprivate:
            raise UserError(
                f"{release.run} was trained without privacy: nothing in it is protected. Where the data are public, "
                "add --nonprivate."
            )
    one = releases[0].name if len(releases) == 1 else f"release-{digest(sorted(r.digest for r in releases))}"
    archive = Path(to or f"{one}.zip")
    try:
        pack(releases, archive)
    except OSError as error:
        raise UserError(f"{archive} cannot be written ({error.strerror}): name another file with --to.") from error
    for release in releases:
        print(tasks.describe(release.summary))
        print(f"  {release.run}: {', '.join(path.name for path in release.files)}")
        print("\n".join(f"  {statement}" for statement in release.ledger["statements"]))
    for words in _together(releases):
        print(words)
    print(archive)


def _together(releases: Sequence[Release]) -> list[str]:
    """The cost of several runs on the same data, by basic composition (Dwork and Roth, 2014, Theorem 3.16)."""
    spent = defaultdict(list)
    for release in releases:
        if release.summary["privacy"] is not None:
            spent[release.summary["dataset"], release.summary["examples"]].append(release.ledger)
    return [
        f"{len(ledgers)} runs on {dataset} together: epsilon {sum(ledger['epsilon'] for ledger in ledgers):.4g} at "
        f"delta {sum(ledger['delta'] for ledger in ledgers):.2g} by plain composition, if all were trained on the "
        "same examples."
        for (dataset, _), ledgers in spent.items()
        if len(ledgers) > 1
    ]


def finished_runs(incomplete: str) -> list[str]:
    """Folders of finished runs that start with `incomplete`, for the shell."""
    base = incomplete.rpartition("/")[0]
    depth = 4 - len(Path(base).parts) if base else 4
    releases = Path(base or ".").glob("/".join(["*"] * depth) + "/release") if depth > 0 else []
    return sorted(str(path.parent) for path in releases if str(path.parent).startswith(incomplete))
