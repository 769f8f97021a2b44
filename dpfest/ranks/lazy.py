"""Lazy noise over ranks: the law of :mod:`dpfest.step.lazy`, drawn by the owner of a row, under its shard's key.

Formal guarantee: as in :mod:`dpfest.step.lazy`. A row's pending noise is drawn when any rank asks for its value, before
the answer leaves its owner; :meth:`ShardLazyNoise.flush` draws all that is pending on own rows, and so does
``state_dict()`` of the model outside of a step. Copies of the model, and reads of rows outside of a step, are refused
while any is pending.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfest.errors import UserError
from dpfest.gradients.parts import Shard
from dpfest.noise.gaussian import add_gaussian
from dpfest.noise.key import NoiseKey
from dpfest.noise.places import RowPlaces
from dpfest.ranks.layout import ShardLayout
from dpfest.ranks.table import ShardedLayer

_AT_ONCE = 1 << 22  # variates of a flush held in memory at a time


class ShardLazyNoise:
    """Tracks and applies the pending noise of this rank's rows.

    Args:
        places: which rank owns which rows.
        names, tables: the model's tables, in the order of the layout.
        key: draws from it until :meth:`use` gives another.

    Attributes:
        pending: each table's accumulated variance, the same on every rank.
        settled: the variance up to which each own row's noise was applied, ``[own rows]`` for each table.
        draws: number of draws made in each own shard.
    """

    def __init__(
        self, places: ShardLayout, names: Sequence[str], tables: Sequence[ShardedLayer], key: NoiseKey
    ) -> None:
        self._places, self.names, self.tables = places, list(names), list(tables)
        self.pending = [0.0] * len(tables)
        self.settled = [torch.zeros(rows, dtype=torch.float64) for rows in places.own_rows.tolist()]
        for number, (table, settled) in enumerate(zip(self.tables, self.settled, strict=True)):
            if (padding := places.own_slot(number, table.padding_idx)) is not None:  # never updated, so never noised
                settled[padding] = math.inf
        self.draws = dict.fromkeys(places.own, 0)
        self._key, self._private = key, False
        self._hooks = [table.register_state_dict_pre_hook(self._saved) for table in self.tables]

    def use(self, key: NoiseKey) -> None:
        """Draw from this key from now on."""
        self._key = key

    @contextmanager
    def private(self) -> Iterator[None]:
        """A context whose copies and ``state_dict()`` stay private: they need no flush."""
        before, self._private = self._private, True
        try:
            yield
        finally:
            self._private = before

    @property
    def is_pending(self) -> bool:
        """Whether noise is pending on any own row."""
        pairs = zip(self.settled, self.pending, strict=True)
        return any(bool((settled < pending).any()) for settled, pending in pairs)

    @torch.no_grad()
    def settle(self, shards: Sequence[Shard]) -> None:
        """Apply the noise pending on the rows that own shards are asked for, before their values are sent."""
        for shard, asked in zip(self._places.own, shards, strict=True):
            own = asked.touched().numpy() * self._places.shards + shard
            if not len(own):
                continue
            table, slots = self._places.table(own), self._places.slots(own)
            cuts = np.searchsorted(table, np.arange(len(self.tables) + 1))
            self._draw(
                shard,
                [torch.from_numpy(slots[low:high]) for low, high in pairwise(cuts)],
            )

    @torch.no_grad()
    def flush(self) -> None:
        """Apply all pending noise, in bounded memory."""
        for shard in self._places.own:
            for number, table in enumerate(self.tables):
                part = self._places.part(number, shard)
                nothing = torch.empty(0, dtype=torch.int64)
                for chunk in torch.arange(part.start, part.stop).split(max(1, _AT_ONCE // table.embedding_dim)):
                    self._draw(shard, [chunk if each == number else nothing for each in range(len(self.tables))])

    def close(self) -> None:
        """Apply all pending noise, and remove the hooks."""
        self.flush()
        for hook in self._hooks:
            hook.remove()

    def _saved(self, table: nn.Module, prefix: str, keep_vars: bool) -> None:
        if not self._private:
            self.flush()

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardLazyNoise:
        """Return self: a copied model keeps these hooks; it may be copied only when no noise is pending."""
        if not self._private and self.is_pending:
            raise UserError("The model's tables lack noise that is still pending: call flush() before you copy it.")
        return self

    def __reduce__(self) -> Any:
        """Refuse to be pickled with the model, which would release the key."""
        raise UserError("A model in training under lazy noise cannot be pickled: save model.state_dict().")

    def _draw(self, shard: int, slots: Sequence[Tensor]) -> None:
        """Draw the noise pending on some rows of a shard, given by table."""
        due, variances, rows = [], [], []
        offsets = self._places.layouts[self._places.own.index(shard)].offsets
        for number, at in enumerate(slots):
            variance = self.pending[number] - self.settled[number].index_select(0, at)
            due.append(at[variance > 0])
            rows.append(due[-1] - self._places.part(number, shard).start + offsets[number])  # within the shard
            variances.append(variance[variance > 0].repeat_interleave(self.tables[number].embedding_dim))
        deviations = torch.cat(variances).sqrt_()
        if not len(deviations):
            return
        weights = [table.weight for table in self.tables]
        values = torch.cat([weight.index_select(0, at).flatten() for weight, at in zip(weights, due, strict=True)])
        stream = self._key.derive("shard", shard).stream("lazy noise", self.draws[shard])
        self.draws[shard] += 1
        shapes = [(len(at), weight.shape[1]) for weight, at in zip(weights, due, strict=True)]
        add_gaussian(values.view(-1, 1), stream, deviations, RowPlaces(torch.cat(rows), shapes))
        parts = values.split([rows * dim for rows, dim in shapes])
        for number, (weight, at, part) in enumerate(zip(weights, due, parts, strict=True)):
            weight.index_copy_(0, at, part.view(len(at), -1) if len(at) else weight[:0])
            self.settled[number].index_fill_(0, at, self.pending[number])

    @torch.no_grad()
    def apply(
        self, gradients: Sequence[tuple[Tensor | None, Tensor]], deviation: float, learning_rates: Sequence[float]
    ) -> None:
        """See :meth:`dpfest.step.lazy.LazyNoise.apply`; rows are this rank's."""
        for number, rate in enumerate(learning_rates):  # first: an interruption must not leave a sum without noise
            self.pending[number] += (deviation * rate) ** 2
        for table, (rows, values), rate in zip(self.tables, gradients, learning_rates, strict=True):
            assert rows is not None
            table.weight.index_add_(0, rows, values, alpha=-rate)
