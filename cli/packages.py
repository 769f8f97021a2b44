"""Checks that no other distribution shadows one of dpfest's five packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from dpfest.errors import UserError

PACKAGES = ("dpfest", "pipelines", "reports", "cli", "conf")


def check_packages() -> None:
    """Make sure that all five packages come from one place.

    Raises:
        UserError: one is missing, or Python finds another of its name first.
    """
    home = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.origin:
            raise UserError(f"the package {name} of dpfest is missing from {home}: install dpfest again.")
        place = Path(spec.origin).resolve().parent
        if place.parent != home:
            raise UserError(
                f"the package {name} of dpfest, in {home / name}, is shadowed by {place}, which Python finds "
                "first; uninstall or rename that one, take its folder out of PYTHONPATH, or give dpfest an "
                "environment of its own."
            )
