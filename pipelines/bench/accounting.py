"""Section `accounting`: noise calibration at the size of Criteo Kaggle, computed and from the cache.

Each time is measured in a fresh process, as a command would experience it.
"""

from __future__ import annotations

import dataclasses
import tempfile
from functools import partial

from dpfest.algorithms.rules import ALGORITHMS
from pipelines.bench.case import Case
from pipelines.bench.measure import Turn, timed
from pipelines.bench.worker import Worker
from pipelines.budget import budget
from pipelines.config.settings import Config

EXAMPLES = 45_840_617
ALGORITHM_NAMES = ("dpsgd", "fest", "adafest", "exponential")
COLD, CACHED = "cold", "cached"


def cases(config: Config) -> list[Case]:
    """Return cold and cached calibration of each algorithm; cold is the reference."""
    train = dataclasses.replace(config.train, batch_size=2048, epochs=1.0, steps=None)
    asked = dataclasses.replace(config, train=train, budget=dataclasses.replace(config.budget, examples=EXAMPLES))
    found = []
    for name in ALGORITHM_NAMES:
        own = dataclasses.replace(asked, algorithm=ALGORITHMS[name]())
        found.append(
            Case(
                name=f"{name}, {EXAMPLES:,} examples",
                reference=COLD,
                competitors={COLD: partial(calibrations, own, 1), CACHED: partial(calibrations, own, 2)},
                long_turns=3,
                fields={"batch_size": train.batch_size},
            )
        )
    return found


def calibrations(config: Config, number: int) -> Turn:
    """Return a turn of so many commands one after another under a new cache, of which the last is timed."""

    def turn(_: int) -> float:
        with tempfile.TemporaryDirectory() as runs:
            settings = dataclasses.replace(config, paths=dataclasses.replace(config.paths, runs=runs))
            taken = 0.0
            for _ in range(number):
                with Worker(partial(calibration, settings)) as worker:
                    taken = worker(0)
        return taken

    return turn


def calibration(config: Config) -> Turn:
    """Return a turn of `dpfest budget` under a configuration."""
    return timed(lambda: budget(config))
