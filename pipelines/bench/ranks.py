"""Section `ranks`: what the step over ranks costs on one rank, and how it grows with the number of rows.

First the pCTR step of one process against the same step on one rank, in turns. Then DP-AdaFEST on 26 tables of one
column, up to 10^9 rows, held as the shards of one rank: the values that it passes to the exchange are those that would
travel between ranks, and are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfest.gradients.reading import MicroBatch
from dpfest.ranks.group import Group
from dpfest.ranks.rows import RankRows
from dpfest.ranks.table import shard_tables
from pipelines.bench import pctr
from pipelines.bench.algorithms import LAZY, private_step
from pipelines.bench.embedding import table_sizes
from pipelines.bench.measure import Turn, steps, take_turns
from pipelines.bench.records import Record, records
from pipelines.bench.worker import Worker, available_bytes
from pipelines.config.settings import Config
from pipelines.system.progress import progress

ALGORITHMS = ("adafest", LAZY, "dpsgd")
ONE_PROCESS, ONE_RANK = "one process", "one rank"
SIZES = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
_CPU, _BATCHES = torch.device("cpu"), 8
_SHARE = 0.7  # of the available memory that tables may take: their rows, and a table more while they are made


class CountingGroup(Group):
    """One rank that counts the bytes which it passes to the exchange.

    Attributes:
        bytes: their number so far; of those about rows, one of R ranks would send the share (R - 1) / R to others.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def exchange(self, values: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Count the values, and keep them."""
        self.bytes += values.nbytes
        return super().exchange(values, sent, received)


def bench(config: Config, repeats: int) -> list[Record]:
    """Time both parts, the second up to `bench.largest_rows`."""
    largest = min(config.bench.largest_rows, int(_SHARE * available_bytes() / 4))
    held, results = table_sizes(SIZES, largest), list[Record]()
    with progress("ranks") as report:
        for number, name in enumerate(ALGORITHMS):
            report(number, len(ALGORITHMS) + len(held), name)
            results += _overhead(name, config, repeats)
        for number, rows in enumerate(held):
            report(len(ALGORITHMS) + number, len(ALGORITHMS) + len(held), f"{rows:,} rows")
            results += _growth(rows, config, repeats)
    return results


def _overhead(name: str, config: Config, repeats: int) -> list[Record]:
    rows, size = pctr.PUBLISHED_ROWS, config.train.batch_size
    weights = pctr.tables(rows, _CPU)
    turns = {
        ONE_PROCESS: pctr.competitor(name, weights, size, config.model),
        ONE_RANK: _pctr_on_a_rank(name, weights, config, size),
    }
    times = take_turns(turns, ONE_PROCESS, repeats=repeats, seconds=config.bench.seconds)
    case = f"{name}, pCTR, {rows:,} rows"
    return records(times, ONE_PROCESS, section="ranks", case=case, table_rows=rows, batch_size=size)


def _pctr_on_a_rank(name: str, weights: Sequence[Tensor], config: Config, batch_size: int) -> Turn:
    model = pctr.model_on(weights, config.model)
    data = pctr.batches([len(weight) for weight in weights], batch_size, _CPU)
    return steps(_step(name, model, data, config, Group()), _CPU)


def _growth(rows: int, config: Config, repeats: int) -> list[Record]:
    size = config.train.batch_size
    with Worker(_OneColumn, rows, size, config) as worker:
        peak = worker.peak(_CPU)
        times = take_turns({ONE_RANK: worker}, ONE_RANK, repeats=repeats, seconds=config.bench.seconds)
        sent = worker.value("sent")
    case = f"adafest, {rows:,} rows of one column in {config.ranks.shards} shards of one rank"
    notes = {ONE_RANK: f"{sent / 1e6:.2f} MB of rows exchanged in a step"}
    return records(
        times,
        ONE_RANK,
        peaks={ONE_RANK: peak},
        notes=notes,
        section="ranks",
        case=case,
        table_rows=rows,
        batch_size=size,
    )


class _OneColumn:
    """Turns of DP-AdaFEST on 26 tables of one column, looked up uniformly, and a linear layer."""

    def __init__(self, rows: int, batch_size: int, config: Config) -> None:
        sizes, generator = pctr.vocabularies(rows), torch.Generator().manual_seed(0)
        ids = torch.stack([torch.randint(size, (_BATCHES, batch_size), generator=generator) for size in sizes], 2)
        labels = torch.randint(2, (_BATCHES, batch_size), generator=generator).float()
        self._group = CountingGroup()
        data = [(batch, of) for batch, of in zip(ids, labels, strict=True)]
        self._step = _step("adafest", _Columns(sizes), data, config, self._group, initial=_normal)
        self._turn = steps(self._step, _CPU)

    def __call__(self, turn: int) -> float:
        return self._turn(turn)

    @property
    def sent(self) -> int:
        """Bytes of one more step."""
        before = self._group.bytes
        self._step(0)
        return self._group.bytes - before


class _Columns(nn.Module):
    """Tables of one column on the meta device, and a linear layer."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(size, 1, device="meta") for size in sizes])
        self.network = nn.Linear(len(sizes), 1)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits ``[b]`` of ids ``[b, tables]``."""
        looked_up = [table(ids[:, number]) for number, table in enumerate(self.tables)]
        return self.network(torch.cat(looked_up, dim=1)).squeeze(1)


def _step(
    name: str, model: nn.Module, data: Sequence[tuple[Tensor, ...]], config: Config, group: Group, **shards: Any
) -> Callable[[int], None]:
    """Return numbered steps on one rank; the labels are the last of a batch's tensors."""
    settings, size = config.ranks, len(data[0][-1])
    places = shard_tables(model, settings.shards, **shards)
    parts = [np.arange(part, size, settings.parts) for part in range(settings.parts)]
    batches = [
        [MicroBatch(part, tuple(each[torch.from_numpy(part)] for each in batch)) for part in parts] for batch in data
    ]

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(*batch[:-1]), batch[-1], reduction="none")

    rows = partial(RankRows, places=places, group=group, parts=settings.parts)
    return private_step(name, model, losses, batches, size, rows)


def _normal(table: int, shard: int, rows: int, dim: int) -> Tensor:
    return torch.empty(rows, dim).normal_(0.0, 0.01)
