"""Lines of Criteo's format for tests, and the format's definition once more, in twenty plain lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipelines.config.commands import SweepConfig
from pipelines.preprocess import preprocess

Parsed = tuple[int, list[int], list[int | None]]


@dataclass
class Fields:
    """One example; ``None`` is a blank field."""

    label: int = 0
    integers: list[int | None] = field(default_factory=lambda: [None] * 13)
    categories: list[int | None] = field(default_factory=lambda: [None] * 26)

    def line(self) -> bytes:
        fields = [str(self.label)]
        fields += ["" if value is None else str(value) for value in self.integers]
        fields += ["" if value is None else f"{value:08x}" for value in self.categories]
        return "\t".join(fields).encode()


def reference(line: bytes) -> Parsed | None:
    """Label, counts and categories of a line without its line feed, or None where it is malformed."""
    fields = line.removesuffix(b"\r").split(b"\t")
    if len(fields) != 40 or fields[0] not in (b"0", b"1"):
        return None
    integers = []
    for text in fields[1:14]:
        if not re.fullmatch(rb"(-?[0-9]+)?", text):
            return None
        value = int(text.lstrip(b"-0") or b"0") * (-1 if text.startswith(b"-") else 1)
        if not -(2**63) <= value < 2**63:
            return None
        integers.append(value)
    categories: list[int | None] = []
    for text in fields[14:]:
        if not re.fullmatch(rb"([0-9a-fA-F]{8})?", text):
            return None
        categories.append(int(text, 16) if text else None)
    return int(fields[0]), integers, categories


def some_lines(count: int) -> list[bytes]:
    """Different good lines, blanks and negative counts among them."""
    lines = []
    for i in range(count):
        integers = [None if (i + j) % 7 == 0 else i * j % 50 - 2 for j in range(13)]
        categories = [None if (i + j) % 11 == 0 else (i * 2654435761 + j) % 2**32 for j in range(26)]
        lines.append(Fields(int(i % 4 == 0), integers, categories).line())
    return lines


def run(data: Any, folder: Path, jobs: int = 1) -> Path:
    """The preprocess stage with its datasets in ``folder``."""
    return preprocess(settings(data, folder, jobs))


def settings(data: Any, folder: Path, jobs: int = 1, day: int | None = None, verify: bool = False) -> Any:
    """The part of a configuration that the preprocess stage reads."""
    return SimpleNamespace(
        data=data,
        paths=SimpleNamespace(data=str(folder)),
        privacy=SimpleNamespace(unit="example"),
        preprocess=SimpleNamespace(jobs=jobs, day=day, verify=verify),
        sweep=SweepConfig(),
    )
