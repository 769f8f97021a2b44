"""Steps of a run, told before its data are made."""

from __future__ import annotations

import pytest

from pipelines.config.compose import Composer
from pipelines.config.settings import typed
from pipelines.runs.grid import steps


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
