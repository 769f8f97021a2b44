"""The reference of the configuration: every key with its default, type and description.

It is generated from the dataclasses that define the keys: defaults and types from the fields, descriptions from the
``Attributes:`` of their docstrings.  A test asserts that every key has one.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Any

from dpfest.errors import UserError
from pipelines.config.compose import Composer, override_text
from pipelines.config.schema import MISSING, describe, join, nearest
from pipelines.config.settings import PLAIN_SCHEMAS, SCHEMAS, Config

_ATTRIBUTES = re.compile(r"^Attributes:\n((?:[ ]+\S.*\n?|\n)+)", flags=re.M)
_ATTRIBUTE = re.compile(r"^( +)(\w+(?:, \w+)*): (.*(?:\n\1 +.*)*)", flags=re.M)
PRESETS = ("privacy", "search", "experiment", "profile")
"""Groups whose choices set values of keys that other groups and sections define."""
_FOOTER = (
    "These are the defaults. Data, model, profile and experiment can override them: `dpfest train --cfg job` prints "
    "the configuration of a run."
)


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of the configuration.

    Attributes:
        name: dotted, as on the command line.
        default: as on the command line; None if the key must be set.
        kind: description of its type.
        sentence: its description, with the unit; empty if the docstring lacks it.
    """

    name: str
    default: str | None
    kind: str
    sentence: str

    def __str__(self) -> str:
        value = f"={self.default}" if self.default is not None else "=...  (required)"
        return f"  {self.name}{value}  ({self.kind})\n" + _wrapped(self.sentence, "      ")


def overview() -> str:
    """List the groups with their choices, the sections, and the other keys."""
    own = {key.name: key for key in keys(Config)}
    composer = Composer()
    presets = {name: composer.choices(name) for name in PRESETS}
    lines = ["Groups, each chosen by GROUP=CHOICE:", ""]
    lines += [_wrapped(", ".join(choices), " " * 14, f"  {name:<12}") for name, choices in (SCHEMAS | presets).items()]
    lines += ["", "Sections:", ""]
    lines += [f"  {name:<12}{summary(schema)}" for name, schema in sections().items()]
    lines += ["", "Other keys:", "", *(str(own[name]) for name in own if "." not in name), ""]
    return "\n".join([*lines, "`dpfest config NAME` lists the keys of a group, of one choice of it, or of a section."])


def reference(name: str) -> str:
    """List the keys of a group (``algorithm``), of one of its choices (``algorithm=fest``) or of a section (``train``).

    Raises:
        UserError: an unknown group, choice or section; the message names the nearest.
    """
    group, _, choice = name.partition("=")
    schemas: dict[str, type]
    if group in SCHEMAS and (not choice or choice in SCHEMAS[group]):
        chosen = [choice] if choice else list(SCHEMAS[group])
        schemas = {f"{group}={one}": resolve_name(SCHEMAS[group][one]) for one in chosen}
    elif name in sections():
        schemas = {name: sections()[name]}
    else:
        if group in PRESETS and (not choice or choice in Composer().choices(group)):
            raise UserError(
                f"a choice of {group} sets keys that other groups and sections define: `dpfest train "
                f"{group}={choice or 'CHOICE'} --cfg job` prints the configuration with it."
            )
        if name in (own := {key.name: key for key in keys(Config) if "." not in key.name}):
            return f"{own[name]}\n\n{_wrapped(_FOOTER, '')}"
        known = [*SCHEMAS, *sections(), *(f"{one}={each}" for one, choices in SCHEMAS.items() for each in choices)]
        guess = nearest(name, known)
        hint = f"did you mean {guess}?" if guess else f"there are {', '.join([*SCHEMAS, *sections()])}."
        raise UserError(f"the configuration has no group or section {name}; {hint}")
    blocks = [
        "\n".join([_wrapped(summary(schema), "    ", f"{title}: "), "", *map(str, keys(schema, title.split("=")[0]))])
        for title, schema in schemas.items()
    ]
    return "\n\n".join([*blocks, _wrapped(_FOOTER, "")])


def sections() -> dict[str, type]:
    """Return the sections without choices, each with its dataclass."""
    plain = {name: resolve_name(place) for name, place in PLAIN_SCHEMAS.items()}
    others = {
        field.name: field.default_factory
        for field in dataclasses.fields(Config)
        if isinstance(field.default_factory, type) and field.name not in plain
    }
    return plain | others


def keys(schema: type, where: str = "") -> Iterator[Key]:
    """Yield the keys of a dataclass, nested ones dotted, without the ``name`` that a group's choice sets."""
    hints, texts = typing.get_type_hints(schema, include_extras=True), sentences(schema)
    for field in dataclasses.fields(schema):
        name, nested = join(where, field.name), field.default_factory
        if isinstance(nested, type) and dataclasses.is_dataclass(nested):
            yield from keys(nested, name)
        elif name not in {f"{group}.name" for group in SCHEMAS} and not _is_section(schema, field.name):
            yield Key(name, _default(field), describe(hints[field.name]), texts.get(field.name, ""))


def sentences(schema: type) -> dict[str, str]:
    """Return the descriptions of attributes in the docstrings of a dataclass and its parents."""
    texts: dict[str, str] = {}
    for parent in reversed(schema.__mro__):
        if dataclasses.is_dataclass(parent) and (attributes := _ATTRIBUTES.search(inspect.getdoc(parent) or "")):
            for _, names, text in _ATTRIBUTE.findall(attributes[1]):
                texts |= dict.fromkeys(names.split(", "), " ".join(text.replace("``", "").split()))
    return texts


def _is_section(schema: type, name: str) -> bool:
    return schema is Config and (name in SCHEMAS or name in PLAIN_SCHEMAS)


def _default(field: dataclasses.Field[Any]) -> str | None:
    factory = field.default_factory
    value = field.default if factory is dataclasses.MISSING else factory()
    return None if value in (dataclasses.MISSING, MISSING) else override_text(value)


def summary(schema: type) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(schema) or "").split("\n\n")[0].replace("``", "").split())


def _wrapped(text: str, indent: str, first: str | None = None) -> str:
    return textwrap.fill(
        text, 100, initial_indent=indent if first is None else first, subsequent_indent=indent, break_on_hyphens=False
    )
