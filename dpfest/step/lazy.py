"""Lazy noise: DP-SGD's noise on embedding rows, drawn when a row is next read.

It has the distribution of dense noise at the cost of sparse noise. Under plain SGD a row that no batch reads between
steps s and t accumulates the noise ``sum_u eta_u n_u`` of those steps, ``n_u ~ N(0, d_u^2)``: one Gaussian of variance
``sum_u (eta_u d_u)^2``. Nothing depends on it before the row is read, so it is drawn then, at once. Each row keeps one
float64, the accumulated variance up to which its noise was applied.

Formal guarantee: after :meth:`LazyNoise.flush`, weights and everything computed from them have the law that dense noise
gives them; so has every look-up, in a step or outside one, and every ``state_dict()``, which flush first. *Between*
flushes the tables' memory holds gradients whose noise is pending: private state. Code that reads it other than by a
look-up or ``state_dict()`` (``weight.detach()``, an exponential moving average over ``parameters()``) must first call
:meth:`dpfest.training.loop.PrivateTraining.flush`; such reads in the forward pass are refused where they are seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from dpfest.errors import UserError
from dpfest.gradients.parts import DueAtLookUps
from dpfest.gradients.tables import Table, ascending
from dpfest.noise.gaussian import add_gaussian
from dpfest.noise.key import NoiseKey
from dpfest.noise.places import RowPlaces

_AT_ONCE = 1 << 22  # variates of a flush held in memory at a time
_VIEWS = ("detach", "alias")
_LOOK_UPS = ("embedding", "_embedding_bag", "_embedding_bag_forward_only")


class LazyNoise:
    """Tracks and applies the pending noise of each row of each table.

    Args:
        tables: the model's tables by name, in the order of their layout.
        holders: every layer that looks up in one of them.
    """

    def __init__(self, tables: Mapping[str, Table], holders: Iterable[nn.Module]) -> None:
        self.names, self.tables = list(tables), list(tables.values())
        self._first = [0, *accumulate(len(table.weight) for table in self.tables)]  # row of each, among those of all
        self.pending = [0.0] * len(tables)
        self.settled = [torch.zeros(len(t.weight), dtype=torch.float64, device=t.weight.device) for t in self.tables]
        for one, settled in zip(self.tables, self.settled, strict=True):
            if one.padding_idx is not None:  # never updated, so never noised
                settled[one.padding_idx] = math.inf
        self.settling = self.looking_up = False
        self._key, self._draws, self._private = NoiseKey.fresh(), 0, False
        self._hooks: list[RemovableHandle] = []
        # Compiled code must run these as they are; what was compiled before has no hooks yet.
        torch.compiler.reset()
        self.read, self.flush = torch.compiler.disable(self._read), torch.compiler.disable(self._flush)
        for table in holders:
            self._hooks.append(table.register_forward_pre_hook(self._looked_up))
            self._hooks.append(table.register_state_dict_pre_hook(self._saved))

    def use(self, key: NoiseKey) -> None:
        """Draw from this key from now on: no two draws share a stream, and the same reads draw the same noise."""
        self._key = key

    def close(self) -> None:
        """Apply all pending noise, and remove the hooks."""
        self.flush()
        for hook in self._hooks:
            hook.remove()

    def settle(self, shards: Sequence[Any]) -> None:
        """Do nothing before a step: its look-ups draw what is due (:meth:`read`), in their order."""

    @contextmanager
    def private(self) -> Iterator[None]:
        """A context whose look-ups, copies and ``state_dict()`` stay private: they need no flush."""
        self._private = True
        try:
            yield
        finally:
            self._private = False

    def _read(self, table: int, ids: Tensor) -> None:
        """Apply pending noise to the rows ``ids`` (any shape, int) of a table, before a step looks them up."""
        if self.pending[table] > 0:
            self._settle(table, torch.unique_consecutive(ascending(ids.reshape(-1))))

    @torch.no_grad()
    def apply(
        self, gradients: Sequence[tuple[Tensor | None, Tensor]], deviation: float, learning_rates: Sequence[float]
    ) -> None:
        """Take the SGD step ``w -= rate * gradient`` of every table, and record the noise pending on its rows.

        Args:
            gradients: for each table, local rows ``[s]`` and values ``[s, dim]``, without noise.
            deviation: standard deviation of the noise due on every row.
            learning_rates: one for each table.
        """
        for number, rate in enumerate(learning_rates):  # first: an interruption must not leave a sum without noise
            self.pending[number] += (deviation * rate) ** 2
        for table, (rows, values), rate in zip(self.tables, gradients, learning_rates, strict=True):
            assert rows is not None  # those that the batch touched
            table.weight.index_add_(0, rows, values, alpha=-rate)

    def _flush(self) -> None:
        """Apply all pending noise, in bounded memory; call before the weights are used for anything but a step."""
        for number, table in enumerate(self.tables):
            if self.pending[number] > 0:
                size = max(1, _AT_ONCE // table.embedding_dim)
                for chunk in torch.arange(len(table.weight), device=table.weight.device).split(size):
                    self._settle(number, chunk)

    @torch.no_grad()
    def _settle(self, table: int, rows: Tensor) -> None:
        variance = self.pending[table] - self.settled[table].index_select(0, rows)
        due = variance > 0
        if not bool(due.all()):
            rows, variance = rows[due], variance[due]
        if not len(rows):
            return
        self.settling = True
        try:
            weight = self.tables[table].weight
            values = weight.index_select(0, rows)
            places = RowPlaces(rows + self._first[table], [(len(rows), values.shape[1])])
            add_gaussian(values, self._key.stream("lazy noise", self._draws), variance.sqrt_(), places)
            self._draws += 1
            weight.index_copy_(0, rows, values)  # first: a row that an interruption leaves unsettled is noised again
            self.settled[table].index_fill_(0, rows, self.pending[table])
        finally:
            self.settling = False

    def _looked_up(self, table: nn.Module, args: tuple[Any, ...]) -> None:
        if not self._private:
            self.flush()

    def _saved(self, table: nn.Module, prefix: str, keep_vars: bool) -> None:
        if not self._private:
            self.flush()

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyNoise:
        """Return self: a copied model keeps these hooks; it may be copied only when no noise is pending."""
        if not self._private and self.is_pending:
            raise UserError("The model's tables lack noise that is still pending: call flush() before you copy it.")
        return self

    def __reduce__(self) -> Any:
        """Refuse to be pickled with the model, which would release the key."""
        raise UserError("A model in training under lazy noise cannot be pickled: save model.state_dict().")

    @property
    def is_pending(self) -> bool:
        """Whether noise is pending on any row."""
        return lacks_noise({"settled": self.settled, "pending": self.pending})

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs; private."""
        settled = [one.clone() for one in self.settled]
        return {"pending": list(self.pending), "settled": settled, "draws": self._draws}

    def load_state_dict(self, state: Mapping[str, Any], key: NoiseKey) -> None:
        """Resume from a state of the same tables; draws made since are not repeated."""
        self.pending = [float(pending) for pending in state["pending"]]
        for own, saved in zip(self.settled, state["settled"], strict=True):
            own.copy_(saved)
        self._key, self._draws = key, max(self._draws, state["draws"])


def lacks_noise(state: Mapping[str, Any]) -> bool:
    """Return whether noise is pending in a state of :meth:`LazyNoise.state_dict`."""
    pairs = zip(state["settled"], state["pending"], strict=True)
    return any(bool((settled < pending).any()) for settled, pending in pairs)


class ReadsOfTables(TorchDispatchMode):
    """A context that refuses operations on a table's memory other than look-ups: they would read rows without noise.

    Args:
        lazy: the tables' pending noise.
    """

    def __init__(self, lazy: DueAtLookUps) -> None:
        super().__init__()
        self._lazy = lazy
        self._names = {t.weight.untyped_storage()._cdata: n for n, t in zip(lazy.names, lazy.tables, strict=True)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation unless it reads a table."""
        name = func._schema.name.removeprefix("aten::")
        recorded = self._lazy.looking_up and name in _LOOK_UPS
        if not (self._lazy.settling or recorded or name in _VIEWS):
            for leaf in tree_leaves((args, kwargs or {})):
                if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                    table = self._names.get(leaf.untyped_storage()._cdata)
                    if table is not None:
                        raise UserError(
                            f"The forward pass reads the table {table} outside of a look-up ({func}), where noise may "
                            "be pending. Look the rows up, or use noise='dense'."
                        )
        return func(*args, **(kwargs or {}))


def learning_rates(tables: Sequence[Table], optimizers: Sequence[torch.optim.Optimizer]) -> list[float]:
    """Return each table's current learning rate."""
    rates = {id(p): float(group["lr"]) for o in optimizers for group in o.param_groups for p in group["params"]}
    return [rates[id(table.weight)] for table in tables]
