"""Everything that README.md tells a user to type, typed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[1]
README = (HOME / "README.md").read_text(encoding="utf-8")
ENTRY = "import sys; sys.argv[0] = 'dpfest'; from cli.main import main; main()"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.S)
LINES = [line for kind, text in BLOCKS if kind == "console" for line in text.splitlines()]
COMMANDS = [line for line in LINES if line.startswith("dpfest ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all commands: they share datasets and calibrations, as a user's would."""
    return tmp_path_factory.mktemp("readme")


def run(program: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(HOME), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, *program], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("line", COMMANDS)
def test_command(line: str, folder: Path) -> None:
    """At smoke size: what a command says and does must work, what it finds needs hours elsewhere."""
    ended = run(["-c", ENTRY, *shlex.split(line)[1:], "profile=smoke"], folder)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()


def test_every_line_is_a_command_that_is_tested() -> None:
    assert len(COMMANDS) >= 10
    assert [line for line in LINES if line not in COMMANDS] == ["make reproduce", "make test"]


@pytest.mark.parametrize("target", ["reproduce", "test", "lint", "setup", "clean", "help"])
def test_make_target(target: str) -> None:
    assert subprocess.run(["make", "-n", target], cwd=HOME, capture_output=True).returncode == 0


def test_library_example(folder: Path) -> None:
    """Plain PyTorch, a model that is not pCTR, under 45 lines; it learns, at the epsilon that it was asked.

    Data and noise are fresh in each run, AUC varies by about 0.015; a model without its tables has 0.57.
    """
    (code,) = [text for kind, text in BLOCKS if kind == "python"]
    assert len([line for line in code.splitlines() if line.strip()]) < 45
    (folder / "example.py").write_text(code)
    ended = run(["example.py"], folder)
    assert ended.returncode == 0, ended.stderr
    found = re.findall(r"loss ([\d.]+) AUC ([\d.]+) epsilon ([\d.]+)", ended.stdout)
    losses, aucs, epsilons = ([float(value) for value in column] for column in zip(*found, strict=True))
    assert len(found) == 5 and losses[-1] < losses[0] and aucs[-1] > 0.68
    assert epsilons == sorted(epsilons) and 2.9 < epsilons[-1] <= 3.0


def test_links_and_pictures_exist() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert target.startswith("http") or (HOME / target).exists(), target
