"""Plain values in files that others may have written: JSON and YAML of bounded length and depth.

A parser that calls itself for each level ends the interpreter on a file of brackets, and one line of a compressed file
can fill the memory; neither is more than a kilobyte on disk. What is within the bounds can be walked by functions that
call themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import yaml

MOST_CHARACTERS = 16 << 20
"""Longest text, or line, that is read. A run's files and cards have some thousands of characters."""
DEEPEST = 100
"""Deepest nesting. A run's files have less than ten levels."""


class Beyond(ValueError):
    """A text is beyond the bounds."""


_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # five times as fast, where PyYAML has it
_CONTAINERS = (dict, list)  # of JSON's own values
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_IN_JSON = re.compile(rb"\\u00[0-9a-fA-F]{2}|\x7f|\xc2[\x80-\x9f]")  # where a control character may stand in its bytes


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the plain values and lists of nested mappings with their dotted keys, as in ``algorithm.threshold``."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def json_value(text: str | bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is no JSON; :class:`Beyond` if it is too long or nested too deeply.
    """
    _refuse_long(len(text))
    try:
        value = json.loads(text, parse_constant=parse_constant)
    except RecursionError as error:
        raise _too_deep() from error
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(DEEPEST):
        level = [item for one in level for item in _items(one) if type(item) in _CONTAINERS]
        if not level:
            return value
    raise _too_deep()


def yaml_value(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        ValueError: it is no YAML; :class:`Beyond` if it is too long or nested too deeply.
    """
    _refuse_long(len(text))
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_YAML):  # a loop, where to load is recursion
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > DEEPEST:
                    raise _too_deep()
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.AliasEvent):
                raise Beyond("with references (*), by which a few lines can stand for gigabytes")
        return yaml.load(text, Loader=_YAML)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def lines(file: Any) -> Iterator[bytes]:
    """Yield the lines of a file that is open in binary mode.

    Raises:
        Beyond: a line is too long.
    """
    while line := file.readline(MOST_CHARACTERS + 1):
        _refuse_long(len(line))
        yield line


def control_character(value: Any, where: str = "") -> str | None:
    """Return where in a plain value a control character stands, which a terminal would obey; None if there is none."""
    if isinstance(value, str):
        return (where or "its top") if _CONTROL.search(value) else None
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, item in pairs:
        place = f"{where}.{name}" if where else str(name)
        if _CONTROL.search(str(name)) or (place := control_character(item, place)):  # type: ignore[assignment]
            return visible(place)
    return None


def control_character_in(line: bytes, value: Any) -> str | None:
    """Return :func:`control_character` of the value of a JSON text, which is walked only if its bytes give cause to."""
    return control_character(value) if _IN_JSON.search(line) else None


def visible(text: str) -> str:
    """Return a text with its control characters spelt out, as in ``\\\\x1b``."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _items(container: Any) -> Iterable[Any]:
    return container.values() if type(container) is dict else container


def _refuse_long(length: int) -> None:
    if length > MOST_CHARACTERS:
        raise Beyond(f"longer than {MOST_CHARACTERS:,} characters")


def _too_deep() -> Beyond:
    return Beyond(f"nested more than {DEEPEST} levels deep")
