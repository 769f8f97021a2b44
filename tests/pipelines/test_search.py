"""Private search by `dpfest sweep`: which run is the best, and which grids it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import dpfest
from dpfest import Search, SearchPlan
from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.runs.grid import PlannedRun, plan
from pipelines.search import PrivateSearch, refuse_incomparable, score_of
from pipelines.tasks.diverged import Diverged

SEARCH = ["search.distribution=negative_binomial", "search.mean=4", "search.shape=20"]


def grid(tmp_path: Path, *overrides: str) -> list[PlannedRun]:
    return plan(Composer(), [f"paths.runs={tmp_path}/runs", f"paths.data={tmp_path}/data", *overrides]).runs


def ended(tmp_path: Path, *scores: float | str | None) -> tuple[PrivateSearch, list[PlannedRun]]:
    """A search whose runs have ended with these validation utilities, or with this failure."""
    (one,) = grid(tmp_path, "profile=smoke", "algorithm=dpsgd", *SEARCH)
    runs = []
    for number, score in enumerate(scores):
        folder = tmp_path / "ended" / str(number)
        (folder / "private").mkdir(parents=True)
        if isinstance(score, str):
            (folder / "private" / "failure.txt").write_text(f"{score}: The weights are not finite.\n")
        elif score is not None:
            (folder / "release").mkdir()
            (folder / "release" / "summary.json").write_text(json.dumps({"utility": {"validation": score}}))
        runs.append(replace(one, folder=folder))
    return PrivateSearch([one]), runs


def test_the_best_is_the_first_of_equals_and_a_diverged_run_the_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.runs.directory.check_sums", lambda *_: None)
    made: list[PlannedRun] = []
    monkeypatch.setattr(PrivateSearch, "_released", lambda self, plan, best: made.append(best) or best.folder)
    search, runs = ended(tmp_path / "a", Diverged.__name__, 0.5, 0.7, 0.7)
    search.release(None, runs)  # type: ignore[arg-type]
    assert made == [runs[2]] and search.is_done
    search, runs = ended(tmp_path / "b", Diverged.__name__)
    search.release(None, runs)  # type: ignore[arg-type]
    assert search.outcome() is None and len(made) == 1
    search, runs = ended(tmp_path / "c")  # a Poisson number of runs may be 0
    search.release(None, runs)  # type: ignore[arg-type]
    assert search.outcome() is None
    for unfinished in (None, "UserError"):
        search, runs = ended(tmp_path / f"d{unfinished}", 0.5, unfinished)
        with pytest.raises(UserError, match="has not made all of its runs"):
            search.release(None, runs)  # type: ignore[arg-type]
        assert score_of(runs[0]) == 0.5 and not search.is_done


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+optimizer.dense.options.foo=1"], "do not fit adam"),
        (["optimizer.dense.name=adam,lbfgs"], "optimizer.dense.name=lbfgs is not an optimiser for private steps"),
        (["device=cuda:99"], "device=cuda:99 cannot be used here"),
        (["algorithm.noise=lazy", "optimizer.tables.name=sgd,adagrad"], "Lazy noise is exact under plain SGD alone"),
    ],
)
def test_a_setting_that_no_run_could_be_trained_with_is_refused_before_the_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], message: str
) -> None:
    names = {"numeric_names": ["n"] * 13, "categorical_names": ["c"] * 26}
    days = [SimpleNamespace(vocabulary_sizes=[20] * 26, bag_combiners=[], **names)]
    monkeypatch.setattr("pipelines.search.prepared", lambda config: SimpleNamespace(days=days))
    search = PrivateSearch(grid(tmp_path, "profile=smoke", "algorithm=dpsgd", *SEARCH, *overrides))
    with pytest.raises(UserError, match=message):
        search.plan()
    assert not search.folder.exists()


def test_why_a_search_is_not_finished_says_what_another_grid_costs(tmp_path: Path) -> None:
    (one,) = grid(tmp_path, "profile=smoke", "algorithm=dpsgd", *SEARCH)
    file = PrivateSearch([one]).note_failures(["a run: failed: no memory"])
    text = file.read_text()
    assert "another search: its epsilon adds" in text and text.endswith("a run: failed: no memory\n")
    assert file.stat().st_mode & 0o077 == 0


def test_a_draw_is_kept_and_under_a_noise_seed_a_function_of_the_configuration(tmp_path: Path) -> None:
    def drawn(place: str, *overrides: str) -> list[PlannedRun]:
        settings = grid(tmp_path / place, "profile=smoke", "algorithm=dpsgd", "seed=0,1,2", *SEARCH, *overrides)
        plans = [replace(made, target_epsilon=0.5) for _ in settings]
        return PrivateSearch(settings).runs(SearchPlan(Search(4, shape=20), tuple(plans), 1.0))

    made = dpfest.plan(dpfest.DPSGD(), epsilon=0.5, examples=100, batch_size=100, steps=1)
    fixed = [[run.folder.name for run in drawn(place, "privacy.noise_seed=1")] for place in ("a", "b")]
    assert fixed[0] == fixed[1] and len(set(fixed[0])) == len(fixed[0]), "each run has a name of its own"
    kept = [[run.folder for run in drawn("c")] for _ in range(2)]
    assert kept[0] == kept[1]
    assert all(run.config.privacy.epsilon == 0.5 for run in drawn("c"))
    names = {tuple(run.folder.name for run in drawn(f"c{number}")) for number in range(8)}
    assert len(names) > 1, "without a seed, other draws: all eight are equal once in a million"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm=dpsgd", "privacy.epsilon=1,3"], "its grid varies privacy.epsilon: give it one value"),
        (["algorithm=dpsgd", "data=criteo_synthetic,nycflights"], "its grid varies data: "),
        (["algorithm=dpsgd", "data.rows=200,300"], "its grid varies data.rows: "),
        (["algorithm=dpsgd", "search.mean=5,6"], "its grid varies search.mean: "),
        (["data=journey", "algorithm=dpsgd", "privacy.unit=basket_id", "unit.max_examples=1,2"], "unit.max_examples: "),
        (["algorithm=dpsgd,nonprivate"], "algorithm=nonprivate with privacy=rigorous has no proven epsilon"),
        (["algorithm=dpsgd", "privacy=paper"], "algorithm=dpsgd with privacy=paper has no proven epsilon"),
        (
            ["algorithm=dpsgd", "data=criteo_synthetic_stream", "stream.period=1", "stream.train_days=2,3"],
            "stream.train_days must not vary",
        ),
    ],
)
def test_a_grid_without_a_common_guarantee_is_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        refuse_incomparable([run.config for run in grid(tmp_path, "profile=smoke", *SEARCH, *overrides)])
