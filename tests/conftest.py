"""Calibrations are pure functions of their settings, so the whole test session shares them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def calibrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for noise calibrations, to be linked to as ``<paths.runs>/.calibration``."""
    return tmp_path_factory.mktemp("calibrations")
