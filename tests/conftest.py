"""Calibrations are pure functions of their settings, so the whole test session shares them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def calibrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for noise calibrations, to be linked to as ``<paths.runs>/.calibration``."""
    base = tmp_path_factory.getbasetemp()
    # Of several workers each has a base of its own within that of the session.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "calibrations"
    folder.mkdir(exist_ok=True)
    return folder
