"""Steps and evaluations of a run, told before its data are made; the runs of a grid, told without its files."""

from __future__ import annotations

from collections import Counter

import pytest

from dpfest.errors import UserError
from pipelines.config.compose import Composer
from pipelines.config.settings import typed
from pipelines.runs.grid import evaluated, outline, plan, steps


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["data=nycflights", "train.epochs=1"], 32),
        (["data=nycflights", "train.epochs=2"], 64),
        (["data=criteo_kaggle", "data.path=x"], 17_907),  # four fifths of 45,840,617
        (["data=criteo_synthetic", "data.rows=100000", "train.steps=7"], 7),
        (["data=nycflights_stream", "stream.period=4"], 114),  # 18 of 24 days, a twentieth of each held out
        (["data=nycflights_stream", "stream.period=4", "train.steps=3"], 15),
        (["data=criteo_synthetic_stream", "data.rows_per_day=2156", "stream.train_days=5"], 6),
        (["data=criteo_synthetic_stream", "data.rows_per_day=2155", "stream.train_days=5"], 5),
    ],
)
def test_steps_follow_from_the_configuration(overrides: list[str], expected: int) -> None:
    assert steps(typed(Composer(None).compose(overrides))) == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["data=criteo_synthetic", "data.rows=1000"], 200),  # a fifth is for validation and test
        # 5 days of training in periods of 2, 2 and 1, then 3 days: an eighth of these chooses after each period,
        # the rest is reported once; and 3 of the training days follow a period, a twentieth of each held out.
        (
            [
                *("data=criteo_synthetic_stream", "data.days=8", "data.rows_per_day=1000"),
                *("stream.train_days=5", "stream.period=2"),
            ],
            3 * 375 + 2625 + 150,
        ),
        (["data=text_synthetic", "model=roberta"], None),
    ],
)
def test_evaluations_follow_from_the_configuration(overrides: list[str], expected: float | None) -> None:
    found = evaluated(typed(Composer(None).compose(overrides)))
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    "named", [["profile=smoke"], pytest.param(["profile=demo", "data=nycflights"], marks=pytest.mark.slow)]
)
def test_an_outline_has_the_runs_of_the_plan(named: list[str]) -> None:
    overrides = [*named, "experiment=comparison"]
    composer = Composer(None)
    planned = [run.config for run in plan(composer, overrides).runs]
    outlined = outline(composer, overrides)
    assert Counter((run.algorithm.name, steps(run)) for run in outlined) == Counter(
        (run.algorithm.name, steps(run)) for run in planned
    )


def test_experiments_named_together_are_planned_together() -> None:
    """Hydra would read `experiment=a,b` as a choice of each in turn; a sweep makes the runs of both."""
    composer = Composer(None)
    alone = [{run.folder for run in plan(composer, [f"experiment={name}"]).runs} for name in ("map", "units")]
    together = [run.folder for run in plan(composer, ["experiment=map,units", "seed=0"]).runs]
    assert len(together) == len(set(together)) and set(together) == alone[0] | alone[1]
    with pytest.raises(UserError, match=r"experiment=units has no run with .* its grid has only algorithm="):
        plan(composer, ["experiment=map,units", "algorithm=fest"])
    with pytest.raises(UserError, match="experiment=null is not a choice of experiment: choose one of"):
        plan(composer, ["experiment=null,map"])
