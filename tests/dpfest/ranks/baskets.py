"""A model whose examples look up any number of rows, or none, in the tables of :mod:`tests.dpfest.ranks.small`."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import torch
from torch import Tensor, nn

from dpfest.gradients.reading import MicroBatch
from tests.dpfest.ranks import small
from tests.dpfest.ranks.small import EXAMPLES, ROWS

PADDING = (6, 13, None, None)
"""Of each table, the row that is no look-up; one is of the selected rows."""
LONGEST = 5


class Baskets(nn.Module):
    """A padded list, a mean with padding, a sum whose weights depend on embeddings, and a table of one row."""

    dropout = 0.2

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(4)
            self.tables = nn.ModuleList(
                [
                    nn.Embedding(ROWS[0], 2, padding_idx=PADDING[0]),
                    nn.EmbeddingBag(ROWS[1], 3, padding_idx=PADDING[1]),
                    nn.EmbeddingBag(ROWS[2], 1, mode="sum", include_last_offset=True),
                    nn.Embedding(ROWS[3], 2),
                ]
            )
            self.weight = nn.Linear(2, 1)
            self.network = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Dropout(self.dropout), nn.Linear(6, 1))

    def forward(
        self, numeric: Tensor, padded: Tensor, ids: Tensor, starts: Tensor, more: Tensor, cuts: Tensor
    ) -> Tensor:
        listed, mean = self.tables[0](padded), self.tables[1](ids, starts)
        weights = (self.weight(numeric) + listed.mean(dim=(1, 2))[:, None]).repeat_interleave(cuts.diff(), 0)
        total = self.tables[2](more, offsets=cuts, per_sample_weights=weights.squeeze(1))
        only = self.tables[3](torch.zeros(len(numeric), dtype=torch.int64))
        return self.network(torch.cat([numeric, listed.tanh().sum(1), mean, total, only], dim=1)).squeeze(1)


@cache
def given() -> list[list[np.ndarray]]:
    """The ids of each example in each table: up to five, some twice, some padding; of many examples none."""
    generator = np.random.default_rng(6)
    lengths = np.maximum(generator.integers(-1, 1 + LONGEST, (len(ROWS) - 1, EXAMPLES)), 0)
    ids = [generator.integers(0, rows, sum(of)) for rows, of in zip(ROWS, lengths.tolist(), strict=False)]
    ids[1][::4] = PADDING[1]
    found = [np.split(one, np.cumsum(of)[:-1]) for one, of in zip(ids, lengths, strict=True)]
    return [*found, [np.zeros(1, np.int64)] * EXAMPLES]


def looked_up() -> list[list[np.ndarray]]:
    """The ids without padding."""
    return [[ids[ids != padding] for ids in of_table] for of_table, padding in zip(given(), PADDING, strict=True)]


def batch_of(indices: np.ndarray) -> tuple[Tensor, ...]:
    numeric, _, labels = (part[torch.from_numpy(indices)] for part in small.data())
    listed, *bags = ([of_table[n] for n in indices] for of_table in given()[:3])
    padded = torch.full((len(indices), LONGEST), PADDING[0])
    for place, ids in enumerate(listed):
        padded[place, : len(ids)] = torch.from_numpy(ids)
    (ids, starts), (more, cuts) = (
        (torch.from_numpy(np.concatenate([np.empty(0, np.int64), *bag])), torch.tensor([0, *map(len, bag)]).cumsum(0))
        for bag in bags
    )
    return numeric, padded, ids, starts[:-1], more, cuts, labels


def read(indices: np.ndarray, seed: bytes = b"") -> list[MicroBatch]:
    return [MicroBatch(indices, batch_of(indices))]


training = partial(small.training, kind=Baskets, reader=read)
