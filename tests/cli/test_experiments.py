"""Every shipped experiment, run whole at smoke size, and reported."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.runs.grid import plan
from reports.comparison import populations
from reports.reading import load_runs
from reports.registry import ENTRIES
from tests.cli.conftest import HOME, Command

EXPERIMENTS = sorted((HOME / "conf" / "experiment").glob("*.yaml"))
OTHERS = ("search", "reference", "private_search", "optimizers", "batch_size", "map_fine", "frontier")
"""These train what the comparison or the map trains, at other settings, or a number of runs that is drawn."""


WHOLE = [pytest.param(file.stem, [], marks=pytest.mark.slow) for file in EXPERIMENTS if file.stem not in OTHERS]
SMALL = ("map", ["algorithm=frozen"])


@pytest.mark.usefixtures("no_reference")
@pytest.mark.parametrize(("name", "more"), [SMALL, *WHOLE], ids=lambda value: value if isinstance(value, str) else "")
def test_an_experiment_runs_and_is_reported(
    dpfest_here: Command, tmp_path: Path, calibrations: Path, name: str, more: list[str]
) -> None:
    """Whole ones slow: dozens of runs. Runs have processes of their own; the commands need none. What shows no such run
    is drawn elsewhere.
    """
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".calibration").symlink_to(calibrations)
    line = ["sweep", f"experiment={name}", "profile=smoke", "sweep.jobs=2", *more]
    first = dpfest_here(*line)
    assert first.returncode == 0, first.stdout + first.stderr
    planned = int(re.match(r"(\d+) runs?", first.stdout)[1])  # type: ignore[index]
    summaries = list(tmp_path.glob("runs/*/*/*/release/summary.json"))
    assert len(summaries) == planned
    assert first.stdout.endswith(f"\n{planned} done.\n")

    again = dpfest_here(*line)
    assert again.returncode == 0
    assert f"{planned} done, 0 to do." in again.stdout

    # The grids of all experiments take ten seconds to compose: whole ones are listed among all.
    listed = dpfest_here("report", "profile=smoke", "--list", *([f"experiment={name}"] if more else []))
    assert listed.returncode == 0, listed.stderr
    counts = [(int(done), int(needed)) for done, needed in re.findall(r" (\d+) of +(\d+) runs", listed.stdout)]
    assert more or {done == needed for done, needed in counts if done} == {True}
    assert max(counts)[0] <= planned
    groups = populations(load_runs(tmp_path / "runs")[0])
    shown = [entry.id for entry in ENTRIES if any(map(entry.shows, groups))]
    built = dpfest_here("report", "profile=smoke", "--only", ",".join(shown))
    assert built.returncode == 0, built.stderr
    artifacts = json.loads((tmp_path / "report" / "report.json").read_text())["artifacts"]
    assert [artifact["id"] for artifact in artifacts] == shown != []
    assert {path.name for path in tmp_path.iterdir()} == {"data", "runs", "report"}


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_an_experiment_is_headed_by_its_command_and_time(file: Path) -> None:
    head = [text for text in file.read_text().splitlines() if text.startswith("#")]
    assert any(f"dpfest sweep experiment={file.stem}" in text and "minutes" in text for text in head)


LARGE = [pytest.param(one, marks=[pytest.mark.documents] * (one.stem == "reference")) for one in EXPERIMENTS]


@pytest.mark.parametrize("file", LARGE, ids=lambda file: file.stem)
def test_the_commands_at_an_experiments_head_plan_the_runs_that_it_says(file: Path) -> None:
    """Those that need data or a model of one's own look for these. Documents: the whole reference takes a minute."""
    planned = 0
    for line in re.findall(r"^#   dpfest (sweep \S.*)$", file.read_text(), re.MULTILINE):
        command, _, said = re.sub(r"  +", "\n", line).partition("\n")
        if "=..." in command:
            with pytest.raises(UserError, match=r"/nowhere"):
                plan(Composer(None), shlex.split(command.replace("...", "/nowhere"))[1:])
        elif not re.search(r"profile=smoke|data=clicks", command):
            runs = len(plan(Composer(None), shlex.split(command)[1:]).runs)
            count = re.match(r"(?:the )?([\d,]+) (?:runs|of)", said)
            assert runs and (count is None or int(count[1].replace(",", "")) == runs), line
            planned += 1
    assert planned
