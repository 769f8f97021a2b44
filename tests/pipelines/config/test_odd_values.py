"""Every numeric key, set to each of 21 odd values, is refused by its name or can be planned and written down."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from omegaconf import OmegaConf

from dpfest.accounting import accountant
from dpfest.accounting.accountant import Event
from dpfest.errors import UserError
from dpfest.planning.privacy_plan import PrivacyPlan
from pipelines import budget
from pipelines.config.compose import Composer
from pipelines.config.settings import typed
from pipelines.system.files import json_text

ODD: list[Any] = [0, -1, 1, 0.5, -0.5, 1e308, -1e308, 1e-308, math.inf, -math.inf, math.nan]
ODD += [10**12, 10**23, 2**31, 2**63, 2**64, True, None, "abc", "", [2, 2]]
BASES = [
    ["data=nycflights", "algorithm=adafest_plus"],
    ["data=nycflights_stream", "algorithm=fest"],
    ["data=criteo_synthetic_stream", "algorithm=fest", "privacy=paper"],
    ["data=criteo_synthetic", "algorithm=dpsgd"],
    ["data=criteo_kaggle", "data.path=train.txt", "algorithm=adafest"],
    ["data=criteo_1tb", "data.path=days", "algorithm=frozen"],
    ["data=text_synthetic", "algorithm=exponential"],
]


ELSEWHERE = ("audit", "bench", "check", "hub", "preprocess", "ranks", "seed", "sweep")
"""Keys whose values no choice of data or algorithm changes: set in one base alone."""


def numeric_keys(values: dict[str, Any], where: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of numbers, of lists of them, and of values that are null where a number may stand."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from numeric_keys(value, (*where, name))
        elif value is None or isinstance(value, list) or (isinstance(value, int | float) and value is not True):
            yield (*where, name)


def quick_calibration(make_events: Callable[[float], Sequence[Event]], target: float, delta: float) -> float:
    make_events(1.0)
    return 1.0


QUICK = (BASES[4], BASES[6])


@pytest.mark.parametrize(
    "base",
    [base if base in QUICK else pytest.param(base, marks=pytest.mark.slow) for base in BASES],
    ids=lambda base: base[0],
)
def test_odd_values_are_refused_by_name_or_can_be_planned(base: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow but for three, a stream, a file and texts: each key of each base takes 21 values."""
    monkeypatch.setattr(budget, "remembered_calibration", lambda config: quick_calibration)
    monkeypatch.setattr(PrivacyPlan, "epsilon", property(lambda plan: plan.events and 1.0))
    monkeypatch.setattr(accountant, "epsilon", lambda events, delta, interval=0.0: 1.0)
    overrides = [*base, "budget.examples=100000", "paths.data=no/data", "paths.runs=no/runs"]
    values = OmegaConf.to_container(Composer().compose(overrides), resolve=True)
    assert isinstance(values, dict)
    for place in numeric_keys(values):
        if base is not BASES[4] and place[0] in ELSEWHERE:
            continue
        for odd in ODD:
            changed = copy.deepcopy(values)
            section = changed
            for name in place[:-1]:
                section = section[name]
            section[place[-1]] = odd
            try:
                config = typed(changed)
                config.data.check()
                json_text(config.to_dict())
                str(budget.budget(config))
            except UserError as refused:
                assert place[-1] in str(refused), (place, odd, str(refused))
