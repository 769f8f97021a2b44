"""docs/PRIVACY.md points at code and tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
TEXT = (HOME / "docs" / "PRIVACY.md").read_text(encoding="utf-8")
ROWS = [line for line in TEXT.split("## 8.")[1].splitlines() if line.startswith("| ")][1:]


def defines(path: str, name: str) -> bool:
    return bool(re.search(rf"^\s*(def|class) {name}\b", (HOME / path).read_text(encoding="utf-8"), flags=re.M))


def test_every_statement_names_code_and_tests_that_exist() -> None:
    assert len(ROWS) >= 30
    for row in ROWS:
        _, _, code, tests, _ = row.split("|")
        named = re.findall(r"`([\w/]+\.py)`((?: `\w+`)+)", code)
        assert named, row
        for path, names in named:
            for name in re.findall(r"`(\w+)`", names):
                assert path.startswith(("dpfest/", "pipelines/")) and defines(path, name), (path, name)
        cited = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
        assert cited, row
        for path, name in cited:
            assert defines(path, name), (path, name)


def test_the_guarantee_imports_what_it_says_and_nothing_above_it() -> None:
    allowed = {"torch", "numpy", "scipy", "dp_accounting", "cryptography", "mpmath", "dpfest", "__future__"}
    standard = {
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "functools",
        "hashlib",
        "importlib",
        "inspect",
        "json",
    }
    standard |= {"concurrent", "itertools", "math", "numbers", "os", "pathlib", "platform", "random", "secrets"}
    standard |= {"ctypes", "datetime", "sys", "threading", "types", "typing", "warnings", "weakref"}
    for path in sorted((HOME / "dpfest").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        found = [alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        found += [str(node.module).split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)]
        kernels = {"triton"} if path.parent.name == "device" else set()  # imported where it is installed
        assert set(found) <= allowed | standard | kernels, (path.name, set(found) - allowed - standard)
