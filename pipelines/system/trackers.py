"""Where a run's metrics go besides ``private/metrics.jsonl``: a table, TensorBoard or MLflow.

What they hold (losses of batches, batch sizes, rows that survived) is computed from training rows without noise, and no
epsilon covers it: it stays in the run's private folder, or goes to a server that the user names.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from dpfest.errors import UserError
from pipelines.system.files import OWNER_ONLY, private_folder, write_atomically
from pipelines.system.plain import flat

Choice = Literal["none", "csv", "tensorboard", "mlflow"]
Metrics = Mapping[str, Any]
"""A line of metrics: ``step``, ``split`` (train, validation or following) and values by name."""


class Tracker(Protocol):
    """Shows a run's metrics in another form."""

    def begin(self, kept: Sequence[Metrics]) -> None:
        """Begin, or go on after a run was stopped: ``kept`` are the metrics of the steps that stand."""

    def log(self, metrics: Metrics) -> None:
        """Add a line."""

    def close(self) -> None:
        """Write what is not written yet."""


def package_of(choice: Choice) -> Any:
    """Return the module that ``log=...`` needs; None where it needs none.

    Raises:
        UserError: its package is not installed, or cannot be imported.
    """
    modules = {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow"}
    try:
        return import_module(modules[choice]) if choice in modules else None
    except ImportError as error:
        raise UserError(f"log={choice} needs the package {choice}: pip install {choice}.") from error


def tracker_of(choice: Choice, place: str | None, private: Path, name: str, settings: Metrics) -> Tracker | None:
    """Return the tracker of ``log=...``, and say what is not covered by epsilon; None without one.

    Args:
        choice: which.
        place: ``paths.log``, a folder, for MLflow the address of a server or database; None for a place in ``private``.
        private: the run's private folder.
        name: of the run.
        settings: of the run, to be shown with it; without places and seeds.

    Raises:
        UserError: its package is not installed.
    """
    if choice == "none":
        return None
    package = package_of(choice)
    where = place or str(private / choice)
    made: Tracker
    if choice == "csv":
        where = str(Path(place) / f"{name.replace('/', '-')}.csv") if place else str(private / "metrics.csv")
        made = _Csv(Path(where))
    elif choice == "tensorboard":
        folder = Path(where) / name if place else private_folder(Path(where))
        made = _TensorBoard(package, folder, settings)
    else:
        where = place or f"sqlite:///{private.resolve() / 'mlflow.db'}"
        made = _MLflow(package, where, private / "mlflow.txt", name, settings)
    print(
        f"log={choice} writes losses, batch sizes and learning rates to {where}: they are computed from training rows "
        "without noise (but for rates), and epsilon does not cover them.",
        file=sys.stderr,
    )
    return made


def scalars(metrics: Metrics) -> Iterator[tuple[str, float]]:
    """Yield the names and numbers of a line, as in ``train/loss``; lists and unknown values are left out."""
    for name, value in metrics.items():
        if name not in ("step", "split") and isinstance(value, int | float):
            yield f"{metrics['split']}/{name}", float(value)


class _Csv:
    """A table of a line for each number: step, name, value."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, kept: Sequence[Metrics]) -> None:
        def write(partial: Path) -> None:
            with partial.open("w", newline="") as file:
                csv.writer(file).writerow(("step", "name", "value"))
                csv.writer(file).writerows(_lines(kept))

        write_atomically(self._path, write, OWNER_ONLY)

    def log(self, metrics: Metrics) -> None:
        with self._path.open("a", newline="") as file:
            csv.writer(file).writerows(_lines([metrics]))

    def close(self) -> None:
        pass


def _lines(several: Sequence[Metrics]) -> Iterator[tuple[int, str, float]]:
    return ((metrics["step"], name, value) for metrics in several for name, value in scalars(metrics))


class _TensorBoard:
    def __init__(self, module: Any, folder: Path, settings: Metrics) -> None:
        self._module, self._folder, self._settings = module, folder, settings
        self._writer: Any = None

    def begin(self, kept: Sequence[Metrics]) -> None:
        # What an earlier process wrote of steps that are taken again is hidden.
        last = max((metrics["step"] for metrics in kept), default=-1)
        self._writer = self._module.SummaryWriter(str(self._folder), purge_step=last + 1)
        rows = (f"| {key} | `{value}` |" for key, value in flat(self._settings))
        self._writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]), last + 1)

    def log(self, metrics: Metrics) -> None:
        for name, value in scalars(metrics):
            self._writer.add_scalar(name, value, metrics["step"])

    def close(self) -> None:
        if self._writer is not None:  # a run may be refused before it begins
            self._writer.close()


class _MLflow:
    def __init__(self, module: Any, place: str, known: Path, name: str, settings: Metrics) -> None:
        self._mlflow, self._place, self._known, self._name, self._settings = module, place, known, name, settings

    def begin(self, kept: Sequence[Metrics]) -> None:
        self._mlflow.set_tracking_uri(self._place)
        self._mlflow.set_experiment("dpfest")
        if self._known.exists():  # a run that goes on
            self._mlflow.start_run(run_id=self._known.read_text(encoding="ascii"))
            return
        run = self._mlflow.start_run(run_name=self._name)
        self._mlflow.log_params(dict(flat(self._settings)))
        write_atomically(self._known, lambda partial: partial.write_text(run.info.run_id, encoding="ascii"), OWNER_ONLY)

    def log(self, metrics: Metrics) -> None:
        self._mlflow.log_metrics(dict(scalars(metrics)), step=metrics["step"])

    def close(self) -> None:
        self._mlflow.end_run()
