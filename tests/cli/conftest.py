"""The real command in an empty folder: in a process of its own, or, quicker, in this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2]
ENTRY = "import sys; sys.argv[0] = 'dpfest'; from cli.main import main; main()"

WIDE_AND_PLAIN = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}

Command = Callable[..., subprocess.CompletedProcess[str]]


def write_own_parts(folder: Path) -> None:
    """Write the files that docs/OWN.md shows."""
    text = (HOME / "docs" / "OWN.md").read_text(encoding="utf-8")
    for name, content in re.findall(r"`([\w/]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)```", text, flags=re.S):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


@pytest.fixture
def dpfest(tmp_path: Path) -> Command:
    """Runs `dpfest ARGUMENTS` in `tmp_path`, with a wide terminal and no colours."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(HOME), **WIDE_AND_PLAIN}
        return subprocess.run(
            [sys.executable, "-c", ENTRY, *arguments],
            cwd=tmp_path,
            env={**env, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def run_here(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: Sequence[str],
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run `dpfest ARGUMENTS` in `folder` without a new process."""
    import absl.logging

    from cli.main import main

    # absl's log handler (dp_accounting brings it) took hold of the sys.stderr of its import, which was
    # pytest's, and would close it when Hydra sets logging up while another test's is in place.
    absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__
    monkeypatch.chdir(folder)
    # Typer calls a program by its file only where that was not started as `python -m ...`, as pytest is.
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None, raising=False)
    monkeypatch.setattr(sys, "argv", ["dpfest", *arguments])
    for name, value in {**WIDE_AND_PLAIN, "COMP_LINE": "", **environment}.items():  # completion sets COMP_LINE
        monkeypatch.setenv(name, value)
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capfd.readouterr()
    return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), out, err)


@pytest.fixture
def dpfest_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs `dpfest ARGUMENTS` in `tmp_path` without a new process."""
    return lambda *arguments, **environment: run_here(tmp_path, monkeypatch, capfd, arguments, **environment)


@pytest.fixture
def no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are not compared with docs/reference, whose thousands of cards take most of their time."""
    monkeypatch.setattr("reports.reference.reference_folder", lambda: None)
