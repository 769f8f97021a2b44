"""Imports run one way: the rooms of pipelines/ import what ARCHITECTURE.md draws, and no module imports itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
FOLDERS = {"dpfest": set(), "pipelines": {"dpfest"}, "reports": {"dpfest", "pipelines"}}
FOLDERS["cli"] = {"dpfest", "pipelines", "reports"}


def modules() -> dict[str, Path]:
    found = {}
    for folder in FOLDERS:
        for path in (HOME / folder).rglob("*.py"):
            name = ".".join(path.relative_to(HOME).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: what only a type checker reads is left out."""
    yield tree
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from nodes(node)


def imports(name: str) -> set[str]:
    """Our own modules that a module imports, wherever in its text."""
    found = set()
    for node in nodes(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {each if each in MODULES else node.module for each in below}
    return found & set(MODULES)


def room(name: str) -> str:
    return name.split(".")[1]


def test_the_drawing_says_which_room_imports_which_and_runs_one_way() -> None:
    text = (HOME / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## pipelines/")[1].split("\n## ")[0]
    drawn: dict[str, set[str]] = {}
    for row in re.findall(r"^\| `(\w+)(?:/|\.py)` \|.*\| (.*) \|$", text, flags=re.M):
        drawn[row[0]] = set(re.findall(r"`(\w+)`", row[1]))
        assert drawn[row[0]] < set(drawn), f"{row[0]} imports a room that stands below it"
    there = {path.stem for path in (HOME / "pipelines").iterdir() if not path.name.startswith("__")}
    assert set(drawn) == there and len(there) <= 14
    found: dict[str, set[str]] = {name: set() for name in drawn}
    for name in MODULES:
        if name.startswith("pipelines."):
            used = {room(each) for each in imports(name) if each.startswith("pipelines.")}
            found[room(name)] |= used - {room(name)}
    assert found == drawn


def test_a_folder_of_the_library_imports_those_above_it_in_the_drawing() -> None:
    text = (HOME / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## dpfest/")[1].split("\n## ")[0]
    drawn = re.findall(r"^\| `(\w+)/` \|", text, flags=re.M)
    folders = {path.name for path in (HOME / "dpfest").iterdir() if (path / "__init__.py").exists()}
    assert set(drawn) == folders
    for row in re.findall(r"^\| `(\w+)/` \| (.*) \|$", text, flags=re.M):
        for module in {path.stem for path in (HOME / "dpfest" / row[0]).glob("[!_]*.py")}:
            assert f"`{module}`" in row[1], f"{row[0]}/{module} is not in the drawing"
    for name in MODULES:
        if name.startswith("dpfest."):
            above = set(drawn[: drawn.index(room(name))]) if room(name) in drawn else set()
            used = {room(each) for each in imports(name) if each.startswith("dpfest.")} & folders
            assert used <= above | {room(name)}, name


def test_no_folder_imports_what_is_above_it() -> None:
    for name in MODULES:
        own = name.split(".")[0]
        assert {each.split(".")[0] for each in imports(name)} <= FOLDERS[own] | {own}, name


def test_no_import_is_a_circle() -> None:
    TopologicalSorter({name: imports(name) - {name} for name in MODULES}).prepare()
