"""Files of a run, and the values in them, checked: what a report cannot use raises `Unusable`, with the reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.system.plain import control_character, json_value, yaml_value


class Unusable(Exception):
    """A run that a report must leave out; the text is the reason."""


def json_file(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file."""
    try:
        value = json_value(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise Unusable(f"it has no {path.name}") from error
    except (OSError, ValueError) as error:
        raise Unusable(f"{path.name} cannot be read ({error})") from error
    if not isinstance(value, Mapping):
        raise Unusable(f"{path.name} is not a JSON object")
    return without_control_characters(value, path.name)


def without_control_characters(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Refuse what a terminal, an SVG or a page would not show as it stands."""
    if where := control_character(value):
        raise Unusable(f"{name} has a control character at {where}")
    return value


def settings_file(path: Path) -> Mapping[str, Any]:
    """Return the settings in a run's config.yaml."""
    name = "/".join(path.parts[-2:])
    try:
        value = yaml_value(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise Unusable(f"it has no {name}") from error
    except (OSError, ValueError) as error:
        raise Unusable(f"{name} cannot be read ({error})") from error
    return without_control_characters(settings(value, name), name)


def settings(value: Any, name: str) -> Mapping[str, Any]:
    """Check settings, and the sections of them that reports read."""
    if not isinstance(value, Mapping):
        raise Unusable(f"{name} holds no settings")
    for section in ("data", "model", "privacy"):
        if not isinstance(value.get(section) or {}, Mapping):
            raise Unusable(f"{name} has {value[section]!r} as its settings of {section}, not settings by name")
    return value


def finite(value: Any, name: str) -> float:
    """Check a finite number."""
    if value is None or not _is_finite(value):
        raise Unusable(f"{name} in summary.json is {value}, not a finite number")
    return float(value)


def share(value: Any, name: str) -> float:
    """Check an AUC or an accuracy."""
    if not 0 <= (number := finite(value, name)) <= 1:
        raise Unusable(f"{name} in summary.json is {value}, not between 0 and 1")
    return number


def size(value: Any, name: str) -> float:
    """Check a number that is not below 0."""
    if (number := finite(value, name)) < 0:
        raise Unusable(f"{name} in summary.json is {value}, below 0")
    return number


def count(value: Any, name: str) -> int:
    """Check a whole number above 0."""
    if isinstance(value, bool) or not finite(value, name).is_integer() or value < 1:
        raise Unusable(f"{name} in summary.json is {value}, not a whole number above 0")
    return int(value)


def optional(value: Any) -> float | None:
    """Return a number; None if there is none, or if it is not finite."""
    return None if value is None or not _is_finite(value) else float(value)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:  # a whole number beyond the floats
        return False
