"""Noise chosen by hand, where a calibration would take long and is not what is tested."""

from __future__ import annotations

import pytest


def noise_by_hand(monkeypatch: pytest.MonkeyPatch, sigma: float) -> None:
    """Plans of this process have this noise multiplier, which must be enough for what they promise."""
    monkeypatch.setattr("pipelines.budget.remembered_calibration", lambda runs: lambda events, target, delta: sigma)
