"""Refusals of a training's arguments, and of states, that do not agree with its plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfest.errors import UserError
from dpfest.gradients.units import Units
from dpfest.noise.key import NoiseKey, default_cipher
from dpfest.planning.privacy_plan import PrivacyPlan
from dpfest.selection.topk import JOINT, Selection

if TYPE_CHECKING:
    from dpfest.training.loop import PrivateTraining


def key_of(key: NoiseKey | None, privacy_plan: PrivacyPlan, model: nn.Module) -> NoiseKey:
    """Return the key of a run, fresh if none is given; refuse a fixed one that the plan does not state.

    A fresh one has the cipher of the model's device.
    """
    if key is None and privacy_plan.fixed_noise_seed:
        raise UserError("The plan has a fixed noise seed: give key=NoiseKey.from_seed(...).")
    if key is not None and key.fixed and not privacy_plan.fixed_noise_seed:
        raise UserError("The key derives from a seed: plan with fixed_noise_seed=True, so that the ledger says so.")
    return key or NoiseKey.fresh(cipher_for(model))


def cipher_for(model: nn.Module) -> str:
    """Return the cipher of a training's key, unless one is named: that of the device of the model's parameters."""
    return default_cipher(next((p.device for p in model.parameters()), torch.device("cpu")))


def units_of(units: Units | None, privacy_plan: PrivacyPlan, count: int) -> Units | None:
    """Return the units of a period; refuse others than those that its plan samples, ``count`` in number."""
    if privacy_plan.unit is None and units is None:
        return None
    if privacy_plan.unit is None or units is None or units.config != privacy_plan.unit:
        raise UserError(
            f"The plan's unit is {privacy_plan.unit or 'an example'}, and units are of "
            f"{units.config if units else 'examples'}: plan(..., unit=units.config) and PrivateTraining(..., "
            "units=units) must agree."
        )
    if units.count != count:
        raise UserError(
            f"The plan samples {count} units a period, but units has {units.count}: plan with their number."
        )
    return units


def rows_of(selected: Selection | Tensor | np.ndarray | None, privacy_plan: PrivacyPlan) -> Tensor | None:
    """Return the selected rows; refuse a selection that is superfluous, missing, or not what the plan pays for."""
    algorithm = privacy_plan.algorithm
    if (selected is None) != (algorithm.selection is None):
        raise UserError(
            f"{algorithm.name} trains rows selected before training: give selected=dpfest.select(...)."
            if selected is None
            else f"{algorithm.name} selects no rows before training: leave selected out."
        )
    if isinstance(selected, Selection) and tuple(selected.events) != privacy_plan.selections:
        raise UserError("The rows were selected at another cost than the plan's: select them with the plan's settings.")
    if isinstance(selected, Selection) and selected.settings and algorithm.selection:
        made, asked = ((one.rows, one.split or JOINT) for one in (selected.settings, algorithm.selection))
        if made != asked:
            raise UserError(
                f"The rows were selected with rows={made[0]} and split={made[1]}, and the plan says rows={asked[0]} "
                f"and split={asked[1]}: select them with the plan's settings."
            )
    if isinstance(selected, Selection) and selected.events and selected.unit != privacy_plan.unit:
        raise UserError("The rows were selected under another unit of privacy than the plan's: give select(units=...).")
    if isinstance(selected, Selection) and selected.fixed and not privacy_plan.fixed_noise_seed:
        raise UserError(
            "The rows were selected under a noise_seed: train under one as well, so that the ledger says so."
        )
    rows = selected.rows if isinstance(selected, Selection) else selected
    return None if rows is None else torch.as_tensor(rows)


def refuse_to_follow(
    after: PrivateTraining, model: nn.Module, loss_fn: Any, privacy_plan: PrivacyPlan, period: int
) -> None:
    """Refuse a training that does not follow ``after``: under the same key, it could draw its noise again."""
    if after.model is not model or after.engine.recorder.loss_fn != loss_fn:
        raise UserError("after= is the training of the period before, of this very model and loss function.")
    if after.plan != privacy_plan or period <= after._number:
        raise UserError(
            f"after= is a training of period {after._number} of its plan: a later period of the same plan can "
            f"follow it, not period {period}, whose noise would be drawn a second time."
        )
    if after._is_branch:
        raise UserError(
            "The training given as after= is a branch, and later periods belong to the training that it left: "
            "followed by both, they would be taken twice and counted once."
        )
    if after._followed:
        raise UserError("The training given as after= was followed by another: one key serves a period once.")
    if after.engine.lazy and after.engine.lazy.is_pending:
        raise UserError("The training given as after= has noise pending on its tables: call its flush() first.")


def refuse_state(state: Any, steps: int | None) -> None:
    """Refuse what is no state, or that of a branch where ``steps`` is None."""
    needed = {"steps_done", "key", "bound_to", "private_model", "lazy"}
    if not isinstance(state, Mapping) or not state.keys() >= needed:
        raise UserError("This is not a state from PrivateTraining.state_dict().")
    if steps is None and "granted" in state:
        raise UserError(
            f"fork({state['granted']}) made this state, for a branch: load it with steps={state['granted']} into "
            "another training. The training itself goes on, or resumes from a state_dict() saved after the fork."
        )


def key_of_branch(state: Mapping[str, Any], key: NoiseKey, steps: int, taken: int | None, of: int) -> NoiseKey:
    """Return the key of a branch; refuse more steps than its state has left.

    Args:
        state: that the branch starts from.
        key: of the training that saved it.
        steps: of the branch.
        taken: see :meth:`dpfest.training.loop.PrivateTraining.load_state_dict`.
        of: steps of the period.
    """
    left = state.get("granted")
    if left is None and taken is None:
        raise UserError(
            "Give taken=, the steps that the training which saved this state took in all: they are spent. A "
            "training that goes on branches with fork()."
        )
    beside = "" if left else f" after {taken}"  # a fork of this very state must not share a branch's key
    left = left or of - state["reserved"] - max(state["steps_done"], taken or 0)
    if not 0 < steps <= left:
        raise UserError(f"steps={steps} of a branch must lie between 1 and the {left} that the state has left.")
    if not key.fixed:
        return NoiseKey.fresh(key.cipher)
    return key.derive(f"branch {steps} {state['reserved']}{beside}", state["steps_done"])
