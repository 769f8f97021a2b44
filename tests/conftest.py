"""Calibrations are pure functions of their settings, so the whole test session shares them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

# What is remembered of files, here and in the processes that tests start, is no business of the user's own memory.
os.environ["DPFEST_CACHE"] = tempfile.mkdtemp(prefix="dpfest-tests-")


@pytest.fixture(scope="session")
def calibrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for noise calibrations, to be linked to as ``<paths.runs>/.calibration``."""
    base = tmp_path_factory.getbasetemp()
    # Of several workers each has a base of its own within that of the session.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "calibrations"
    folder.mkdir(exist_ok=True)
    return folder
