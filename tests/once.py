"""What is prepared once for all tests and all workers of a session, under file locks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


class Once:
    """Folders of a session. Whoever asks first for a name makes it; others wait, and read what was made.

    What is made here is never changed: a test that damages copies it first (``shutil.copytree``).
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        base.mkdir(parents=True, exist_ok=True)

    def folder(self, name: str) -> Path:
        """A folder in which several may make things at once, as dpfest itself does in ``paths.data``."""
        folder = self.base / name
        folder.mkdir(exist_ok=True)
        return folder

    def __call__(self, name: str, make: Callable[[Path], object]) -> Path:
        """The folder of this name, filled by ``make(folder)`` if nobody has done so; if that fails, it fails again."""
        folder, made = self.base / name, self.base / f"{name}.made"
        with FileLock(self.base / f"{name}.lock"):
            if not made.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                make(folder)
                made.touch()
        return folder
