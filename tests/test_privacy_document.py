"""docs/PRIVACY.md points at code and tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
TEXT = (HOME / "docs" / "PRIVACY.md").read_text(encoding="utf-8")
INSIDE, OUTSIDE = (
    [line for line in section.splitlines() if line.startswith("| ")][1:]
    for section in TEXT.split("## 6.")[1].split("## 7.")
)
"""The statements that the library holds, and those that the pipelines do."""


def defines(path: str, name: str) -> bool:
    return bool(re.search(rf"^\s*(def|class) {name}\b", (HOME / path).read_text(encoding="utf-8"), flags=re.M))


def test_every_statement_names_code_and_tests_that_exist() -> None:
    assert len(INSIDE) >= 15 and OUTSIDE
    for row in (*INSIDE, *OUTSIDE):
        room = "dpfest/" if row in INSIDE else "pipelines/"
        _, _, code, tests, _ = row.split("|")
        named = re.findall(r"`([\w/]+\.py)`((?: `\w+`)+)", code)
        assert named, row
        for path, names in named:
            for name in re.findall(r"`(\w+)`", names):
                assert path.startswith(room) and defines(path, name), (path, name)
        cited = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
        assert cited, row
        for path, name in cited:
            assert defines(path, name), (path, name)


def test_the_guarantee_imports_what_it_says_and_nothing_above_it() -> None:
    allowed = {"torch", "numpy", "scipy", "dp_accounting", "dpfest", "__future__"}
    standard = {"collections", "copy", "dataclasses", "functools", "hashlib", "importlib", "itertools", "json", "math"}
    standard |= {"concurrent", "inspect", "os", "pathlib", "secrets", "types", "typing"}
    for path in sorted((HOME / "dpfest").glob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        found = [alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        found += [str(node.module).split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)]
        assert set(found) <= allowed | standard, (path.name, set(found) - allowed - standard)
