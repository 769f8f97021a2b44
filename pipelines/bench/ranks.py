"""Section `ranks`: what the step over ranks costs on one rank, and how it grows with the number of rows.

First the pCTR step of one process against the same step on one rank, in turns. Then DP-AdaFEST on 26 tables of one
column, up to 10^9 rows, held as the shards of one rank: the values that it passes to the exchange are those that would
travel between ranks, and are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from pipelines.bench.case import CPU, Case, sizes_up_to
from pipelines.bench.measure import Turn, steps
from pipelines.bench.training import ALGORITHM, LAZY, Step, click_losses, private_step
from pipelines.bench.worker import available_bytes
from pipelines.config.settings import Config

ALGORITHMS = ("adafest", LAZY, "dpsgd")
ONE_PROCESS, ONE_RANK = "one process", "one rank"
SIZES = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
_BATCHES = 8
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


def cases(config: Config) -> list[Case]:
    """Return the cases of both parts, of the second up to `bench.largest_rows`."""
    largest, size = min(config.bench.largest_rows, int(_SHARE * available_bytes() / 4)), config.train.batch_size
    overhead = [
        Case(
            name=f"{name}, pCTR, {pctr.PUBLISHED_ROWS:,} rows",
            reference=ONE_PROCESS,
            competitors={
                ONE_PROCESS: partial(pctr.competitor, name, size, config.model),
                ONE_RANK: partial(_pctr_on_a_rank, name, config),
            },
            shared=partial(pctr.tables, pctr.PUBLISHED_ROWS, CPU),
            fields={"table_rows": pctr.PUBLISHED_ROWS, "batch_size": size},
        )
        for name in ALGORITHMS
    ]
    growth = [
        Case(
            name=f"adafest, {rows:,} rows of one column in {config.ranks.shards} shards of one rank",
            reference=ONE_RANK,
            competitors={ONE_RANK: partial(_OneColumn, rows, size, config)},
            apart=True,
            fields={"table_rows": rows, "batch_size": size},
        )
        for rows in sizes_up_to(largest, SIZES)
    ]
    return [*overhead, *growth]


def _pctr_on_a_rank(name: str, config: Config, weights: Sequence[Tensor]) -> Turn:
    model = pctr.model_on(weights, config.model)
    data = pctr.batches([len(weight) for weight in weights], config.train.batch_size, CPU)
    return steps(_step(name, model, data, config, Group()), CPU)


class _OneColumn:
    """Turns of DP-AdaFEST on 26 tables of one column, looked up uniformly, and a linear layer."""

    def __init__(self, rows: int, batch_size: int, config: Config) -> None:
        sizes, generator = pctr.vocabularies(rows), torch.Generator().manual_seed(0)
        ids = torch.stack([torch.randint(size, (_BATCHES, batch_size), generator=generator) for size in sizes], 2)
        labels = torch.randint(2, (_BATCHES, batch_size), generator=generator).float()
        self._group = CountingGroup()
        data = [(batch, of) for batch, of in zip(ids, labels, strict=True)]
        self._step = _step("adafest", _Columns(sizes), data, config, self._group, initial=_normal)
        self._turn = steps(self._step, CPU)

    def __call__(self, turn: int) -> float:
        return self._turn(turn)

    @property
    def sent(self) -> int:
        """Bytes of one more step."""
        before = self._group.bytes
        self._step(0)
        return self._group.bytes - before

    @property
    def note(self) -> str:
        """What one more step exchanges."""
        return f"{self.sent / 1e6:.2f} MB of rows exchanged in a step"


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
) -> Step:
    """Return numbered steps on one rank."""
    settings, size = config.ranks, len(data[0][-1])
    places = shard_tables(model, settings.shards, **shards)
    parts = [np.arange(part, size, settings.parts) for part in range(settings.parts)]
    batches = [
        [MicroBatch(part, tuple(each[torch.from_numpy(part)] for each in batch)) for part in parts] for batch in data
    ]

    rows = partial(RankRows, places=places, group=group, parts=settings.parts)
    return private_step(ALGORITHM[name](), model, click_losses, batches, size, rows_in=rows)


def _normal(table: int, shard: int, rows: int, dim: int) -> Tensor:
    return torch.empty(rows, dim).normal_(0.0, 0.01)
