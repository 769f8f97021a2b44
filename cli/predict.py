"""`dpfest predict` and `dpfest evaluate`: a finished run on other rows than those that it was trained on."""

from __future__ import annotations

import glob
import itertools
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfest.errors import UserError

if TYPE_CHECKING:
    import polars as pl

    from pipelines.train.trained import Trained


def run_predict(run: str, arguments: Sequence[str], to: str, split: str | None) -> None:
    """Write a line of scores for each row, in the rows' order.

    Args:
        run: folder of a finished run.
        arguments: settings to change.
        to: file to write, .parquet or .csv.
        split: of the data of the settings; None for all rows of new data.

    Raises:
        UserError: the run, the rows or the file cannot be used.
    """
    path = Path(to)
    if path.suffix not in (".parquet", ".csv"):
        raise UserError(f"--output={to} must end in .parquet or .csv.")
    from pipelines.system.files import write_atomically
    from pipelines.system.progress import progress

    trained, counted = _trained(run, arguments, split), _Counted()
    _refuse_place(path, getattr(trained.config.data, "path", None))
    with progress(f"scoring {trained.config.data.name}") as report:
        scores = trained.scored(progress=report) if split is None else trained.scored_split(split)
        try:
            with _one_interrupt():
                write_atomically(path, lambda partial: _write(counted.over(scores), partial, path.suffix))
        except OSError as error:
            raise UserError(f"--output={to} cannot be written ({error.strerror or error}).") from error
    print(f"{counted.rows:,} rows scored{_calibrated(trained)}")
    print(path)


def run_evaluate(run: str, arguments: Sequence[str], split: str | None) -> None:
    """Print what the model is worth on labelled rows; arguments and refusals as of :func:`run_predict`."""
    from pipelines.system.progress import progress

    trained = _trained(run, arguments, split)
    with progress(f"evaluating {trained.config.data.name}") as report:
        found = trained.evaluate(progress=report) if split is None else trained.evaluate_split(split)
    if split == "train":
        print("warning: epsilon covers the model, and no number that is computed of training rows.", file=sys.stderr)
    for name, value in _shown(found):
        print(f"{name:<16}{value}")


class _Counted:
    """Counts the rows of frames that pass."""

    rows = 0

    def over(self, frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        for frame in frames:
            self.rows += frame.height
            yield frame


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """End at an interrupt by SystemExit: polars raises KeyboardInterrupt twice, the second time within the cleaning."""

    def end(*_: object) -> None:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _refuse_place(path: Path, data: str | None) -> None:
    """Refuse, before anything is scored, a file that cannot be written, and one of those that are read."""
    if path.is_dir():
        raise UserError(f"--output={path} is a folder: name a file.")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise UserError(f"--output={path} cannot be written: {folder} is no folder.")
    if data is not None and path.exists():
        there = Path(data)
        read = there.rglob("*") if there.is_dir() else [there, *map(Path, glob.glob(data, recursive=True))]
        if any(one.samefile(path) for one in read if one.exists()):
            raise UserError(f"--output={path} is one of the files with the rows: name another.")


def _trained(run: str, arguments: Sequence[str], split: str | None) -> Trained:
    if split is None and not any(text.startswith("data.") for text in arguments):
        raise UserError(
            "Name rows: new ones, as in data.path=new.parquet, or a split of the run's own by --split=test."
        )
    from pipelines.train.trained import load

    return load(run, *arguments)


def _write(frames: Iterator[pl.DataFrame], path: Path, ending: str) -> None:
    """Write frames one after the other, of which few are in memory."""
    from polars.io.plugins import register_io_source

    first = next(frames, None)
    if first is None:
        raise UserError("There is no row to score.")

    def source(columns: Any, predicate: Any, rows: Any, batch: Any) -> Iterator[pl.DataFrame]:
        return itertools.chain([first], frames)

    lazy = register_io_source(source, schema=first.schema, is_pure=False)
    (lazy.sink_parquet if ending == ".parquet" else lazy.sink_csv)(path, maintain_order=True)


def _calibrated(trained: Trained) -> str:
    return "" if trained.calibration is None else "; probabilities after the Platt scaling of the run's validation rows"


_NAMES = {"auc": "AUC", "loss": "log loss", "constant_loss": "a constant's", "calibrated_loss": "calibrated"}


def _shown(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in found.items():
        if isinstance(value, int):
            yield name, f"{value:,}"
        elif isinstance(value, float) or value is None:
            yield _NAMES.get(name, name.replace("_", " ")), "unknown" if value is None else f"{value:.4f}"
