"""DP-SGD's noise on embedding rows, drawn when a row is next read: the law of dense noise at the cost of sparse.

Under plain SGD a row that no batch reads between steps s and t gathers the noise ``sum_u eta_u n_u`` of those steps,
``n_u ~ N(0, d_u^2)``: one Gaussian of variance ``sum_u (eta_u d_u)^2``.  Nothing depends on it before the row is read,
so it is drawn then, at once.  Each row keeps one float64, the variance that had come together when it was last settled.

Formal guarantee: after :meth:`LazyNoise.flush`, weights and all that was computed from them have the law that dense
noise gives them; so has every forward pass of the engine.  *Between* flushes the tables hold gradients whose noise is
still owed: they are private state, and no part of a release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dpfest.embeddings import Table, ascending
from dpfest.noise import NoiseKey

_AT_ONCE = 1 << 22  # variates of a flush that are held at a time


class LazyNoise:
    """What noise each row of each table is owed.

    Args:
        tables: the model's, in the order of their layout.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tables
        self.owed = [0.0] * len(tables)
        self.settled = [torch.zeros(len(t.weight), dtype=torch.float64, device=t.weight.device) for t in tables]

    def begin(self, key: NoiseKey, step: int) -> None:
        """The reads that follow belong to ``step``; the same reads under the same key draw the same noise."""
        self._key, self._step, self._reads = key, step, 0

    def read(self, table: int, ids: Tensor) -> None:
        """Settle the rows ``ids`` (any shape, int) of a table, before they are looked up."""
        if self.owed[table] > 0:
            rows = torch.unique_consecutive(ascending(ids.reshape(-1)))
            padding = self.tables[table].padding_idx
            self._settle(table, rows if padding is None else rows[rows != padding], f"read {self._reads}")
        self._reads += 1

    def owe(self, deviation: float, learning_rates: Sequence[float]) -> None:
        """Owe every row of each table noise of this standard deviation, times the table's learning rate."""
        self.owed = [owed + (deviation * rate) ** 2 for owed, rate in zip(self.owed, learning_rates, strict=True)]

    def flush(self, key: NoiseKey, step: int) -> None:
        """Settle every row, in bounded memory; to be called before the weights are used for anything but a step."""
        self.begin(key, step)
        for number, table in enumerate(self.tables):
            size = max(1, _AT_ONCE // table.embedding_dim)
            rows = torch.arange(len(table.weight), device=table.weight.device)
            rows = rows if table.padding_idx is None else rows[rows != table.padding_idx]
            for part, chunk in enumerate(rows.split(size)):
                self._settle(number, chunk, f"flush {part}")

    @torch.no_grad()
    def _settle(self, table: int, rows: Tensor, purpose: str) -> None:
        variance = self.owed[table] - self.settled[table].index_select(0, rows)
        due = variance > 0
        if not bool(due.all()):
            rows, variance = rows[due], variance[due]
        weight, purpose = self.tables[table].weight, f"lazy noise {table} {purpose}"
        noise = self._key.normal(purpose, self._step, len(rows) * weight.shape[1], weight.device)
        noise = noise.view(len(rows), weight.shape[1]).mul_(variance.sqrt_().to(noise.dtype).unsqueeze(1))
        weight.index_add_(0, rows, noise.to(weight.dtype))
        self.settled[table].index_fill_(0, rows, self.owed[table])

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` needs; private."""
        return {"owed": list(self.owed), "settled": [one.clone() for one in self.settled]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same tables."""
        self.owed = [float(owed) for owed in state["owed"]]
        for own, saved in zip(self.settled, state["settled"], strict=True):
            own.copy_(saved)


def learning_rates(tables: Sequence[Table], optimizers: Sequence[torch.optim.Optimizer]) -> list[float]:
    """Each table's present learning rate; 0 for a table that no optimiser steps."""
    rates = {id(p): float(group["lr"]) for o in optimizers for group in o.param_groups for p in group["params"]}
    return [rates.get(id(table.weight), 0.0) for table in tables]


def is_plain_sgd(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    """Whether a step is ``w -= lr * gradient``, which lazy noise needs: SGD without momentum or weight decay.

    An optimiser of other origin says so with a class attribute ``plain_sgd = True``.
    """
    sgd = isinstance(optimizer, torch.optim.SGD) or getattr(optimizer, "plain_sgd", False)
    return sgd and not any(group.get(name) for name in ("momentum", "weight_decay", "dampening"))
