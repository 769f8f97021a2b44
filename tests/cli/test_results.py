"""What stands beside a result at the prompt: the controls of the same data, and the best runs of a sweep."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from reports import beside
from reports.reading import load_runs
from tests.cli.conftest import Command
from tests.reports.synthetic import write_run

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


@pytest.fixture(autouse=True)
def enough_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration takes seconds, and what is tested here does not depend on it."""
    monkeypatch.setattr("pipelines.budget.remembered_calibration", lambda runs: lambda events, target, delta: 8.0)


SMALL = ("profile=smoke", "data=criteo_synthetic", f"data.vocabulary.sizes={[20] * 26}")


def test_controls_stand_beside_a_run_of_the_same_data_alone(dpfest_here: Command) -> None:
    frozen = dpfest_here("train", *SMALL, "algorithm=frozen", "privacy.epsilon=3")
    assert frozen.returncode == 0, frozen.stderr
    assert "beside it" not in frozen.stdout and "compare it" not in frozen.stdout
    found = re.search(r"AUC (\d\.\d+) on test", frozen.stdout)
    assert found is not None

    line = ("train", *SMALL, "algorithm=fest", "algorithm.selection.rows=100", "privacy.epsilon=3")
    fest = dpfest_here(*line)
    assert f"  beside it: Frozen embeddings {found[1]}\n" in fest.stdout
    assert Path(fest.stdout.splitlines()[-1]).is_dir()
    dpfest_here("train", *SMALL, "algorithm=frozen", "privacy.epsilon=3", "optimizer.dense.learning_rate=0.1")
    again = dpfest_here(*line).stdout
    assert re.search(r"beside it: Frozen embeddings 0\.\d{4} \(best of 2 on validation\)\n", again), again
    other = dpfest_here("train", *SMALL, "algorithm=fest", "algorithm.selection.rows=100", "privacy.epsilon=2")
    assert "  compare it with algorithm=nonprivate, dpsgd, frozen\n" in other.stdout


def test_the_projects_own_controls_stand_beside_a_run_that_answers_the_same_question() -> None:
    """Of the reference's own runs, without training: DP-FEST on journey at ε = 1, and on data of another split."""
    runs, _ = load_runs(REFERENCE / "journey.jsonl.xz")
    run = next(run for run in runs if (run.algorithm, run.target_epsilon) == ("fest", 1.0))
    found = beside._published(run)
    assert set(found) == set(beside.CONTROLS) and 0.7 < found["frozen"] < found["dpsgd"] < found["nonprivate"] < 1
    assert set(beside._published(replace(run, target_epsilon=2.0))) == {"nonprivate"}
    assert beside._published(replace(run, material="another")) == {}


def test_runs_on_a_file_that_has_changed_since_are_no_controls(tmp_path: Path) -> None:
    """Equal settings and as many examples; nor do they share a figure. A released run tells nothing of its rows."""
    for name, rows in (("dpsgd", "one"), ("frozen", "other"), ("fest", "one"), ("nonprivate", None)):
        folder = write_run(tmp_path, name, test=0.7, dataset="clicks", data={"path": "clicks.csv"})
        if rows is not None:
            (folder / "private").mkdir(exist_ok=True)
            (folder / "private" / "data_hash").write_text(rows)
    (fest,) = (tmp_path / "clicks" / "fest").iterdir()
    assert beside.beside(fest) == "beside it: DP-SGD 0.7000"
    runs, _ = load_runs(tmp_path)
    assert len({run.material for run in runs}) == 3


def test_training_without_privacy_that_is_behind_is_remarked(tmp_path: Path) -> None:
    for name, test in (("fest", 0.72), ("nonprivate", 0.71)):
        folder = write_run(tmp_path, name, test=test, dataset="clicks", data={"path": "clicks.csv"})
        (folder / "private").mkdir(exist_ok=True)
        (folder / "private" / "data_hash").write_text("one")
    (fest,) = (tmp_path / "clicks" / "fest").iterdir()
    said = (
        "beside it: Non-private 0.7100; training without privacy needs other learning rates, or it would not be behind"
    )
    assert beside.beside(fest) == said


def test_a_sweep_ends_with_its_best_runs(dpfest_here: Command) -> None:
    line = ("sweep", *SMALL, "algorithm=fest", "algorithm.selection.rows=60,200", "seed=0,1", "privacy.noise_seed=0")
    ended = dpfest_here(*line)
    assert ended.returncode == 0, ended.stderr
    *_, title, _, _, _, _, last = ended.stdout.splitlines()
    assert last == "4 done."
    assert title == "Best of 4 on validation (AUC on validation and on test, reduction, settings):"
    shown = [text.split("  ") for text in ended.stdout.splitlines()[-5:-1]]
    found = [json.loads(path.read_text())["utility"] for path in Path("runs").glob("*/fest/*/release/summary.json")]
    best = sorted(found, key=lambda utility: -utility["validation"])
    assert [(row[0], row[1]) for row in shown] == [(f"{u['validation']:.4f}", f"{u['value']:.4f}") for u in best]
    assert {row[-1] for row in shown} == {f"algorithm.selection.rows={k} seed={s}" for k in (60, 200) for s in (0, 1)}
    again = dpfest_here(*line)  # nothing is left to do
    assert again.stdout.splitlines()[-5:] == ended.stdout.splitlines()[-6:-1]


def test_a_card_tells_what_the_projects_controls_reach_on_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """At one ε, and in a stream with the shortest period."""

    def control(name: str, data: str, test: float, period: int | None = None, epsilon: float = 1.0) -> dict:
        asked = {"period": period} | ({} if name == "nonprivate" else {"epsilon": epsilon})
        return {"algorithm": name, "data": data, "question": asked, "test": test}

    listed = [
        *(control("frozen", "flat", 0.70), control("dpsgd", "flat", 0.801), control("dpsgd", "flat", 0.9, epsilon=3.0)),
        *(
            control("nonprivate", "days", 0.95, 4),
            control("nonprivate", "days", 0.91, 1),
            control("dpsgd", "days", 0.8, 1),
        ),
    ]
    monkeypatch.setattr(beside, "_controls", lambda: listed)
    assert beside.known("flat") == "test utility at ε = 1: DP-SGD 0.8010, Frozen embeddings 0.7000"
    assert beside.known("flat", 3.0) == "test utility at ε = 3: DP-SGD 0.9000"
    assert beside.known("days") == "test utility at ε = 1 in periods of 1 day: Non-private 0.9100, DP-SGD 0.8000"
    assert beside.known("clicks") is None
