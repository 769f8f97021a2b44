"""Private training loop: sampled batches, accounting before each step, update, checkpoints and branches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from dpfest.errors import UserError
from dpfest.gradients.parts import Diagnostics, NoisedGradient
from dpfest.gradients.reading import Batch, Batches, Read, Request, Requests, UnitReader, request_of
from dpfest.gradients.units import Units
from dpfest.gradients.validation import check_training
from dpfest.noise.alone import PROCESS_STATE, OneProcess
from dpfest.noise.key import NoiseKey
from dpfest.planning.ledger import BudgetExceeded, Ledger
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.selection.topk import Selection
from dpfest.step.correlated import Correlated
from dpfest.step.engine import PrivateEngine
from dpfest.step.lazy import lacks_noise
from dpfest.step.local import LocalRows
from dpfest.training import binding
from dpfest.training.arguments import key_of, key_of_branch, refuse_state, refuse_to_follow, rows_of, units_of
from dpfest.training.check_schedule import CHECK_EVERY, CheckSchedule
from dpfest.training.optimizers import tell_noise
from dpfest.training.step_warnings import StepWarnings, paid_for
from dpfest.training.trial import check_batch


class Step(NamedTuple):
    """The result of one step: the release, which the guarantee covers, and diagnostics, which are private."""

    release: NoisedGradient
    private: Diagnostics


class PrivateTraining(OneProcess):
    """Trains a model under differential privacy: draws batches, accounts for each step before it, updates the weights.

    Iterate over it for the batches of the remaining steps, and pass each to :meth:`step`.

    Formal guarantee: under fidelity ``rigorous``, the weights after every step together (under lazy noise, after every
    :meth:`flush`) are ``(plan.target_epsilon, plan.delta)``-DP under add-or-remove-one adjacency, wherever training
    stops, and ``(ledger.epsilon(), plan.delta)``-DP after a number of steps fixed in advance; provided that the key
    stays secret and serves this training alone, the examples (or units) do not mix (checked, see
    :mod:`dpfest.training.trial`) and no step is repeated with other inputs (see :meth:`load_state_dict`).

    Args:
        model: checked once, here; :class:`dpfest.gradients.capture.Recorder` says what it may contain.
        loss_fn: ``loss_fn(model, batch)`` runs the model and returns per-example losses ``[b]``.
        optimizers: one or several of ``torch.optim`` that together cover all trainable parameters. Algorithms that keep
            table gradients sparse need an optimiser that accepts sparse gradients: SGD, Adagrad, SparseAdam.
        privacy_plan: from :func:`dpfest.plan`.
        read: reads micro-batches of examples by index, such as :class:`dpfest.gradients.reading.DatasetReader`.
        period: index of this period in the plan, from 0.
        units: the units of this period's examples, for a plan with a unit of privacy.
        selected: result of :func:`dpfest.select_rows`, for algorithms with a row selection; or sorted global rows
            alone, if the caller vouches that the ledger contains their cost.
        key: key of this run alone, all of it; None for that of ``after``, or a fresh one from the operating system, of
            the cipher that is the default of the model's device (:mod:`dpfest.noise.key`).
        ledger: None for the plan's own, or that of ``after``.
        after: in a stream, the training of the period before, of the same model and loss: its key and ledger go on, and
            what it checked is not checked again.
        sum_dtype: dtype in which clipped gradients are summed; None for the model's. ``torch.float64`` bounds the
            rounding of a float32 model's sums for any data (docs/PRIVACY.md), and is slower.
        num_workers: passed to the ``DataLoader`` behind iteration.
        pin_memory: passed to it, too.

    Raises:
        UserError: the model has a layer that mixes examples, an optimiser cannot take the gradients, or plan,
            selection and key do not match.
    """

    _rows: Callable[..., Any] = LocalRows

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        privacy_plan: PrivacyPlan,
        read: Read,
        *,
        period: int = 0,
        units: Units | None = None,
        selected: Selection | Tensor | np.ndarray | None = None,
        key: NoiseKey | None = None,
        ledger: Ledger | None = None,
        after: PrivateTraining | None = None,
        sum_dtype: torch.dtype | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        if not isinstance(privacy_plan, PrivacyPlan):
            raise UserError(f"privacy_plan must be what dpfest.plan(...) returns, not a {type(privacy_plan).__name__}.")
        self.model, self.plan, self.period = model, privacy_plan, privacy_plan.periods[period]
        self.algorithm = algorithm = privacy_plan.algorithm
        self.optimizers = list(optimizers) if isinstance(optimizers, Sequence) else [optimizers]
        check_training(model, loss_fn, self.optimizers, sparse=algorithm.sparse, lazy=algorithm.lazy)
        self.selected = rows_of(selected, privacy_plan)
        self.units = units_of(units, privacy_plan, self.period.examples)
        if after is not None:
            refuse_to_follow(after, model, loss_fn, privacy_plan, period)
            key = after._own_key if key is None else key
            ledger = after.ledger if ledger is None else ledger
        self._number = period
        self._own_key: NoiseKey = key_of(key, privacy_plan, model)
        self.engine = PrivateEngine(
            model,
            algorithm,
            loss_fn,
            privacy_plan.key_of(period, self._own_key),
            cost=(cost := privacy_plan.step(period)),
            expected_batch_size=None if cost is None else float(privacy_plan.batch_size),
            selected=self.selected,
            sum_dtype=sum_dtype,
            unit=privacy_plan.unit,
            rows=self._rows,
            steps=self.period.steps,
        )
        if algorithm.private and not self.engine.noise.deviation > 0:
            raise UserError(
                f"algorithm={algorithm.name} calls itself private, but the event of its step states no noise: let its "
                "step_event return one."
            )
        tables = [table.weight for table in self.engine.recorder.tables.values()] if algorithm.bands else []
        tell_noise(self.optimizers, self.engine.noise.deviation / privacy_plan.batch_size, tables)
        self._batches = privacy_plan.batches(period, self._own_key)
        self._read = read if self.units is None else UnitReader(read, self.units)
        self._loader = {"num_workers": num_workers, "pin_memory": pin_memory}
        self.ledger: Ledger = privacy_plan.ledger(period) if ledger is None else ledger
        self.ledger.cipher = self._own_key.cipher
        if not self.ledger.is_of(privacy_plan.events, privacy_plan.target_epsilon, privacy_plan.delta):
            raise UserError("The ledger belongs to another plan: use this plan's own, or that of its earlier periods.")
        if not privacy_plan.sampler.branches and self.ledger.has_spent(privacy_plan.step(period)):
            raise UserError(
                f"The ledger holds steps of this period already, and sampling={privacy_plan.sampling} bounds how often "
                "an example takes part. A second training, under its key, would take it again: go on with the first."
            )
        self.steps_done, self._reserved = 0, 0
        self._paid_for: int | None = None
        before = None if after is None else (after._checks, after.steps_done)
        self._checks: CheckSchedule = CheckSchedule(self.period.steps, self._divides, self._draws_check, before)
        self._warnings = StepWarnings(self.engine.recorder.trainable, trains_tables=algorithm.name != "frozen")
        self._followed = self._is_branch = False
        if after is not None:
            self.engine.recorder.sites, after._followed = after.engine.recorder.sites, True

    @property
    def steps_left(self) -> int:
        """Steps that the plan still allows."""
        return self.period.steps - self._reserved - self.steps_done

    @property
    def _paid_ahead(self) -> bool:
        """Whether the next step was paid for by an attempt that failed."""
        return self._paid_for == self.steps_done

    def epsilon(self, delta: float | None = None) -> float:
        """Return epsilon of all spent so far, at ``delta`` (None for the plan's); see :meth:`Ledger.epsilon`."""
        return self.ledger.epsilon(delta) if self.algorithm.private else math.inf

    def indices(self, step: int) -> np.ndarray:
        """Return the examples of batch ``step`` (from 0), as the plan samples them: int64 ``[b]``.

        They are sorted, or in the order of their units. A batch may be empty.
        """
        drawn = self._batches.indices(step)
        if self.units is None:
            return drawn
        return self.units.examples(drawn, self.engine.key.stream("examples of units", step))

    def request(self, step: int) -> Request:
        """Return what to read for a step; steps that are to be checked are also read in parts."""
        examples = self.indices(step)
        units = None if self.units is None else self.units.of[examples]
        return request_of(self.engine.key, step, examples, check=self._examples_to_check(step), units=units)

    def _examples_to_check(self, step: int) -> int:
        if not self.algorithm.private:
            return 0
        count = self._checks.examples(step, self.steps_done)
        return self.period.examples if count is None else count

    def _divides(self, step: int) -> bool:
        examples = self.indices(step)
        return len(examples if self.units is None else np.unique(self.units.of[examples])) > 1

    def _draws_check(self, step: int) -> bool:
        return int(self.engine.key.stream("check steps", step).words(1)[0]) % CHECK_EVERY == 0

    def read(self, request: Request) -> Batch:
        """Read the batch of a request; safe to call from another thread or process."""
        return Batches(self._read)[request]

    def __len__(self) -> int:
        return self.steps_left

    def __iter__(self) -> Iterator[Batch]:
        steps = range(self.steps_done, self.steps_done + self.steps_left)
        loader: Any = DataLoader(
            Batches(self._read),  # type: ignore[arg-type]
            sampler=Requests(self.request, steps),
            batch_size=None,
            **self._loader,  # type: ignore[arg-type]
        )
        for step, batch in zip(steps, loader, strict=True):
            if self.steps_left <= 0:  # the rest went to a fork
                return
            if self.steps_done != step:
                raise UserError("Call step(batch) once for each batch, before asking for the next.")
            yield batch

    @PROCESS_STATE
    def step(self, batch: Batch) -> Step:
        """Account for one step, compute its noised gradient, update the weights.

        Args:
            batch: as yielded by iteration, or :meth:`read` of :meth:`request` at :attr:`steps_done`.

        Raises:
            BudgetExceeded: the step would exceed the target; nothing has happened.
            UserError: the batch is not that of the current step; this is another process than the training's; or
                examples mix, or the model cannot be trained soundly for another reason. In the last two cases, as
                after any other exception (of the loss function, or Ctrl-C), the step is accounted for, nothing was
                released, and it can be taken again without a second payment.
        """
        if not isinstance(batch, Batch):
            raise UserError(
                "step() takes a batch that iteration yields (for batch in training: training.step(batch)), not a "
                f"{type(batch).__name__}: the accounting covers only the examples drawn for a step."
            )
        self.refuse_another_process()
        if self.steps_left <= 0:
            raise BudgetExceeded(
                f"All {self.period.steps} steps of the plan are spent: another would be past the target."
            )
        if batch.step != self.steps_done:
            raise UserError(f"The batch belongs to step {batch.step}, but step {self.steps_done} is next.")
        examples = np.sort(np.concatenate([np.empty(0, np.int64), *(part.examples for part in batch.microbatches)]))
        if not np.array_equal(examples, np.sort(self.indices(batch.step))):
            raise UserError(f"The batch does not hold the examples drawn for step {batch.step}: use read().")
        if self._examples_to_check(batch.step) and not batch.parts:
            raise UserError(f"Step {batch.step} is due a check that its batch was not read for: use request().")
        if self._paid_for != batch.step:  # one that failed released nothing: its second attempt is the same step
            self.ledger.spend_step(self._number)
            self._paid_for = batch.step
        lazy = self.engine.lazy
        with lazy.private() if lazy else nullcontext(), paid_for(self, batch.step):
            self._warnings.before_step()
            units = None if self.units is None else self.units.of
            batch = batch.moved(self.engine.device, units)
            release, private = self.engine.gradient(batch.microbatches, batch.step, lambda: self._check(batch))
            self.steps_done += 1  # even if the update fails: this noise must not serve another gradient
            self.engine.update(release, self.optimizers)
        if lazy:
            release = replace(release, tables=[])  # their noise is pending
            if self.steps_left == 0:
                lazy.close()
        self._warnings.after_step(release, private)
        return Step(release, private)

    def _check(self, batch: Batch) -> None:
        if sum(map(bool, batch.parts)) > 2:  # the examples checked, and two parts of them
            check_batch(self.engine.recorder, self.algorithm.clipping_norm, batch, whole_tables=not self._checks.passed)
            self._checks.passed = True

    def flush(self) -> None:
        """Apply all pending lazy noise, O(rows), before the weights are evaluated, saved or released.

        Does nothing unless noise is lazy. Look-ups outside a step, ``state_dict()`` and the plan's last step call it.
        """
        if self.engine.lazy:
            self.engine.lazy.flush()
            self._warnings.accept_weights()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that :meth:`load_state_dict` needs to resume bit for bit, including the secret key.

        A copy of tensors and plain values only (``torch.load(..., weights_only=True)`` reads it). Private: not part of
        the release. Save it before the first step as well: steps repeated under another key are a second release.
        """
        self.refuse_another_process()
        lazy = self.engine.lazy
        with lazy.private() if lazy else nullcontext():
            model = _copied(self.model.state_dict())
        return {
            "steps_done": self.steps_done,
            "reserved": self._reserved,
            "is_branch": self._is_branch,
            **self._own_key.state(),
            "bound_to": self._bound_to(),
            "private_model": model,
            "optimizers": [_copied(optimizer.state_dict()) for optimizer in self.optimizers],
            "lazy": lazy and lazy.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, steps: int | None = None, taken: int | None = None) -> None:
        """Resume from a state, roll the weights back to it, or start a branch of it.

        A repeated step must be the same step: the same noise on another gradient would be a second release that nothing
        hides. So a state resumes only if everything it is bound to is unchanged (plan, selection, model, loss function,
        optimisers, reader, cipher, device, threads, versions: :mod:`dpfest.training.binding`). A rollback restores
        weights but not the step count: a training that has gone past the state keeps its count, so that what follows
        draws fresh noise and is accounted for; the plan's steps cover both. (Learning rates set by a scheduler are part
        of the optimisers' state; restore the scheduler as well.)

        A state does not know what its training did after it was saved. So resume from the last one saved, and save one
        after each :meth:`fork`; steps taken since, and forks made since, are otherwise released and not counted.

        Args:
            state: from :meth:`state_dict` or :meth:`fork`.
            steps: None to resume as above. Otherwise the training becomes a branch: it takes a fresh key and this many
                steps of the plan, and its ledger counts all others as spent. Only the plan, the selection, and the
                shapes of model and optimisers must then match. Start one branch only from one state.
            taken: for a branch of a state that :meth:`fork` did not make: how many steps its training took in all, also
                after the state was saved. It must have ended.

        Raises:
            UserError: the state is bound to something else, which is named; or steps were taken under another key.
        """
        self.refuse_another_process()
        refuse_state(state, steps)
        key = NoiseKey.of_state(state, self.plan.fixed_noise_seed)
        binding.refuse_difference(
            state["bound_to"],
            self._bound_to(),
            only=None if steps is None else binding.OF_BRANCHES,
            branches=self.plan.sampler.branches,
        )
        if self.steps_done and (steps is not None or key.secret != self._own_key.secret):
            raise UserError("This training has taken steps of its own. Load the state into a new one.")
        if state["lazy"] and (steps is not None or self.steps_done) and lacks_noise(state["lazy"]):
            raise UserError(
                "The state was saved with noise pending: going on from it would release those steps a second time. "
                "Call flush() before state_dict() if weights may be rolled back, or before fork()."
            )
        done, reserved = max(self.steps_done, state["steps_done"]), max(self._reserved, state["reserved"])
        if steps is not None:
            self._refuse_branches()
            key = key_of_branch(state, key, steps, taken, self.period.steps)
            done, reserved = self.period.steps - steps, 0
        paid = self.steps_done + self._reserved + self._paid_ahead
        # First, so that what is refused changes nothing.
        self.ledger.spend_step(self._number, max(0, done + reserved - paid))
        try:
            self.model.load_state_dict(state["private_model"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"The state belongs to another model or other optimisers: {error}") from error
        self._own_key, self.engine.key = key, self.plan.key_of(self._number, key)
        self.ledger.cipher = key.cipher
        self._batches = self.plan.batches(self._number, key)
        if self.engine.lazy:
            self.engine.lazy.load_state_dict(state["lazy"], self.engine.key)
        self.steps_done, self._reserved = done, reserved
        self._is_branch = self._is_branch or steps is not None or bool(state.get("is_branch"))
        self._paid_for = done if paid > done + reserved else None
        self._checks.resume()
        self._warnings.accept_weights()

    def fork(self, steps: int) -> dict[str, Any]:
        """Return a state for a branch beside this training, started with ``load_state_dict(state, steps=steps)``.

        The branch takes ``steps`` of the plan's steps, spent here at once: what both release stays within the plan.
        """
        if not 0 < steps <= self.steps_left:
            raise UserError(f"steps={steps} of a branch must lie between 1 and the {self.steps_left} that are left.")
        self._refuse_branches()
        self.flush()
        state = self.state_dict()
        if self._paid_ahead and steps == self.steps_left:  # of a step that failed: the branch takes it
            self.ledger.spend_step(self._number, steps - 1)
            self._paid_for = None
        else:
            self.ledger.spend_step(self._number, steps)
        self._reserved += steps
        return {**state, "granted": steps}

    def _refuse_branches(self) -> None:
        if not self.plan.sampler.branches:
            raise UserError(
                f"sampling={self.plan.sampling} bounds how often an example takes part, and a branch, under its own "
                "key, would take it again: plan with sampling=poisson."
            )

    def _bound_to(self) -> dict[str, str]:
        parts = binding.bound_to(self.plan, self.selected, self.engine, self.optimizers, self._read)
        units = {} if self.units is None else {"units": binding.digest(self.units.of.tobytes())}
        noise = self.engine.noise
        correlated = {"strategy": repr(noise.strategy)} if isinstance(noise, Correlated) else {}
        return {"period": str(self._number), **units, **correlated, **self._own_key.named, **parts}


def _copied(state: Any) -> Any:
    return tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, state)
