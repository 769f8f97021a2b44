"""The private training loop over ranks, and its state by shard.

Every rank draws the same Poisson batch from the key and reads its own parts of it; every rank keeps the same ledger.
A state has two kinds of parts: what all ranks hold alike, and a part for each shard, so that any number of ranks can
resume from it with the same bits. A repeated step therefore repeats its noise, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from dpfest.errors import UserError
from dpfest.gradients.reading import Indices, MicroBatch, Read
from dpfest.gradients.validation import is_plain_sgd
from dpfest.noise.key import NoiseKey
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.ranks.group import Group
from dpfest.ranks.layout import ShardLayout
from dpfest.ranks.rows import RankRows
from dpfest.training import binding
from dpfest.training.arguments import cipher_for
from dpfest.training.loop import PrivateTraining, _copied


class PartReader:
    """Reads examples by part, each as one micro-batch.

    Args:
        read: reads all examples that it is given as one micro-batch.
        parts: M.
    """

    def __init__(self, read: Read, parts: int) -> None:
        self.read, self.parts = read, parts

    def __call__(self, indices: Indices, seed: bytes) -> list[MicroBatch]:
        """Read the examples at ``indices``, part by part; a part without an example is left out."""
        found = []
        for part in range(self.parts):
            own = indices[indices % self.parts == part]
            if len(own):
                batch = self.read(own, seed)
                if len(batch) > 1:
                    raise UserError("Over ranks a part of a batch is one micro-batch: leave micro_batch_size unset.")
                found += batch
        return found


class RankTraining(PrivateTraining):
    """Private training on one rank, as :class:`dpfest.training.loop.PrivateTraining` is in one process.

    Every rank makes one with equal arguments, and calls the same methods in the same order.

    Args:
        model: went through :func:`dpfest.ranks.table.shard_tables`, which returned ``places``.
        loss_fn, optimizers, privacy_plan: as in one process. Tables need an optimiser that updates a row from that
            row's gradients alone: plain SGD, or one whose attribute ``by_row`` is true.
        read: reads all examples that it is given as one micro-batch.
        places: which rank owns which rows.
        group: the ranks.
        parts: M, into which a batch is cut by index modulo M, fixed for a run; at most M ranks share its examples.
        options: ``period``, ``selected``, ``key``, ``ledger`` and ``after`` as in one process. Without ``key``, rank 0
            draws one.

    Raises:
        UserError: as in one process; or the ranks do not agree on what determines a step.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        optimizers: Any,
        privacy_plan: PrivacyPlan,
        read: Read,
        *,
        places: ShardLayout,
        group: Group,
        parts: int = 4,
        key: NoiseKey | None = None,
        **options: Any,
    ) -> None:
        if privacy_plan.unit is not None:
            raise UserError(
                f"Over ranks a batch is cut by example, and the parts of a {privacy_plan.unit.name} would be clipped "
                "apart: train in one process."
            )
        self.places, self.group, self.parts = places, group, parts
        self._rows = partial(RankRows, places=places, group=group, parts=parts)
        if key is None and not privacy_plan.fixed_noise_seed and options.get("after") is None:
            key = shared_key(group, cipher_for(model))
        super().__init__(model, loss_fn, optimizers, privacy_plan, PartReader(read, parts), key=key, **options)
        self._tables = {id(table.weight): name for name, table in self.engine.recorder.tables.items()}
        self._refuse_optimizers()
        self.refuse_disagreement()

    def indices(self, step: int) -> np.ndarray:
        """Return this rank's examples of batch ``step``, sorted; see :meth:`PrivateTraining.indices`."""
        whole = super().indices(step)
        return whole[whole % self.parts % self.group.world == self.group.rank]

    def _refuse_optimizers(self) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                tables = [self._tables[id(p)] for p in group["params"] if id(p) in self._tables]
                if tables and not (is_plain_sgd(optimizer, group) or getattr(optimizer, "by_row", False)):
                    raise UserError(
                        f"{type(optimizer).__name__} as configured cannot step {tables[0]} over ranks: it keeps more "
                        "than one value a row. Use torch.optim.SGD without momentum or weight decay for the tables."
                    )

    def refuse_disagreement(self) -> None:
        """Refuse to go on unless all ranks agree on all that determines a step; called at the start and on resuming.

        Raises:
            UserError: names what differs.
        """
        dense = b"".join(p.detach().numpy().tobytes() for p in self.engine.recorder.dense_parameters.values())
        self.group.refuse_difference(
            {
                **self._bound_to(),
                "key": self._own_key.secret.hex(),
                "ledger": repr(self.ledger.events),
                "steps taken": str(self.steps_done),
                "dense weights": binding.digest(dense),
            }
        )

    def _bound_to(self) -> dict[str, str]:
        return {**super()._bound_to(), "shards and parts": f"{self.places.shards}, {self.parts}"}

    def common_state(self) -> dict[str, Any]:
        """Return what all ranks hold alike, including the secret key: tensors and plain values. Private."""
        lazy, weights = self.engine.lazy, {f"{name}.weight" for name in self.engine.recorder.tables}
        with lazy.private() if lazy else nullcontext():
            model = self.model.state_dict()
        return {
            "steps_done": self.steps_done,
            **self._own_key.state(),
            "bound_to": self._bound_to(),
            "model": {n: v.clone() for n, v in model.items() if n not in weights},
            "optimizers": [self._replicated(optimizer) for optimizer in self.optimizers],
            "pending": list(lazy.pending) if lazy else None,
        }

    def shard_states(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield the number and the tensors of each own shard: rows, the optimisers' values for them, lazy noise."""
        lazy = self.engine.lazy
        for shard in self.places.own:
            state: dict[str, Tensor] = {}
            for number, (name, table) in enumerate(self.engine.recorder.tables.items()):
                part = self.places.part(number, shard)
                state[f"{name}.weight"] = table.weight.detach()[part].clone()
                if lazy:
                    state[f"{name}.settled"] = lazy.settled[number][part].clone()
                for each, optimizer in enumerate(self.optimizers):
                    for kind, value in optimizer.state.get(table.weight, {}).items():
                        state[f"{name}.optimizer.{each}.{kind}"] = value[part].clone()
            if lazy:
                state["draws"] = torch.tensor([lazy.draws[shard]])
            yield shard, state

    def load(self, common: Mapping[str, Any], shard_state: Callable[[int], Mapping[str, Tensor]]) -> None:
        """Resume from a state that any number of ranks saved.

        Args:
            common: from :meth:`common_state`.
            shard_state: returns what :meth:`shard_states` yielded for a shard; called for own shards only.

        Raises:
            UserError: the state is bound to something else, which is named; steps were taken here already; or the ranks
                do not agree.
        """
        if self.steps_done:
            raise UserError("This training has taken steps of its own. Load the state into a new one.")
        binding.refuse_difference(common["bound_to"], self._bound_to(), only=None)
        key = NoiseKey.of_state(common, self.plan.fixed_noise_seed)
        self.model.load_state_dict(common["model"], strict=False)
        lazy, moments = self.engine.lazy, self._load_shards(shard_state)
        for each, (optimizer, saved) in enumerate(zip(self.optimizers, common["optimizers"], strict=True)):
            own = _copied(saved)
            for number, parameter in enumerate(_parameters(optimizer)):
                if id(parameter) in self._tables and (values := moments.get((self._tables[id(parameter)], each))):
                    own["state"][number] = values
            optimizer.load_state_dict(own)
        self._own_key, self.engine.key = key, self.plan.key_of(self._number, key)
        self._batches = self.plan.batches(self._number, key)
        if lazy:
            lazy.pending = [float(pending) for pending in common["pending"]]
            lazy.use(self.engine.key)  # what is pending may be drawn before the next step
        self.ledger.spend_step(self._number, common["steps_done"])
        self.steps_done = common["steps_done"]
        self._checks.resume()
        self._warnings.accept_weights()
        self.refuse_disagreement()

    @torch.no_grad()
    def _load_shards(
        self, shard_state: Callable[[int], Mapping[str, Tensor]]
    ) -> dict[tuple[str, int], dict[str, Tensor]]:
        """Load own rows and lazy noise; return the optimisers' values by (table, optimiser), by name."""
        moments: dict[tuple[str, int], dict[str, Tensor]] = {}
        lazy = self.engine.lazy
        for shard in self.places.own:
            state = shard_state(shard)
            for number, (name, table) in enumerate(self.engine.recorder.tables.items()):
                part = self.places.part(number, shard)
                _refuse_other_rows(state, shard, name, part.stop - part.start, table.embedding_dim)
                table.weight[part] = state[f"{name}.weight"]
                if lazy:
                    lazy.settled[number][part] = state[f"{name}.settled"]
                for each in range(len(self.optimizers)):
                    prefix = f"{name}.optimizer.{each}."
                    for kind in (one.removeprefix(prefix) for one in state if one.startswith(prefix)):
                        value = state[prefix + kind]
                        whole = moments.setdefault((name, each), {})
                        empty = value.new_zeros(len(table.weight), *value.shape[1:])  # a shard without steps has zeros
                        whole.setdefault(kind, empty)[part] = value
            if lazy:
                lazy.draws[shard] = int(state["draws"])
        return moments

    def _replicated(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return an optimiser's state without that of the tables."""
        state = _copied(optimizer.state_dict())
        for number, parameter in enumerate(_parameters(optimizer)):
            if id(parameter) in self._tables:
                state["state"].pop(number, None)
        return state

    def state_dict(self) -> NoReturn:
        """Refuse: no rank holds the whole state; see :meth:`common_state` and :meth:`shard_states`."""
        raise UserError("Over ranks no process holds the whole state: save common_state() and shard_states().")

    def load_state_dict(self, *state: Any, **how: Any) -> NoReturn:
        """Refuse, as :meth:`state_dict`; see :meth:`load`."""
        raise UserError("Over ranks a state is loaded by load(); branches of a state need one process.")

    def fork(self, steps: int) -> NoReturn:
        """Refuse: branches need one process."""
        raise UserError("Branches of a training need one process: fork() is not there over ranks.")


def shared_key(group: Group, cipher: str) -> NoiseKey:
    """Return a key that rank 0 draws from the operating system and sends to the others."""
    drawn = NoiseKey.fresh(cipher).state()
    return NoiseKey.of_state({**drawn, "key": group.from_first(drawn["key"])}, fixed=False)


def _refuse_other_rows(state: Mapping[str, Tensor], shard: int, name: str, rows: int, dim: int) -> None:
    """Refuse a shard's state whose tensors of a table have another shape: PyTorch would broadcast them."""
    own = {key: value for key, value in state.items() if key.startswith(f"{name}.")}
    weight = own.get(f"{name}.weight")
    if weight is None or weight.shape != (rows, dim) or any(len(value) != rows for value in own.values()):
        raise UserError(f"The state of shard {shard} does not hold {rows} rows of {dim} of the table {name}.")


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return an optimiser's parameters in the order in which its state numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
