"""How a piece of work ended, in a small file that processes on other machines can read."""

from __future__ import annotations

import dataclasses
import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpfest.errors import UserError
from pipelines.system.files import OWNER_ONLY, private_folder, write_json


@dataclass(frozen=True)
class Record:
    """What is known of a piece of work.

    Attributes:
        status: running, done, failed or interrupted; of work that was killed, running.
        reason: why it failed.
        seconds: that it took.
    """

    status: str
    reason: str = ""
    seconds: float = 0.0

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """Read a record; None if there is none, or none that can be read."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, path: Path) -> None:
        """Write the record, readable by its owner alone: an error can reveal data."""
        private_folder(path.parent)
        write_json(path, dataclasses.asdict(self), OWNER_ONLY)

    @property
    def ended(self) -> bool:
        """Whether the work ended by itself or because it was asked to, and was not killed."""
        return self.status != "running"


@contextmanager
def recording(path: Path | None) -> Iterator[None]:
    """Record that the block runs and how it ends; None records nothing.

    A failure is recorded and not raised, so that it does not affect neighbouring work. What asks a process to stop
    (SystemExit, KeyboardInterrupt) is raised.
    """
    started = time.monotonic()
    if path is not None:
        Record("running").write(path)
    status, reason = "interrupted", ""
    try:
        yield
        status = "done"
    except Exception as error:
        status, reason = "failed", reason_of(error)
        if not isinstance(error, UserError):
            traceback.print_exc()
    finally:
        if path is not None:
            Record(status, reason, time.monotonic() - started).write(path)


def reason_of(error: Exception) -> str:
    """Return the text of an error; of one that is not for users, with its type."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
