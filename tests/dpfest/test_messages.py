"""The library speaks of arguments; keys of a configuration are the command line's own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import dpfest

KEY = re.compile(r"\b(algorithm|privacy|train|optimizer|stream|data|model|paths|budget)\.[a-z_]+(=|\b(?!\())")


def test_no_message_of_the_library_names_a_key_of_a_configuration() -> None:
    found = []
    for path in sorted(Path(dpfest.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for part in ast.walk(node) if isinstance(node, ast.Raise) else ():
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and KEY.search(part.value):
                    found.append((path.name, part.value))
    assert found == []
