"""Section `correlated`: DP-SGD with noise on rows that is correlated over steps, against independent noise.

The table and the batches are those of `embedding`. Of each size, the whole step, and the noise of the table alone.
"""

from __future__ import annotations

import torch

from dpfest.accounting.bands import strategy
from dpfest.algorithms.rules import DPSGD
from dpfest.gradients.parts import RowSums, Shard
from dpfest.gradients.tables import Survivors, TableLayout
from dpfest.noise.key import NoiseKey
from dpfest.step.correlated import Correlated
from dpfest.step.step_noise import Independent
from pipelines.bench.embedding import BATCH, DIMENSION, STEPS, private, table
from pipelines.bench.measure import Turn, steps, take_turns
from pipelines.bench.records import Record, records
from pipelines.config.settings import Config
from pipelines.system.progress import progress
from pipelines.tasks.task import device_of

COORDINATES = (1_000_000, 10_000_000)
BANDS = (2, 4, 8, 16)
REFERENCE = "dpsgd"
COMPETITORS = {REFERENCE: None, **{f"dpsgd, {bands} bands": bands for bands in BANDS}}
"""Number of bands of each competitor."""


def bench(config: Config, repeats: int) -> list[Record]:
    """Time every number of bands at every size, up to `bench.dense_coordinates`."""
    device, results = device_of(config.device), list[Record]()
    sizes = [size for size in COORDINATES if size <= config.bench.dense_coordinates]
    with progress("correlated") as report:
        for number, coordinates in enumerate(sizes):
            report(number, len(sizes), f"{coordinates:,} coordinates")
            rows = coordinates // DIMENSION
            weight = table(rows, device)
            turns = {
                "step": {name: private(DPSGD(bands=bands), weight) for name, bands in COMPETITORS.items()},
                "noise": {name: noise(rows, bands, device) for name, bands in COMPETITORS.items()},
            }
            for part, competitors in turns.items():
                times = take_turns(competitors, REFERENCE, repeats=repeats, seconds=config.bench.seconds)
                results += records(
                    times,
                    REFERENCE,
                    section="correlated",
                    case=f"{part}, {coordinates:,} coordinates",
                    table_rows=rows,
                    batch_size=BATCH if part == "step" else None,
                )
    return results


def noise(rows: int, bands: int | None, device: torch.device) -> Turn:
    """Return what adds a step's noise to sums of a table."""
    noise = Independent(1.0) if bands is None else Correlated(1.0, strategy(bands, STEPS), STEPS)
    layout = TableLayout(("table",), (rows,), (DIMENSION,))
    shard = Shard(layout, NoiseKey.fresh(), device, None, lambda: torch.empty(0))
    sums = RowSums(Survivors(layout, None), torch.zeros(rows * DIMENSION, device=device))
    return steps(lambda step: noise.on_rows(shard, sums, step), device)
