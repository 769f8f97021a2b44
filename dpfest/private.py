"""Private training of any supported model: the pieces of this package in their one right order.

budget = dpfest.plan(algorithm, dpfest.PrivacyConfig(epsilon=1.0), examples=len(data), batch_size=256, steps=500,
                     features=[table.num_embeddings for table in tables])
training = dpfest.PrivateTraining(model, losses, optimizers, algorithm, budget)
for batch in training.batches(data):
    training.step(batch)
print(training.ledger.epsilon())
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import default_collate

from dpfest.batches import Batches, PoissonBatches, ShuffledBatches
from dpfest.budget import Budget
from dpfest.engine import NoisedGradient, PrivateEngine
from dpfest.errors import UserError
from dpfest.ledger import Ledger
from dpfest.noise import NoiseKey
from dpfest.rules import Algorithm


class PrivateTraining:
    """A model in private training: draws its batches, pays for each step before it is taken, updates the weights.

    Formal guarantee: under fidelity ``rigorous``, the weights after any number of :meth:`step` on the batches of
    :meth:`indices`, and all weights before them, are together ``(ledger.epsilon(), budget.delta)``-DP for one example
    more or less, as long as the key stays secret and every draw of it serves one run alone.

    Args:
        model: see :class:`dpfest.capture.Recorder` for what it may hold; checked here, once.
        losses: ``losses(batch)`` runs the model and returns per-example losses ``[b]``; no example may influence
            another's loss.
        optimizers: one or several of ``torch.optim``, between them over all trainable parameters.  Tables get sparse
            gradients from rules that keep them so: SGD, Adagrad and SparseAdam take those.
        algorithm, budget: the rule, and :func:`dpfest.budget.plan` of it.
        selected: global rows that :func:`dpfest.topk.select_rows` chose, for the rules that want them; the budget
            has paid for them.
        key: None for a fresh one from the operating system.
        ledger: None for one of its own. Of a stream, whose periods are trained one after another
            (:class:`dpfest.stream.StreamPlan`), the ledger that the periods before this one were spent on.

    Raises:
        UserError: the model has a layer that cannot be clipped, an optimiser needs a closure, or rows are missing.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: Callable[[Any], Tensor],
        optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        algorithm: Algorithm,
        budget: Budget,
        *,
        selected: Tensor | np.ndarray | None = None,
        key: NoiseKey | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        if budget.algorithm != algorithm.name:
            raise UserError(f"The budget was planned for {budget.algorithm}, not for {algorithm.name}: plan it anew.")
        if (selected is None) != (algorithm.selection is None):
            raise UserError(
                f"{algorithm.name} trains rows chosen beforehand: give selected=select_rows(...).rows."
                if selected is None
                else f"{algorithm.name} selects no rows beforehand: leave selected out."
            )
        self.model, self.budget, self.ledger = model, budget, ledger or Ledger(budget)
        self._own_ledger = ledger is None
        self.optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
        for optimizer in self.optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):
                raise UserError("LBFGS evaluates the loss several times a step, each a release. Use another optimiser.")
        key, rows = key or NoiseKey.fresh(), None if selected is None else torch.as_tensor(selected)
        self.engine = PrivateEngine(model, algorithm, losses, key, selected=rows, **budget.noise)
        self.steps_done = 0
        self._draw_batches()

    def indices(self, step: int) -> np.ndarray:
        """The examples of batch ``step`` (from 0), sorted int64 ``[b]``; under Poisson sampling possibly none."""
        return self._batches.indices(step)

    def _draw_batches(self) -> None:
        poisson = self.engine.algorithm.private and self.budget.fidelity == "rigorous"
        kind = PoissonBatches if poisson else ShuffledBatches
        self._batches: Batches = kind(self.budget.examples, self.budget.batch_size, self.engine.key)

    def batches(
        self,
        dataset: Any,
        *,
        micro_batch_size: int | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> Iterator[list[Any]]:
        """The batches of the steps that the budget has left, each a list of micro-batches for :meth:`step`.

        Args:
            dataset: a map-style ``torch.utils.data.Dataset`` of ``budget.examples`` examples.
            micro_batch_size: most examples that are run at once; None for all.
            collate: makes a batch of a list of examples, each tensor of it with the examples first.
        """
        if len(dataset) != self.budget.examples:
            raise UserError(f"The dataset has {len(dataset)} examples; the budget is for {self.budget.examples}.")
        for step in range(self.steps_done, self.budget.steps):
            if self.steps_done != step:
                raise UserError("Call step(batch) with each batch, once, before the next is asked for.")
            chosen = self.indices(step).tolist()
            size = micro_batch_size or max(len(chosen), 1)
            parts = [chosen[start : start + size] for start in range(0, len(chosen), size)]
            made = [collate([dataset[index] for index in part]) for part in parts]
            yield made or [tree_map(lambda x: x[:0] if isinstance(x, Tensor) else x, collate([dataset[0]]))]

    def step(self, microbatches: Sequence[Any]) -> NoisedGradient:
        """Pay for one step, take its gradient, update the weights.

        Args:
            microbatches: the examples of :meth:`indices` at :attr:`steps_done`, as :meth:`batches` gives them.

        Raises:
            BudgetExceeded: the step would pass the target; nothing has happened.
        """
        self.ledger.spend_step(budget=self.budget)
        gradient = self.engine.gradient(microbatches, self.steps_done)
        self.engine.fill(gradient)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps_done += 1
        return gradient

    def state_dict(self) -> dict[str, Any]:
        """All that :meth:`load_state_dict` needs to go on as if nothing had happened, the secret key among it.

        Tensors and plain values only (``torch.load(..., weights_only=True)`` reads it).  Private: no part of the
        release.  Save it before the first step as well: steps taken anew under another key are a second release.
        """
        return {
            "steps_done": self.steps_done,
            "key": torch.tensor(list(self.engine.key.secret), dtype=torch.uint8),
            "budget": repr(dataclasses.asdict(self.budget)),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same model and budget; a ledger that was given holds none of its steps yet.

        Raises:
            UserError: it was saved under another budget, whose ledger this one cannot continue.
        """
        if state["budget"] != repr(dataclasses.asdict(self.budget)):
            raise UserError("The state was saved under another budget. Plan the same one, or start anew.")
        self.engine.key = NoiseKey(bytes(state["key"].tolist()), self.engine.key.fixed)
        self._draw_batches()
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        if self._own_ledger:
            self.ledger = Ledger(self.budget)
        self.ledger.spend_step(state["steps_done"], budget=self.budget)
        self.steps_done = state["steps_done"]
