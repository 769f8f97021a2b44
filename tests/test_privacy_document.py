"""docs/PRIVACY.md points at code and tests that exist, and its audits are those of docs/reference."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
TEXT = (HOME / "docs" / "PRIVACY.md").read_text(encoding="utf-8")
ROWS = [line for line in TEXT.split("\n## 8.")[1].splitlines() if line.startswith("| ")][1:]
STEP = [line for line in TEXT.split("\n## 1.")[0].splitlines() if line.startswith("| ") and "::" in line]
AUDIT = json.loads((HOME / "docs" / "reference" / "audit" / "audit.json").read_text(encoding="utf-8"))


def defines(path: str, name: str) -> bool:
    return bool(re.search(rf"^\s*(def|class) {name}\b", (HOME / path).read_text(encoding="utf-8"), flags=re.M))


def test_every_statement_names_code_and_tests_that_exist() -> None:
    assert len(ROWS) >= 30 and len(STEP) >= 8
    for row in ROWS + STEP:
        *_, code, tests, _ = row.split("|")
        named = re.findall(r"`([\w/]+\.py)`((?: `\w+`)+)", code)
        assert named, row
        for path, names in named:
            for name in re.findall(r"`(\w+)`", names):
                assert path.startswith(("dpfest/", "pipelines/")) and defines(path, name), (path, name)
        cited = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
        assert cited, row
        for path, name in cited:
            assert defines(path, name), (path, name)


def test_what_a_reviewer_reads_exists_and_is_as_long_as_it_says() -> None:
    sittings = re.findall(r"^\| [^|]+ \| ((?:`[\w/]+` ?)+) \| ([\d,]+) \|$", TEXT, flags=re.M)
    assert len(sittings) == 4
    for named, said in sittings:
        modules = [HOME / "dpfest" / f"{name}.py" for name in re.findall(r"[\w/]+", named)]
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules)
        assert abs(lines - int(said.replace(",", ""))) <= 150, (named, lines)


def test_the_audit_of_a_step_is_that_of_the_reference() -> None:
    table = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|$", TEXT, flags=re.M)
    assert [name for name, *_ in table] == [one["algorithm"] for one in AUDIT["audits"]]
    for one, (_, *said) in zip(AUDIT["audits"], table, strict=True):
        found = {case["sabotage"]: case["tightness"] for case in one["cases"]}
        sound, halved = found.pop(None), found.pop("gradient noise halved")
        others = found.values()
        assert said == [f"{sound:.2f}", f"{halved:.2f}", f"{min(others):.1f}", f"{max(others):.1f}"]


def test_the_audit_of_trainings_is_that_of_the_reference() -> None:
    cases = [(training, case) for training in AUDIT["trainings"] for case in training["cases"]]
    sound = [case["tightness"] for _, case in cases if case["sabotage"] is None]
    flawed = [case for _, case in cases if case["sabotage"] is not None]
    ideal = [training["ideal"] / training["claim"] for training in AUDIT["trainings"]]
    assert {case["verdict"] for case in flawed} == {"broken"}
    low, high = min(sound), max(sound)
    bounds = [case["bound"] for case in flawed]
    text = " ".join(TEXT.split())
    assert f"the bounds of the {len(sound)} sound trainings are {low:.2f} to {high:.2f} of their claims" in text
    assert f"this attack reaches {min(ideal):.2f} to {max(ideal):.2f}." in text
    refuted = f"with bounds of {min(bounds):.2f} to {max(bounds):.2f}: one batch"
    assert f"The {len(flawed)} flawed ones refute their claim of ε = 1, {refuted}" in text


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
