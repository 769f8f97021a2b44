"""The run directory: status, release and private files.

::

    status.json        running, stopped, done or failed, which can depend on the data: it is not released
    release/           exists, complete, exactly when the run is done: config.yaml, ledger.json, summary.json,
                       MODEL_CARD.md, SHA256SUMS, and model.safetensors unless train.save_model is false; see
                       pipelines.runs.release
    private/           readable by its owner alone (0700, files 0600): config.yaml as requested, with the noise seed;
                       data_hash, of all that determines its rows;
                       state.pt, which holds the noise key until the run is done, and shards-*/ (over ranks);
                       metrics.jsonl (losses and batch sizes), and what `log` makes of it; timings.json; failure.txt,
                       and of other ranks failure-<rank>.txt

Errors and times are in ``private/`` because they can depend on the training examples: on the batches drawn, on an
example whose loss overflows.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from dpfest.errors import UserError
from pipelines.data.clicks.vocabulary import VOCABULARY
from pipelines.runs.model_card import model_card
from pipelines.runs.release import (
    CARD,
    CONFIG,
    LEDGER,
    PRIVATE,
    RELEASE,
    SUMMARY,
    WEIGHTS,
    config_text,
    released_settings,
)
from pipelines.runs.weights import Weights
from pipelines.system.checksum import check_sums, write_sums
from pipelines.system.files import OWNER_ONLY, private_folder, whole_folder, write_atomically, write_json
from pipelines.system.plain import json_value, yaml_value
from pipelines.system.trackers import Tracker, tracker_of

SHARDS = "shards-"
"""Beginning of the names of folders in ``private/`` that hold a checkpoint's shards."""

DATA_HASH = "data_hash"
"""File in ``private/``: the hash of all that determines the run's rows."""

_REASONS = {
    "stopped": "stopped on request; the same command resumes from the last checkpoint",
    "failed": f"see {PRIVATE}/failure.txt",
}


class RunDirectory:
    """Reads and writes one run's folder; every file is replaced whole.

    Args:
        path: the folder, created if it does not exist.

    Raises:
        UserError: an earlier version of dpfest made it, with another layout.
    """

    def __init__(self, path: Path) -> None:
        if is_of_an_earlier_version(path):
            raise UserError(
                f"{path} was made by an earlier version of dpfest with another file layout: move the folder away or "
                "delete it (it may contain a noise seed or key), then give the same command again."
            )
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.private = private_folder(path / PRIVATE)
        self._tracker: Tracker | None = None

    @contextmanager
    def lock(self, wait: bool = False) -> Iterator[None]:
        """Lock the run against a second process; the lock is released with the process, however it ends.

        Args:
            wait: whether to wait for another process that makes this run, as concurrent sweeps do.

        Raises:
            UserError: another process is making this very run.
        """
        lock = FileLock(self.private / ".lock", timeout=-1 if wait else 0, mode=OWNER_ONLY)
        try:
            lock.acquire()
        except Timeout as error:
            raise UserError(
                f"Another process is training the same run in {self.path}. Wait for it, or change a setting."
            ) from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def recording(self, settings: dict[str, Any], data_hash: str) -> Iterator[None]:
        """Record the run's settings and data, that it is running, and its outcome: stopped, or failed and why.

        :meth:`finish` records that it is done.
        """
        name = "/".join(self.path.parts[-3:])
        self._tracker = tracker_of(
            settings["log"], settings["paths"]["log"], self.private, name, released_settings(settings)
        )
        self.write_config(settings, data_hash)
        self.write_status("running")
        try:
            yield
        except (SystemExit, KeyboardInterrupt):
            self.write_status("stopped")
            raise
        except BaseException as error:
            with suppress(OSError):  # on a full disk the error itself is more informative
                self.fail(error)
            raise
        finally:
            if self._tracker is not None:
                self._tracker.close()

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of a finished run, or None."""
        path = self.path / RELEASE / SUMMARY
        if not path.parent.exists():
            return None
        check_sums(path.parent, f"Restore it, or delete {self.path} and make the run again.")
        try:
            summary = json_value(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}): delete {self.path}.") from error
        if not isinstance(summary, dict):
            raise UserError(f"{path} is not a summary: delete {self.path}.")
        return summary

    def write_config(self, config: dict[str, Any], data_hash: str) -> None:
        """Write the run's resolved settings, and the hash of its data."""
        self._write(CONFIG, yaml.safe_dump(config, sort_keys=False))
        self._write(DATA_HASH, data_hash)

    def _write(self, name: str, text: str) -> None:
        """Write a file of ``private/``."""
        write_atomically(self.private / name, lambda partial: partial.write_text(text, encoding="utf-8"), OWNER_ONLY)

    def config(self) -> dict[str, Any]:
        """Return the settings with which the run was last started; empty if they cannot be read."""
        try:
            config = yaml_value((self.private / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return config if isinstance(config, dict) else {}

    def write_status(self, status: str) -> None:
        """Write the run's status: running, stopped, done or failed."""
        write_json(self.path / "status.json", {"status": status, "reason": _REASONS.get(status)})

    def fail(self, error: BaseException) -> None:
        """Record that the run failed, and the reason in ``private/``: the text of an error can reveal data."""
        self._write_failure(error, "failure.txt")
        self.write_status("failed")

    def _write_failure(self, error: BaseException, name: str) -> None:
        self._write(name, f"{type(error).__name__}: {error}\n")

    def log_metrics(self, record: dict[str, Any]) -> None:
        """Append a line of metrics."""
        with _open_private(self.private / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
        if self._tracker is not None:
            self._tracker.log(record)

    def keep_metrics_until(self, step: int) -> None:
        """Drop the lines of steps after ``step``, which are about to be repeated, and a truncated last line."""
        path = self.private / "metrics.jsonl"
        kept = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record["step"] <= step:
                kept[line] = record
        if path.exists():
            text = "".join(f"{line}\n" for line in kept)
            write_atomically(path, lambda partial: partial.write_text(text), OWNER_ONLY)
        if self._tracker is not None:
            self._tracker.begin(list(kept.values()))

    @property
    def _state(self) -> Path:
        return self.private / "state.pt"

    def save_state(self, state: dict[str, Any]) -> None:
        """Save the private state of an unfinished run: tensors and plain values.

        Raises:
            UserError: it cannot be written, as on a full disk; the previous state is intact.
        """

        def write(partial: Path) -> None:
            with partial.open("wb") as file:  # given a path, torch hides why it cannot write
                torch.save(state, file)

        with self._keeping_state():
            write_atomically(self._state, write, OWNER_ONLY)

    @contextmanager
    def _keeping_state(self) -> Iterator[None]:
        """Report a failed write, and that the previous state is intact."""
        try:
            yield
        except (OSError, RuntimeError, SafetensorError) as error:
            # torch replaces the system's error (no space left) by its own.
            cause = error.__context__ if isinstance(error.__context__, OSError) else error
            reason = cause.strerror if isinstance(cause, OSError) else str(cause).splitlines()[0]
            before = "the previous checkpoint is intact" if self._state.exists() else "there is no earlier one"
            raise UserError(
                f"The checkpoint cannot be written to {self.path} ({reason}); {before}. Free space there and give the "
                "same command to resume."
            ) from error

    def state_sha256(self) -> str | None:
        """Return the checksum of the state that :meth:`save_state` wrote, or None."""
        if not self._state.exists():
            return None
        with self._state.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def load_state(self) -> dict[str, Any] | None:
        """Return the state that :meth:`save_state` wrote, or None."""
        if not self._state.exists():
            return None
        try:
            with zipfile.ZipFile(self._state) as archive:  # torch writes checksums but does not verify them
                if damaged := archive.testzip():
                    raise ValueError(f"the checksum of its part {damaged} is wrong")
            return torch.load(self._state, weights_only=True, map_location="cpu")
        except Exception as error:
            raise UserError(f"The checkpoint {self._state} cannot be read ({error}): delete {self.path}.") from error

    def finish(
        self,
        config: Mapping[str, Any],
        ledger: Mapping[str, Any],
        summary: Mapping[str, Any],
        weights: Weights | None,
        timings: Mapping[str, Any],
        vocabulary: Path | None = None,
    ) -> None:
        """Finish the run: write ``release/`` atomically, then delete the private state.

        Args:
            config: settings from :func:`pipelines.runs.release.released_settings`.
            ledger, summary: content of the files of that name.
            weights: the model's, or None not to keep them.
            timings: content of ``private/timings.json``.
            vocabulary: file of a vocabulary that is a private release.

        Raises:
            UserError: the disk is full; the previous state is intact.
        """
        write_json(self.private / "timings.json", timings, OWNER_ONLY)
        with self._keeping_state(), whole_folder(self.path / RELEASE) as partial:
            (partial / CONFIG).write_text(config_text(config), encoding="utf-8")
            write_json(partial / LEDGER, ledger)
            write_json(partial / SUMMARY, summary)
            if weights is not None:
                weights.write(partial / WEIGHTS)
            if vocabulary is not None:
                (partial / VOCABULARY).write_bytes(vocabulary.read_bytes())
            (partial / CARD).write_text(model_card(config, ledger, summary), encoding="utf-8")
            write_sums(partial)
        self.clear()

    def clear(self) -> None:
        """Delete the private state of a finished run and leftovers of a kill, and record that it is done."""
        for state in (self._state, *self.private.glob("failure*.txt"), *self.private.glob(".*.partial")):
            state.unlink(missing_ok=True)
        for folder in (*self.path.glob(f".{RELEASE}.*.partial"), *self.private.glob(f"{SHARDS}*")):
            shutil.rmtree(folder)
        self.write_status("done")


def is_of_an_earlier_version(path: Path) -> bool:
    """Whether the folder has the layout of versions before ``release/`` and ``private/``."""
    return any((path / name).exists() for name in (CONFIG, SUMMARY, "checkpoint"))


def _open_private(path: Path, mode: str) -> Any:
    """Open a text file, created readable by its owner alone."""
    return open(path, mode, encoding="utf-8", opener=lambda name, flags: os.open(name, flags, OWNER_ONLY))
