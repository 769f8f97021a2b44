"""The files of ``conf/`` that hold defaults, written from the dataclasses that define the keys: ``make conf``.

Hydra overrides and completes only keys that YAML files have, and completing one must not wait for torch, which the
dataclasses import. So their defaults are in ``conf/``, and this module alone writes them there; a test compares. By
hand are written the root, presets, recipes, and files of one's own that extend these.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml

import conf
from pipelines.config.reference import PRESETS, summary
from pipelines.config.settings import PLAIN_SCHEMAS, SCHEMAS, Config

_WITHOUT_CHOICE = {"privacy": "rigorous", "search": "none", "optimizer": "default"}
"""The file that has the defaults of a group whose other choices are presets."""
_OF_TEXTS = {"defaults": [{"override /model@_global_.model": "roberta"}, "_self_"]}
"""Text data choose a text model."""


def files() -> dict[str, str]:
    """Return the text of each file, by its path in ``conf/``."""
    kinds = {f"{group}/{choice}": resolve_name(place) for group in SCHEMAS for choice, place in SCHEMAS[group].items()}
    kinds |= {f"{group}/{choice}": resolve_name(PLAIN_SCHEMAS[group]) for group, choice in _WITHOUT_CHOICE.items()}
    return {f"{name}.yaml": _choice(name, kind) for name, kind in kinds.items()} | {"sections.yaml": _sections()}


def _choice(name: str, kind: type[Any]) -> str:
    group = name.partition("/")[0]
    values = (_OF_TEXTS if group == "data" and kind.task == "text" else {}) | dataclasses.asdict(kind())
    nested = any(isinstance(value, dict | list) for value in values.values())
    keys = name.replace("/", "=") if group in SCHEMAS else group
    return _commented(summary(kind), keys) + _yaml(values, inner_in_one_line=nested)


def _sections() -> str:
    """Return the sections that are no groups, and the keys outside of any."""
    values = {}
    for field in dataclasses.fields(Config):
        if field.name not in (*SCHEMAS, *_WITHOUT_CHOICE, *PRESETS):
            place = PLAIN_SCHEMAS.get(field.name)
            kind = resolve_name(place) if place else field.default_factory
            values[field.name] = field.default if kind is dataclasses.MISSING else dataclasses.asdict(kind())
    return _commented("Sections without choices, and keys outside of sections.", "SECTION") + _yaml(values)


def _commented(text: str, keys: str) -> str:
    lines = textwrap.wrap(text, 118, break_on_hyphens=False)
    lines.append(f"Written by `make conf` from the dataclass; `dpfest config {keys}` says what the keys mean.")
    return "".join(f"# {line}\n" for line in lines)


def _yaml(values: Mapping[str, Any], inner_in_one_line: bool = False) -> str:
    style = None if inner_in_one_line else False
    return yaml.safe_dump(dict(values), sort_keys=False, default_flow_style=style, width=118)


def write() -> None:
    """Write every file."""
    for name, text in files().items():
        (Path(conf.__file__).parent / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
