"""The mean of a model's weights over the last steps of a period, by which it is evaluated and released."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn


class TailAverage:
    """Replaces the trained weights by their mean after each of a period's last steps (Polyak and Juditsky 1992; over a
    suffix: Rakhlin, Shamir and Sridharan 2012).

    The guarantee covers the weights after all steps together, so that their mean is post-processing and costs no
    privacy. It takes time in all rows of the tables in each averaged step, and a copy of the trained weights, in a
    checkpoint as well.

    Args:
        model: the model in training.
        steps: the period's number of steps.
        share: of these steps, the last that are averaged, rounded up; in (0, 1].
    """

    def __init__(self, model: nn.Module, steps: int, share: float) -> None:
        self._weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        written = Fraction(str(share))  # in binary, 0.07 of 100 steps would be 8
        self._after = steps - math.ceil(steps * written)
        self._mean: dict[str, Tensor] = {}
        self._averaged = 0

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Take in the weights after a step of the period, the first of which is 1."""
        if step <= self._after:
            return
        self._averaged += 1
        if self._averaged == 1:
            self._mean = {name: weight.detach().clone() for name, weight in self._weights.items()}
        else:
            torch._foreach_lerp_(list(self._mean.values()), list(self._weights.values()), 1 / self._averaged)

    @torch.no_grad()
    def replace_weights(self) -> None:
        """Write the mean into the model, unless no step was averaged."""
        for name, value in self._mean.items():
            self._weights[name].copy_(value)
        self._mean, self._averaged = {}, 0

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs."""
        return {"averaged": self._averaged, "mean": self._mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state of a model with the same weights."""
        device = {name: weight.device for name, weight in self._weights.items()}
        self._mean = {name: value.to(device[name]) for name, value in state["mean"].items()}
        self._averaged = state["averaged"]
