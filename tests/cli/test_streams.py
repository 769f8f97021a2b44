"""A closed pipe does not end a command; a closed terminal asks a run to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("before", "stops"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)], ids=["", "under nohup"]
)
def test_a_closed_terminal_asks_a_run_to_stop_but_not_under_nohup(before: signal.Handlers, stops: bool) -> None:
    own = signal.signal(signal.SIGHUP, before)  # the tests may run under nohup themselves
    try:
        with stop_requests() as stop:
            assert not stop.requested
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.requested == stops
    finally:
        signal.signal(signal.SIGHUP, own)


@pytest.mark.parametrize(
    ("where", "status", "said"),
    [
        (">/dev/full", 2, "error: Output cannot be written (No space left on device): send it elsewhere.\n"),
        (">&-", 0, ""),
    ],
)
def test_a_full_disk_ends_a_command_with_a_sentence_and_a_closed_output_with_none(
    where: str, status: int, said: str
) -> None:
    command = f"{sys.executable} -m dpfest config search {where}"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (status, said)


@pytest.mark.slow
def test_memory_that_runs_out_ends_a_command_with_a_sentence(tmp_path: Path) -> None:
    """A model of 4 GB where a process may have 3."""
    words = ["train", "data=criteo_synthetic", "profile=smoke", "model.hidden=[32000,32000]"]
    ended = subprocess.run(
        ["bash", "-c", 'ulimit -v 3000000 && exec "$@"', "bash", sys.executable, "-m", "dpfest", *words],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert "error: memory ran out (" in ended.stderr and "Traceback" not in ended.stderr
    assert "lower train.micro_batch_size" in ended.stderr
