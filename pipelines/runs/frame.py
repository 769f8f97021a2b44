"""Finished runs as a polars frame, for notebooks: a line for each, its settings and its summary as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from dpfest.errors import UserError
from pipelines.runs.cards import card_files, read_cards
from pipelines.runs.release import CONFIG, RELEASE, SUMMARY, run_folders
from pipelines.system.plain import flat, json_value, yaml_value

_APART = ("hyperparameters", "tensors")  # of a summary: they repeat the settings, or are too large for a column


def frame(runs: str | Path = "runs") -> pl.DataFrame:
    """Return the finished runs of a folder: ``run`` (its folder, or its line of a file of cards), and a column for each
    setting (``algorithm.threshold``) and each value of the summary (``utility.value``), null where a run has none.
    ``privacy.epsilon`` is what was spent, ``privacy.target_epsilon`` what was asked for. Lists are texts.

    Args:
        runs: folder of runs or of run cards, or a file of cards.

    Raises:
        UserError: there is no such folder, it has no finished run, or a file in it cannot be read.
    """
    runs = Path(runs)
    if not runs.exists():
        raise UserError(f"There is no folder {runs} of runs.")
    lines = [_line(name, settings, summary) for name, settings, summary in _found(runs)]
    if not lines:
        raise UserError(f"{runs} has no finished run.")
    names = dict.fromkeys(["run", *(name for line in lines for name in line)])
    return pl.DataFrame({name: _column(name, [line.get(name) for line in lines]) for name in names})


def _found(runs: Path) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    for run in run_folders(runs):
        folder = run / RELEASE
        if not folder.exists():  # it has not finished
            continue
        try:
            settings = yaml_value((folder / CONFIG).read_text(encoding="utf-8"))
            summary = json_value((folder / SUMMARY).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{folder} cannot be read ({error}).") from error
        yield str(run.relative_to(runs)), settings, summary
    for path in card_files(runs) if runs.is_dir() else [runs]:
        cards, damaged = read_cards(path)
        if damaged:
            raise UserError(f"{path}, line {damaged[0].line}, cannot be used: {damaged[0].reason}.")
        yield from ((f"{path.name}:{card.line}", card.config, card.summary) for card in cards)


def _line(name: str, settings: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    asked = {f"target_{key}" if key == "epsilon" else key: value for key, value in settings["privacy"].items()}
    lacking: dict[str, Any] = {section: {} for section in ("privacy", "periods") if summary[section] is None}
    told = {key: value for key, value in summary.items() if key not in _APART}
    columns = {**dict(flat({**settings, "privacy": asked, **lacking})), **dict(flat({**told, **lacking}))}
    return {"run": name} | {key: str(value) if isinstance(value, list) else value for key, value in columns.items()}


def _column(name: str, values: list[Any]) -> pl.Series:
    """Return a column: numbers, or texts where runs differ in type, as of a setting that is a number or a word."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return pl.Series(name, values, dtype=pl.Int64 if kinds == {int} else pl.Float64, strict=False)
    if len(kinds) > 1:
        values = [None if value is None else str(value) for value in values]
    return pl.Series(name, values)
