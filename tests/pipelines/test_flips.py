"""A random byte of any file that a command reads, flipped: the same result, or a refusal in one line; never another.

`python -m tests.pipelines.test_flips 100` flips as often as it is told, and counts what became of them.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import Config, typed
from pipelines.runs.cards import Maker, card, write_cards
from pipelines.runs.release import checked
from pipelines.train import make_run
from reports.reading import load_runs

SMALL = ["profile=smoke", "data.rows=1500", "train.steps=3", "algorithm=fest", "privacy.noise_seed=1"]


def configured(folder: Path) -> Config:
    return typed(Composer().compose([*SMALL, f"paths.data={folder}/data", f"paths.runs={folder}/runs"]))


def digest(folder: Path) -> str:
    parts = [path.read_bytes() for path in sorted((folder / "release").iterdir())]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def trained(folder: Path) -> str:
    """What a run on the data releases."""
    make_run(configured(folder))
    (run,) = (path.parent for path in folder.glob("runs/*/*/*/status.json"))
    return digest(run)


def packed(folder: Path) -> str:
    """What a finished run releases, if it may."""
    (run,) = (path.parent for path in folder.glob("runs/*/*/*/status.json"))
    return checked(run).digest


def reported(folder: Path) -> str:
    """What a report reads of finished runs, and of cards; what it leaves out, with the reason."""
    found = [load_runs(place) for place in (folder / "runs", folder / "cards")]
    left_out = [one.reason for _, skipped in found for one in skipped]
    if left_out:
        raise UserError("; ".join(left_out))
    return repr([replace(run, path=Path(), source=None, card=None, timings=None) for runs, _ in found for run in runs])


READERS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "train": ("data", trained),
    "release": ("runs", packed),
    "report": ("runs", reported),
    "cards": ("cards", reported),
}


def flip(path: Path, chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    place = chance.randrange(len(data))
    data[place] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(data))
    return f"byte {place} of {path.name}"


def try_flips(flips: int, seed: int, folder: Path) -> Counter[str]:
    """Flip bytes one at a time, and return how often the result was the same, and how often it was refused.

    Raises:
        AssertionError: a result changed, or a refusal has several lines.
    """
    made, chance, found = folder / "made", random.Random(seed), Counter[str]()
    (made / "runs").mkdir(parents=True)
    trained(made)
    (run,) = (path.parent for path in made.glob("runs/*/*/*/status.json"))
    (made / "cards").mkdir()
    write_cards(made / "cards" / "all.jsonl", [card(checked(run), Maker("0", None, "test"))])
    expected = {name: read(made) for name, (_, read) in READERS.items() if name != "train"}
    expected["train"] = digest(run)
    for number in range(flips):
        name = list(READERS)[number % len(READERS)]
        place, read = READERS[name]
        shutil.copytree(made, here := folder / "here", symlinks=True)
        if name == "train":
            for left in here.glob("runs/*/fest"):
                shutil.rmtree(left)
        files = [path for path in sorted((here / place).rglob("*")) if path.is_file() and path.stat().st_size]
        what = flip(chance.choice([one for one in files if not one.name.startswith(".")]), chance)
        try:
            result = read(here)
        except UserError as error:
            assert "\n" not in str(error), f"{what}, {name}: {error}"
            found[f"{name}: refused in a line"] += 1
        else:
            assert result == expected[name], f"{what} changed what {name} gives, without a word"
            found[f"{name}: the same"] += 1
        shutil.rmtree(here)
    return found


@pytest.mark.slow
def test_no_flipped_byte_changes_a_result_without_a_word(tmp_path: Path) -> None:
    """Slow: 24 of them, a fourth with a training each."""
    found = try_flips(24, 0, tmp_path)
    assert sum(found.values()) == 24 and any("refused" in outcome for outcome in found)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for outcome, times in sorted(try_flips(int(sys.argv[1]), random.randrange(10**6), Path(scratch)).items()):
            print(f"{times:4} {outcome}")
