"""The folder of one run: what it was asked (config.yaml), how it stands (status.json), what came of it.

``config.yaml``, ``status.json`` (running, stopped, done, or failed and why), ``metrics.jsonl``, ``ledger.json``,
``summary.json`` and ``checkpoint/``.  ``summary.json`` is there exactly when the run is done.  ``checkpoint/state.pt``
is the private state of a run that goes on, the noise key among it; a run that ends deletes it and leaves
``checkpoint/model.safetensors``, the release.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import save_file

from dpfest.errors import UserError
from pipelines.files import write_atomically, write_json


class RunDirectory:
    """Reads and writes one run's folder; every file is replaced whole.

    Args:
        path: the folder, made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def lock(self, wait: bool = False) -> Iterator[None]:
        """Hold the run against a second process; the lock goes with the process, however it ends.

        Args:
            wait: until another process that makes this run has ended, as sweeps side by side do.

        Raises:
            UserError: another process is making this very run.
        """
        with open(self.path / ".lock", "a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(
                    f"Another process is making this very run in {self.path}. Wait for it, or change a setting."
                ) from error
            yield

    def summary(self) -> dict[str, Any] | None:
        """The summary of a run that is done, or None."""
        path = self.path / "summary.json"
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}): delete {self.path}.") from error
        if not isinstance(summary, dict):
            raise UserError(f"{path} is no summary: delete {self.path}.")
        return summary

    def write_config(self, config: dict[str, Any]) -> None:
        """What the run was asked, resolved."""
        text = yaml.safe_dump(config, sort_keys=False)
        write_atomically(self.path / "config.yaml", lambda partial: partial.write_text(text))

    def config(self) -> dict[str, Any]:
        """What the run was asked when it was last started; empty where that cannot be read."""
        try:
            config = yaml.safe_load((self.path / "config.yaml").read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            return {}
        return config if isinstance(config, dict) else {}

    def write_status(self, status: str, reason: str | None = None, **more: Any) -> None:
        """How the run stands."""
        write_json(self.path / "status.json", {"status": status, "reason": reason, "pid": os.getpid(), **more})

    def write(self, name: str, value: Any) -> None:
        """A JSON file."""
        write_json(self.path / name, value)

    def log_metrics(self, record: dict[str, Any]) -> None:
        """One line of metrics."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def keep_metrics_until(self, step: int) -> None:
        """Drop the lines of steps after ``step``, which are about to be made again, and a line cut short."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record["step"] <= step:
                kept.append(line + "\n")
        write_atomically(path, lambda partial: partial.write_text("".join(kept)))

    @property
    def _state(self) -> Path:
        return self.path / "checkpoint" / "state.pt"

    def save_state(self, state: dict[str, Any]) -> None:
        """The private state of a run that goes on: tensors and plain values.

        Raises:
            UserError: it cannot be written, as on a full disk; the state that was saved before is whole.
        """

        def write(partial: Path) -> None:
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                torch.save(state, file)

        with self._keeping_state():
            write_atomically(self._state, write)

    @contextmanager
    def _keeping_state(self) -> Iterator[None]:
        """Say of a write that failed that it did no harm."""
        try:
            yield
        except (OSError, RuntimeError, SafetensorError) as error:
            # torch hides the system's word (no space left) behind one of its own.
            cause = error.__context__ if isinstance(error.__context__, OSError) else error
            reason = cause.strerror if isinstance(cause, OSError) else str(cause).splitlines()[0]
            before = (
                "the checkpoint that was there before is whole" if self._state.exists() else "none was there before"
            )
            raise UserError(
                f"{self._state.parent} cannot take the checkpoint ({reason}); {before}: make room there, and the same "
                "command goes on."
            ) from error

    def load_state(self) -> dict[str, Any] | None:
        """What :meth:`save_state` wrote, or None."""
        if not self._state.exists():
            return None
        try:
            return torch.load(self._state, weights_only=True, map_location="cpu")
        except Exception as error:
            raise UserError(f"The checkpoint {self._state} cannot be read ({error}): delete {self.path}.") from error

    def finish(self, summary: dict[str, Any], weights: dict[str, torch.Tensor] | None) -> None:
        """Release: the weights, then the summary, which makes the run done; then forget the private state.

        Raises:
            UserError: the weights cannot be written; the state that was saved before is whole.
        """
        if weights is not None:
            path = self.path / "checkpoint" / "model.safetensors"
            with self._keeping_state():
                write_atomically(path, lambda partial: save_file(weights, partial))
        write_json(self.path / "summary.json", summary)
        self.clear()

    def clear(self) -> None:
        """Forget the private state of a run that is done, and say that it is done."""
        for state in (self._state, *self._state.parent.glob(f".{self._state.name}.*")):
            state.unlink(missing_ok=True)
        self.write_status("done")
