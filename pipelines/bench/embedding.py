"""Section `embedding`: the embedding gradient and its update, as in the paper's table of wall-clock times.

One table of dimension 64, batches of 1,024 ids drawn uniformly (few repeated rows, and none in a cache because of the
previous step), a fixed gradient at the embeddings; through the engine and its optimiser.

DP-AdaFEST is timed in its most expensive case: the map's noise is so small (0.1) that every touched row survives. The
threshold is that at which half an untouched row is expected to survive, ``tau = sigma_1 * C1 * Psi^-1(1 / 2c)``.

Two ordinary competitors separate what makes DP-SGD slow: plain PyTorch with a dense gradient minus plain PyTorch with a
sparse one is what the dense update takes, and DP-SGD minus the former what the noise takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn

from dpfest.accounting.accountant import Event
from dpfest.algorithms.adafest import AdaFEST, AdaFESTPlus
from dpfest.algorithms.algorithm import Algorithm
from dpfest.algorithms.rules import DPSGD, FEST
from dpfest.gradients.reading import MicroBatch
from dpfest.noise.key import NoiseKey
from dpfest.step.engine import PrivateEngine
from pipelines.bench.measure import Turn, steps, take_turns
from pipelines.bench.records import Record, records
from pipelines.bench.worker import available_bytes, peak_of
from pipelines.config.settings import Config
from pipelines.system.progress import progress
from pipelines.tasks.task import device_of

SIZES = (100_000, 200_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000, 100_000_000)
DIMENSION, BATCH, SELECTED, LEARNING_RATE = 64, 1024, 10_000, 0.1
MAP_NOISE = 0.1
SURVIVORS = 0.5
"""Expected number of untouched rows that survive a step of DP-AdaFEST."""

ALGORITHMS: dict[str, Callable[[int], Algorithm]] = {
    "dpsgd": lambda rows: DPSGD(),
    "dpsgd lazy": lambda rows: DPSGD(noise="lazy"),
    "fest": lambda rows: FEST(),
    "adafest": lambda rows: AdaFEST(threshold=threshold(rows, MAP_NOISE)),
    "adafest_plus": lambda rows: AdaFESTPlus(threshold=threshold(min(rows, SELECTED), MAP_NOISE)),
}
"""The private competitors: each one's algorithm, given the rows of the table."""

ORDINARY, REFERENCE = ("pytorch sparse", "pytorch dense"), "adafest"
DENSE = ("dpsgd", "pytorch dense")
"""Competitors whose gradient is as large as the table."""
SMALLEST = "adafest, smallest table"
"""Takes turns with every larger table, so that the growth of the time is a ratio within a turn as well."""

_BATCHES = 64
_SHARE = 0.7  # of the available memory that a table may take
STEPS = 1 << 14
"""Of a training with correlated noise: more than are taken."""


def bench(config: Config, repeats: int) -> list[Record]:
    """Time every competitor at every size, dense gradients up to `bench.dense_coordinates`."""
    device, results = device_of(config.device), []
    wanted = table_sizes(SIZES, config.bench.largest_rows)
    held = table_sizes(wanted, _memory(device) // (4 * DIMENSION))
    with progress("embedding") as report:
        for number, rows in enumerate(held):
            report(number, len(held), f"{rows:,} rows")
            results += _at(rows, held[0], config, repeats, device, cut=held[-1] if rows not in wanted else None)
    return results


def table_sizes(sizes: tuple[int, ...], largest: int) -> tuple[int, ...]:
    """Return the sizes up to `largest`, with larger ones replaced by `largest` rounded down to two digits."""
    if largest < sizes[-1]:
        unit = 10 ** max(0, math.floor(math.log10(largest)) - 1)
        largest = largest // unit * unit
    return tuple(sorted({min(size, largest) for size in sizes}))


def threshold(rows: int, deviation: float) -> float:
    """Return ``tau`` at which SURVIVORS of `rows` untouched rows are expected to survive noise of this deviation."""
    return -deviation * float(special.ndtri(min(SURVIVORS / rows, 0.5)))


def _at(rows: int, smallest: int, config: Config, repeats: int, device: torch.device, cut: int | None) -> list[Record]:
    names, notes = [*ALGORITHMS, *ORDINARY], {}
    if cut:
        notes[REFERENCE] = f"{cut:,} rows: the most that memory held"
    if rows * DIMENSION > config.bench.dense_coordinates:
        names = [name for name in names if name not in DENSE]
        size = 4 * rows * DIMENSION / 1e9
        notes |= dict.fromkeys(DENSE, f"not timed: a gradient of {size:.1f} GB (bench.dense_coordinates)")
    weight = table(rows, device)
    turns = {name: competitor(name, weight) for name in names}
    if rows != smallest:
        turns[SMALLEST] = competitor(REFERENCE, table(smallest, device))
    times = take_turns(turns, REFERENCE, repeats=repeats, seconds=config.bench.seconds)
    del weight, turns  # the processes below have tables of their own
    peaks = {name: peak_of(alone, name, rows, str(device), device=device) for name in names}
    return records(
        times,
        REFERENCE,
        peaks=peaks,
        notes=notes,
        section="embedding",
        case=f"{rows:,} rows of {DIMENSION}",
        table_rows=rows,
        batch_size=BATCH,
    )


def table(rows: int, device: torch.device) -> Tensor:
    """Return weights ``[rows, 64]`` with every page in memory."""
    return torch.empty(rows, DIMENSION, device=device).fill_(0.01)


def alone(name: str, rows: int, device: str) -> Turn:
    """Return a competitor with its own table."""
    return competitor(name, table(rows, torch.device(device)))


def competitor(name: str, weight: Tensor) -> Turn:
    """Return the steps of a competitor on a table that others share in turns."""
    if name not in ORDINARY:
        return private(ALGORITHMS[name](len(weight)), weight)
    ids, losses = _batches(weight)
    layer = nn.Embedding(len(weight), DIMENSION, _weight=weight, sparse=name == "pytorch sparse")
    optimizer = torch.optim.SGD(layer.parameters(), lr=LEARNING_RATE)

    def step(number: int) -> None:
        losses(layer, ids[number % _BATCHES]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return steps(step, weight.device)


def private(algorithm: Algorithm, weight: Tensor) -> Turn:
    """Return the steps of an algorithm on a table that others share in turns."""
    rows, (ids, losses) = len(weight), _batches(weight)
    layer = nn.Embedding(len(weight), DIMENSION, _weight=weight)
    engine = PrivateEngine(
        nn.Sequential(layer),
        algorithm,
        losses,
        NoiseKey.fresh(),
        cost=step_cost(algorithm, MAP_NOISE),
        expected_batch_size=float(BATCH),
        selected=torch.arange(0, rows, -(-rows // SELECTED)) if algorithm.selection else None,
        steps=None if algorithm.bands is None else STEPS,
    )
    optimizer = torch.optim.SGD(layer.parameters(), lr=LEARNING_RATE)
    batches = [[MicroBatch(np.arange(BATCH), batch)] for batch in ids]

    def step(number: int) -> None:
        with engine.lazy.private() if engine.lazy else nullcontext():
            release, _ = engine.gradient(batches[number % _BATCHES], number)
            engine.update(release, [optimizer])

    return steps(step, weight.device)


def _batches(weight: Tensor) -> tuple[Tensor, Callable[[nn.Module, Tensor], Tensor]]:
    """Return batches of ids ``[batches, b]``, and losses whose gradient at the embeddings is fixed."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(len(weight), (_BATCHES, BATCH), generator=generator).to(weight.device)
    arriving = nn.functional.normalize(torch.randn(BATCH, DIMENSION, generator=generator), dim=1).to(weight.device)
    return ids, lambda model, batch: (model(batch) * arriving).sum(1)


def _memory(device: torch.device) -> int:
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
    return int(_SHARE * free)


def step_cost(algorithm: Algorithm, map_noise: float) -> Event | None:
    """Return an event with noise multipliers for a step, of no epsilon in particular; None for a step without noise."""
    event = algorithm.step_event(1.0, 0.01)
    if event is None:
        return None
    on_map = None if event.map_noise_multiplier is None else map_noise
    return replace(event, gradient_noise_multiplier=1.0, map_noise_multiplier=on_map, bands=algorithm.bands)
