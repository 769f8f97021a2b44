"""A closed pipe does not end a command; a closed terminal asks a run to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from pipelines.system.processes import stop_requests

SCRIPT = """
import sys, pathlib
from cli.streams import outlive_readers
outlive_readers()
for line in range(20_000):
    print(line)
    print(line, file=sys.stderr)
pathlib.Path(sys.argv[1]).write_text("done")
"""


def test_a_command_outlives_its_reader(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "end")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert writer.stdout is not None and writer.stdout.readline()
    writer.stdout.close()
    assert writer.wait(60) == 0 and (tmp_path / "end").read_text() == "done"


def test_a_closed_terminal_asks_a_run_to_stop() -> None:
    with stop_requests() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.requested


def test_under_nohup_it_does_not() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_requests() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)
