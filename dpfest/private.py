"""Private training of any supported model: the pieces of this package in their one right order.

plan = dpfest.plan(algorithm, epsilon=1.0, examples=len(data), batch_size=256, steps=500,
                   features=[table.num_embeddings for table in tables])
training = dpfest.PrivateTraining(model, losses, optimizers, algorithm, plan)
for batch in training.batches(data):
    training.step(batch)
print(training.ledger.epsilon())
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import default_collate

from dpfest.accounting import Event
from dpfest.algorithms import Algorithm
from dpfest.batches import PoissonBatches
from dpfest.capture import Recorder
from dpfest.engine import NoisedGradient, PrivateEngine
from dpfest.errors import UserError
from dpfest.fidelity import FIDELITIES
from dpfest.lazy import is_plain_sgd, learning_rates
from dpfest.ledger import Ledger
from dpfest.noise import NoiseKey
from dpfest.privacy_plan import PrivacyPlan
from dpfest.topk import Selection
from dpfest.unproven import ShuffledBatches


class PrivateTraining:
    """A model in private training: draws its batches, pays for each step before it is taken, updates the weights.

    Formal guarantee: under fidelity ``rigorous``, the weights after any number of :meth:`step` on the batches of
    :meth:`indices`, and all weights before them (of lazy noise, those after a :meth:`flush`), are together
    ``(ledger.epsilon(), plan.delta)``-DP for one example more or less, as long as the key stays secret and every draw
    of it serves one run alone.

    Args:
        model: see :class:`dpfest.capture.Recorder` for what it may hold; checked here, once.
        losses: ``losses(batch)`` runs the model and returns per-example losses ``[b]``; no example may influence
            another's loss, nor may their number.
        optimizers: one or several of ``torch.optim``, between them over all trainable parameters.  Tables get sparse
            gradients from rules that keep them so: SGD, Adagrad and SparseAdam take those.
        algorithm, plan: the rule, and :func:`dpfest.plan` of it.
        period: of the plan's periods, which to train on.
        selected: what :func:`dpfest.topk.select_rows` gave, for the rules that want it; or its rows alone, sorted,
            where the caller vouches that the ledger holds what they cost.
        key: None for a fresh one from the operating system; ``NoiseKey.from_seed`` where the plan says so.
        ledger: None for one of its own. Of a stream, whose periods are trained one after another
            the ledger that the periods before this one were spent on.

    Raises:
        UserError: the model has a layer that cannot be clipped, an optimiser cannot take the gradients, or plan,
            algorithm, selection and key do not belong together.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: Callable[[Any], Tensor],
        optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        algorithm: Algorithm,
        plan: PrivacyPlan,
        *,
        period: int = 0,
        selected: Selection | Tensor | np.ndarray | None = None,
        key: NoiseKey | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.model, self.plan, self.algorithm = model, plan, algorithm
        self.number, self.period, step = period, plan.periods[period], plan.step(period)
        self.optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
        self._refuse_what_was_not_planned(selected, key)
        rows = selected.rows if isinstance(selected, Selection) else selected
        self.selected = None if rows is None else torch.as_tensor(rows)
        self.engine = PrivateEngine(
            model, algorithm, losses, key or NoiseKey.fresh(), selected=self.selected, **noise(step, plan.batch_size)
        )
        refuse_optimizers(self.optimizers, self.engine.recorder, algorithm)
        self.ledger, self._own_ledger = plan.ledger() if ledger is None else ledger, ledger is None
        self.steps_done = 0
        self._draw_batches()

    def _refuse_what_was_not_planned(
        self, selected: Selection | Tensor | np.ndarray | None, key: NoiseKey | None
    ) -> None:
        plan, algorithm = self.plan, self.algorithm
        if algorithm != plan.algorithm:
            raise UserError(f"This is no plan for {algorithm}: plan it anew with dpfest.plan(algorithm, ...).")
        if (selected is None) != (algorithm.selection is None):
            raise UserError(
                f"{algorithm.name} trains rows chosen beforehand: give selected=select_rows(...)."
                if selected is None
                else f"{algorithm.name} selects no rows beforehand: leave selected out."
            )
        planned_for = {dataclasses.replace(event, part=()) for event in plan.selections}
        if isinstance(selected, Selection) and set(selected.events) != planned_for:
            raise UserError("The rows were selected at another cost than was planned: select them with the plan's own.")
        if key is None and plan.fixed_noise_seed:
            raise UserError("The plan is of a fixed noise seed: give key=NoiseKey.from_seed(...).")
        if key is not None and key.fixed and not plan.fixed_noise_seed:
            raise UserError("The key follows from a seed: plan(..., fixed_noise_seed=True) says so.")

    def indices(self, step: int) -> np.ndarray:
        """The examples of batch ``step`` (from 0), sorted int64 ``[b]``; under Poisson sampling possibly none."""
        found = self._batches.indices(step)
        self._sizes[step] = len(found)
        return found

    def _draw_batches(self) -> None:
        kind = FIDELITIES[self.plan.fidelity].batches if self.algorithm.private else ShuffledBatches
        self._sizes: dict[int, int] = {}  # of the batches drawn and not yet stepped
        self._batches: PoissonBatches | ShuffledBatches = kind(
            self.period.examples, self.plan.batch_size, self.engine.key
        )

    def batches(
        self,
        dataset: Any,
        *,
        micro_batch_size: int | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> Iterator[list[Any]]:
        """The batches of the steps that the plan has left, each a list of micro-batches (of an empty one, none).

        Args:
            dataset: a map-style ``torch.utils.data.Dataset`` of ``period.examples`` examples.
            micro_batch_size: most examples that are run at once; None for all.
            collate: makes a batch of a list of examples, each tensor of it with the examples first.
        """
        if len(dataset) != self.period.examples:
            raise UserError(f"The dataset has {len(dataset)} examples; the plan is for {self.period.examples}.")
        for step in range(self.steps_done, self.period.steps):
            if self.steps_done != step:
                raise UserError("Call step(batch) with each batch, once, before the next is asked for.")
            chosen = self.indices(step).tolist()
            size = micro_batch_size or max(len(chosen), 1)
            parts = [chosen[start : start + size] for start in range(0, len(chosen), size)]
            yield [collate([dataset[index] for index in part]) for part in parts]

    def step(self, microbatches: Sequence[Any]) -> NoisedGradient:
        """Pay for one step, take its gradient, update the weights.

        Args:
            microbatches: the examples of :meth:`indices` at :attr:`steps_done`, as :meth:`batches` gives them.

        Raises:
            BudgetExceeded: the step would pass the target; nothing has happened.
            UserError: the batch is not of the size that was drawn; the step is paid, and nothing was released.
        """
        if not isinstance(microbatches, list):
            raise UserError("step() takes a list of micro-batches, as batches() gives it: [batch] for a single one.")
        self.ledger.spend_step(self.number)
        gradient = self.engine.gradient(microbatches, self.steps_done)
        if self.steps_done not in self._sizes:
            self.indices(self.steps_done)
        if gradient.examples != (drawn := self._sizes.pop(self.steps_done)):
            raise UserError(
                f"The batch has {gradient.examples} examples, and {drawn} were drawn for step {self.steps_done}: only "
                "these are accounted for. Use batches(), or the examples of indices()."
            )
        self.engine.fill(gradient)
        lazy = self.engine.lazy
        if lazy:
            lazy.owe(gradient.owed, learning_rates(lazy.tables, self.optimizers))
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps_done += 1
        if self.steps_done == self.period.steps:
            self.flush()
        return gradient

    def flush(self) -> None:
        """Add all noise that lazy noise still owes, O(rows): before the weights are evaluated, saved or released.

        Nothing happens under any other noise.  The last step of the plan does it of itself.
        """
        if self.engine.lazy:
            self.engine.lazy.flush(self.engine.key, self.steps_done)

    def state_dict(self) -> dict[str, Any]:
        """All that :meth:`load_state_dict` needs to go on as if nothing had happened, the secret key among it.

        A copy, of tensors and plain values only (``torch.load(..., weights_only=True)`` reads it).  Private: no part of
        the release.  Save it before the first step as well: steps taken anew under another key are a second release.
        """
        return {
            "steps_done": self.steps_done,
            "key": torch.tensor(list(self.engine.key.secret), dtype=torch.uint8),
            "settings": self._settings,
            "selected": None if self.selected is None else self.selected.clone(),
            "model": _copied(self.model.state_dict()),
            "optimizers": [_copied(optimizer.state_dict()) for optimizer in self.optimizers],
            "lazy": self.engine.lazy and self.engine.lazy.state_dict(),
        }

    @property
    def _settings(self) -> str:
        return repr((dataclasses.asdict(self.plan), self.number))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same model, plan and selection; a ledger that was given holds none of
        its steps yet.

        Raises:
            UserError: it was saved under others, or steps were taken under another key: their noise would be used for a
                second gradient.
        """
        if not state.keys() >= {"steps_done", "key", "settings", "selected", "model", "optimizers", "lazy"}:
            raise UserError("This is no state of PrivateTraining.state_dict().")
        key = NoiseKey(bytes(state["key"].tolist()), self.plan.fixed_noise_seed)
        rows = state["selected"]
        same = rows is None if self.selected is None else rows is not None and torch.equal(rows, self.selected)
        if state["settings"] != self._settings or not same:
            raise UserError("The state was saved under another plan or selection. Take the same ones, or start anew.")
        if self.steps_done and key.secret != self.engine.key.secret:
            raise UserError("This training has taken steps of its own. Load the state into a new one.")
        try:
            self.model.load_state_dict(state["model"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"The state is of another model or other optimisers: {error}") from error
        self.engine.key = key
        if self.engine.lazy:
            self.engine.lazy.load_state_dict(state["lazy"])
        self._draw_batches()
        if self._own_ledger:
            self.ledger = self.plan.ledger()
        self.ledger.spend_step(self.number, state["steps_done"])
        self.steps_done = state["steps_done"]


def noise(step: Event | None, batch_size: int) -> dict[str, Any]:
    """Keyword arguments of :class:`PrivateEngine`; without privacy no noise, and batches' own sizes."""
    if step is None:
        return {"gradient_noise_multiplier": 0.0, "expected_batch_size": None}
    return {
        "gradient_noise_multiplier": step.gradient_noise_multiplier,
        "map_noise_multiplier": step.map_noise_multiplier,
        "epsilon_per_row": step.epsilon_per_draw,
        "expected_batch_size": float(batch_size),
    }


def refuse_optimizers(optimizers: Sequence[torch.optim.Optimizer], recorder: Recorder, algorithm: Algorithm) -> None:
    """Refuse, before anything is spent, optimisers that cannot take a private step.

    Args:
        optimizers: between them over all trainable parameters.
        recorder: of the model.
        algorithm: the rule, which says whether the tables' gradients are sparse and their noise lazy.

    Raises:
        UserError: one needs a closure, cannot take the tables' gradients, or parameters have none.
    """
    sparse = algorithm.sparse
    names = {parameter: name for name, parameter in recorder.trainable.items()}
    stepped: dict[Tensor, str] = {}
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise UserError(f"{kind} evaluates the loss several times a step, each a release. Use another optimiser.")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                stepped[parameter] = kind
                table = id(parameter) in recorder.table_of
                ours = type(optimizer).__module__.startswith("torch.optim")
                decays = bool(group.get("weight_decay"))
                if ours and table and sparse and (kind not in ("SGD", "Adagrad", "SparseAdam") or decays):
                    raise UserError(
                        f"{kind}{' with weight_decay' * decays} cannot take the sparse gradient of "
                        f"{names.get(parameter, 'a table')}. Use SGD, Adagrad or SparseAdam, without weight_decay."
                    )
                if algorithm.lazy and table and not is_plain_sgd(optimizer, group):
                    raise UserError(
                        f"Lazy noise adds up under plain SGD alone, not under {kind} as it is set: use SGD without "
                        "momentum or weight decay for the tables, or noise=dense of the algorithm."
                    )
                if kind == "SparseAdam" and not (table and sparse):
                    raise UserError(
                        f"SparseAdam cannot take the dense gradient of {names.get(parameter, 'a parameter')}."
                    )
    if missing := [name for parameter, name in names.items() if parameter not in stepped]:
        raise UserError(f"No optimiser steps {', '.join(missing[:3])}: give each one, or freeze them.")


def _copied(state: Any) -> Any:
    return tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, state)
