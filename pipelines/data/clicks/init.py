"""Propose the configuration of a user's own table, and write it where `data=NAME` finds it."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import polars as pl

from dpfest.errors import UserError
from pipelines.data.clicks.proposal import Proposal, propose, yaml
from pipelines.data.clicks.table_files import TableFiles, files_of, frames, is_text, rows_of, types_of
from pipelines.system.files import NAME, write_atomically

SAMPLE = 1_000_000
"""Rows that a proposal looks at."""


def init(
    path: str, label: str | None, name: str | None, folder: Path, taken: Collection[str], force: bool = False
) -> tuple[Proposal, Path]:
    """Propose what the columns of a table are, and write conf/data/NAME.yaml into a folder.

    Args:
        path: a file, a folder or a pattern, as ``data.path``.
        label: the column of labels, or a comparison; None to guess.
        name: of the data; None for that of the file.
        folder: where ``dpfest`` will be started.
        taken: names of other data.
        force: whether to replace a file of this name.

    Returns:
        The proposal and the file.

    Raises:
        UserError: the table cannot be read; the label cannot be guessed; the name is taken or no name.
    """
    files = files_of(path)
    name = name or _name(Path(path) if Path(path).exists() else files[0].parent)
    if not NAME.fullmatch(name) or name in taken:
        wrong = "is the name of other data" if name in taken else "is no name of data"
        raise UserError(f"{name} {wrong}: give one of letters, digits, _, + and - with --name, as in --name clicks.")
    target = folder / "conf" / "data" / f"{name}.yaml"
    if target.exists() and not force:
        raise UserError(f"{target} exists: edit it, or replace it with --force, or give another --name.")
    proposal = propose(_sample(files), sum(map(rows_of, files)), label, typed=not is_text(files[0]))
    text = yaml(proposal, name, path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, lambda partial: partial.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{target} cannot be written ({error.strerror}): start dpfest in a folder that is yours, with the path of "
            "the table from there."
        ) from error
    return proposal, target


def _name(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_+-]+", "_", path.name.split(".")[0]).strip("_") or "clicks"


def _sample(files: list[Path]) -> pl.DataFrame:
    """Return the first rows of each file, all columns: at most :data:`SAMPLE` in all, at least one."""
    each, names = max(1, SAMPLE // len(files)), list(types_of(files[0]))
    if len(names) < 2 and is_text(files[0]):
        raise UserError(
            f"{files[0]} has one column, {names[0]}: commas part the values of .csv files, and tabs those of .tsv. "
            "Write it with these."
        )
    TableFiles(files).check({str(files[0]): dict.fromkeys(names)})
    parts: list[pl.DataFrame] = []
    for path in files:
        taken = 0
        for frame, _ in frames(path, names):
            parts.append(frame.head(each - taken))
            taken += len(parts[-1])
            if taken == each:
                break
    return pl.concat(parts, how="vertical_relaxed")  # whole numbers of different widths are of one kind
