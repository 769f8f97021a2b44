"""What tests of the stages share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def runs_in(calibrations: Path) -> Callable[[Path], Path]:
    """Makes a folder for ``paths.runs``, unless it is there, in which no noise is calibrated twice in a session."""

    def made(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / ".calibration").is_symlink():
            (folder / ".calibration").symlink_to(calibrations)
        return folder

    return made
