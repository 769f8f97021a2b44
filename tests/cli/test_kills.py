"""Every command that writes, killed at random times and given again: the same bytes as if it had never been killed.

`python -m tests.cli.test_kills 30` kills as often as it is told, and says what it found.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
SMALL = (
    "profile=smoke", "train.steps=6", "train.checkpoint_every=2", "privacy.noise_seed=1", "algorithm=fest",
    "data.rows=1500",
)  # fmt: skip
RUN = "runs/criteo_synthetic/fest"
COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "preprocess": (["preprocess", *SMALL], ["data"]),
    "select": (["select", *SMALL], ["runs/.selections"]),
    "train": (["train", *SMALL], [RUN]),
    "sweep": (["sweep", *SMALL, "seed=0,1", "sweep.jobs=1"], [RUN]),
    "search": (
        ["sweep", *SMALL, "search=poisson", "search.mean=2", "algorithm.clipping_norm=1,2", "sweep.jobs=1"],
        [RUN],
    ),
    "report": (["report"], ["report"]),
    "release": (["release", "RUN", "--to", "out.zip"], ["out.zip"]),
    "cards": (["release", "RUN", "--cards", "cards.jsonl", "--made-by", "a test"], ["cards.jsonl"]),
}
NEEDS = {"report": "train", "release": "train", "cards": "train"}
TIMES = {"status.json", "timings.json", "metrics.jsonl", "report.json", "attempts"}
"""Files with times in them."""


def command(folder: Path, words: Sequence[str]) -> list[str]:
    runs = sorted(folder.glob(f"{RUN}/*/status.json"))
    told = [str(runs[0].parent) if word == "RUN" else word for word in words]
    places = [f"paths.{name}={folder / name}" for name in ("data", "runs", "report")]
    return [sys.executable, "-m", "dpfest", *told, *([] if words[0] == "release" else places)]


def whole(folder: Path, words: Sequence[str]) -> float:
    """Run a command to its end; returns its seconds."""
    started = time.monotonic()
    ended = subprocess.run(command(folder, words), cwd=folder, capture_output=True, text=True, env=environment())
    assert ended.returncode == 0, ended.stderr
    return time.monotonic() - started


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HOME)}


def killed(folder: Path, words: Sequence[str], after: float) -> bool:
    """Start a command and kill it, with all that it started, after some seconds; whether it was still running."""
    process = subprocess.Popen(
        command(folder, words), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, env=environment(),
    )  # fmt: skip
    try:
        process.wait(after)
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True


def content(folder: Path, places: Sequence[str]) -> dict[str, str]:
    """The digest of every file in some places that is not hidden, private or a record of times."""
    found = {}
    for place in places:
        root = folder / place
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            name = path.relative_to(folder).as_posix()
            hidden = any(part.startswith(".") or part == "private" for part in path.relative_to(root).parts)
            if path.is_file() and not hidden and path.name not in TIMES:
                text = path.read_bytes().replace(str(folder).encode(), b"HERE")
                found[name] = hashlib.sha256(text).hexdigest()[:12]
    return found


def try_kills(name: str, kills: int, seed: int, folder: Path) -> int:
    """Kill a command so many times while it runs, or try to; returns how often.

    Raises:
        AssertionError: what it leaves when it is given again is not what it leaves undisturbed.
    """
    words, places = COMMANDS[name]
    chance, met = random.Random(f"{name} {seed}"), 0
    (ready := folder / "ready").mkdir(parents=True)
    if name in NEEDS:
        whole(ready, COMMANDS[NEEDS[name]][0])
    shutil.copytree(ready, undisturbed := folder / "undisturbed", symlinks=True)
    took = whole(undisturbed, words)
    expected = content(undisturbed, places)
    assert expected, f"{name} leaves nothing to compare"
    for number in range(4 * kills):
        if met >= kills:
            break
        shutil.copytree(ready, here := folder / f"killed-{number}", symlinks=True)
        for _ in range(3):
            if not killed(here, words, chance.uniform(0.2, 0.95) * took):
                break
            met += 1
            if chance.random() < 0.7:
                break
        if not (name == "release" and (here / "out.zip").exists()):  # it was done, and refuses to write another
            whole(here, words)
        found = content(here, places)
        assert found == expected, {k: (found.get(k), expected.get(k)) for k in found.keys() | expected.keys()
                                   if found.get(k) != expected.get(k)}  # fmt: skip
        shutil.rmtree(here)
    return met


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_killed_and_given_again_leaves_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Slow: starts each command five times or more."""
    try_kills(name, 2, 0, tmp_path)


if __name__ == "__main__":
    asked = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    each, total = -(-asked // len(COMMANDS)), 0
    for one in sys.argv[2:] or COMMANDS:
        with tempfile.TemporaryDirectory() as scratch:
            found = try_kills(one, each, random.randrange(10**6), Path(scratch))
        total += found
        print(f"{one}: {found} kills of a running command, all ended in the same bytes", flush=True)
    print(f"{total} kills")
