"""Section `embedding`: the embedding gradient and its update, as in the paper's table of wall-clock times.

One table of dimension 64, batches of 1,024 ids drawn uniformly (few repeated rows, and none in a cache because of the
previous step), a fixed gradient at the embeddings; through the engine and its optimiser.

DP-AdaFEST is timed in its most expensive case: the map's noise is so small (0.1) that every touched row survives. The
threshold is that at which half an untouched row is expected to survive, ``tau = sigma_1 * C1 * Psi^-1(1 / 2c)``.

Two ordinary competitors separate what makes DP-SGD slow: plain PyTorch with a dense gradient minus plain PyTorch with a
sparse one is what the dense update takes, and DP-SGD minus the former what the noise takes.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from dpfest.algorithms.algorithm import Algorithm
from pipelines.bench.case import Case, sizes_up_to
from pipelines.bench.measure import Turn, steps
from pipelines.bench.training import ALGORITHM, LAZY, ORDINARY, Batches, Losses, ordinary_step, private_step, whole
from pipelines.bench.worker import available_bytes
from pipelines.config.settings import Config
from pipelines.tasks.task import device_of

SIZES = (100_000, 200_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000, 100_000_000)
DIMENSION, BATCH, MAP_NOISE = 64, 1024, 0.1

REFERENCE, WITH_DENSE_GRADIENT = "adafest", "pytorch dense"
COMPETITORS = ("dpsgd", LAZY, "fest", REFERENCE, "adafest_plus", ORDINARY, WITH_DENSE_GRADIENT)
DENSE = ("dpsgd", WITH_DENSE_GRADIENT)
"""Competitors whose gradient is as large as the table."""
SMALLEST = "adafest, smallest table"
"""Takes turns with every larger table, so that the growth of the time is a ratio within a turn as well."""

_BATCHES = 64
_SHARE = 0.7  # of the available memory that a table may take


def cases(config: Config) -> list[Case]:
    """Return a case for each size, dense gradients up to `bench.dense_coordinates`."""
    device = device_of(config.device)
    wanted = sizes_up_to(config.bench.largest_rows, SIZES)
    held = sizes_up_to(_memory(device) // (4 * DIMENSION), wanted)
    found = []
    for rows in held:
        competitors = {name: partial(competitor, name) for name in COMPETITORS}
        if rows != held[0]:
            competitors[SMALLEST] = partial(_on_another_table, REFERENCE, held[0])
        size = rows * DIMENSION
        why = f"not timed: a gradient of {4 * size / 1e9:.1f} GB (bench.dense_coordinates)"
        found.append(
            Case(
                name=f"{rows:,} rows of {DIMENSION}",
                reference=REFERENCE,
                competitors=competitors,
                shared=partial(table, rows, device),
                memory=COMPETITORS,
                device=device,
                notes={} if rows in wanted else {REFERENCE: f"{held[-1]:,} rows: the most that memory held"},
                left_out=dict.fromkeys(DENSE, why) if size > config.bench.dense_coordinates else {},
                fields={"table_rows": rows, "batch_size": BATCH},
            )
        )
    return found


def table(rows: int, device: torch.device) -> Tensor:
    """Return weights ``[rows, 64]`` with every page in memory."""
    return torch.empty(rows, DIMENSION, device=device).fill_(0.01)


def competitor(name: str, weight: Tensor) -> Turn:
    """Return the steps of a competitor on a table that others share in turns."""
    if name not in ALGORITHM:
        model, losses, batches = _on(weight)
        return steps(ordinary_step(model, losses, batches, BATCH, sparse=name == ORDINARY), weight.device)
    return private(ALGORITHM[name](), weight)


def private(algorithm: Algorithm, weight: Tensor) -> Turn:
    """Return the steps of an algorithm on a table that others share in turns."""
    model, losses, batches = _on(weight)
    return steps(private_step(algorithm, model, losses, batches, BATCH, MAP_NOISE), weight.device)


def _on_another_table(name: str, rows: int, weight: Tensor) -> Turn:
    return competitor(name, table(rows, weight.device))


def _on(weight: Tensor) -> tuple[nn.Module, Losses, Batches]:
    """Return a model of a table alone, losses whose gradient at the embeddings is fixed, and batches of ids."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(len(weight), (_BATCHES, BATCH), generator=generator).to(weight.device)
    arriving = nn.functional.normalize(torch.randn(BATCH, DIMENSION, generator=generator), dim=1).to(weight.device)
    layer = nn.Embedding(len(weight), DIMENSION, _weight=weight)
    return nn.Sequential(layer), lambda model, batch: (model(batch) * arriving).sum(1), whole(ids, BATCH)


def _memory(device: torch.device) -> int:
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
    return int(_SHARE * free)
