"""Section `correlated`: DP-SGD with noise on rows that is correlated over steps, against independent noise.

The table and the batches are those of `embedding`. Of each size, the whole step, and the noise of the table alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from dpfest.accounting.bands import strategy
from dpfest.algorithms.rules import DPSGD
from dpfest.gradients.parts import RowSums, Shard
from dpfest.gradients.tables import Survivors, TableLayout
from dpfest.noise.key import NoiseKey
from dpfest.step.correlated import Correlated
from dpfest.step.step_noise import Independent
from pipelines.bench.case import Case
from pipelines.bench.embedding import BATCH, DIMENSION, private, table
from pipelines.bench.measure import Turn, steps
from pipelines.bench.training import STEPS
from pipelines.config.settings import Config
from pipelines.tasks.task import device_of

COORDINATES = (1_000_000, 10_000_000)
BANDS = (2, 4, 8, 16)
REFERENCE = "dpsgd"
COMPETITORS = {REFERENCE: None, **{f"dpsgd, {bands} bands": bands for bands in BANDS}}
"""Number of bands of each competitor."""


def cases(config: Config) -> list[Case]:
    """Return both parts at every size, up to `bench.dense_coordinates`."""
    device = device_of(config.device)
    parts: dict[str, Callable[[int | None, Tensor], Turn]] = {"step": step, "noise": noise}
    return [
        Case(
            name=f"{part}, {size:,} coordinates",
            reference=REFERENCE,
            competitors={name: partial(make, bands) for name, bands in COMPETITORS.items()},
            shared=partial(table, size // DIMENSION, device),
            fields={"table_rows": size // DIMENSION, "batch_size": BATCH if part == "step" else None},
        )
        for size in COORDINATES
        if size <= config.bench.dense_coordinates
        for part, make in parts.items()
    ]


def step(bands: int | None, weight: Tensor) -> Turn:
    """Return the whole steps of DP-SGD on a table."""
    return private(DPSGD(bands=bands), weight)


def noise(bands: int | None, weight: Tensor) -> Turn:
    """Return what adds a step's noise to sums of a table."""
    noise = Independent(1.0) if bands is None else Correlated(1.0, strategy(bands, STEPS), STEPS)
    layout = TableLayout(("table",), (len(weight),), (DIMENSION,))
    shard = Shard(layout, NoiseKey.fresh(), weight.device, None, lambda: torch.empty(0))
    sums = RowSums(Survivors(layout, None), torch.zeros(weight.numel(), device=weight.device))
    return steps(lambda step: noise.on_rows(shard, sums, step), weight.device)
