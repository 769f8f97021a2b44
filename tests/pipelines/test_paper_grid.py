"""The paper's whole grid can be planned: no setting on Criteo is beyond the accountant."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dpfest.accounting import calibration
from dpfest.accounting.accountant import Event, cost_alone, to_record
from pipelines.budget import planned
from pipelines.config.compose import Composer
from pipelines.config.settings import Config
from pipelines.runs.grid import plan

KAGGLE, DAY = 41_256_556, 182_000_000
"""Training examples of Criteo-Kaggle (nine tenths of it), and of a day of Criteo-1TB."""
LINE = b"0\t" + b"\t" * 38 + b"\n"


def once() -> Callable[..., float]:
    """`calibration.calibrate`, which computes no answer twice."""
    known: dict[str, float] = {}

    def calibrate(make_events: Callable[[float], Sequence[Event]], target: float, delta: float) -> float:
        probes = [[to_record(cost_alone(event)) for event in make_events(sigma)] for sigma in (1.0, 2.0)]
        question = json.dumps([probes, target, delta], sort_keys=True)
        if question not in known:
            known[question] = calibration.calibrate(make_events, target, delta)
        return known[question]

    return calibrate


def ends(configs: Sequence[Config]) -> list[Config]:
    """Of the settings that a calibration depends on, the ends of their range, of each algorithm and ε."""
    found: dict[Any, dict[Any, Config]] = {}
    for config in configs:
        own = asdict(config.algorithm)
        selection = own.get("selection") or {}
        group = (config.algorithm.name, config.privacy.epsilon, selection.get("source"), config.stream.period)
        size = (own.get("noise_ratio") or 0.0, own.get("rows_per_step") or selection.get("rows") or 0)
        found.setdefault(group, {})[size] = config
    return [of[size] for of in found.values() for size in sorted({min(of), max(of)})]


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["comparison", "streaming"])
def test_the_papers_whole_grid_can_be_planned(experiment: str, tmp_path: Path) -> None:
    """Slow: minutes of composition.

    Of the streams those at ε = 1 with all days in one period, which have the most steps and the smallest rate.
    """
    (tmp_path / "train.txt").write_bytes(LINE)
    for day in range(24):
        (tmp_path / f"day_{day}.gz").write_bytes(gzip.compress(LINE))
    stream = experiment == "streaming"
    source = tmp_path if stream else tmp_path / "train.txt"
    lines = [f"experiment={experiment}", "profile=paper", f"data.path={source}"]
    lines += ["privacy.epsilon=1", "stream.period=18"] if stream else []
    configs = ends([run.config for run in plan(Composer(), lines).runs if run.config.algorithm.private])
    wanted = {"dpsgd", "fest", "adafest", "adafest_plus", *(() if stream else ("exponential",))}
    assert {config.algorithm.name for config in configs} >= wanted
    calibrate = once()
    for config in configs:
        made = planned(config, [DAY] * 18 if stream else KAGGLE, config.data.features(), calibrate=calibrate)
        assert 0.99 * config.privacy.epsilon < made.epsilon <= config.privacy.epsilon, config.algorithm
        assert made.steps > (1_000_000 if stream else 20_000)
