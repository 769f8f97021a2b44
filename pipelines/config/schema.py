"""Convert plain configuration values to dataclasses; errors name the key.

A dataclass beside the code that it configures is the schema: its fields are the keys, their annotations the types,
`Annotated[int, Within(1, 10**9)]` the range of a number, its `__post_init__` checks combinations. (Libraries that
validate dataclasses give less helpful messages for a wrong key.) Numbers are finite and integers fit in 64 bits, so
that JSON can represent them. Nothing is dropped or guessed: an unknown key, a value of another type or out of range,
and a missing mandatory value (`???`) each raise a UserError before any work starts.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from dpfest.errors import UserError
from pipelines.system.ranges import Within

MISSING = "???"

T = TypeVar("T")

_SECTIONS = {
    "epsilon": "privacy",
    "delta": "privacy",
    "fidelity": "privacy",
    "sampling": "privacy",
    "max_batch_size": "privacy",
    "batch_size": "train",
    "steps": "train",
    "epochs": "train",
    "period": "stream",
    "selection": "algorithm",
    "vocabulary": "data",
    "rows_per_step": "algorithm",
    "noise_ratio": "algorithm",
    "bands": "algorithm",
    "max_examples": "unit",
    "micro_batch_size": "train",
}
"""Section of the configuration for each argument of `dpfest.plan` and setting of its algorithms."""
_WHY_NOT = {
    "algorithm.bands": "noise is correlated over steps only where every step noises the same rows, and draws all of "
    "their noise: under algorithm=dpsgd, fest, smaller_tables and lora_embedding (why: docs/PRIVACY.md, 2.8)",
}
"""Keys that some choices of a section have, and why the others do not."""
_ARGUMENT = re.compile(r"(?<![\w.])(?:(?:selection|vocabulary)(?=\.\w)|(?:" + "|".join(_SECTIONS) + ")(?==))")

_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}


def build(schema: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Build an instance of the dataclass `schema` from `values`, a tree of dicts, lists and scalars.

    Args:
        schema: a dataclass; its fields may be int, float, bool, str, None, lists, dicts, dataclasses and unions of
            these.
        values: one entry per field; fields with defaults may be omitted.
        where: dotted key of `values` in the whole configuration.

    Raises:
        UserError: an unknown key (with the nearest known one), a wrong type, a missing value, or a value
            that the dataclass refuses.
    """
    fields = {field.name: field for field in dataclasses.fields(schema) if field.init}  # type: ignore[arg-type]
    if isinstance(values, str) or not isinstance(values, Mapping):
        raise UserError(f"{where} must be a group of keys ({', '.join(fields)}), not {_show(values)}.")
    hints = typing.get_type_hints(schema, include_extras=True)
    for key in values:
        if key not in fields:
            raise unknown_key(join(where, str(key)), [join(where, name) for name in fields])
    arguments: dict[str, Any] = {}
    for name, field in fields.items():
        key = join(where, name)
        if name in values:
            arguments[name] = _convert(hints[name], values[name], key)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UserError(f"{key} must be set: add {key}=... to the command.")
    try:
        return schema(**arguments)
    except (ValueError, TypeError) as error:
        text = str(error)
        if text.partition("=")[0] in fields:  # it names an argument, as the library's errors do
            text = join(where, text)
        raise UserError(text if where in text else f"{where}: {text}") from error


@contextmanager
def in_keys() -> Iterator[None]:
    """Rename the library's arguments (`epsilon=1`, `selection.rows`) to configuration keys in any UserError raised
    within the block."""
    try:
        yield
    except UserError as error:
        words = _ARGUMENT.sub(lambda match: f"{_SECTIONS[match[0]]}.{match[0]}", str(error))
        raise UserError(re.sub(r"\bor None\b", "or null", words)) from error


def _convert(hint: Any, value: Any, key: str) -> Any:
    """Convert `value` to the type `hint`; raises UserError, which names `key`, if that is impossible."""
    if isinstance(value, str) and value == MISSING:
        raise UserError(f"{key} must be set: add {key}=... to the command.")
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or (dataclasses.is_dataclass(hint) and isinstance(value, hint)):  # type: ignore[arg-type]
        return value
    if origin is Annotated:
        number = _convert(options[0], value, key)
        if not all(number in limit for limit in options[1:] if isinstance(limit, Within)):
            raise _wrong(hint, value, key)
        return number
    if origin in (typing.Union, types.UnionType):
        return _convert_union(hint, options, value, key)
    if origin is typing.Literal:
        if value not in options:
            raise _wrong(hint, value, key)
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, key)
    if origin is list:
        if not isinstance(value, list | tuple):
            raise _wrong(hint, value, key)
        return [_convert(options[0], item, f"{key}[{place}]") for place, item in enumerate(value)]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong(hint, value, key)
        return {name: _convert(options[1], item, join(key, str(name))) for name, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        value = int(value)  # such as 2e3
    if type(value) is not hint and not (hint is type(None) and value is None):
        raise _wrong(hint, value, key)
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key} must be a finite number, not {value}.")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UserError(f"{key} must fit in 64 bits: {value} does not.")
    return value


def _convert_union(hint: Any, options: Iterable[Any], value: Any, key: str) -> Any:
    others = [option for option in options if option is not type(None)]
    if value is None and type(None) in options:
        return None
    if len(others) == 1 and (
        dataclasses.is_dataclass(others[0]) or typing.get_origin(others[0]) in (list, tuple, dict)
    ):
        return _convert(others[0], value, key)  # its message is more specific than "or null"
    groups = [option for option in others if dataclasses.is_dataclass(option)]
    plain = [option for option in others if option not in groups]
    if len(groups) == len(plain) == 1:  # which of them is meant is plain: its message is more specific
        return _convert(groups[0] if isinstance(value, Mapping) else plain[0], value, key)
    exact = [option for option in others if type(value) is option]
    for option in exact or others:
        try:
            return _convert(option, value, key)
        except UserError:
            continue
    raise _wrong(hint, value, key)


def _wrong(hint: Any, value: Any, key: str) -> UserError:
    kinds = {hint, *typing.get_args(hint)}
    unquoted = str in kinds and not {int, float} & kinds and isinstance(value, bool | int | float)
    cure = f": quote it, as in '{key}=\"{value}\"'." if unquoted else "."
    return UserError(f"{key} must be {describe(hint)}, not {_show(value)}{cure}")


def describe(hint: Any) -> str:
    """Describe a type in messages to the user."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return " ".join([describe(options[0]), *(str(limit) for limit in options[1:] if isinstance(limit, Within))])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(option) for option in options)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, options))
    if origin is list:
        return f"a list, each item {describe(options[0])}"
    if origin is dict or dataclasses.is_dataclass(hint):
        return "a group of keys"
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def _show(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else "null" if value is None else str(value)


def join(where: str, name: str) -> str:
    """Return the dotted key of `name` under `where`."""
    return f"{where}.{name}" if where else name


def dotted_keys(values: Mapping[str, Any], where: str = "") -> list[str]:
    """Return the dotted keys of a tree of dicts, branches before their leaves."""
    keys = []
    for name, value in values.items():
        keys.append(join(where, str(name)))
        if isinstance(value, Mapping):
            keys += dotted_keys(value, keys[-1])
    return keys


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name closest to `name`, as a whole or else by the part after the last dot."""
    names = list(names)
    if close := difflib.get_close_matches(name, names, n=1, cutoff=0.75):
        return close[0]
    last = {other.rpartition(".")[2]: other for other in reversed(names)}
    close = difflib.get_close_matches(name.rpartition(".")[2], list(last), n=1, cutoff=0.7)
    return last[close[0]] if close else None


def unknown_key(key: str, keys: Iterable[str]) -> UserError:
    """Return the error for an unknown key, with the nearest known one, or why it is not there."""
    keys = list(keys)
    parent = key.rpartition(".")[0]
    if key in _WHY_NOT and key not in keys:
        return UserError(f"there is no key {key} with this {parent}: {_WHY_NOT[key]}.")
    beside = sorted({other for other in keys if other.rpartition(".")[0] == parent})
    if key in keys:  # the override would add a key to this group
        return UserError(f"{key} is a group of keys, which +{key}.name=value adds to.")
    if parent in keys and not beside:  # an open group, such as an optimizer's options
        return UserError(f"there is no key {key}; +{key}=... adds it.")
    if guess := nearest(key, keys):
        return UserError(f"there is no key {key}; did you mean {guess}?")
    return UserError(f"there is no key {key}" + (f"; there are {', '.join(beside)}." if beside else "."))
