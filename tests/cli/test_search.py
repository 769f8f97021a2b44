"""`dpfest sweep search...`: which runs it makes, what leaves, and what it says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from dpfest.errors import UserError
from dpfest.planning.search import SearchPlan, recount
from pipelines.runs.release import checked
from tests.cli.conftest import Command

SMALL = [
    *("profile=smoke", "data.rows=300", f"data.vocabulary.sizes={[20] * 26}", "train.batch_size=200", "train.steps=2"),
    *("algorithm=fest", "algorithm.selection.rows=130", "optimizer.tables.learning_rate=1,10"),
]
SEARCH = ["search.distribution=negative_binomial", "search.mean=4", "search.shape=20"]


def released(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "release").iterdir()}


@pytest.mark.long("a whole private search, killed and made again, at noise that no other test calibrates")
def test_a_search_releases_the_best_of_its_runs_and_a_killed_one_goes_on(
    dpfest_here: Command, tmp_path: Path, calibrations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SearchPlan, "draws", lambda self, key: [1, 0, 1])
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".calibration").symlink_to(calibrations)
    line = ["sweep", *SMALL, *SEARCH, "privacy.noise_seed=3"]
    shown = dpfest_here(*line, "--dry-run")
    assert "A private search over 2 settings (2 fest), a truncated negative binomial (shape 20)" in shown.stdout
    assert not list(tmp_path.glob("runs/.searches")), "and nothing is drawn"

    first = dpfest_here(*line)
    assert first.returncode == 0, first.stdout + first.stderr
    (best,) = tmp_path.glob("runs/[!.]*/*/*/release")  # nothing else lies where runs lie
    release = checked(best.parent)
    assert release.config["privacy"]["epsilon"] == 1.0 and "run" not in release.config["search"]
    assert 0.995 < release.summary["privacy"]["epsilon"] <= 1.0
    assert release.ledger["epsilon"] == recount(release.ledger)
    assert release.ledger["search"]["settings"] == 2 and len(release.ledger["search"]["runs"]) == 1
    assert any("It does not cover the validation rows." in text for text in release.ledger["statements"])

    # Every run has a folder, noise and a selection of its own, also where its setting was drawn before.
    (folder,) = tmp_path.glob("runs/.searches/*/*")
    assert folder.stat().st_mode & 0o077 == 0
    assert json.loads((folder / "draw.json").read_text())["settings"] == [1, 0, 1]
    runs = sorted(folder.glob("runs/[!.]*/*/*/release"))
    weights = {(run / "model.safetensors").read_bytes() for run in runs}
    selections = [np.load(path).tobytes() for path in folder.glob("runs/.selections/*/*/release/rows.npy")]
    assert len(runs) == len(weights) == len(set(selections)) == 3
    scores = {json.loads((run / "summary.json").read_text())["utility"]["validation"]: run for run in runs}
    winner = scores[max(scores)]
    assert (winner / "model.safetensors").read_bytes() == (best / "model.safetensors").read_bytes()
    assert yaml.safe_load((winner / "config.yaml").read_text())["privacy"]["epsilon"] < 1.0
    with pytest.raises(UserError, match="one run of a private search, of which the best alone may leave"):
        checked(winner.parent)

    # Nothing that is printed tells the number of runs, or any but the best.
    assert first.stdout.count("\n") == 4 and "done" not in first.stdout
    again = dpfest_here(*line)
    assert again.returncode == 0 and again.stdout.splitlines()[1:] == first.stdout.splitlines()[2:]

    # Killed: the draw stands, and a run and the release are made again, to the same bits.
    monkeypatch.setattr(SearchPlan, "draws", lambda self, key: pytest.fail("drawn twice"))
    before = released(best.parent)
    (folder / "outcome.json").unlink()
    for gone in (winner.parent, best.parent):
        shutil.rmtree(gone)
    assert dpfest_here(*line).returncode == 0
    assert released(best.parent) == before

    shutil.rmtree(best.parent)
    lost = dpfest_here(*line)
    assert lost.returncode == 2 and "is another search, which no ledger counts" in lost.stderr


def test_what_a_search_cannot_be_given_to_is_named(dpfest_here: Command) -> None:
    asked = ["profile=smoke", "algorithm=dpsgd", "search=poisson"]
    for command in ("train", "sweep", "budget"):
        numbered = dpfest_here(command, *asked, "search.run=3")
        assert numbered.returncode == 2 and "there is no key search.run" in numbered.stderr
    alone = dpfest_here("train", *asked)
    assert alone.returncode == 2 and "search.distribution=poisson makes several runs" in alone.stderr
    few = dpfest_here("sweep", *asked, "search.mean=0.5")
    assert few.returncode == 2 and "search.mean must be a number" in few.stderr
    wrong = dpfest_here("sweep", *asked, "search.distribution=binomial")
    assert "search.distribution must be one of none, negative_binomial, poisson" in wrong.stderr
