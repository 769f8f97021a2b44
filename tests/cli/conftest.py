"""The real command, in a process of its own and in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2]
ENTRY = "import sys; sys.argv[0] = 'dpfest'; from cli.main import main; main()"

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def dpfest(tmp_path: Path) -> Command:
    """Runs `dpfest ARGUMENTS` in `tmp_path`, with a wide terminal and no colours."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(HOME), "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}
        return subprocess.run(
            [sys.executable, "-c", ENTRY, *arguments],
            cwd=tmp_path,
            env={**env, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run
