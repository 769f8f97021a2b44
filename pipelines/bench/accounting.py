"""Section `accounting`: noise calibration at the size of Criteo Kaggle, computed and from the cache.

Each time is measured in a fresh process, as a command would experience it.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path

from dpfest.algorithms.rules import ALGORITHMS
from pipelines.bench.measure import Turn, take_turns
from pipelines.bench.records import Record, records
from pipelines.bench.worker import Worker
from pipelines.budget import budget
from pipelines.config.settings import Config
from pipelines.system.progress import progress

EXAMPLES = 45_840_617
ALGORITHM_NAMES = ("dpsgd", "fest", "adafest", "exponential")
COLD, CACHED = "cold", "cached"
_REPEATS = 3


def bench(config: Config, repeats: int) -> list[Record]:
    """Time cold and cached calibration of each algorithm; cold is the reference."""
    measured = []
    with progress("accounting") as report:
        for number, name in enumerate(ALGORITHM_NAMES):
            report(number, len(ALGORITHM_NAMES), name)
            measured += _of(name, config, min(repeats, _REPEATS))
    return measured


def _of(name: str, config: Config, repeats: int) -> list[Record]:
    with tempfile.TemporaryDirectory() as folder:
        asked = dataclasses.replace(
            config,
            algorithm=ALGORITHMS[name](),
            budget=dataclasses.replace(config.budget, examples=EXAMPLES),
            train=dataclasses.replace(config.train, batch_size=2048, epochs=1.0, steps=None),
        )

        def turn(remembered: bool) -> Turn:
            def take(number: int) -> float:
                runs = Path(folder) / ("remembered" if remembered else f"cold-{number}")
                settings = dataclasses.replace(asked, paths=dataclasses.replace(config.paths, runs=str(runs)))
                with Worker(calibration, settings) as worker:
                    return worker(0)

            return take

        turns = {COLD: turn(False), CACHED: turn(True)}
        turns[CACHED](0)  # fills the cache
        times = take_turns(turns, COLD, repeats=repeats, seconds=config.bench.seconds, warm_up=0, least=1)
    return records(
        times, COLD, section="accounting", case=f"{name}, {EXAMPLES:,} examples", batch_size=asked.train.batch_size
    )


def calibration(config: Config) -> Turn:
    """Return a turn of `dpfest budget` under a configuration."""

    def turn(number: int) -> float:
        started = time.perf_counter()
        budget(config)
        return time.perf_counter() - started

    return turn
