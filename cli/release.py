"""`dpfest release`: checks runs against the list of what may be published, packs them or writes their cards, prints
their privacy cost."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cli import tasks
from cli.launch import HydraLine, launch
from dpfest.errors import UserError

if TYPE_CHECKING:
    from pipelines.runs.cards import Card
    from pipelines.runs.release import Release


@dataclass(frozen=True)
class CardFile:
    """The file of run cards, the command that made the runs, and its git commit (None for that of these sources)."""

    path: Path
    command: str
    commit: str | None


def run_release(
    arguments: Sequence[str], to: str | None, nonprivate: bool, cards: str | None, made_by: str | None, at: str | None
) -> None:
    """Check the runs that `arguments` name, pack them into one archive or write their cards, and print what it holds.

    Args:
        arguments: folders of runs; Hydra's overrides among them are checked, and have no effect.
        to: the archive; None for `<dataset>-<algorithm>-<digest>.zip` of one run, `release-<digest>.zip` of several.
        nonprivate: whether runs without privacy are packed.
        cards: file to which a card of each run is added instead of packing; unfinished runs are then left out.
        made_by, at: the command that made the runs and its git commit, for their cards.

    Raises:
        UserError: no run is named, a run fails its check, it is non-private and `nonprivate` is not set, the archive
            already exists, or the file of cards is damaged.
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
    if cards is None and (made_by or at):
        raise UserError("--made-by and --commit are for run cards: name their file with --cards.")
    if cards is not None:
        if to is not None:
            raise UserError("--to names an archive, and --cards a file of run cards: give one of them.")
        if not made_by:
            raise UserError('Run cards record the command that made the runs: add --made-by "COMMAND".')
        _write_cards(_done(runs), CardFile(Path(cards), made_by, at), nonprivate)
        return
    _pack(_checked(runs, nonprivate), to)


def _checked(runs: Sequence[Path], nonprivate: bool) -> list[Release]:
    from pipelines.runs.release import checked

    try:
        releases = [checked(run) for run in dict.fromkeys(runs)]
    except OSError as error:
        reason = f"({error.strerror}): only its owner can pack a run"
        raise UserError(f"{error.filename} cannot be read {reason}.") from error
    for release in releases:
        if release.summary["privacy"] is None and not nonprivate:
            raise UserError(
                f"{release.run} was trained without privacy, so its release has no guarantee. If the data are public, "
                "add --nonprivate."
            )
    return releases


def _pack(releases: Sequence[Release], to: str | None) -> None:
    from pipelines.runs.release import digest, pack

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


def _done(runs: Sequence[Path]) -> list[Path]:
    """Return the finished runs, and print the others: a sweep may still be running."""
    done = []
    for run in runs:
        status = ""
        with suppress(OSError, ValueError, AttributeError):
            status = json.loads((run / "status.json").read_text(encoding="utf-8")).get("status", "")
        if status in ("running", "stopped", "failed"):
            print(f"left out: {run}: its status is {status}")
        else:
            done.append(run)
    return done


def _write_cards(runs: Sequence[Path], file: CardFile, nonprivate: bool) -> None:
    from importlib.metadata import version

    from pipelines.runs.cards import Maker, card, write_cards

    if not runs:
        raise UserError("none of these runs is finished.")
    maker = Maker(version("dpfest"), file.commit or _source_commit(), file.command)
    releases = _checked(runs, nonprivate)
    cards: dict[str, tuple[Path, Card]] = {}
    for release in releases:
        one = card(release, maker)
        if one.key in cards:
            other, _ = cards[one.key]
            raise UserError(f"{other} and {release.run} have the same settings and seed: give one of them.")
        cards[one.key] = release.run, one
    try:
        held, replaced = write_cards(file.path, [one for _, one in cards.values()])
    except OSError as error:
        raise UserError(f"{file.path} cannot be written ({error.strerror}): name another file with --cards.") from error
    for words in _together(releases):
        print(words)
    again = f", {replaced} in place of an earlier one" if replaced else ""
    print(f"{file.path}: {held} cards, {len(releases)} of these runs{again}")


def _source_commit() -> str | None:
    """Return the git commit of these sources, with a + if they were changed since; None if they are no checkout."""
    home = Path(__file__).parents[1]
    try:
        commit, changed = (
            subprocess.run(["git", "-C", str(home), *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + "+" * bool(changed)


def _together(releases: Sequence[Release]) -> list[str]:
    """Describe the cost of several runs on the same data, by basic composition (Dwork and Roth, 2014, Theorem 3.16)."""
    spent = defaultdict(list)
    for release in releases:
        if release.summary["privacy"] is not None:
            spent[release.summary["dataset"], release.summary["examples"]].append(release.ledger)
    return [
        f"{len(ledgers)} runs on {dataset} together: epsilon {sum(ledger['epsilon'] for ledger in ledgers):.4g} at "
        f"delta {sum(ledger['delta'] for ledger in ledgers):.2g} by basic composition, if all were trained on the same "
        "examples."
        for (dataset, _), ledgers in spent.items()
        if len(ledgers) > 1
    ]


def finished_runs(incomplete: str) -> list[str]:
    """Return the folders of finished runs that start with `incomplete`, for shell completion."""
    base = incomplete.rpartition("/")[0]
    depth = 4 - len(Path(base).parts) if base else 4
    releases = Path(base or ".").glob("/".join(["*"] * depth) + "/release") if depth > 0 else []
    return sorted(str(path.parent) for path in releases if str(path.parent).startswith(incomplete))
